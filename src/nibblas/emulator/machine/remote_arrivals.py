"""Arrivals at an mbarrier from another CTA of the cluster, until the program has waited for them.

A CTA must not exit while its cluster may still signal its barriers (PTX ISA, "Cluster dimension":
shared memory of a CTA that has exited must not be accessed). An arrival that happens to come before
the exit is as wrong as one that comes after: so each is kept until something orders the two,

    a wait for the barrier's phase that it counts in;
    a wait for a later arrival of the same source CTA (the waits of a pipeline's last stage);
    barrier.cluster after it, for arrivals that threads execute themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nibblas.emulator.errors import UnfinishedWork
from nibblas.emulator.machine.memory import RANK_SHIFT

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.memory import Memory
    from nibblas.emulator.machine.warp import Warp

_MAX_SHOWN = 4


class RemoteArrival:
    """One arrival; ``MBarrier.attach`` takes it, as it takes claims.

    Attributes:
        source: rank of the CTA that arrives. what, site: by which instruction.
        landed: it has come. phase: of the cluster's barrier, that orders it when complete; None:
            none does.
    """

    __slots__ = ("_kept", "landed", "phase", "site", "source", "what")

    def __init__(
        self, kept: list[RemoteArrival], source: int, what: str, site: Site, phase: int | None
    ) -> None:
        self._kept = kept
        self.source, self.what, self.site, self.phase = source, what, site, phase
        self.landed = phase is not None
        kept.append(self)

    def land(self) -> None:
        """It comes now."""
        self.landed = True

    def release(self) -> None:
        """The program has waited for it, and so for what came earlier from the same CTA."""
        if self in self._kept:
            place = self._kept.index(self)
            self._kept[: place + 1] = [
                other
                for other in self._kept[:place]
                if other.source != self.source or not other.landed
            ]


class RemoteArrivals:
    """Those that nothing has waited for, of a cluster's CTAs."""

    def __init__(self, num_ctas: int) -> None:
        self._by_rank: list[list[RemoteArrival]] = [[] for _ in range(num_ctas)]

    def executed(self, memory: Memory, warp: Warp, what: str, site: Site) -> RemoteArrival:
        """A thread arrives now at a barrier in another CTA's shared memory."""
        phase = warp.cta.cluster.barrier.orders(warp)
        return RemoteArrival(self._of(memory), warp.cta.rank, what, site, phase)

    def issued(self, memory: Memory, warp: Warp, what: str, site: Site) -> RemoteArrival:
        """An asynchronous operation will arrive there; call ``land`` when it does."""
        return RemoteArrival(self._of(memory), warp.cta.rank, what, site, None)

    def _of(self, memory: Memory) -> list[RemoteArrival]:
        return self._by_rank[memory.base >> RANK_SHIFT]

    def barrier_completed(self, phases: int) -> None:
        """The cluster's barrier has completed so many phases."""
        for kept in self._by_rank:
            if kept:
                kept[:] = [a for a in kept if a.phase is None or a.phase >= phases]

    def check_none(self, rank: int, name: str) -> None:
        """Raises UnfinishedWork if a CTA that exits is still signalled, or may be."""
        kept = self._by_rank[rank]
        if not kept:
            return
        lines = [f"  {arrival.what}, issued by {arrival.site}" for arrival in kept[:_MAX_SHOWN]]
        if len(kept) > _MAX_SHOWN:
            lines.append(f"  and {len(kept) - _MAX_SHOWN} more")
        raise UnfinishedWork(
            f"a CTA ended and nothing has waited for arrivals from other CTAs at mbarriers in "
            f"{name}: want a wait for each barrier's last phase, or barrier.cluster\n"
            + "\n".join(lines),
            site=kept[0].site,
        )
