"""Operations on tensor memory in flight.

What other modules call:

    pipe = cta.tensor_pipe                         of the pair that a CTA belongs to
    pipe.issue(warp, lane, site, Work(...))        mma, cp, shift: into flight
    pipe.commit(warp, lane, site, barriers, group) tcgen05.commit
    pipe.touch(memory, where, access)              ld, st: checks and claims, at once

A Work names what the operation touches. ``issue`` checks it against everything that came before
(tensor_order.py), claims it, and makes an AsyncOp of its phases that waits for those operations
whose order is promised. The claims end when some thread has waited for the mbarrier phase that a
later commit of the same thread arrived on.

ld and st take effect when they are issued and claim their cells until tcgen05.wait: whatever could
tell the difference is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nibblas.emulator.errors import DataRace, IllegalOperation, UninitialisedRead
from nibblas.emulator.machine.asynchronous import AsyncOp, Phase
from nibblas.emulator.machine.claims import Claim, claim_read
from nibblas.emulator.machine.clock import tick
from nibblas.emulator.machine.mbarrier import MBARRIER_BYTES, find_barrier
from nibblas.emulator.machine.memory import (
    ASYNC_READING,
    ASYNC_WRITING,
    INITIALISED,
    Memory,
    Where,
)
from nibblas.emulator.machine.remote_arrivals import RemoteArrival
from nibblas.emulator.machine.tensor_memory import Cells, TensorMemory, overlap, rectangle
from nibblas.emulator.machine.tensor_order import (
    Access,
    Issued,
    Kind,
    TensorClaim,
    last_touches,
    pipelined,
    why_late,
    why_unordered,
)

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.machine.machine import Machine
    from nibblas.emulator.machine.warp import Warp

Region = tuple[TensorMemory, Cells]


@dataclass(frozen=True)
class Work:
    """One mma, cp or shift.

    Attributes:
        kind, name: "mma", "tcgen05.mma". cta_group: 1 or 2.
        phases: what it does, in order; between two of them anything else may happen.
        shared: (memory, bytes) that it reads through the async proxy; of both CTAs of a pair.
        reads, writes, updates: cells that it reads, that it writes, and that it reads and then
            writes (an accumulator that is added to). Each cell is in one of the lists only.
        pipeline: of an mma, anything hashable that says accumulator and shape: two mma with equal
            ones run in order.
    """

    kind: Kind
    name: str
    cta_group: int
    phases: Sequence[Phase]
    shared: Sequence[tuple[Memory, Where]] = ()
    reads: Sequence[Region] = ()
    writes: Sequence[Region] = ()
    updates: Sequence[Region] = ()
    pipeline: Any = field(default=None)


class TensorPipe:
    """The tensor core's queue of a CTA pair, or of a CTA without a peer."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._hardware = machine.rules == "hardware"
        self._pending: list[Issued] = []
        self._last: dict[int, AsyncOp] = {}

    def issue(self, warp: Warp, lane: int, site: Site, work: Work) -> AsyncOp:
        """Puts an operation of one thread in flight.

        Raises:
            DataRace, UninitialisedRead, OutOfBounds: it may not touch what it touches.
            IllegalOperation: the kernel uses both cta_groups, or the peer is not there.
        """
        ctas = participants(warp.cta, work.cta_group, work.name)
        access = Access(work.kind, work.name, site, warp, 1 << lane, work.pipeline)
        claims: list[Claim] = [claim_read(m, where, work.name, site) for m, where in work.shared]
        for memory, where in work.reads:
            claims.append(self._claim(memory, where, access, reads=True, writes=False))
        for memory, where in work.updates:
            claims.append(self._claim(memory, where, access, reads=True, writes=True))
        for memory, where in work.writes:
            claims.append(self._claim(memory, where, access, reads=False, writes=True))
        self._pending = [issued for issued in self._pending if not issued.op.done]
        if self._hardware:
            after = [self._last[cta.rank] for cta in ctas if cta.rank in self._last]
        else:
            after = [other.op for other in self._pending if pipelined(other.access, access)]
        op = AsyncOp(work.name, site, work.phases, after)
        issued = Issued(access, op, claims)
        self._pending.append(issued)
        for cta in ctas:
            self._last[cta.rank] = op
        warp.tensor.issued.setdefault(lane, []).append(issued)
        self._machine.scheduler.asynchronous.issue(op)
        self._machine.counts["tensor operations"] += 1
        return op

    def touch(self, memory: TensorMemory, where: Cells, access: Access) -> Claim:
        """Checks and claims what an ld or st touches."""
        writes = access.kind == "st"
        return self._claim(memory, where, access, reads=not writes, writes=writes)

    def commit(
        self,
        warp: Warp,
        lane: int,
        site: Site,
        barriers: Sequence[tuple[Memory, int]],
        cta_group: int,
    ) -> AsyncOp:
        """Arrives once on each barrier when all that the thread has issued is done.

        Args:
            barriers: (shared memory, offset) of each.
        """
        ctas = participants(warp.cta, cta_group, "tcgen05.commit")
        threads = warp.tensor
        tracked = [issued for issued in threads.issued.get(lane, ()) if not issued.over]
        threads.issued[lane] = tracked
        now = tick()
        for issued in tracked:
            issued.access.fence_before(1 << lane, now)
        claims = [claim for issued in tracked for claim in issued.claims]
        accesses = [issued.access for issued in tracked]
        phases = [
            self._arrival(warp, site, memory, offset, accesses, claims)
            for memory, offset in barriers
        ]
        after = [issued.op for issued in tracked]
        if self._hardware:
            after += [self._last[cta.rank] for cta in ctas if cta.rank in self._last]
        op = AsyncOp("tcgen05.commit", site, phases, after)
        for cta in ctas:
            self._last[cta.rank] = op
        return self._machine.scheduler.asynchronous.issue(op)

    def _arrival(
        self,
        warp: Warp,
        site: Site,
        memory: Memory,
        offset: int,
        accesses: list[Access],
        claims: list[Claim],
    ) -> Phase:
        """The phase of a commit that arrives on one barrier, which must still be there then."""
        what = "tcgen05.commit"
        find_barrier(memory, offset)
        arrival: Claim | RemoteArrival
        if memory is not warp.cta.shared:
            arrival = warp.cta.cluster.arrivals.issued(memory, warp, what, site)
        else:
            where = slice(offset, offset + MBARRIER_BYTES)
            arrival = Claim(memory, where, what, site, writes=False)

        known = warp.publish()

        def arrive() -> None:
            now = tick()
            for access in accesses:
                access.settled_at = access.settled_at or now
            barrier = find_barrier(memory, offset)
            barrier.attach(claims)
            if isinstance(arrival, Claim):
                arrival.release()
            else:
                arrival.land()
                barrier.attach([arrival])
            barrier.arrive(by=known.up_to_now(warp.core))

        return arrive

    def _claim(
        self, memory: TensorMemory, where: Cells, access: Access, *, reads: bool, writes: bool
    ) -> Claim:
        """Checks a rectangle against all that came before, and claims it."""
        memory.check_bounds(where, access.name)
        states = memory.state[where]
        seen = int(np.bitwise_or.reduce(states, axis=None))
        if seen & (ASYNC_WRITING | (ASYNC_READING if writes else 0)):
            self._check_claims(memory, where, access, writes=writes)
        if reads and not np.bitwise_and.reduce(states, axis=None) & INITIALISED:
            missing = (states & INITIALISED) == 0
            raise UninitialisedRead(
                f"{access.name} reads {memory.place(where, missing)}, of which "
                f"{int(missing.sum())} cells were never written"
            )
        self._check_order(memory, where, access, writes=writes)
        memory.touch(where, (access, writes))
        claim = TensorClaim(memory, where, access, writes=writes)
        if writes:
            memory.state[where] |= INITIALISED
        return claim

    def _check_claims(
        self, memory: TensorMemory, where: Cells, access: Access, *, writes: bool
    ) -> None:
        """Against operations that nothing has waited for."""
        for claim in memory.claims.values():
            assert isinstance(claim, TensorClaim)
            earlier = claim.access
            if earlier is access or not (claim.writes or writes):
                continue
            if not overlap(rectangle(claim.where), where):
                continue
            if not pipelined(earlier, access):
                raise _race(memory, where, earlier, access, why_unordered(earlier, access))

    def _check_order(
        self, memory: TensorMemory, where: Cells, access: Access, *, writes: bool
    ) -> None:
        """Against operations that are over."""
        for earlier, wrote in last_touches(memory, where):
            if (writes or wrote) and earlier is not access and earlier.settled_at is not None:
                reason = why_late(earlier, access)
                if reason:
                    raise _race(memory, where, earlier, access, reason)


