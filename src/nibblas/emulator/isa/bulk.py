"""Bulk copies of contiguous bytes, their groups, reductions. PTX ISA, "cp.async.bulk".

Every active lane issues a copy of its own. Shared memory is read through the async proxy:
machine/unfenced.py has the rule, machine/claims.py what is reported of bytes in flight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import EmulationError, IllegalOperation
from nibblas.emulator.isa.build import BLACKWELL, Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import LOCATE
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.bulk import Target, issue_load, issue_store, targets_of
from nibblas.emulator.machine.claims import claim_read, claim_write
from nibblas.emulator.machine.groups import wait_for
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.reductions import ACCEPTED, reduced
from nibblas.emulator.machine.regions import check_aligned, check_source
from nibblas.emulator.machine.warp import Warp

bulk = Family("bulk")

ALIGN = 16
"""Addresses and sizes of bulk copies are multiples of it."""

_ANCHOR = "data-movement-and-conversion-instructions-cp-async-bulk"
_COUNTED = "mbarrier::complete_tx::bytes"
_REDUCTIONS = "op:and|or|xor|add|inc|dec|min|max"


def value_of(warp: Warp, slot: int | None, lane: int) -> int:
    return 0 if slot is None else int(warp.r[slot][lane])


def _place(warp: Warp, space: str, lane: int, address: int, size: int) -> tuple[Memory, int]:
    check_aligned("address", address, ALIGN)
    memory, base = LOCATE[space](warp, lane, address, size)
    return memory, address - base


def _size(warp: Warp, slot: int, lane: int) -> int:
    size = int(warp.r[slot][lane])
    if size % ALIGN or size == 0:
        raise IllegalOperation(f"a copy of {size} bytes; want a multiple of {ALIGN}, not 0")
    return size


@bulk.instruction(
    f"cp async bulk to:shared::cta|shared::cluster global {_COUNTED} [multicast::cluster] "
    "[L2::cache_hint]",
    section="cp.async.bulk",
    anchor=_ANCHOR,
)
def load(build: Build) -> Step:
    """``[dst], [src], size, [mbar] {, ctaMask} {, cache-policy}``."""
    multicast = build.has("multicast::cluster")
    own = build.get("to") == "shared::cta"
    if multicast and own:
        raise build.refusal(".multicast::cluster needs .shared::cluster")
    build.count(4 + multicast + build.has("L2::cache_hint"))
    to, source, barrier = build.address(0), build.address(1), build.address(3)
    size_slot = build.source(2, "u32")
    mask_slot = build.source(4, "u16", wider=True) if multicast else None
    instruction = build.instruction

    def copy(warp: Warp, lane: int) -> None:
        size = _size(warp, size_slot, lane)
        memory, offset = _place(warp, "global", lane, int(source(warp)[lane]), size)
        where = slice(offset, offset + size)
        check_source(memory, where, "cp.async.bulk")
        issue_load(
            warp,
            "cp.async.bulk",
            warp.site(instruction, 1 << lane),
            size,
            _targets(warp, lane, to, barrier, size, mask_slot, own),
            read=lambda: memory.data[where].copy(),
            order=lambda start: slice(start, start + size),
        )

    return by_lane(copy)


@bulk.instruction(
    f"cp async bulk shared::cluster shared::cta {_COUNTED}",
    section="cp.async.bulk",
    anchor=_ANCHOR,
)
def copy_to_peer(build: Build) -> Step:
    """``[dst], [src], size, [mbar]``: the barrier is in the destination's CTA."""
    build.count(4)
    to, source, barrier = build.address(0), build.address(1), build.address(3)
    size_slot = build.source(2, "u32")
    instruction = build.instruction

    def copy(warp: Warp, lane: int) -> None:
        size = _size(warp, size_slot, lane)
        memory, offset = _place(warp, "shared::cta", lane, int(source(warp)[lane]), size)
        where = slice(offset, offset + size)
        site = warp.site(instruction, 1 << lane)
        issue_load(
            warp,
            "cp.async.bulk",
            site,
            size,
            _targets(warp, lane, to, barrier, size, None, own=False),
            read=lambda: memory.data[where].copy(),
            order=lambda start: slice(start, start + size),
            sources=lambda: [claim_read(memory, where, "cp.async.bulk", site)],
        )

    return by_lane(copy)


