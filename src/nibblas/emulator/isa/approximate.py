"""Approximate functions. PTX ISA, "Floating-Point Instructions", the .approx and .full forms.

The PTX ISA bounds their errors and does not say their bits. Here the result is computed in float64
and rounded to nearest, which lies within every one of those bounds: a device may differ in the last
places. Exact where the PTX ISA is: zeros, infinities, NaNs, the domain's edge.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.formats import FORMATS, f32_of_bf16
from nibblas.emulator.isa.build import Build, compute
from nibblas.emulator.isa.floating import finished
from nibblas.emulator.isa.registry import MANUAL_ONLY, Family, Reference, Step
from nibblas.emulator.machine.memory import Array

approximate = Family("approximate")

NOT_EXACT = f"{MANUAL_ONLY}, not bit-exact"

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def _section(opcode: str) -> Reference:
    return {"section": opcode, "anchor": f"floating-point-instructions-{opcode}"}


@approximate.instruction("rcp approx [ftz] f32", provenance=NOT_EXACT, **_section("rcp"))
@approximate.instruction("sqrt approx [ftz] f32", provenance=NOT_EXACT, **_section("sqrt"))
@approximate.instruction("rsqrt approx [ftz] f32", provenance=NOT_EXACT, **_section("rsqrt"))
@approximate.instruction("sin approx [ftz] f32", provenance=NOT_EXACT, **_section("sin"))
@approximate.instruction("cos approx [ftz] f32", provenance=NOT_EXACT, **_section("cos"))
@approximate.instruction("lg2 approx [ftz] f32", provenance=NOT_EXACT, **_section("lg2"))
@approximate.instruction("ex2 approx [ftz] f32", provenance=NOT_EXACT, **_section("ex2"))
@approximate.instruction("tanh approx f32", provenance=NOT_EXACT, **_section("tanh"))
def single(build: Build) -> Step:
    wide = _FUNCTIONS[build.instruction.opcode]
    function = finished(build, lambda a: wide(a.astype(np.float64)).astype(np.float32))
    return compute(build, function, "f32", "f32")


@approximate.instruction("div mode:approx|full [ftz] f32", provenance=NOT_EXACT, **_section("div"))
def div(build: Build) -> Step:
    """.approx is a / b by way of 1 / b: for |b| above 2^126 that is 0."""
    approx = build.get("mode") == "approx"

    def divide(a: Array, b: Array) -> Array:
        quotient = (a.astype(np.float64) / b).astype(np.float32)
        if not approx:
            return quotient
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        zero = np.copysign(np.float32(0), a) * np.sign(b)
        return np.where(huge, np.where(np.isfinite(a), zero, np.float32(np.nan)), quotient)

    return compute(build, finished(build, divide), "f32", "f32", "f32")


@approximate.instruction("rcp approx ftz f64", provenance=NOT_EXACT, **_section("rcp"))
@approximate.instruction("rsqrt approx [ftz] f64", provenance=NOT_EXACT, **_section("rsqrt"))
def double(build: Build) -> Step:
    """The lower 32 bits of the .ftz results are zero."""
    wide, flush = _FUNCTIONS[build.instruction.opcode], build.has("ftz")
    smallest, upper = np.finfo(np.float64).smallest_normal, np.uint64(0xFFFF_FFFF_0000_0000)

    def function(a: Array) -> Array:
        if not flush:
            return wide(a)
        a = np.where(np.abs(a) < smallest, np.copysign(0.0, a), a)
        cut: Array = (wide(a).view(np.uint64) & upper).view(np.float64)
        return np.where(np.abs(cut) < smallest, np.copysign(0.0, cut), cut)

    return compute(build, function, "f64", "f64")


@approximate.instruction("ex2 approx type:f16|f16x2", provenance=NOT_EXACT, **_section("ex2"))
@approximate.instruction("ex2 approx ftz type:bf16|bf16x2", provenance=NOT_EXACT, **_section("ex2"))
@approximate.instruction(
    "tanh approx type:f16|f16x2|bf16|bf16x2", provenance=NOT_EXACT, **_section("tanh")
)
def half(build: Build) -> Step:
    kind = build.get("type")
    wide, form = _FUNCTIONS[build.instruction.opcode], FORMATS[kind.removesuffix("x2")]
    bits = "b32" if kind.endswith("x2") else "b16"
    flush = build.has("ftz")

    def function(a: Array) -> Array:
        codes = np.ascontiguousarray(a).view(np.uint16)
        exact = f32_of_bf16(codes) if form.name == "bf16" else codes.view(np.float16)
        value = exact.astype(np.float64)
        if flush:
            value = np.where(np.abs(value) < 2.0**-126, np.copysign(0.0, value), value)
        result = form.encode(wide(value), "rn", saturate=False)
        if flush:
            result = np.where(result & 0x7F80, result, result & 0x8000)
        return result.view(a.dtype)

    return compute(build, function, bits, bits)
