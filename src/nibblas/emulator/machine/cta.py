"""CTAs and clusters: shared memory, barriers, warps, special registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import DataRace, OutOfBounds
from nibblas.emulator.machine.barrier import NUM_BARRIERS, NamedBarrier
from nibblas.emulator.machine.claims import check_unfinished
from nibblas.emulator.machine.cluster_barrier import ClusterBarrier
from nibblas.emulator.machine.memory import (
    GENERIC_DIRTY,
    INITIALISED,
    Array,
    Memory,
    shared_base,
)
from nibblas.emulator.machine.registers import RegisterPool
from nibblas.emulator.machine.remote_arrivals import RemoteArrivals
from nibblas.emulator.machine.tensor_allocation import Allocator
from nibblas.emulator.machine.tensor_memory import TensorMemory
from nibblas.emulator.machine.tensor_pipe import TensorPipe
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.machine.warpgroup import WARPS, Warpgroup

if TYPE_CHECKING:
    from nibblas.emulator.machine.machine import Machine

Dim3 = tuple[int, int, int]


def extent(dims: Dim3) -> int:
    return dims[0] * dims[1] * dims[2]


def position(index: int, dims: Dim3) -> Dim3:
    """x runs fastest."""
    return index % dims[0], index // dims[0] % dims[1], index // (dims[0] * dims[1])


class Cluster:
    """CTAs that see each other's shared memory; a launch without clusters has clusters of one.

    Attributes:
        index: position among the grid's clusters. ctas: by rank. barrier: barrier.cluster's.
        arrivals: at barriers of other CTAs.
    """

    def __init__(self, machine: Machine, index: Dim3) -> None:
        self.machine, self.index = machine, index
        shape = machine.cluster
        self.ctas = [Cta(self, rank, position(rank, shape), index) for rank in range(extent(shape))]
        self.memories = [cta.shared for cta in self.ctas]
        self.barrier = ClusterBarrier(self)
        self.arrivals = RemoteArrivals(len(self.ctas))
        self._pipes: dict[int, TensorPipe] = {}
        self._allocators: dict[tuple[int, int], Allocator] = {}

    def tensor_pipe(self, pair: int) -> TensorPipe:
        """The tensor core's queue of a pair of CTAs."""
        if pair not in self._pipes:
            self._pipes[pair] = TensorPipe(self.machine)
        return self._pipes[pair]

    def tensor_allocator(self, ctas: list[Cta]) -> Allocator:
        """Who hands out tensor memory of one CTA, or of a pair."""
        key = ctas[0].rank, len(ctas)
        if key not in self._allocators:
            machine = self.machine
            self._allocators[key] = Allocator(
                ctas, seed=machine.seed, hardware=machine.rules == "hardware"
            )
        return self._allocators[key]

    def shared_of(self, rank: int) -> Memory:
        """Shared memory of a CTA of the cluster; OutOfBounds if that CTA has exited."""
        cta = self.ctas[rank]
        if cta.finished:
            raise OutOfBounds(
                f"shared memory of CTA {cta.index}, which has exited: a CTA must stay until its "
                "cluster needs it no longer (barrier.cluster before the exit)"
            )
        return cta.shared

    def shared_if_alive(self, rank: int) -> Memory | None:
        if rank >= len(self.ctas) or self.ctas[rank].finished:
            return None
        return self.ctas[rank].shared

    @property
    def finished(self) -> bool:
        return all(cta.finished for cta in self.ctas)


