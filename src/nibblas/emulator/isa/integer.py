"""Integer arithmetic, logic and shifts. PTX ISA, "Integer Arithmetic Instructions"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, compute
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import TYPE_BYTES

integer = Family("integer")


def unsigned(kind: str) -> str:
    return f"u{TYPE_BYTES[kind] * 8}"


def doubled(kind: str) -> str:
    """The type of a wide product: "s32" -> "s64"."""
    return f"{kind[0]}{TYPE_BYTES[kind] * 16}"


@integer.instruction("add type:@int", section="add", anchor="integer-arithmetic-instructions-add")
def add(build: Build) -> Step:
    kind = unsigned(build.get("type"))  # two's complement: the sign does not matter
    return compute(build, np.add, kind, kind, kind)


@integer.instruction("sub type:@int", section="sub", anchor="integer-arithmetic-instructions-sub")
def sub(build: Build) -> Step:
    kind = unsigned(build.get("type"))
    return compute(build, np.subtract, kind, kind, kind)


@integer.instruction(
    "mul mode:lo|wide type:@int", section="mul", anchor="integer-arithmetic-instructions-mul"
)
def mul(build: Build) -> Step:
    kind = build.get("type")
    if build.get("mode") == "lo":
        return compute(build, np.multiply, unsigned(kind), unsigned(kind), unsigned(kind))
    if TYPE_BYTES[kind] > 4:
        raise build.refusal(f"mul.wide has no .{kind}")
    wide = DTYPES[doubled(kind)]

    def multiply(a: Array, b: Array) -> Array:
        product: Array = a.astype(wide) * b.astype(wide)
        return product

    return compute(build, multiply, doubled(kind), kind, kind)


@integer.instruction(
    "mad mode:lo|wide type:@int", section="mad", anchor="integer-arithmetic-instructions-mad"
)
def mad(build: Build) -> Step:
    kind = build.get("type")
    if build.get("mode") == "lo":
        bits = unsigned(kind)
        return compute(build, lambda a, b, c: a * b + c, bits, bits, bits, bits)
    if TYPE_BYTES[kind] > 4:
        raise build.refusal(f"mad.wide has no .{kind}")
    wide = DTYPES[doubled(kind)]

    def multiply_add(a: Array, b: Array, c: Array) -> Array:
        total: Array = a.astype(wide) * b.astype(wide) + c
        return total

    return compute(build, multiply_add, doubled(kind), kind, kind, doubled(kind))


@integer.instruction(
    "and type:pred|b16|b32|b64",
    section="and",
    anchor="logic-and-shift-instructions-and",
)
def and_(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.bitwise_and, kind, kind, kind)


@integer.instruction(
    "or type:pred|b16|b32|b64", section="or", anchor="logic-and-shift-instructions-or"
)
def or_(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.bitwise_or, kind, kind, kind)


@integer.instruction(
    "xor type:pred|b16|b32|b64", section="xor", anchor="logic-and-shift-instructions-xor"
)
def xor(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.bitwise_xor, kind, kind, kind)


@integer.instruction(
    "not type:pred|b16|b32|b64", section="not", anchor="logic-and-shift-instructions-not"
)
def not_(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.invert, kind, kind)


@integer.instruction(
    "shl type:b16|b32|b64", section="shl", anchor="logic-and-shift-instructions-shl"
)
def shl(build: Build) -> Step:
    """Amounts past the width give 0; numpy's shift does the same."""
    kind = build.get("type")
    dtype = DTYPES[kind]
    return compute(build, lambda a, n: np.left_shift(a, n).astype(dtype), kind, kind, "u32")


@integer.instruction(
    "shr type:b16|b32|b64|u16|u32|u64|s16|s32|s64",
    section="shr",
    anchor="logic-and-shift-instructions-shr",
)
def shr(build: Build) -> Step:
    """Signed types fill with the sign; amounts are clamped to the width."""
    kind = build.get("type")
    dtype, most = DTYPES[kind], 8 * TYPE_BYTES[kind] - 1
    if kind[0] != "s":
        return compute(build, lambda a, n: np.right_shift(a, n).astype(dtype), kind, kind, "u32")

    def shift(a: Array, n: Array) -> Array:
        shifted: Array = np.right_shift(a, np.minimum(n, most).astype(dtype))
        return shifted

    return compute(build, shift, kind, kind, "u32")
