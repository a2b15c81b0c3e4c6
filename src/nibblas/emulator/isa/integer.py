"""Integer arithmetic. PTX ISA, "Integer Arithmetic Instructions".

Two's complement: where signs do not matter a handler works on unsigned numbers, which wrap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, compute
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import TYPE_BYTES

integer = Family("integer")

_LOW_32 = np.uint64(0xFFFF_FFFF)
_32 = np.uint64(32)


def unsigned(kind: str) -> str:
    return f"u{TYPE_BYTES[kind] * 8}"


def doubled(kind: str) -> str:
    """The type of a wide product: "s32" -> "s64"."""
    return f"{kind[0]}{TYPE_BYTES[kind] * 16}"


def saturated(value: Array) -> Array:
    """int64 to the range of .s32."""
    return np.clip(value, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def high_half(kind: str) -> Callable[[Array, Array], Array]:
    """The function that gives the upper half of a product of two numbers of a type."""
    if TYPE_BYTES[kind] == 8:
        return _high_signed_64 if kind[0] == "s" else _high_64
    wide, narrow = DTYPES[doubled(kind)], DTYPES[kind]
    shift = 8 * TYPE_BYTES[kind]
    return lambda a, b: (a.astype(wide) * b.astype(wide) >> shift).astype(narrow)


def _high_64(a: Array, b: Array) -> Array:
    a_low, a_high, b_low, b_high = a & _LOW_32, a >> _32, b & _LOW_32, b >> _32
    middle = a_high * b_low + (a_low * b_low >> _32)
    other = a_low * b_high + (middle & _LOW_32)
    high: Array = a_high * b_high + (middle >> _32) + (other >> _32)
    return high


def _high_signed_64(a: Array, b: Array) -> Array:
    high = _high_64(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    corrected: Array = high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    return corrected


@integer.instruction("add type:@int", section="add", anchor="integer-arithmetic-instructions-add")
def add(build: Build) -> Step:
    kind = unsigned(build.get("type"))
    return compute(build, np.add, kind, kind, kind)


@integer.instruction("sub type:@int", section="sub", anchor="integer-arithmetic-instructions-sub")
def sub(build: Build) -> Step:
    kind = unsigned(build.get("type"))
    return compute(build, np.subtract, kind, kind, kind)


@integer.instruction("add sat s32", section="add", anchor="integer-arithmetic-instructions-add")
def add_saturated(build: Build) -> Step:
    return compute(build, lambda a, b: saturated(a.astype(np.int64) + b), "s32", "s32", "s32")


@integer.instruction("sub sat s32", section="sub", anchor="integer-arithmetic-instructions-sub")
def sub_saturated(build: Build) -> Step:
    return compute(build, lambda a, b: saturated(a.astype(np.int64) - b), "s32", "s32", "s32")


def halves(function: Callable[..., Array], kind: str) -> Callable[..., Array]:
    """Applies a function of 16-bit numbers to both halves of 32-bit registers."""
    narrow = np.dtype("i2" if kind[0] == "s" else "u2")

    def both(*operands: Array) -> Array:
        parts = [np.ascontiguousarray(operand).view(narrow) for operand in operands]
        return function(*parts).astype(narrow, copy=False).view(np.uint32)

    return both


@integer.instruction(
    "add type:u16x2|s16x2", section="add", anchor="integer-arithmetic-instructions-add"
)
def add_halves(build: Build) -> Step:
    return compute(build, halves(np.add, "u16x2"), "b32", "b32", "b32")


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
    "mul hi type:@int", section="mul", anchor="integer-arithmetic-instructions-mul"
)
def mul_high(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, high_half(kind), kind, kind, kind)


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
    "mad hi type:@int", section="mad", anchor="integer-arithmetic-instructions-mad"
)
def mad_high(build: Build) -> Step:
    kind = build.get("type")
    high = high_half(kind)
    return compute(build, lambda a, b, c: high(a, b) + c, kind, kind, kind, kind)


@integer.instruction("mad hi sat s32", section="mad", anchor="integer-arithmetic-instructions-mad")
def mad_high_saturated(build: Build) -> Step:
    high = high_half("s32")

    def multiply_add(a: Array, b: Array, c: Array) -> Array:
        return saturated(high(a, b).astype(np.int64) + c)

    return compute(build, multiply_add, "s32", "s32", "s32", "s32")


def _product_24(kind: str, half: str) -> Callable[[Array, Array], Array]:
    """int64: the upper 32 of 48 bits, or the lower 32, of a product of the low 24 bits."""
    shift = 16 if half == "hi" else 0

    def cut(a: Array) -> Array:
        wide = a.astype(np.int64)
        return (wide << 40) >> 40 if kind == "s32" else wide & 0xFF_FFFF

    return lambda a, b: cut(a) * cut(b) >> shift


@integer.instruction(
    "mul24 half:hi|lo type:u32|s32",
    section="mul24",
    anchor="integer-arithmetic-instructions-mul24",
)
def mul24(build: Build) -> Step:
    kind = build.get("type")
    product, dtype = _product_24(kind, build.get("half")), DTYPES[kind]
    return compute(build, lambda a, b: product(a, b).astype(dtype), kind, kind, kind)


@integer.instruction(
    "mad24 half:hi|lo type:u32|s32",
    section="mad24",
    anchor="integer-arithmetic-instructions-mad24",
)
def mad24(build: Build) -> Step:
    kind = build.get("type")
    product, dtype = _product_24(kind, build.get("half")), DTYPES[kind]
    return compute(build, lambda a, b, c: product(a, b).astype(dtype) + c, kind, kind, kind, kind)


@integer.instruction(
    "mad24 hi sat s32", section="mad24", anchor="integer-arithmetic-instructions-mad24"
)
def mad24_saturated(build: Build) -> Step:
    product = _product_24("s32", "hi")
    return compute(build, lambda a, b, c: saturated(product(a, b) + c), "s32", "s32", "s32", "s32")


@integer.instruction("sad type:@int", section="sad", anchor="integer-arithmetic-instructions-sad")
def sad(build: Build) -> Step:
    kind = build.get("type")
    bits = DTYPES[unsigned(kind)]

    def accumulate(a: Array, b: Array, c: Array) -> Array:
        larger, smaller = np.maximum(a, b).view(bits), np.minimum(a, b).view(bits)
        total: Array = larger - smaller + c.view(bits)
        return total

    return compute(build, accumulate, unsigned(kind), kind, kind, kind)


def _quotient(kind: str) -> Callable[[Array, Array], Array]:
    """Rounds toward zero. A division by zero gives all ones: the PTX ISA leaves it open."""
    if kind[0] == "u":
        ones = DTYPES[kind].type((1 << 8 * TYPE_BYTES[kind]) - 1)
        return lambda a, b: np.where(b == 0, ones, a // np.maximum(b, 1))
    bits, dtype = DTYPES[unsigned(kind)], DTYPES[kind]

    def divide(a: Array, b: Array) -> Array:
        magnitude = np.abs(a).view(bits) // np.maximum(np.abs(b).view(bits), 1)
        quotient = magnitude.view(dtype)
        signed: Array = np.where((a ^ b) < 0, -quotient, quotient)
        return np.where(b == 0, dtype.type(-1), signed)

    return divide


@integer.instruction("div type:@int", section="div", anchor="integer-arithmetic-instructions-div")
def div(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, _quotient(kind), kind, kind, kind)


@integer.instruction("rem type:@int", section="rem", anchor="integer-arithmetic-instructions-rem")
def rem(build: Build) -> Step:
    """The sign of the dividend; the dividend itself if the divisor is zero."""
    kind = build.get("type")
    quotient = _quotient(kind)
    return compute(build, lambda a, b: a - quotient(a, b) * b, kind, kind, kind)


@integer.instruction(
    "abs type:s16|s32|s64", section="abs", anchor="integer-arithmetic-instructions-abs"
)
def abs_(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.abs, kind, kind)


@integer.instruction(
    "neg type:s16|s32|s64", section="neg", anchor="integer-arithmetic-instructions-neg"
)
def neg(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.negative, kind, kind)


_EXTREMES: dict[str, Callable[..., Array]] = {"min": np.minimum, "max": np.maximum}


@integer.instruction(
    "min type:@int",
    "min relu type:s32",
    section="min",
    anchor="integer-arithmetic-instructions-min",
)
@integer.instruction(
    "max type:@int",
    "max relu type:s32",
    section="max",
    anchor="integer-arithmetic-instructions-max",
)
def extreme(build: Build) -> Step:
    kind, pick = build.get("type"), _EXTREMES[build.instruction.opcode]
    if build.has("relu"):
        return compute(build, lambda a, b: np.maximum(pick(a, b), 0), kind, kind, kind)
    return compute(build, pick, kind, kind, kind)


@integer.instruction(
    "min type:u16x2|s16x2",
    "min relu type:s16x2",
    section="min",
    anchor="integer-arithmetic-instructions-min",
)
@integer.instruction(
    "max type:u16x2|s16x2",
    "max relu type:s16x2",
    section="max",
    anchor="integer-arithmetic-instructions-max",
)
def extreme_halves(build: Build) -> Step:
    kind, pick = build.get("type"), _EXTREMES[build.instruction.opcode]
    if build.has("relu"):
        function = halves(lambda a, b: np.maximum(pick(a, b), 0), kind)
    else:
        function = halves(pick, kind)
    return compute(build, function, "b32", "b32", "b32")


def _parts(register: Array, kind: str) -> Array:
    """Four bytes of 32-bit registers as int64 [32, 4]."""
    narrow = np.int8 if kind == "s32" else np.uint8
    return np.ascontiguousarray(register).view(narrow).reshape(-1, 4).astype(np.int64)


@integer.instruction(
    "dp4a a:u32|s32 b:u32|s32", section="dp4a", anchor="integer-arithmetic-instructions-dp4a"
)
def dp4a(build: Build) -> Step:
    a_kind, b_kind = build.get("a"), build.get("b")

    def dot(a: Array, b: Array, c: Array) -> Array:
        products = (_parts(a, a_kind) * _parts(b, b_kind)).sum(axis=1)
        total: Array = products.astype(np.uint32) + c
        return total

    return compute(build, dot, "u32", "b32", "b32", "u32")


@integer.instruction(
    "dp2a half:lo|hi a:u32|s32 b:u32|s32",
    section="dp2a",
    anchor="integer-arithmetic-instructions-dp2a",
)
def dp2a(build: Build) -> Step:
    """Two 16-bit numbers of a with the lower or the upper two bytes of b."""
    a_kind, b_kind = build.get("a"), build.get("b")
    narrow = np.int16 if a_kind == "s32" else np.uint16
    used = slice(0, 2) if build.get("half") == "lo" else slice(2, 4)

    def dot(a: Array, b: Array, c: Array) -> Array:
        left = np.ascontiguousarray(a).view(narrow).reshape(-1, 2).astype(np.int64)
        products = (left * _parts(b, b_kind)[:, used]).sum(axis=1)
        total: Array = products.astype(np.uint32) + c
        return total

    return compute(build, dot, "u32", "b32", "b32", "u32")
