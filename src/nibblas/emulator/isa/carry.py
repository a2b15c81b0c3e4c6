"""Extended-precision integers: the carry flag CC.CF. PTX ISA, "Extended-Precision Integer".

The flag is a register of its own. Additions leave the carry in it, subtractions the borrow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, bits_dtype, put
from nibblas.emulator.isa.integer import high_half, unsigned
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp

carry = Family("carry")

_TYPE = "type:u32|s32|u64|s64"
_SECTION = "Extended-Precision Integer Arithmetic Instructions"


def _anchor(opcode: str) -> str:
    return f"extended-precision-arithmetic-instructions-{opcode}"


def _added(a: Array, b: Array, extra: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + extra
    return total, ((partial < a) | (total < partial)).astype(np.uint32)


def _subtracted(a: Array, b: Array, extra: Array) -> tuple[Array, Array]:
    partial = a - b
    return partial - extra, ((a < b) | (partial < extra)).astype(np.uint32)


def _step(
    build: Build,
    operation: Callable[[Array, Array, Array], tuple[Array, Array]],
    first: Callable[[Warp], Array],
    addend: int,
    *,
    uses: bool,
) -> Step:
    kind = unsigned(build.get("type"))
    dest, dtype = build.dest(0, kind), bits_dtype(kind)
    flag = build.slots.register_of_kind("CC.CF", "u32")
    sets = build.has("cc")
    none = np.zeros(32, dtype)

    def step(warp: Warp) -> None:
        extra = warp.r[flag].astype(dtype) if uses else none
        value, out = operation(first(warp), warp.r[addend], extra)
        put(warp, dest, value)
        if sets:
            put(warp, flag, out)

    return step


@carry.instruction(f"add cc {_TYPE}", section=_SECTION, anchor=_anchor("add-cc"))
@carry.instruction(f"addc [cc] {_TYPE}", section=_SECTION, anchor=_anchor("addc"))
@carry.instruction(f"sub cc {_TYPE}", section=_SECTION, anchor=_anchor("sub-cc"))
@carry.instruction(f"subc [cc] {_TYPE}", section=_SECTION, anchor=_anchor("subc"))
def add_or_subtract(build: Build) -> Step:
    build.count(3)
    kind, opcode = unsigned(build.get("type")), build.instruction.opcode
    a, b = build.source(1, kind), build.source(2, kind)
    operation = _added if opcode.startswith("add") else _subtracted
    return _step(build, operation, lambda warp: warp.r[a], b, uses=opcode.endswith("c"))


@carry.instruction(f"mad half:hi|lo cc {_TYPE}", section=_SECTION, anchor=_anchor("mad-cc"))
@carry.instruction(f"madc half:hi|lo [cc] {_TYPE}", section=_SECTION, anchor=_anchor("madc"))
def multiply_add(build: Build) -> Step:
    build.count(4)
    kind = build.get("type")
    a, b, c = (build.source(i, kind) for i in (1, 2, 3))
    dtype, bits = DTYPES[kind], bits_dtype(kind)
    product = high_half(kind) if build.get("half") == "hi" else np.multiply

    def first(warp: Warp) -> Array:
        return product(warp.r[a].view(dtype), warp.r[b].view(dtype)).view(bits)

    return _step(build, _added, first, c, uses=build.instruction.opcode == "madc")
