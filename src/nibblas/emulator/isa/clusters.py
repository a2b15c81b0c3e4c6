"""Clusters: their barrier, addresses of other CTAs, remote asynchronous stores.

PTX ISA, "barrier.cluster", "mapa", "getctarank", "st.async", "red.async". Ordinary loads, stores
and atomics reach other CTAs through ``.shared::cluster`` and generic addresses; whatever reaches a
CTA that has exited is OutOfBounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build, bits_dtype, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.bulk import OFFSET_MASK, targets_of
from nibblas.emulator.machine.claims import claim_write
from nibblas.emulator.machine.memory import RANK_SHIFT, SHARED_WINDOW, WINDOW_BYTES, Array
from nibblas.emulator.machine.reductions import ACCEPTED, reduced
from nibblas.emulator.machine.regions import check_aligned, check_source
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import TYPE_BYTES, Vector

clusters = Family("clusters")

_BARRIER = "parallel-synchronization-and-communication-instructions-barrier-cluster"
_COUNTED = "mbarrier::complete_tx::bytes"


@clusters.instruction(
    "barrier cluster arrive [sem:release|relaxed] aligned",
    section="barrier.cluster",
    anchor=_BARRIER,
    converges=True,
)
def arrive_aligned(build: Build) -> Step:
    return _arrive(build)


@clusters.instruction(
    "barrier cluster arrive [sem:release|relaxed]",
    section="barrier.cluster",
    anchor=_BARRIER,
)
def arrive(build: Build) -> Step:
    return _arrive(build)


def _arrive(build: Build) -> Step:
    build.count(0)
    return lambda warp: warp.cta.cluster.barrier.arrive(warp, warp.mask)


@clusters.instruction(
    "barrier cluster wait [acquire] aligned",
    section="barrier.cluster",
    anchor=_BARRIER,
    converges=True,
)
def wait_aligned(build: Build) -> Step:
    return _wait(build)


@clusters.instruction(
    "barrier cluster wait [acquire]",
    section="barrier.cluster",
    anchor=_BARRIER,
    ends_block=True,
)
def wait(build: Build) -> Step:
    return _wait(build)


def _wait(build: Build) -> Step:
    build.count(0)

    def step(warp: Warp) -> None:
        barrier = warp.cta.cluster.barrier
        phase = barrier.begin_wait(warp, warp.mask)

        def over(_: bool = True) -> None:
            warp.learn(barrier.published)

        if barrier.phase >= phase:
            over()
            return
        warp.wait(
            barrier.queue,
            ready=lambda: barrier.phase >= phase,
            describe=lambda: str(barrier),
            resume=over,
        )

    return step


@clusters.instruction(
    "mapa [shared::cluster] type:u32|u64",
    section="mapa",
    anchor="data-movement-and-conversion-instructions-mapa",
)
def mapa(build: Build) -> Step:
    """``d, a, rank``: the place of ``a`` in another CTA; generic addresses without a space."""
    build.count(3)
    kind = build.get("type")
    dest, source, rank = build.dest(0, kind), build.source(1, kind), build.source(2, "u32")
    generic, dtype = not build.has("shared::cluster"), bits_dtype(kind)

    def step(warp: Warp) -> None:
        addresses, ranks = warp.r[source], warp.r[rank]
        _check_shared(warp, addresses, generic=generic)
        if (ranks[warp.mask] >= len(warp.cta.cluster.ctas)).any():
            raise IllegalOperation(
                f"CTA {ranks[warp.mask].max()} of a cluster of {len(warp.cta.cluster.ctas)}"
            )
        places = addresses & dtype.type(OFFSET_MASK) | ranks.astype(dtype) << dtype.type(RANK_SHIFT)
        put(warp, dest, places + dtype.type(SHARED_WINDOW) if generic else places)

    return step


@clusters.instruction(
    "getctarank [shared::cluster] type:u32|u64",
    section="getctarank",
    anchor="data-movement-and-conversion-instructions-getctarank",
)
def getctarank(build: Build) -> Step:
    build.count(2)
    kind = build.get("type")
    dest, source = build.dest(0, "u32"), build.source(1, kind)
    generic, shift = not build.has("shared::cluster"), bits_dtype(kind).type(RANK_SHIFT)

    def step(warp: Warp) -> None:
        _check_shared(warp, warp.r[source], generic=generic)
        put(warp, dest, (warp.r[source] >> shift & 0xFF).astype(np.uint32))

    return step


def _check_shared(warp: Warp, addresses: Array, *, generic: bool) -> None:
    active = addresses[warp.mask]
    if generic and ((active < SHARED_WINDOW) | (active >= SHARED_WINDOW + WINDOW_BYTES)).any():
        raise IllegalOperation("a generic address that is not in shared memory")


@clusters.instruction(
    f"st async [weak] [shared::cluster] {_COUNTED} [vec:v2|v4] "
    "type:b32|b64|u32|u64|s32|s64|f32|f64",
    section="st.async",
    anchor="data-movement-and-conversion-instructions-st-async",
)
def st_async(build: Build) -> Step:
    """``[a], value, [mbar]``: both in one CTA of the cluster."""
    build.count(3)
    return _remote(build, lambda old, new: new, whole=True)


@clusters.instruction(
    f"red async [relaxed] [cluster] [shared::cluster] {_COUNTED} "
    "op:inc|dec|min|max|add|and|or|xor type:u32|s32|u64|s64|b32|b64",
    section="red.async",
    anchor="parallel-synchronization-and-communication-instructions-red-async",
)
def red_async(build: Build) -> Step:
    build.count(3)
    operation, kind = build.get("op"), build.get("type")
    if kind not in ACCEPTED[operation]:
        raise build.refusal(f".{operation} has no type .{kind}")
    return _remote(build, lambda old, new: reduced(operation, kind, old, new), whole=False)


def _remote(build: Build, combine: Callable[[Array, Array], Array], *, whole: bool) -> Step:
    """Each lane's bytes land by themselves and count on the lane's barrier."""
    kind = build.get("type")
    operand = build.operands[1]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != int(build.get("vec", "v1")[1:]):
        raise build.refusal(f"got {len(items)} elements")
    slots = [build.source(item, kind) for item in items]
    to, barrier = build.address(0), build.address(2)
    size = TYPE_BYTES[kind] * len(items)
    generic = not build.has("shared::cluster")
    instruction, what = build.instruction, f"{build.instruction.opcode}.async"

    def step(warp: Warp) -> None:
        unit = warp.cta.machine.scheduler.asynchronous
        for lane in np.flatnonzero(warp.mask).tolist():
            address, place = int(to(warp)[lane]), int(barrier(warp)[lane])
            if generic:
                _check_shared(warp, to(warp), generic=True)
                address, place = address - SHARED_WINDOW, place - SHARED_WINDOW
            check_aligned("address", address, size)
            site = warp.site(instruction, 1 << lane)
            ((memory, offset, counter),) = targets_of(
                warp, lane, address, place, size, mask=None, own=False
            )
            where = slice(offset, offset + size)
            if not whole:
                check_source(memory, where, what, alone=False)
            claim = claim_write(memory, where, what, site, alone=whole)
            new = np.array([warp.r[slot][lane] for slot in slots], bits_dtype(kind)).view(np.uint8)

            def write(claim=claim, new=new) -> None:  # type: ignore[no-untyped-def]
                old = claim.memory.data[claim.where].copy()
                claim.memory.data[claim.where] = combine(old, new)
                claim.land()

            def count(claim=claim, counter=counter) -> None:  # type: ignore[no-untyped-def]
                counter.complete(size, [claim])

            unit.issue(AsyncOp(what, site, [write, count]))

    return step