class Cta:
    """One CTA.

    Attributes:
        index: blockIdx. rank: in its cluster. shared: its shared memory.
        barriers: the named ones. register_pool: what setmaxnreg moves.
        overlaps: the grid before this one may still run; no thread has waited for it.
        launch_exhausted: it has seen that no cluster was left to cancel.
    """

    def __init__(self, cluster: Cluster, rank: int, within: Dim3, cluster_index: Dim3) -> None:
        machine = cluster.machine
        self.cluster, self.machine, self.rank = cluster, machine, rank
        self.within = within
        x, y, z = (
            c * n + w for c, n, w in zip(cluster_index, machine.cluster, within, strict=True)
        )
        self.index: Dim3 = (x, y, z)
        self.shared = Memory(
            f"shared memory of CTA {self.index}",
            shared_base(rank),
            machine.shared_begin + machine.shared_bytes,
            written=INITIALISED | (GENERIC_DIRTY if machine.program.async_proxy else 0),
            initialised=machine.shared_is_nan,
        )
        if machine.shared_is_nan:
            self.shared.data.fill(0xFF)
        self.barriers = [NamedBarrier(number) for number in range(NUM_BARRIERS)]
        threads = extent(machine.block)
        self.num_threads = threads
        self.num_warps = -(-threads // 32)
        common = self._registers()
        self.warps = [
            Warp(self, i, self._warp_registers(common, i), min(32, threads - 32 * i))
            for i in range(self.num_warps)
        ]
        self.register_pool = RegisterPool(self)
        self.overlaps = machine.programmatic
        self.launch_exhausted = False
        self._warpgroups: dict[int, Warpgroup] = {}
        self._tensor_memory: TensorMemory | None = None
        self._left = self.num_warps

    @property
    def finished(self) -> bool:
        return self._left == 0

    @property
    def pair(self) -> list[Cta]:
        """The CTAs of its pair, the even one first; only itself where it has no peer."""
        even = self.rank & ~1
        return self.cluster.ctas[even : even + 2]

    @property
    def tensor_memory(self) -> TensorMemory:
        if self._tensor_memory is None:
            self._tensor_memory = TensorMemory(
                f"tensor memory of CTA {self.index}", is_nan=self.machine.shared_is_nan
            )
        return self._tensor_memory

    @property
    def tensor_pipe(self) -> TensorPipe:
        return self.cluster.tensor_pipe(self.rank >> 1)

    def check_grid_dependency(self, memory: Memory, lane: int) -> None:
        """Raises if global memory is written while the grid before this one may still run."""
        if self.overlaps and memory not in self.cluster.memories:
            raise DataRace(
                f"a write of {memory.name} before griddepcontrol.wait: the grid before this one "
                "may still read or write it",
                lanes=1 << lane,
            )

    def warpgroup_of(self, warp: Warp) -> Warpgroup:
        """The four warps that one belongs to; IllegalOperation if there are fewer."""
        number = warp.index // WARPS
        if number not in self._warpgroups:
            self._warpgroups[number] = Warpgroup(self, number)
        return self._warpgroups[number]

    def warp_finished(self, warp: Warp) -> None:
        self._left -= 1
        left = sum(32 for other in self.warps if not other.finished)
        for barrier in self.barriers:
            barrier.threads_exited(left)
        if self.finished:
            check_unfinished(self.shared, stores_may_read=self.machine.rules == "hardware")
            self.cluster.arrivals.check_none(self.rank, self.shared.name)
            for mbarrier in self.shared.barriers.values():
                mbarrier.gone = True
            if self._tensor_memory is not None:
                self._tensor_memory.check_end()
            self.machine.cta_finished(self)

    def _registers(self) -> list[Array]:
        """Slots at a warp's start, with everything that all warps of the CTA share."""
        machine, program = self.machine, self.machine.program
        registers = list(program.registers)
        cluster_count = tuple(g // c for g, c in zip(machine.grid, machine.cluster, strict=True))
        by_name: dict[str, int] = {}
        for name, values in (
            ("ntid", machine.block),
            ("ctaid", self.index),
            ("nctaid", machine.grid),
            ("clusterid", self.cluster.index),
            ("nclusterid", cluster_count),
            ("cluster_ctaid", self.within),
            ("cluster_nctaid", machine.cluster),
        ):
            by_name.update({f"%{name}.{axis}": v for axis, v in zip("xyz", values, strict=True)})
        number = self.index[0] + machine.grid[0] * (self.index[1] + machine.grid[1] * self.index[2])
        by_name |= {
            "%nwarpid": 64,
            "%smid": number % machine.num_sms,
            "%nsmid": machine.num_sms,
            "%gridid": 1,
            "%cluster_ctarank": self.rank,
            "%cluster_nctarank": extent(machine.cluster),
            "%dynamic_smem_size": machine.dynamic_bytes,
            "%total_smem_size": machine.shared_begin + machine.shared_bytes,
            "%aggr_smem_size": machine.shared_begin + machine.shared_bytes,
            "%is_explicit_cluster": int(extent(machine.cluster) > 1),
        }
        for name, slot in program.specials.items():
            if name in by_name:
                registers[slot] = np.full(32, by_name[name], registers[slot].dtype)
        base = self.shared.base + machine.shared_begin
        for slot, offset, num_bytes in program.shared:
            registers[slot] = np.full(32, base + offset, f"u{num_bytes}")
        return registers

    def _warp_registers(self, common: list[Array], index: int) -> list[Array]:
        registers, specials = list(common), self.machine.program.specials
        lanes = np.arange(32)
        threads = lanes + 32 * index
        bx, by, _ = self.machine.block
        one = np.uint64(1) << lanes.astype(np.uint64)
        values = {
            "%tid.x": threads % bx,
            "%tid.y": threads // bx % by,
            "%tid.z": threads // (bx * by),
            "%laneid": lanes,
            "%warpid": np.full(32, index),
            "%lanemask_eq": one,
            "%lanemask_lt": one - 1,
            "%lanemask_le": 2 * one - 1,
            "%lanemask_gt": ~(2 * one - 1) & np.uint64(0xFFFF_FFFF),
            "%lanemask_ge": ~(one - 1) & np.uint64(0xFFFF_FFFF),
        }
        for name, slot in specials.items():
            if name in values:
                registers[slot] = values[name].astype(registers[slot].dtype)
        return registers
