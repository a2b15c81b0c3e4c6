"""Arithmetic of .f16, .bf16 and pairs of them. PTX ISA, "Half Precision Floating-Point".

A NaN result is 0x7fff. Sums, products and fma are rounded once, whatever happens on the way: sums
and products of f16 in float32 (24 bits are twice 11 and two), the rest rounded to odd first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator import floats
from nibblas.emulator.floats import NAN_16
from nibblas.emulator.formats import bf16_of, f32_of_bf16, odd_single
from nibblas.emulator.isa.build import Build, compute
from nibblas.emulator.isa.floating import with_xorsign
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array

half = Family("half")

Codes = Callable[..., Array]
"""uint16 arrays of codes to uint16."""

_TYPES = "type:f16|f16x2"
_BRAIN = "type:bf16|bf16x2"


def _section(opcode: str) -> Reference:
    return {"section": opcode, "anchor": f"half-precision-floating-point-instructions-{opcode}"}


def on_codes(build: Build, function: Codes, sources: int) -> Step:
    """The step of an instruction on 16-bit codes, or pairs of them, in all operands."""
    bits = "b32" if build.get("type").endswith("x2") else "b16"
    dtype = np.dtype("u4" if bits == "b32" else "u2")

    def apply(*operands: Array) -> Array:
        codes = [np.ascontiguousarray(operand).view(np.uint16) for operand in operands]
        return function(*codes).view(dtype)

    return compute(build, apply, *[bits] * (1 + sources))


def canonical(codes: Array, infinity: int) -> Array:
    """Any NaN becomes 0x7fff. ``infinity``: the format's code."""
    nans = codes & np.uint16(0x7FFF) > np.uint16(infinity)
    if b"\x01" not in nans.tobytes():
        return codes
    return np.where(nans, NAN_16, codes)


def flush_f16(codes: Array) -> Array:
    return np.where(codes & np.uint16(0x7C00), codes, codes & np.uint16(0x8000))


def _fma_f16(a: Array, b: Array, c: Array) -> Array:
    product = a.astype(np.float32) * b.astype(np.float32)
    total = floats.odd_sum(product.astype(np.float64), c.astype(np.float64))
    return total.astype(np.float16)


_F16: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": _fma_f16,
}


def _add_bf16(a: Array, b: Array) -> Array:
    return odd_single(a.astype(np.float64) + b)


def _sub_bf16(a: Array, b: Array) -> Array:
    return odd_single(a.astype(np.float64) - b)


def _mul_bf16(a: Array, b: Array) -> Array:
    return odd_single(a.astype(np.float64) * b)


def _fma_bf16(a: Array, b: Array, c: Array) -> Array:
    return odd_single(floats.odd_sum(a.astype(np.float64) * b, c.astype(np.float64)))


_BF16: dict[str, Callable[..., Array]] = {
    "add": _add_bf16,
    "sub": _sub_bf16,
    "mul": _mul_bf16,
    "fma": _fma_bf16,
}
_SOURCES = {"add": 2, "sub": 2, "mul": 2, "fma": 3}


@half.instruction(f"add [rn] [ftz] [sat] {_TYPES}", **_section("add"))
@half.instruction(f"sub [rn] [ftz] [sat] {_TYPES}", **_section("sub"))
@half.instruction(f"mul [rn] [ftz] [sat] {_TYPES}", **_section("mul"))
@half.instruction(f"fma rn [ftz] [sat] {_TYPES}", f"fma rn [ftz] relu {_TYPES}", **_section("fma"))
def f16(build: Build) -> Step:
    opcode, ftz = build.instruction.opcode, build.has("ftz")
    saturates, clamps = build.has("sat"), build.has("relu")
    operate = _F16[opcode]

    def function(*codes: Array) -> Array:
        if ftz:
            codes = tuple(flush_f16(c) for c in codes)
        value = operate(*[c.view(np.float16) for c in codes])
        if saturates:
            value = floats.saturate(value)
        result = canonical(value.view(np.uint16), 0x7C00)
        if clamps:
            result = relu(result)
        return flush_f16(result) if ftz else result

    return on_codes(build, function, _SOURCES[opcode])


def relu(codes: Array) -> Array:
    """Negative numbers become +0; a NaN is 0x7fff already."""
    return np.where(codes & np.uint16(0x8000), np.uint16(0), codes)


@half.instruction(f"add [rn] {_BRAIN}", **_section("add"))
@half.instruction(f"sub [rn] {_BRAIN}", **_section("sub"))
@half.instruction(f"mul [rn] {_BRAIN}", **_section("mul"))
@half.instruction(f"fma rn {_BRAIN}", f"fma rn relu {_BRAIN}", **_section("fma"))
def bf16(build: Build) -> Step:
    opcode, clamps = build.instruction.opcode, build.has("relu")
    operate = _BF16[opcode]

    def function(*codes: Array) -> Array:
        result = bf16_of(operate(*map(f32_of_bf16, codes)))
        return relu(result) if clamps else result

    return on_codes(build, function, _SOURCES[opcode])


@half.instruction(f"abs [ftz] {_TYPES}", f"abs {_BRAIN}", **_section("abs"))
@half.instruction(f"neg [ftz] {_TYPES}", f"neg {_BRAIN}", **_section("neg"))
def sign(build: Build) -> Step:
    negates, ftz = build.instruction.opcode == "neg", build.has("ftz")
    infinity = 0x7F80 if build.get("type").startswith("bf16") else 0x7C00

    def function(codes: Array) -> Array:
        result = codes ^ np.uint16(0x8000) if negates else codes & np.uint16(0x7FFF)
        result = canonical(result, infinity)
        return flush_f16(result) if ftz else result

    return on_codes(build, function, 1)


@half.instruction(
    f"min [ftz] [NaN] {_TYPES}",
    f"min [NaN] {_BRAIN}",
    f"min [ftz] [NaN] xorsign abs {_TYPES}",
    f"min [NaN] xorsign abs {_BRAIN}",
    **_section("min"),
)
@half.instruction(
    f"max [ftz] [NaN] {_TYPES}",
    f"max [NaN] {_BRAIN}",
    f"max [ftz] [NaN] xorsign abs {_TYPES}",
    f"max [NaN] xorsign abs {_BRAIN}",
    **_section("max"),
)
def extreme(build: Build) -> Step:
    pick = floats.extreme(build.instruction.opcode == "max", build.has("NaN"))
    if build.has("xorsign"):
        pick = with_xorsign(pick)
    brain, ftz = build.get("type").startswith("bf16"), build.has("ftz")

    def function(a: Array, b: Array) -> Array:
        if brain:
            picked = pick(f32_of_bf16(a), f32_of_bf16(b)).view(np.uint32) >> np.uint32(16)
            return canonical(picked.astype(np.uint16), 0x7F80)
        if ftz:
            a, b = flush_f16(a), flush_f16(b)
        return canonical(pick(a.view(np.float16), b.view(np.float16)).view(np.uint16), 0x7C00)

    return on_codes(build, function, 2)
