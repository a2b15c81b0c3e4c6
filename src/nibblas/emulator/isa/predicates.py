"""Comparison and selection. PTX ISA, "Comparison and Selection Instructions"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, compute_slots, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Pair

predicates = Family("predicates")

_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _ne_ordered(a: Array, b: Array) -> Array:
    result: Array = (a < b) | (a > b)
    return result


def comparison(build: Build, name: str, kind: str) -> Callable[[Array, Array], Array]:
    """The function of a comparison operator. PTX ISA, "Comparison Operators".

    Floating: eq, lt ... are false if an operand is NaN; equ, ltu ... are true.
    """
    if kind in ("f32", "f64"):
        if name in ("num", "nan"):
            wanted = name == "nan"
            return lambda a, b: (np.isnan(a) | np.isnan(b)) == wanted
        if name == "ne":
            return _ne_ordered
        if name in _ORDERED:
            return _ORDERED[name]
        if name == "neu":
            return np.not_equal
        if name[-1] == "u" and name[:-1] in _ORDERED:
            ordered = _ORDERED[name[:-1]]
            return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    elif name in _ORDERED and (kind[0] != "b" or name in ("eq", "ne")):
        return _ORDERED[name]
    elif kind[0] == "u" and name in _UNSIGNED_NAMES:
        return _ORDERED[_UNSIGNED_NAMES[name]]
    raise build.refusal(f"comparison .{name} of .{kind}")


_COMPARISONS = "compare:eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan "
_TYPES = "type:b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"


@predicates.instruction(
    f"setp {_COMPARISONS} {_TYPES}",
    f"setp {_COMPARISONS} combine:and|or|xor {_TYPES}",
    section="setp",
    anchor="comparison-and-selection-instructions-setp",
)
def setp(build: Build) -> Step:
    kind = build.get("type")
    compare = comparison(build, build.get("compare"), kind)
    combine = build.get("combine")
    build.count(4 if combine else 3)
    target = build.operands[0]
    first = target.first if isinstance(target, Pair) else target
    second = target.second if isinstance(target, Pair) else None
    dest = build.dest(first, "pred")
    sources = [build.source(1, kind), build.source(2, kind)]
    if not combine and second is None:
        return compute_slots(compare, dest, "pred", sources, (kind, kind))
    other = build.dest(second, "pred") if second is not None else -1
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(combine)
    with_slot, negated = build.predicate(3) if combine else (-1, False)
    dtype = DTYPES[kind]
    a, b = sources

    def step(warp: Warp) -> None:
        r = warp.r
        result = compare(r[a].view(dtype), r[b].view(dtype))
        opposite = ~result
        if join is not None:
            condition = ~r[with_slot] if negated else r[with_slot]
            result, opposite = join(result, condition), join(opposite, condition)
        put(warp, dest, result)
        if other >= 0:
            put(warp, other, opposite)

    return step


@predicates.instruction(
    f"selp {_TYPES}",
    section="selp",
    anchor="comparison-and-selection-instructions-selp",
)
def selp(build: Build) -> Step:
    build.count(4)
    kind = build.get("type")
    bits = f"b{8 * DTYPES[kind].itemsize}"
    a, b = build.source(1, kind), build.source(2, kind)
    condition, negated = build.predicate(3)
    if negated:
        a, b = b, a
    sources = [condition, a, b]
    return compute_slots(np.where, build.dest(0, kind), bits, sources, ("pred", bits, bits))
