"""Control flow. PTX ISA, "Control Flow Instructions"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.warp import ALL, NONE, Warp
from nibblas.emulator.ptx.model import Reg, Symbol

control = Family("control")


@control.instruction(
    "bra [uni]",
    section="bra",
    anchor="control-flow-instructions-bra",
    ends_block=True,
    own_guard=True,
)
def bra(build: Build) -> Step:
    """``.uni`` is the compiler's promise; divergent lanes are taken as they come."""
    build.count(1)
    target = build.target(0)
    guard = build.instruction.guard
    if guard is None:

        def jump(warp: Warp) -> None:
            warp.current.pc = target

        return jump
    slot = build.slots.register(guard.register, build.instruction.line)
    negated = guard.negated
    every, none = (NONE, ALL) if negated else (ALL, NONE)

    def branch(warp: Warp) -> None:
        key = warp.r[slot].tobytes()
        if key == every:
            warp.current.pc = target
        elif key != none:
            warp.branch(~warp.r[slot] if negated else warp.r[slot], target)

    return branch


@control.instruction(
    "brx idx [uni]",
    section="brx.idx",
    anchor="control-flow-instructions-brx-idx",
    ends_block=True,
)
def brx(build: Build) -> Step:
    build.count(2)
    index, targets = build.source(0, "u32"), build.targets(1)

    def step(warp: Warp) -> None:
        chosen = warp.r[index]
        fragment = warp.current
        wanted = np.unique(chosen[fragment.mask])
        if wanted[-1] >= len(targets):
            raise IllegalOperation(f"index {wanted[-1]} into a table of {len(targets)} targets")
        for number in wanted[1:]:
            warp.branch(chosen == number, targets[number])
        fragment.pc = targets[wanted[0]]

    return step


@control.instruction(
    "ret [uni]", section="ret", anchor="control-flow-instructions-ret", ends_block=True
)
def ret(build: Build) -> Step:
    """In an entry: the end of the thread."""
    build.count(0)
    return Warp.exit_lanes


@control.instruction(
    "exit", section="exit", anchor="control-flow-instructions-exit", ends_block=True
)
def exit_(build: Build) -> Step:
    build.count(0)
    return Warp.exit_lanes


@control.instruction(
    "trap", section="trap", anchor="miscellaneous-instructions-trap", ends_block=True
)
def trap(build: Build) -> Step:
    build.count(0)

    def step(warp: Warp) -> None:
        raise IllegalOperation("the kernel executed trap")

    return step


@control.instruction(
    "brkpt", section="brkpt", anchor="miscellaneous-instructions-brkpt", ends_block=True
)
def breakpoint_(build: Build) -> Step:
    """CUTLASS puts it where control must not come."""
    build.count(0)

    def step(warp: Warp) -> None:
        raise IllegalOperation("the kernel executed brkpt, and there is no debugger")

    return step


@control.instruction(
    "call [uni]", section="call", anchor="control-flow-instructions-call", ends_block=True
)
def call(build: Build) -> Step:
    """Functions without a body; the others have been put in place (inline.py)."""
    names = [o.name for o in build.operands if isinstance(o, (Reg, Symbol))]
    if names != ["__assertfail"]:
        raise build.refusal("a function without a body; only __assertfail is modelled")

    def step(warp: Warp) -> None:
        raise IllegalOperation("an assertion of the kernel failed")

    return step
