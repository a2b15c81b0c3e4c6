"""One launch: a grid of CTAs of a decoded kernel, over a device's memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.machine.cta import Cluster, Cta, Dim3, extent, position
from nibblas.emulator.machine.scheduler import Scheduler
from nibblas.emulator.report import Report

if TYPE_CHECKING:
    from nibblas.emulator.machine.memory import AddressMap
    from nibblas.emulator.machine.tensor_order import Rules
    from nibblas.emulator.order import Order
    from nibblas.emulator.program import Program


class Machine:
    """The state that all CTAs of a launch share.

    Attributes:
        program: the kernel. addresses: the device's memory.
        grid, block, cluster: in CTAs, threads and CTAs.
        shared_begin: offset of the first variable in a CTA's shared memory.
        shared_is_nan: it begins as bytes 0xFF that may be read, else as bytes that may not; so
            does tensor memory.
        rules: what orders operations on tensor memory; see tensor_order.py. seed: for choices.
        cta_group: that of the kernel's tcgen05 instructions; 0 before the first.
        shared_bytes: of variables, static and dynamic.
        programmatic: the grid may overlap with the one before it.
        changed_maps: addresses of tensor maps that wait for a fence.
        block_counts: executions by block. bytes: moved, by path. counts: of other events.
    """

    def __init__(
        self,
        program: Program,
        addresses: AddressMap,
        order: Order,
        *,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3,
        dynamic_bytes: int,
        shared_begin: int,
        num_sms: int,
        resident_ctas: int,
        max_instructions: int,
        programmatic: bool = False,
        shared_is_nan: bool = False,
        rules: Rules = "ptx",
        seed: int = 0,
    ) -> None:
        self.program, self.addresses = program, addresses
        self.grid, self.block, self.cluster = grid, block, cluster
        self.dynamic_bytes, self.shared_begin, self.num_sms = dynamic_bytes, shared_begin, num_sms
        self.shared_is_nan = shared_is_nan
        self.rules, self.seed, self.cta_group = rules, seed, 0
        self.shared_bytes = program.shared_bytes
        if dynamic_bytes:
            align = program.dynamic_align
            self.shared_bytes = -(-self.shared_bytes // align) * align + dynamic_bytes
        self.changed_maps: set[int] = set()
        self.programmatic = programmatic
        self.block_counts = [0] * len(program.blocks)
        self.bytes: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.scheduler = Scheduler(order, max_instructions)
        self._resident_ctas = resident_ctas
        self._running = 0
        self._peak_running = 0
        self._waiting_clusters = self._clusters()

    def run(self) -> Report:
        """Runs the grid to its end.

        Raises:
            EmulationError: see errors.py.
        """
        begin = time.perf_counter()
        if self.programmatic:
            self.addresses.guard_writes()
        try:
            with np.errstate(all="ignore"):  # flags are no part of the results
                self._fill()
                self.scheduler.run()
                self.scheduler.drain()
        finally:
            self.addresses.end_grid()
        return self._report(time.perf_counter() - begin)

    def cta_finished(self, cta: Cta) -> None:
        self.scheduler.finish(cta)
        if cta.cluster.finished:
            self._running -= extent(self.cluster)
            self._fill()

    def cancel_cluster(self) -> Dim3 | None:
        """Takes the next cluster that has not begun from the grid: its first CTA; None: none."""
        index = next(self._waiting_clusters, None)
        if index is None:
            return None
        self.counts["cancelled clusters"] += 1
        x, y, z = (i * c for i, c in zip(index, self.cluster, strict=True))
        return x, y, z

    def _clusters(self) -> Iterator[Dim3]:
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        for index in range(x * y * z):
            yield position(index, (x, y, z))

    def _fill(self) -> None:
        """Starts clusters in order of their number, as many as are resident at once."""
        size = extent(self.cluster)
        while self._running == 0 or self._running + size <= self._resident_ctas:
            index = next(self._waiting_clusters, None)
            if index is None:
                return
            self._running += size
            self._peak_running = max(self._peak_running, self._running)
            for cta in Cluster(self, index).ctas:
                self.scheduler.start(cta)

    def _report(self, seconds: float) -> Report:
        families: Counter[str] = Counter()
        for block, count in zip(self.program.blocks, self.block_counts, strict=True):
            for family, number in block.families.items():
                families[family] += number * count
        unit = self.scheduler.asynchronous
        return Report(
            kernel=self.program.name,
            instructions=dict(sorted(families.items())),
            bytes_by_path=dict(sorted(self.bytes.items())),
            events=dict(sorted(self.counts.items())),
            async_operations=unit.issued,
            peak_async_operations=unit.peak,
            shared_bytes_per_cta=self.shared_bytes,
            peak_resident_ctas=self._peak_running,
            peak_global_bytes=self.addresses.peak_bytes,
            seconds=seconds,
        )
