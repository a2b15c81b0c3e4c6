"""What bulk copies, one-dimensional and tensor ones, do once their operands are known.

A load is one operation per destination CTA: read, write, count the bytes on that CTA's mbarrier
(its own, or with ``.cta_group::2`` its pair's).
Its bytes are claimed until somebody has waited for that phase. A store is one operation: read
shared memory, write; it belongs to the issuing thread's bulk group, whose wait ends the claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import BarrierError, IllegalOperation
from nibblas.emulator.machine.access import locate_shared_cluster
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.claims import Claim, claim_read, claim_write
from nibblas.emulator.machine.groups import Copy
from nibblas.emulator.machine.mbarrier import MBarrier, find_barrier
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.reductions import reduced
from nibblas.emulator.machine.regions import check_aligned

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.clock import Known
    from nibblas.emulator.machine.remote_arrivals import RemoteArrival
    from nibblas.emulator.machine.warp import Warp

Where = slice | Array
Target = tuple[Memory, int, MBarrier]
"""Shared memory of a destination, the offset in it, the mbarrier that counts."""

OFFSET_MASK = 0xFF_FFFF
"""Of a shared address: the place within its CTA's memory."""


def targets_of(
    warp: Warp,
    lane: int,
    to: int,
    barrier: int,
    num_bytes: int,
    *,
    mask: int | None,
    own: bool,
    paired: bool = False,
) -> list[Target]:
    """Where a load goes.

    Args:
        to, barrier: shared addresses. mask: CTAs of a multicast, which all receive the bytes at
            the same offset and count them on the barrier at the same offset.
        own: the addresses are of ``.shared::cta``.
        paired: ``.cta_group::2``: the barrier may be in the other CTA of the pair, and those of a
            multicast are in the even or odd CTA of each pair as the given one is.

    Raises:
        IllegalOperation, BarrierError, OutOfBounds.
    """
    cluster = warp.cta.cluster
    if mask is None:
        if own and {to >> 24, barrier >> 24} != {warp.cta.rank}:
            raise IllegalOperation(f"a .shared::cta address of CTA {to >> 24} of the cluster")
        if to >> 25 != barrier >> 25 if paired else to >> 24 != barrier >> 24:
            wanted = "one pair" if paired else "one, or in one pair with .cta_group::2"
            raise BarrierError(
                f"the bytes go to CTA {to >> 24} of the cluster, its mbarrier is in CTA "
                f"{barrier >> 24}: want both in {wanted}"
            )
        ranks = [to >> 24]
    else:
        if mask == 0 or mask >> len(cluster.ctas):
            raise IllegalOperation(
                f"a multicast mask of {mask:#x} in a cluster of {len(cluster.ctas)}"
            )
        ranks = [rank for rank in range(len(cluster.ctas)) if mask >> rank & 1]
    targets = []
    for rank in ranks:
        address = rank << 24 | to & OFFSET_MASK
        memory, base = locate_shared_cluster(warp, lane, address, num_bytes)
        counted_by = rank & ~1 | barrier >> 24 & 1 if paired else rank
        place = counted_by << 24 | barrier & OFFSET_MASK
        check_aligned("mbarrier", place, 8)
        holder, start = locate_shared_cluster(warp, lane, place, 8)
        targets.append((memory, address - base, find_barrier(holder, place - start)))
    return targets


def issue_load(
    warp: Warp,
    what: str,
    site: Site,
    num_bytes: int,
    targets: list[Target],
    *,
    read: Callable[[], Array],
    order: Callable[[int], Where],
    sources: Callable[[], list[Claim]] = list,
    counted: int | None = None,
) -> None:
    """Puts a load in flight.

    Args:
        counted: bytes that its mbarrier counts, if not ``num_bytes``.
        read: gives the bytes. order: from a place in shared memory, where each of them goes: to
            all ``num_bytes`` from there on or, between narrow rows, not.
        sources: claims on what is read, for each target anew.
    """
    unit = warp.cta.machine.scheduler.asynchronous
    for memory, offset, barrier in targets:
        where = order(offset)
        claim = claim_write(memory, _touched(where, offset, num_bytes), what, site)
        arrivals = []
        if barrier.memory is not memory:
            arrivals = [warp.cta.cluster.arrivals.issued(barrier.memory, warp, what, site)]
        claims = [claim, *sources()]
        count = num_bytes if counted is None else counted
        known = warp.publish()
        unit.issue(_load(what, site, count, barrier, read, where, claims, arrivals, known))
        warp.cta.machine.bytes[f"{what} to shared"] += num_bytes
    warp.cta.machine.counts["bulk copies"] += 1


def _touched(where: Where, offset: int, num_bytes: int) -> Where:
    """Those of the bytes from an offset on that a copy reads or writes; a slice if it is all."""
    if isinstance(where, slice) or len(where) == num_bytes:
        return slice(offset, offset + num_bytes)
    return where


def _load(
    what: str,
    site: Site,
    counted: int,
    barrier: MBarrier,
    read: Callable[[], Array],
    where: Where,
    claims: list[Claim],
    arrivals: list[RemoteArrival],
    known: Known,
) -> AsyncOp:
    """``claims``: on what is written, then on what is read."""
    claim = claims[0]
    data: list[Array] = []

    def write() -> None:
        claim.memory.data[where] = data.pop()
        claim.land()

    def count() -> None:
        for arrival in arrivals:
            arrival.land()
        barrier.complete(counted, [*claims, *arrivals], by=known)

    return AsyncOp(what, site, [lambda: data.append(read()), write, count])


def issue_store(
    warp: Warp,
    lane: int,
    what: str,
    site: Site,
    source: tuple[Memory, int, int],
    order: Callable[[int], Where],
    target: tuple[Memory, Where],
    *,
    pick: Callable[[Array], Array] = lambda data: data,
    reduction: tuple[str, str] | None = None,
) -> None:
    """Puts a copy from shared memory to global memory in flight, into the lane's bulk group.

    Args:
        source: memory, offset, bytes. order: as in ``issue_load``.
        target: memory, and offsets of the bytes written there.
        pick: of the source's bytes, those that are written.
        reduction: (operation, PTX type) instead of a plain store.
    """
    shared, offset, num_bytes = source
    memory, where = target
    reads = [claim_read(shared, _touched(order(offset), offset, num_bytes), what, site)]
    warp.cta.check_grid_dependency(memory, lane)
    writes = [claim_write(memory, where, what, site, alone=False)]
    queue = warp.bulk_copies.queue
    data: list[Array] = []

    def read() -> None:
        data.append(pick(shared.data[order(offset)]).copy())
        queue.notify()

    def write() -> None:
        new = data.pop()
        if reduction is not None:
            new = reduced(*reduction, np.ascontiguousarray(memory.data[where]), new)
        memory.data[where] = new
        writes[0].land()
        queue.notify()

    op = AsyncOp(what, site, [read, write])
    machine = warp.cta.machine
    machine.scheduler.asynchronous.issue(op)
    machine.bytes[f"{what} from shared"] += num_bytes
    machine.counts["bulk copies"] += 1
    mask = np.zeros(32, bool)
    mask[lane] = True
    warp.bulk_copies.add(Copy(op, reads, writes), mask)
