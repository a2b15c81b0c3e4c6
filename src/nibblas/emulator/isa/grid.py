"""Grid dependencies and register counts. PTX ISA, "griddepcontrol", "setmaxnreg"."""

from __future__ import annotations

from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.warp import Warp

grid = Family("grid")


@grid.instruction(
    "griddepcontrol action:launch_dependents|wait",
    section="griddepcontrol",
    anchor="parallel-synchronization-and-communication-instructions-griddepcontrol",
)
def griddepcontrol(build: Build) -> Step:
    """Grids run one after the other, so neither waits; both are counted.

    In a programmatic launch, writes of a CTA none of whose threads has waited are reported.
    """
    build.count(0)
    waits = build.get("action") == "wait"
    key = f"griddepcontrol.{build.get('action')}"

    def step(warp: Warp) -> None:
        warp.cta.machine.counts[key] += 1
        if waits:
            warp.cta.overlaps = False

    return step


@grid.instruction(
    "setmaxnreg action:inc|dec sync aligned u32",
    section="setmaxnreg",
    anchor="miscellaneous-instructions-setmaxnreg",
    converges=True,
)
def setmaxnreg(build: Build) -> Step:
    """``inc`` stands still until the CTA's pool has the registers."""
    build.count(1)
    count = build.integer(0)
    if not 24 <= count <= 256 or count % 8:
        raise build.refusal(f"a count of {count}; want 24 to 256, a multiple of 8")
    decreases = build.get("action") == "dec"

    def step(warp: Warp) -> None:
        pool = warp.cta.register_pool
        if decreases:
            pool.decrease(warp, count)
            return
        if not pool.increase(warp, count):
            warp.wait(
                pool.queue,
                ready=lambda: pool.has(warp, count),
                describe=lambda: (
                    f"setmaxnreg.inc to {count} from {pool.of(warp)}; the CTA's pool has "
                    f"{pool.free} registers, {32 * (count - pool.of(warp))} are needed"
                ),
            )

    return step
