"""CTA barriers. PTX ISA, "bar, barrier"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import BarrierError
from nibblas.emulator.isa.build import Build, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.barrier import NUM_BARRIERS, NamedBarrier
from nibblas.emulator.machine.warp import Warp, bits_of
from nibblas.emulator.ptx.model import Operand

barriers = Family("barriers")

_ANCHOR = "parallel-synchronization-and-communication-instructions-bar"


@barriers.instruction(
    "bar [cta] action:sync|arrive",
    "barrier [cta] action:sync|arrive aligned",
    section="bar, barrier",
    anchor=_ANCHOR,
    converges=True,
)
def bar_aligned(build: Build) -> Step:
    return _barrier(build, aligned=True)


@barriers.instruction(
    "barrier [cta] action:sync|arrive",
    section="bar, barrier",
    anchor=_ANCHOR,
    ends_block=True,
)
def bar_unaligned(build: Build) -> Step:
    return _barrier(build, aligned=False)


@barriers.instruction(
    "bar [cta] red op:popc u32",
    "bar [cta] red op:and|or pred",
    "barrier [cta] red op:popc aligned u32",
    "barrier [cta] red op:and|or aligned pred",
    section="bar, barrier",
    anchor=_ANCHOR,
    converges=True,
)
def red_aligned(build: Build) -> Step:
    return _reduction(build, aligned=True)


@barriers.instruction(
    "barrier [cta] red op:popc u32",
    "barrier [cta] red op:and|or pred",
    section="bar, barrier",
    anchor=_ANCHOR,
    ends_block=True,
)
def red_unaligned(build: Build) -> Step:
    return _reduction(build, aligned=False)


def _reduction(build: Build, *, aligned: bool) -> Step:
    """``d, a[, b], [!]c``: how many threads bring a true c, or whether all or any do."""
    count, operation = build.count(3, 4), build.get("op")
    counts = operation == "popc"
    dest = build.dest(0, "u32" if counts else "pred")
    slot, negated = build.predicate(count - 1)
    arrive = _arrival(build, build.operands[1 : count - 1], aligned=aligned)
    dtype = np.dtype("u4") if counts else np.dtype(bool)

    def step(warp: Warp) -> None:
        votes = warp.r[slot][warp.mask] ^ negated
        in_favour = int(votes.sum())

        def finish(warp: Warp, barrier: NamedBarrier, phase: int) -> None:
            against, total = barrier.votes[phase]
            result = total if counts else total > 0 if operation == "or" else against == 0
            put(warp, dest, np.full(32, result, dtype))

        arrive(warp, (len(votes) - in_favour, in_favour), finish)

    return step


def _barrier(build: Build, *, aligned: bool) -> Step:
    arrives = build.get("action") == "arrive"
    build.count(*((2,) if arrives else (1, 2)))
    arrive = _arrival(build, build.operands, aligned=aligned, waits=not arrives)
    return lambda warp: arrive(warp, None, None)


_Finish = Callable[[Warp, NamedBarrier, int], None]
_Arrive = Callable[[Warp, "tuple[int, int] | None", "_Finish | None"], None]
"""(warp, votes, what to do when the phase is over)."""


def _arrival(
    build: Build, operands: tuple[Operand, ...], *, aligned: bool, waits: bool = True
) -> _Arrive:
    """Arrival at ``barrier[, threads]``; an aligned one counts whole warps, lanes that have
    exited included."""
    number = build.source(operands[0], "u32")
    threads = build.source(operands[1], "u32") if len(operands) == 2 else -1

    def arrive(warp: Warp, votes: tuple[int, int] | None, finish: _Finish | None) -> None:
        which = _uniform(warp, number, "barrier number")
        if which >= NUM_BARRIERS:
            raise BarrierError(f"barrier {which}: a CTA has barriers 0 to {NUM_BARRIERS - 1}")
        barrier = warp.cta.barriers[which]
        if threads < 0:
            expected = sum(32 for other in warp.cta.warps if not other.finished)
        else:
            expected = _uniform(warp, threads, "thread count")
            if expected == 0 or expected % 32:
                raise BarrierError(f"a thread count of {expected}; want a multiple of 32")
        arriving = 32 if aligned else bits_of(warp.mask).bit_count()
        if votes is not None:
            barrier.vote(*votes)
        phase = barrier.arrive(arriving, expected, whole=threads < 0, by=warp.publish())

        def over(_: bool = True) -> None:
            warp.learn(barrier.published)
            if finish is not None:
                finish(warp, barrier, phase)

        if waits and barrier.phase == phase:
            warp.wait(
                barrier.queue,
                ready=lambda: barrier.phase > phase,
                describe=lambda: str(barrier),
                resume=over,
            )
        elif waits:
            over()

    return arrive


def _uniform(warp: Warp, slot: int, what: str) -> int:
    values = warp.r[slot][warp.mask]
    if (values != values[0]).any():
        raise BarrierError(f"the {what} differs between lanes: {sorted(set(values.tolist()))}")
    return int(values[0])
