"""Comparison and selection. PTX ISA, "Comparison and Selection Instructions"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.floats import flush_single
from nibblas.emulator.formats import f32_of_bf16
from nibblas.emulator.isa.build import DTYPES, Build, compute_slots, put
from nibblas.emulator.isa.half import flush_f16
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
    if kind in ("f16", "bf16", "f32", "f64"):
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


_COMPARE = (
    "compare:eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan [combine:and|or|xor]"
)
_TYPES = "type:b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"
_HALVES = "type:f16|bf16"
_PAIRS = "type:f16x2|bf16x2"

_JOINS: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _reader(build: Build, kind: str) -> Callable[[Array], Array]:
    """Register bits to what is compared."""
    flush = build.has("ftz")
    if kind == "bf16":
        return f32_of_bf16
    if kind == "f16":
        return lambda bits: (flush_f16(bits) if flush else bits).view(np.float16)
    dtype = DTYPES[kind]
    if flush:
        return lambda bits: flush_single(bits.view(dtype))
    return lambda bits: bits.view(dtype)


def _compared(build: Build, kind: str) -> Callable[[Array, Array], Array]:
    """The comparison as a function of register bits."""
    compare = comparison(build, build.get("compare"), kind)
    read = _reader(build, kind)
    return lambda a, b: compare(read(a), read(b))


def _condition(build: Build, operand: int) -> Callable[[Warp, Array], Array]:
    """What .and, .or and .xor make of a result: with the predicate at ``operand``, if there."""
    combine = build.get("combine")
    if not combine:
        return lambda warp, result: result
    join = _JOINS[combine]
    slot, negated = build.predicate(operand)
    return lambda warp, result: join(result, ~warp.r[slot] if negated else warp.r[slot])


@predicates.instruction(
    f"setp {_COMPARE} {_TYPES}",
    f"setp {_COMPARE} ftz type:f32",
    f"setp {_COMPARE} [ftz] {_HALVES}",
    section="setp",
    anchor="comparison-and-selection-instructions-setp",
)
def setp(build: Build) -> Step:
    """``p[|q]``: q takes the opposite result."""
    kind = build.get("type")
    build.count(4 if build.has("combine") else 3)
    target = build.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    dest = build.dest(first, "pred")
    a, b = build.source(1, kind), build.source(2, kind)
    compare = _compared(build, kind)
    if not build.has("combine") and second is None:
        bits = f"b{8 * DTYPES[kind].itemsize}"
        return compute_slots(compare, dest, "pred", [a, b], (bits, bits))
    other = build.dest(second, "pred") if second is not None else -1
    join = _condition(build, 3)

    def step(warp: Warp) -> None:
        result = compare(warp.r[a], warp.r[b])
        opposite = join(warp, ~result)
        put(warp, dest, join(warp, result))
        if other >= 0:
            put(warp, other, opposite)

    return step


@predicates.instruction(
    f"setp {_COMPARE} [ftz] {_PAIRS}",
    section="setp",
    anchor="half-precision-comparison-instructions-setp",
)
def setp_pairs(build: Build) -> Step:
    """``p|q``: p of the lower halves, q of the upper ones."""
    build.count(4 if build.has("combine") else 3)
    target = build.operands[0]
    if not isinstance(target, Pair):
        raise build.refusal("expected p|q as destination")
    low, high = build.dest(target.first, "pred"), build.dest(target.second, "pred")
    a, b = build.source(1, "b32"), build.source(2, "b32")
    compare, join = _compared(build, build.get("type")[:-2]), _condition(build, 3)

    def step(warp: Warp) -> None:
        result = compare(_halves(warp.r[a]), _halves(warp.r[b])).reshape(-1, 2)
        lower, upper = join(warp, result[:, 0].copy()), join(warp, result[:, 1].copy())
        put(warp, low, lower)
        put(warp, high, upper)

    return step


def _halves(register: Array) -> Array:
    return np.ascontiguousarray(register).view(np.uint16)


_TRUE = {"u32": 0xFFFF_FFFF, "s32": 0xFFFF_FFFF, "f32": 0x3F80_0000}
_TRUE_16 = {"f16": 0x3C00, "bf16": 0x3F80, "u16": 0xFFFF, "s16": 0xFFFF}


@predicates.instruction(
    f"set {_COMPARE} [ftz] to:u32|s32|f32 {_TYPES}|f16|bf16",
    f"set {_COMPARE} [ftz] to:f16|bf16|u16|s16 {_HALVES}",
    section="set",
    anchor="comparison-and-selection-instructions-set",
)
def set_(build: Build) -> Step:
    """All ones or 1.0 where the comparison holds, else zero."""
    kind, to = build.get("type"), build.get("to")
    build.count(4 if build.has("combine") else 3)
    wide = to in _TRUE
    dest = build.dest(0, "b32" if wide else "b16")
    true = np.uint32(_TRUE[to]) if wide else np.uint16(_TRUE_16[to])
    zero = true.dtype.type(0)
    a, b = build.source(1, kind), build.source(2, kind)
    compare, join = _compared(build, kind), _condition(build, 3)

    def step(warp: Warp) -> None:
        result = join(warp, compare(warp.r[a], warp.r[b]))
        put(warp, dest, np.where(result, true, zero))

    return step


@predicates.instruction(
    f"set {_COMPARE} [ftz] to:f16x2|bf16x2 {_PAIRS}",
    section="set",
    anchor="half-precision-comparison-instructions-set",
)
def set_pairs(build: Build) -> Step:
    build.count(4 if build.has("combine") else 3)
    dest, a, b = build.dest(0, "b32"), build.source(1, "b32"), build.source(2, "b32")
    true = np.uint16(_TRUE_16[build.get("to")[:-2]])
    compare, join = _compared(build, build.get("type")[:-2]), _condition(build, 3)

    def step(warp: Warp) -> None:
        result = compare(_halves(warp.r[a]), _halves(warp.r[b])).reshape(-1, 2)
        pairs = np.empty((32, 2), np.uint16)
        for i in (0, 1):
            pairs[:, i] = np.where(join(warp, result[:, i]), true, np.uint16(0))
        put(warp, dest, pairs.view(np.uint32).ravel())

    return step


@predicates.instruction(
    f"slct {_TYPES} by:s32",
    f"slct [ftz] {_TYPES} by:f32",
    section="slct",
    anchor="comparison-and-selection-instructions-slct",
)
def slct(build: Build) -> Step:
    """a where c >= 0, else b; -0 counts as 0, a NaN does not."""
    build.count(4)
    kind, by = build.get("type"), build.get("by")
    bits = f"b{8 * DTYPES[kind].itemsize}"
    sources = [build.source(1, kind), build.source(2, kind), build.source(3, by)]
    read = _reader(build, by)

    def select(a: Array, b: Array, c: Array) -> Array:
        return np.where(read(c) >= 0, a, b)

    return compute_slots(select, build.dest(0, kind), bits, sources, (bits, bits, "b32"))


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