@bulk.instruction(
    "cp async bulk global shared::cta bulk_group [L2::cache_hint]",
    section="cp.async.bulk",
    anchor=_ANCHOR,
)
def store(build: Build) -> Step:
    """``[dst], [src], size {, cache-policy}``."""
    build.count(3 + build.has("L2::cache_hint"))
    return _store(build, "cp.async.bulk", None)


@bulk.instruction(
    "cp async bulk global shared::cta bulk_group [L2::cache_hint] cp_mask",
    section="cp.async.bulk",
    anchor=_ANCHOR,
)
def store_masked(build: Build) -> Step:
    """``[dst], [src], size {, cache-policy}, byteMask``."""
    last = build.count(4 + build.has("L2::cache_hint")) - 1
    build.require_arch(".cp_mask", *BLACKWELL)
    return _store(build, "cp.async.bulk", None, build.source(last, "b16"))


@bulk.instruction(
    f"cp reduce async bulk global shared::cta bulk_group [L2::cache_hint] {_REDUCTIONS} [noftz] "
    "type:f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64",
    section="cp.reduce.async.bulk",
    anchor="data-movement-and-conversion-instructions-cp-reduce-async-bulk",
)
def reduce_to_global(build: Build) -> Step:
    build.count(3 + build.has("L2::cache_hint"))
    return _store(build, "cp.reduce.async.bulk", _reduction(build))


def _reduction(build: Build) -> tuple[str, str]:
    operation, kind = build.get("op"), build.get("type")
    if kind not in ACCEPTED[operation]:
        raise build.refusal(f".{operation} has no type .{kind}")
    if (kind in ("f16", "bf16") and operation == "add") != build.has("noftz"):
        raise build.refusal(".noftz belongs to .add.f16 and .add.bf16, and must stand there")
    return operation, kind


def _store(
    build: Build, what: str, reduction: tuple[str, str] | None, mask_slot: int | None = None
) -> Step:
    """``mask_slot``: bit i says whether byte i of every 16 is copied."""
    to, source = build.address(0), build.address(1)
    size_slot = build.source(2, "u32")
    instruction = build.instruction

    def copy(warp: Warp, lane: int) -> None:
        size = _size(warp, size_slot, lane)
        shared, offset = _place(warp, "shared::cta", lane, int(source(warp)[lane]), size)
        memory, at = _place(warp, "global", lane, int(to(warp)[lane]), size)
        if memory.read_only:
            raise IllegalOperation(f"{what} writes {memory.name}, which is read-only")
        target: slice | Array = slice(at, at + size)
        chosen: slice | Array = slice(None)
        if mask_slot is not None:
            bits = value_of(warp, mask_slot, lane) >> np.arange(ALIGN) & 1
            chosen = np.flatnonzero(np.resize(bits, size))
            target = at + chosen
        issue_store(
            warp,
            lane,
            what,
            warp.site(instruction, 1 << lane),
            (shared, offset, size),
            lambda start: slice(start, start + size),
            (memory, target),
            pick=lambda data: data[chosen],
            reduction=reduction,
        )

    return by_lane(copy)


