"""Conversions from and to floating-point types of 16 bits and more. PTX ISA, "cvt".

The source is read as float64, which holds every value of the narrower types exactly; 64-bit
integers are taken as a sum of two. The result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator import floats
from nibblas.emulator.formats import (
    FORMATS,
    ROUNDINGS,
    bf16_of,
    f32_of_bf16,
    tf32_of,
)
from nibblas.emulator.isa.build import DTYPES, Build, bits_dtype, compute, compute_slots
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import TYPE_BYTES

float_conversions = Family("float_conversions")

_INT = "u8|u16|u32|u64|s8|s16|s32|s64"
_FLOAT = "f16|bf16|f32|f64"
_WHOLE = "rni|rzi|rmi|rpi"
_CVT: Reference = {
    "section": "cvt",
    "anchor": "data-movement-and-conversion-instructions-cvt",
}

Function = Callable[[Array], Array]


def read_float(kind: str, *, flush: bool) -> Function:
    """Register bits of a floating type to float64."""
    if kind == "bf16":
        return lambda bits: f32_of_bf16(bits).astype(np.float64)
    dtype = DTYPES[kind]
    if flush and kind == "f32":
        return lambda bits: floats.flush_single(bits.view(np.float32)).astype(np.float64)
    return lambda bits: bits.view(dtype).astype(np.float64)


def write_float(kind: str, mode: str, *, flush: bool) -> Function:
    """float64, exact or rounded to odd, to register bits; a NaN becomes canonical."""
    if kind in ("f16", "bf16"):
        form = FORMATS[kind]
        return lambda value: form.encode(value, mode, saturate=False)
    if kind == "f64":
        return lambda value: value.view(np.uint64)
    if flush:
        return lambda value: floats.flush_single(
            floats.canonical_single(floats.to_single(value, mode))
        ).view(np.uint32)
    return lambda value: floats.canonical_single(floats.to_single(value, mode)).view(np.uint32)


def _lanes(build: Build, function: Function) -> Step:
    """d, a on register bits; registers as wide as the types, or wider."""
    build.count(2)
    to, origin = build.get("to"), build.get("from")
    source = build.source(1, origin, wider=True)
    dest = build.dest(0, to, wider=True)
    narrow, width = bits_dtype(origin), build.slots.width(dest)
    held, wide = np.dtype(f"u{build.slots.width(source)}"), np.dtype(f"u{width}")
    signed = np.dtype(f"i{TYPE_BYTES[to]}") if to[0] == "s" else None

    def convert(bits: Array) -> Array:
        result = function(bits if held == narrow else bits.astype(narrow))
        if result.itemsize == width:
            return result.view(wide)
        if signed is not None:
            return result.view(signed).astype(f"i{width}").view(wide)
        return result.astype(wide)

    return compute_slots(convert, dest, f"b{8 * width}", [source], [f"b{8 * held.itemsize}"])


@float_conversions.instruction(f"cvt rounding:{_WHOLE} [ftz] [sat] to:{_INT} from:{_FLOAT}", **_CVT)
def to_integer(build: Build) -> Step:
    """Out of range: the nearest integer of the type. NaN: 0, or the top bit for 64-bit types."""
    to, origin = build.get("to"), build.get("from")
    read = read_float(origin, flush=build.has("ftz"))
    whole = ROUNDINGS[build.get("rounding")[:2]]
    dtype, limits = DTYPES[to], np.iinfo(DTYPES[to])
    for_nan = 1 << limits.bits - 1 if origin == "f64" or limits.bits == 64 else 0
    nan = np.array(for_nan, f"u{limits.bits // 8}").view(dtype)
    low, beyond = float(limits.min), float(limits.max + 1)  # both powers of two, or zero

    def convert(bits: Array) -> Array:
        value = whole(read(bits))
        inside = (value >= low) & (value < beyond)
        result = np.where(inside, value, 0.0).astype(dtype)
        result = np.where(value >= beyond, limits.max, np.where(value < low, limits.min, result))
        return np.where(value != value, nan, result).astype(dtype)

    return _lanes(build, convert)


@float_conversions.instruction(
    f"cvt rounding:rn|rz|rm|rp [ftz] [sat] to:{_FLOAT} from:{_INT}", **_CVT
)
def from_integer(build: Build) -> Step:
    to, origin, mode = build.get("to"), build.get("from"), build.get("rounding")
    dtype = DTYPES[origin]
    add = floats.add_double(mode) if to == "f64" else floats.odd_sum
    write = write_float(to, mode, flush=False)

    def convert(bits: Array) -> Array:
        number = bits.view(dtype)
        if number.itemsize == 8:
            upper = (number >> dtype.type(32)).astype(np.float64) * 2.0**32
            value = add(upper, (bits & np.uint64(0xFFFF_FFFF)).astype(np.float64))
        else:
            value = number.astype(np.float64)
        if build.has("sat"):
            value = floats.saturate(value)
        return write(value)

    return _lanes(build, convert)


@float_conversions.instruction(
    f"cvt [rounding:rn|rz|rm|rp] [ftz] [sat] to:{_FLOAT} from:{_FLOAT}",
    f"cvt rounding:{_WHOLE} [ftz] [sat] to:{_FLOAT} from:{_FLOAT}",
    **_CVT,
)
def between_floats(build: Build) -> Step:
    to, origin, rounding = build.get("to"), build.get("from"), build.get("rounding")
    if not rounding and TYPE_BYTES[to] < TYPE_BYTES[origin]:
        raise build.refusal("a narrowing conversion names its rounding")
    if rounding[2:] == "i" and to != origin:
        raise build.refusal("rounding to whole numbers keeps the type")
    fast = _fast(to, origin, rounding) if not build.has("ftz") and not build.has("sat") else None
    if fast is not None:
        return _lanes(build, fast)
    flush = build.has("ftz")
    read = read_float(origin, flush=flush)
    write = write_float(to, "rn" if rounding[2:] == "i" else rounding or "rn", flush=flush)
    whole = ROUNDINGS[rounding[:2]] if rounding[2:] == "i" else None

    def convert(bits: Array) -> Array:
        value = read(bits)
        if whole is not None:
            value = np.copysign(whole(value), value)
        if build.has("sat"):
            value = floats.saturate(value)
        return write(value)

    return _lanes(build, convert)


def _f32_of_f64(mode: str) -> Function:
    """A NaN keeps the upper part of its payload, and becomes quiet."""
    return lambda bits: floats.to_single(bits.view(np.float64), mode).view(np.uint32)


def _fast(to: str, origin: str, rounding: str) -> Function | None:
    """Conversions that numpy does in one step."""
    if (to, origin) == ("f32", "f64"):
        return _f32_of_f64(rounding)
    if (to, origin) == ("f32", "bf16"):
        return lambda bits: bits.astype(np.uint32) << np.uint32(16)
    if (to, origin) == ("f64", "f16"):
        return _f64_of_f16
    if (to, origin) == ("f32", "f16"):
        return lambda bits: floats.canonical_single(bits.view(np.float16).astype(np.float32)).view(
            np.uint32
        )
    if (to, origin, rounding) == ("f16", "f32", "rn"):
        return _f16_of
    if (to, origin, rounding) == ("bf16", "f32", "rn"):
        return lambda bits: bf16_of(bits.view(np.float32))
    return None


def _f64_of_f16(bits: Array) -> Array:
    """A NaN keeps its payload, and becomes quiet."""
    wide = bits.view(np.float16).astype(np.float64).view(np.uint64)
    return np.where(bits & 0x7FFF > 0x7C00, wide | np.uint64(1 << 51), wide)


def _f16_of(bits: Array) -> Array:
    value = bits.view(np.float32)
    codes = value.astype(np.float16).view(np.uint16)
    nans = value != value
    return np.where(nans, floats.NAN_16, codes) if b"\x01" in nans.tobytes() else codes


def narrower(kind: str, mode: str, *, saturate: bool, relu: bool) -> Callable[[Array], Array]:
    """float32 to codes of f16 or bf16."""
    form = FORMATS[kind]

    def convert(value: Array) -> Array:
        if mode == "rn" and not saturate:
            codes = bf16_of(value) if kind == "bf16" else _f16_of(value.view(np.uint32))
        else:
            codes = form.encode(value.astype(np.float64), mode, saturate=saturate)
        return np.where(codes & np.uint16(0x8000), np.uint16(0), codes) if relu else codes

    return convert


@float_conversions.instruction(
    "cvt rounding:rn|rz [relu] satfinite to:f16|bf16 from:f32",
    "cvt rounding:rn|rz relu to:f16|bf16 from:f32",
    **_CVT,
)
def narrow_one(build: Build) -> Step:
    """.satfinite makes infinities the largest finite value; .relu negative values +0."""
    convert = narrower(
        build.get("to"),
        build.get("rounding"),
        saturate=build.has("satfinite"),
        relu=build.has("relu"),
    )
    return compute(build, convert, "b16", "f32")


@float_conversions.instruction(
    "cvt rounding:rn|rz [relu] [satfinite] to:f16x2|bf16x2 from:f32", **_CVT
)
def narrow_two(build: Build) -> Step:
    """``d, a, b``: a into the upper half."""
    convert = narrower(
        build.get("to")[:-2],
        build.get("rounding"),
        saturate=build.has("satfinite"),
        relu=build.has("relu"),
    )

    def pack(a: Array, b: Array) -> Array:
        pairs = np.empty((len(a), 2), np.float32)
        pairs[:, 0], pairs[:, 1] = b, a
        return convert(pairs.ravel()).view(np.uint32)

    return compute(build, pack, "b32", "f32", "f32")


@float_conversions.instruction(
    "cvt rounding:rna [satfinite] to:tf32 from:f32",
    "cvt rounding:rn|rz [satfinite] [relu] to:tf32 from:f32",
    **_CVT,
)
def to_tf32(build: Build) -> Step:
    mode, saturate = build.get("rounding"), build.has("satfinite")
    clamps = build.has("relu")

    def convert(value: Array) -> Array:
        result = tf32_of(value, mode, saturate=saturate)
        if clamps:
            result = np.where(result <= 0, np.float32(0), result)
        if mode != "rna":
            return floats.canonical_single(result)
        kept = value.view(np.uint32) & np.uint32(0xFFFF_E000)  # a NaN is cut, no more
        return np.where(value != value, kept, result.view(np.uint32)).view(np.float32)

    return compute(build, convert, "f32", "f32")
