"""Wrappers around steps: guard predicates, waiting for a whole warp, and for tensor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import ALL, NONE

if TYPE_CHECKING:
    from nibblas.emulator.isa.registry import Step
    from nibblas.emulator.machine.warp import Warp


def guarded_step(step: Step, slot: int, *, negated: bool) -> Step:
    """``@%p``: the step runs for those active lanes whose predicate holds."""
    every, none = (NONE, ALL) if negated else (ALL, NONE)

    def guarded(warp: Warp) -> None:
        key = warp.r[slot].tobytes()
        if key == every:
            step(warp)
        elif key != none:
            before = warp.mask, warp.full, warp.lanes
            mask = _chosen(warp, slot, negated)
            if mask.tobytes() != NONE:
                warp.set_active(mask)
                step(warp)
                warp.mask, warp.full, warp.lanes = before

    return guarded


def guarded_end(step: Step, slot: int, *, negated: bool) -> Step:
    """The same for a step that ends a block: the other lanes go on as their own fragment."""

    def guarded(warp: Warp) -> None:
        mask = _chosen(warp, slot, negated)
        key = mask.tobytes()
        if key == NONE:
            return
        if key != warp.mask.tobytes():
            warp.split(mask)
        step(warp)

    return guarded


def uniform_guard(step: Step, slot: int, *, negated: bool) -> Step:
    """The guard of an instruction for the whole warp: the same for all of its lanes."""

    def guarded(warp: Warp) -> None:
        key = _chosen(warp, slot, negated).tobytes()
        if key == warp.mask.tobytes():
            step(warp)
        elif key != NONE:
            raise IllegalOperation(
                "the guard of an instruction for the whole warp differs between its lanes"
            )

    return guarded


def converging_end(step: Step) -> Step:
    """A step of the whole warp: runs when all lanes that have not exited have come."""

    def converging(warp: Warp) -> None:
        if warp.full or warp.gather(warp.alive):
            step(warp)

    return converging


def after_loads(step: Step, slots: frozenset[int]) -> Step:
    """A step that uses registers which a tcgen05.ld brings."""

    def after(warp: Warp) -> None:
        if warp.tensor.loads:
            warp.tensor.use(slots, warp.cta.machine)
        step(warp)

    return after


def _chosen(warp: Warp, slot: int, negated: bool) -> Array:
    predicate = warp.r[slot]
    return warp.mask & ~predicate if negated else warp.mask & predicate