@bulk.instruction(
    f"cp reduce async bulk shared::cluster shared::cta {_COUNTED} {_REDUCTIONS} "
    "type:s32|u32|s64|u64|b32|b64",
    section="cp.reduce.async.bulk",
    anchor="data-movement-and-conversion-instructions-cp-reduce-async-bulk",
)
def reduce_to_peer(build: Build) -> Step:
    """``[dst], [src], size, [mbar]``: one after the other on the destination."""
    build.count(4)
    operation, kind = _reduction(build)
    to, source, barrier = build.address(0), build.address(1), build.address(3)
    size_slot = build.source(2, "u32")
    instruction, what = build.instruction, "cp.reduce.async.bulk"

    def copy(warp: Warp, lane: int) -> None:
        size = _size(warp, size_slot, lane)
        shared, offset = _place(warp, "shared::cta", lane, int(source(warp)[lane]), size)
        site = warp.site(instruction, 1 << lane)
        ((memory, at, counter),) = _targets(warp, lane, to, barrier, size, None, own=False)
        where, whence = slice(at, at + size), slice(offset, offset + size)
        check_source(memory, where, what, alone=False)
        claims = [
            claim_read(shared, whence, what, site),
            claim_write(memory, where, what, site, alone=False),
        ]

        def apply() -> None:
            old, new = memory.data[where].copy(), shared.data[whence].copy()
            memory.data[where] = reduced(operation, kind, old, new)
            claims[1].land()

        op = AsyncOp(what, site, [apply, lambda: counter.complete(size, claims)])
        warp.cta.machine.scheduler.asynchronous.issue(op)

    return by_lane(copy)


@bulk.instruction(
    "cp async bulk prefetch L2 global [L2::cache_hint]",
    section="cp.async.bulk.prefetch",
    anchor="data-movement-and-conversion-instructions-cp-async-bulk-prefetch",
)
def prefetch(build: Build) -> Step:
    """Changes nothing; the range must exist."""
    build.count(2 + build.has("L2::cache_hint"))
    source, size_slot = build.address(0), build.source(1, "u32")

    def check(warp: Warp, lane: int) -> None:
        size = _size(warp, size_slot, lane)
        _place(warp, "global", lane, int(source(warp)[lane]), size)
        warp.cta.machine.counts["bulk prefetches"] += 1

    return by_lane(check)


@bulk.instruction(
    "cp async bulk commit_group",
    section="cp.async.bulk.commit_group",
    anchor="data-movement-and-conversion-instructions-cp-async-bulk-commit-group",
)
def commit_group(build: Build) -> Step:
    build.count(0)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        warp.bulk_copies.commit(warp.mask, warp.site(instruction))

    return step


@bulk.instruction(
    "cp async bulk wait_group [read]",
    section="cp.async.bulk.wait_group",
    anchor="data-movement-and-conversion-instructions-cp-async-bulk-wait-group",
    ends_block=True,
)
def wait_group(build: Build) -> Step:
    """``.read``: only until the sources have been read, so that they may be written again."""
    build.count(1)
    pending, read_only = build.integer(0), build.has("read")

    def step(warp: Warp) -> None:
        mask, groups = warp.mask, warp.bulk_copies

        def forget() -> None:
            if not read_only:
                groups.forget(mask, pending)

        wait_for(
            warp,
            groups,
            groups.due(mask, pending),
            f"{build.instruction}",
            read_only=read_only,
            then=forget,
        )

    return step


def by_lane(function: Callable[[Warp, int], None]) -> Step:
    """A step that does it for each active lane; an error names the lane."""

    def step(warp: Warp) -> None:
        for lane in np.flatnonzero(warp.mask).tolist():
            try:
                function(warp, lane)
            except EmulationError as error:
                error.lanes = error.lanes or 1 << lane
                raise

    return step


def _targets(
    warp: Warp,
    lane: int,
    to: Callable[[Warp], Array],
    barrier: Callable[[Warp], Array],
    size: int,
    mask_slot: int | None,
    own: bool,
) -> list[Target]:
    address = int(to(warp)[lane])
    check_aligned("destination", address, ALIGN)
    mask = None if mask_slot is None else value_of(warp, mask_slot, lane) & 0xFFFF
    return targets_of(warp, lane, address, int(barrier(warp)[lane]), size, mask=mask, own=own)
