"""CTA barriers. PTX ISA, "bar, barrier"."""

from __future__ import annotations

from nibblas.emulator.errors import BarrierError
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.barrier import NUM_BARRIERS
from nibblas.emulator.machine.warp import Warp, bits_of

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


def _barrier(build: Build, *, aligned: bool) -> Step:
    """An aligned barrier counts whole warps, lanes that have exited included."""
    arrives = build.get("action") == "arrive"
    build.count(*((2,) if arrives else (1, 2)))
    number = build.source(0, "u32")
    threads = build.source(1, "u32") if len(build.operands) == 2 else -1

    def step(warp: Warp) -> None:
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
        phase = barrier.arrive(arriving, expected, whole=threads < 0)
        if not arrives and barrier.phase == phase:
            warp.wait(
                barrier.queue,
                ready=lambda: barrier.phase > phase,
                describe=lambda: str(barrier),
            )

    return step


def _uniform(warp: Warp, slot: int, what: str) -> int:
    values = warp.r[slot][warp.mask]
    if (values != values[0]).any():
        raise BarrierError(f"the {what} differs between lanes: {sorted(set(values.tolist()))}")
    return int(values[0])