def participants(cta: Cta, cta_group: int, what: str) -> list[Cta]:
    """The CTAs that an operation of a CTA concerns.

    Raises:
        IllegalOperation: there is no peer or it has exited; the kernel has used the other
            cta_group.
    """
    machine = cta.machine
    machine.cta_group = machine.cta_group or cta_group
    if machine.cta_group != cta_group:
        raise IllegalOperation(
            f"{what} with .cta_group::{cta_group} in a kernel that has used "
            f".cta_group::{machine.cta_group}: all tcgen05 instructions of a kernel must specify "
            "the same"
        )
    if cta_group == 1:
        return [cta]
    pair = cta.pair
    if len(pair) < 2:
        raise IllegalOperation(
            f"{what} with .cta_group::2 in CTA {cta.rank} of a cluster of {len(cta.cluster.ctas)}, "
            'which has no peer. PTX ISA, "CTA Pair"'
        )
    for other in pair:
        if other.finished:
            raise IllegalOperation(
                f"{what} with .cta_group::2, but the peer CTA {other.index} has exited. PTX ISA, "
                '"Issue Granularity"'
            )
    return pair


def _race(
    memory: TensorMemory, where: Cells, earlier: Access, access: Access, reason: str
) -> DataRace:
    lanes, columns = where
    return DataRace(
        f"{access.name} touches lanes {lanes.start} to {lanes.stop - 1}, columns "
        f"{columns.start} to {columns.stop - 1} of {memory.name}, and so does {earlier}; {reason}"
    )
