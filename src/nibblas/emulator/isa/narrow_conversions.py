"""Conversions of two 8-, 6- and 4-bit floats. PTX ISA, "cvt".

Of two results the first operand's goes into the upper half. The .rs forms, whose use of random bits
the PTX ISA draws only in part, are not modelled.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.formats import FORMATS, f32_of_bf16
from nibblas.emulator.isa.build import BLACKWELL, Build, compute_slots
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array

narrow_conversions = Family("narrow_conversions")

_CVT: Reference = {
    "section": "cvt",
    "anchor": "data-movement-and-conversion-instructions-cvt",
}
_PAIRS = "e4m3x2|e5m2x2|e3m2x2|e2m3x2|e2m1x2"


def _packed(codes: Array, bits: int) -> Array:
    """uint16 [2 n], low part first, to [n] of one code each 4 or 8 bits."""
    pairs = codes.reshape(-1, 2)
    joined: Array = pairs[:, 0] | pairs[:, 1] << np.uint16(bits)
    return joined


def _place(kind: str) -> int:
    """Bits from one code to the next in a pair; 6-bit codes stand in bytes."""
    return 4 if kind.startswith("e2m1") else 8


def _require(build: Build, kind: str) -> None:
    """8-bit floats are older than 6- and 4-bit ones and scales."""
    if kind not in ("e4m3", "e5m2"):
        build.require_arch(f".{kind}x2", *BLACKWELL)


def _encode(build: Build, kind: str, value: Array, *, relu: bool) -> Array:
    form = FORMATS[kind]
    if relu:
        value = np.where(value <= 0, 0.0, value)
    return form.encode(value, "rn", saturate=True)


@narrow_conversions.instruction(f"cvt rn satfinite [relu] to:{_PAIRS} from:f32", **_CVT)
def from_f32(build: Build) -> Step:
    build.count(3)
    kind = build.get("to")[:-2]
    relu, place = build.has("relu"), _place(kind)

    def convert(a: Array, b: Array) -> Array:
        pairs = np.empty((len(a), 2), np.float64)
        pairs[:, 0], pairs[:, 1] = b, a
        return _packed(_encode(build, kind, pairs.ravel(), relu=relu), place)

    return _to_register(build, kind, convert, [1, 2], ["f32", "f32"])


@narrow_conversions.instruction(f"cvt rn satfinite [relu] to:{_PAIRS} from:f16x2|bf16x2", **_CVT)
def from_halves(build: Build) -> Step:
    build.count(2)
    kind, brain = build.get("to")[:-2], build.get("from") == "bf16x2"
    relu, place = build.has("relu"), _place(kind)

    def convert(a: Array) -> Array:
        codes = np.ascontiguousarray(a).view(np.uint16)
        exact = f32_of_bf16(codes) if brain else codes.view(np.float16)
        return _packed(_encode(build, kind, exact.astype(np.float64), relu=relu), place)

    return _to_register(build, kind, convert, [1], ["b32"])


def _to_register(
    build: Build, kind: str, convert: object, sources: list[int], kinds: list[str]
) -> Step:
    """Pairs of 4-bit codes go to .b8 registers, the others to .b16; wider ones are accepted."""
    _require(build, kind)
    wanted = "b8" if _place(kind) == 4 else "b16"
    dest = build.dest(0, wanted, wider=True)
    dtype = np.dtype(f"u{build.slots.width(dest)}")
    slots = [build.source(i, k) for i, k in zip(sources, kinds, strict=True)]

    def widened(*operands: Array) -> Array:
        result: Array = convert(*operands).astype(dtype)  # type: ignore[operator]
        return result

    return compute_slots(widened, dest, f"b{8 * dtype.itemsize}", slots, kinds)


@narrow_conversions.instruction(
    f"cvt rn [relu] to:f16x2 from:{_PAIRS}",
    "cvt rn [relu] to:bf16x2 from:e4m3x2|e5m2x2|e3m2x2|e2m3x2|e2m1x2",
    **_CVT,
)
def to_halves(build: Build) -> Step:
    """A table of all codes: every value is exact in .f16 and .bf16."""
    build.count(2)
    kind, half = build.get("from")[:-2], FORMATS[build.get("to")[:-2]]
    form, place = FORMATS[kind], _place(kind)
    _require(build, kind)
    one = half.encode(form.values, "rn", saturate=False)
    if build.has("relu"):
        one = np.where(one & np.uint16(0x8000), np.uint16(0), one)
    one = np.resize(one, 1 << place)  # bits above a 6-bit code do not count
    source = build.source(1, "b8" if place == 4 else "b16", wider=True)
    held = f"b{8 * build.slots.width(source)}"
    mask = (1 << place) - 1

    def convert(codes: Array) -> Array:
        pairs = np.empty((len(codes), 2), np.uint16)
        pairs[:, 0] = one[codes & mask]
        pairs[:, 1] = one[codes >> place & mask]
        return pairs.view(np.uint32).ravel()

    return compute_slots(convert, build.dest(0, "b32"), "b32", [source], [held])


@narrow_conversions.instruction("cvt rounding:rz|rp [satfinite] ue8m0x2 from:f32|bf16x2", **_CVT)
def to_scales(build: Build) -> Step:
    """Magnitudes as powers of two, rounded down or up; NaN: 0xff."""
    pairs_given = build.get("from") == "bf16x2"
    build.count(2 if pairs_given else 3)
    up, saturate = build.get("rounding") == "rp", build.has("satfinite")

    def codes(value: Array) -> Array:
        fraction, exponent = np.frexp(np.abs(value).astype(np.float64))
        power = exponent - 1 + (up & (fraction > 0.5))
        code = np.where(value == 0, 0, np.clip(power + 127, 0, 255))
        finite_most = 254 if saturate else 255
        code = np.minimum(code, finite_most)
        code = np.where(np.isinf(value), finite_most, code)
        return np.where(np.isnan(value), 255, code).astype(np.uint16)

    def from_pairs(a: Array) -> Array:
        return _packed(codes(f32_of_bf16(np.ascontiguousarray(a).view(np.uint16))), 8)

    def from_two(a: Array, b: Array) -> Array:
        pairs = np.empty((len(a), 2), np.float32)
        pairs[:, 0], pairs[:, 1] = b, a
        return _packed(codes(pairs.ravel()), 8)

    if pairs_given:
        return _to_register(build, "ue8m0", from_pairs, [1], ["b32"])
    return _to_register(build, "ue8m0", from_two, [1, 2], ["f32", "f32"])


@narrow_conversions.instruction("cvt rn bf16x2 ue8m0x2", **_CVT)
def from_scales(build: Build) -> Step:
    build.count(2)
    _require(build, "ue8m0")
    one = FORMATS["bf16"].encode(FORMATS["ue8m0"].values, "rn", saturate=False)

    def convert(codes: Array) -> Array:
        return one[np.ascontiguousarray(codes).view(np.uint8)].view(np.uint32)

    return compute_slots(convert, build.dest(0, "b32"), "b32", [build.source(1, "b16")], ["b16"])
