"""Floating-point arithmetic of .f32 and .f64. PTX ISA, "Floating-Point Instructions".

An operation on .f32 that yields a NaN yields 0x7fffffff; one on .f64 keeps the payload: of two NaNs
the second operand's, in a division the first's (as on an H200; the PTX ISA does not say). A result
below the normal range is flushed by .ftz after rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator import floats
from nibblas.emulator.formats import f32_of_bf16
from nibblas.emulator.isa.build import BLACKWELL, Build, compute
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array

floating = Family("floating")

Function = Callable[..., Array]
"""Of float arrays, one per source."""

_RN = "[rnd:rn|rz|rm|rp]"


def finished(build: Build, function: Function) -> Function:
    """A function of float32 arrays with what .ftz and .sat add, and NaNs made canonical."""
    after = floats.saturate if build.has("sat") else floats.canonical_single
    if not build.has("ftz"):
        return lambda *operands: after(function(*operands))
    flush = floats.flush_single
    return lambda *operands: flush(after(function(*map(flush, operands))))


_SINGLE: dict[str, Callable[[str], Function]] = {
    "add": floats.add_single,
    "mul": floats.multiply_single,
    "fma": floats.fma_single,
    "mad": floats.fma_single,
    "div": floats.divide_single,
    "sqrt": floats.sqrt_single,
}
_DOUBLE: dict[str, Callable[[str], Function]] = {
    "add": floats.add_double,
    "mul": floats.multiply_double,
    "fma": floats.fma_double,
    "mad": floats.fma_double,
    "div": floats.divide_double,
    "sqrt": floats.sqrt_double,
}


def _section(opcode: str) -> Reference:
    return {"section": opcode, "anchor": f"floating-point-instructions-{opcode}"}


@floating.instruction(f"add {_RN} [ftz] [sat] f32", **_section("add"))
@floating.instruction(f"mul {_RN} [ftz] [sat] f32", **_section("mul"))
@floating.instruction("fma rnd:rn|rz|rm|rp [ftz] [sat] f32", **_section("fma"))
@floating.instruction("mad rnd:rn|rz|rm|rp [ftz] [sat] f32", **_section("mad"))
@floating.instruction("div rnd:rn|rz|rm|rp [ftz] f32", **_section("div"))
@floating.instruction("sqrt rnd:rn|rz|rm|rp [ftz] f32", **_section("sqrt"))
def single(build: Build) -> Step:
    opcode, mode = build.instruction.opcode, build.get("rnd", "rn")
    function = finished(build, _SINGLE[opcode](mode))
    return compute(build, function, *["f32"] * (1 + _SOURCES[opcode]))


@floating.instruction(f"add {_RN} f64", **_section("add"))
@floating.instruction(f"mul {_RN} f64", **_section("mul"))
@floating.instruction("fma rnd:rn|rz|rm|rp f64", **_section("fma"))
@floating.instruction("mad rnd:rn|rz|rm|rp f64", **_section("mad"))
@floating.instruction("div rnd:rn|rz|rm|rp f64", **_section("div"))
@floating.instruction("sqrt rnd:rn|rz|rm|rp f64", **_section("sqrt"))
def double(build: Build) -> Step:
    opcode, mode = build.instruction.opcode, build.get("rnd", "rn")
    function = _DOUBLE[opcode](mode)
    if opcode in ("add", "mul"):
        function = floats.nan_double(function)
    return compute(build, function, *["f64"] * (1 + _SOURCES[opcode]))


_SOURCES = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "sqrt": 1}


@floating.instruction(f"sub {_RN} [ftz] [sat] f32", **_section("sub"))
def sub_single(build: Build) -> Step:
    function = finished(build, _subtract(build.get("rnd", "rn")))
    return compute(build, function, "f32", "f32", "f32")


def _subtract(mode: str) -> Function:
    if mode == "rn":
        return np.subtract
    add = floats.add_single(mode)
    return lambda a, b: add(a, -b)


@floating.instruction(f"sub {_RN} f64", **_section("sub"))
def sub_double(build: Build) -> Step:
    function = floats.nan_double(_subtract_double(build.get("rnd", "rn")))
    return compute(build, function, "f64", "f64", "f64")


def _subtract_double(mode: str) -> Function:
    """A NaN keeps its sign, as on an H200."""
    if mode == "rn":
        return np.subtract
    add = floats.add_double(mode)
    return lambda a, b: add(a, np.where(np.isnan(b), b, -b))


@floating.instruction(f"add {_RN} [ftz] f32x2", **_section("add"))
@floating.instruction(f"sub {_RN} [ftz] f32x2", **_section("sub"))
@floating.instruction(f"mul {_RN} [ftz] f32x2", **_section("mul"))
@floating.instruction("fma rnd:rn|rz|rm|rp [ftz] f32x2", **_section("fma"))
def pairs(build: Build) -> Step:
    """Two .f32 operations on the halves of .b64 registers."""
    build.require_arch(".f32x2", *BLACKWELL)
    opcode, mode = build.instruction.opcode, build.get("rnd", "rn")
    function = finished(build, _subtract(mode) if opcode == "sub" else _SINGLE[opcode](mode))

    def both(*operands: Array) -> Array:
        halves = [np.ascontiguousarray(operand).view(np.float32) for operand in operands]
        return function(*halves).view(np.uint64)

    return compute(build, both, *["b64"] * (1 + _SOURCES[opcode]))


@floating.instruction(f"add {_RN} [sat] f32 from:f16|bf16", **_section("add"))
@floating.instruction(f"sub {_RN} [sat] f32 from:f16|bf16", **_section("sub"))
@floating.instruction("fma rnd:rn|rz|rm|rp [sat] f32 from:f16|bf16", **_section("fma"))
def mixed(build: Build) -> Step:
    """All sources but the last are of 16 bits; they are exact in .f32.

    PTX ISA, "Mixed Precision Floating Point Instructions".
    """
    kind, opcode, mode = build.get("from"), build.instruction.opcode, build.get("rnd", "rn")
    build.require_arch(f".f32.{kind}", *BLACKWELL)
    function = finished(build, _subtract(mode) if opcode == "sub" else _SINGLE[opcode](mode))

    def operate(*operands: Array) -> Array:
        narrow = [f32_of_bf16(a) if kind == "bf16" else a.astype(np.float32) for a in operands[:-1]]
        return function(*narrow, operands[-1])

    return compute(build, operate, "f32", *[kind] * (_SOURCES[opcode] - 1), "f32")


@floating.instruction("rcp rnd:rn|rz|rm|rp [ftz] f32", **_section("rcp"))
def rcp_single(build: Build) -> Step:
    divide = floats.divide_single(build.get("rnd"))
    one = np.ones(32, np.float32)
    return compute(build, finished(build, lambda a: divide(one, a)), "f32", "f32")


@floating.instruction("rcp rnd:rn|rz|rm|rp f64", **_section("rcp"))
def rcp_double(build: Build) -> Step:
    divide = floats.divide_double(build.get("rnd"))
    one = np.ones(32, np.float64)
    return compute(build, lambda a: divide(one, a), "f64", "f64")


@floating.instruction("abs [ftz] f32", **_section("abs"))
@floating.instruction("neg [ftz] f32", **_section("neg"))
def sign_single(build: Build) -> Step:
    function = np.abs if build.instruction.opcode == "abs" else np.negative
    return compute(build, finished(build, function), "f32", "f32")


@floating.instruction("abs f64", **_section("abs"))
@floating.instruction("neg f64", **_section("neg"))
def sign_double(build: Build) -> Step:
    function = np.abs if build.instruction.opcode == "abs" else np.negative
    return compute(build, floats.sign_double(function), "f64", "f64")


@floating.instruction("min [ftz] [NaN] [xorsign] [abs] f32", **_section("min"))
@floating.instruction("max [ftz] [NaN] [xorsign] [abs] f32", **_section("max"))
def extreme_single(build: Build) -> Step:
    """Two sources, with .xorsign.abs or without; or three, with .abs or without."""
    pick = floats.extreme(build.instruction.opcode == "max", build.has("NaN"))
    if build.count(3, 4) == 4:
        build.require_arch(f"{build.instruction.opcode} of three sources", *BLACKWELL)
        if build.has("xorsign"):
            raise build.refusal(".xorsign with three sources")
        if build.has("abs"):
            return compute(
                build,
                finished(build, lambda a, b, c: pick(pick(np.abs(a), np.abs(b)), np.abs(c))),
                *["f32"] * 4,
            )
        return compute(build, finished(build, lambda a, b, c: pick(pick(a, b), c)), *["f32"] * 4)
    if build.has("xorsign") != build.has("abs"):
        raise build.refusal(".xorsign and .abs with two sources: both or neither")
    if build.has("xorsign"):
        pick = with_xorsign(pick)
    return compute(build, finished(build, pick), "f32", "f32", "f32")


def with_xorsign(pick: Function) -> Function:
    """On magnitudes; the sign of the result is that of the product."""

    def signed(a: Array, b: Array) -> Array:
        sign = np.where(np.signbit(a) != np.signbit(b), -1, 1).astype(a.dtype)
        result: Array = np.copysign(pick(np.abs(a), np.abs(b)), sign)
        return result

    return signed


@floating.instruction("min f64", **_section("min"))
@floating.instruction("max f64", **_section("max"))
def extreme_double(build: Build) -> Step:
    pick = floats.extreme(build.instruction.opcode == "max", propagate=False)
    return compute(build, floats.nan_double(pick), "f64", "f64", "f64")


@floating.instruction("copysign type:f32|f64", **_section("copysign"))
def copysign(build: Build) -> Step:
    """``d, a, b``: the sign of a, the value of b."""
    kind = build.get("type")
    return compute(build, lambda a, b: np.copysign(b, a), kind, kind, kind)


def _is_normal(a: Array) -> Array:
    smallest = np.finfo(a.dtype).smallest_normal
    normal: Array = np.isfinite(a) & (np.abs(a) >= smallest) | (a == 0)  # zeros count as normal
    return normal


def _is_subnormal(a: Array) -> Array:
    subnormal: Array = (a != 0) & (np.abs(a) < np.finfo(a.dtype).smallest_normal)
    return subnormal


_PROPERTIES: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: a == a,
    "notanumber": np.isnan,
    "normal": _is_normal,
    "subnormal": _is_subnormal,
}


@floating.instruction(
    "testp property:finite|infinite|number|notanumber|normal|subnormal type:f32|f64",
    **_section("testp"),
)
def testp(build: Build) -> Step:
    return compute(build, _PROPERTIES[build.get("property")], "pred", build.get("type"))
