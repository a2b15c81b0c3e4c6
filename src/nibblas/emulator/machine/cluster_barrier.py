"""The barrier of a cluster. PTX ISA, "barrier.cluster"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import BarrierError
from nibblas.emulator.machine.clock import NOTHING
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.machine.cta import Cluster
    from nibblas.emulator.machine.memory import Array
    from nibblas.emulator.machine.warp import Warp


class ClusterBarrier:
    """Counts all threads of a cluster that have not exited.

    Attributes:
        phase: completed phases. queue: who waits. published: what is
        ordered before whoever has waited for the last of them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.phase = 0
        self._gathered = self.published = NOTHING
        self.queue = WaitQueue()
        self._arrived: dict[Warp, Array] = {}
        self._owed: dict[Warp, Array] = {}

    def arrive(self, warp: Warp, mask: Array) -> None:
        """The lanes arrive; each must wait before it arrives again."""
        owed = self._owed.get(warp, _NONE)
        if (owed & mask).any():
            raise BarrierError("barrier.cluster.arrive again, with no barrier.cluster.wait between")
        self._owed[warp] = owed | mask
        self._arrived[warp] = self._arrived.get(warp, _NONE) | mask
        self._gathered = self._gathered | warp.publish()
        self.check()

    def begin_wait(self, warp: Warp, mask: Array) -> int:
        """The phase that must be complete for the lanes to go on."""
        owed = self._owed.get(warp, _NONE)
        if (mask & ~owed).any():
            raise BarrierError("barrier.cluster.wait, with no barrier.cluster.arrive before it")
        still = (self._arrived.get(warp, _NONE) & mask).any()
        self._owed[warp] = owed & ~mask
        return self.phase + 1 if still else self.phase

    def orders(self, warp: Warp) -> int:
        """The phase whose completion comes after what the warp does now."""
        return self.phase + (warp in self._arrived)

    def check(self) -> None:
        """Completes the phase if all threads that are left have arrived."""
        if self._arrived and self._missing() == 0:
            self._arrived = {}
            self.phase += 1
            self.published = self._gathered
            self._cluster.arrivals.barrier_completed(self.phase)
            self.queue.notify()

    def _missing(self) -> int:
        return sum(
            int((warp.alive & ~self._arrived.get(warp, _NONE)).sum())
            for cta in self._cluster.ctas
            for warp in cta.warps
        )

    def __str__(self) -> str:
        return f"barrier.cluster: {self._missing()} threads of the cluster have not arrived"


_NONE = np.zeros(32, bool)
