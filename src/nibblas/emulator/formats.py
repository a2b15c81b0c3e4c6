"""Number formats narrower than 32 bits: decoding, and rounding float64 to one in every mode.

Sources: PTX ISA, "Alternate Floating-Point Data Formats"; OCP Microscaling Formats 1.0, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nibblas.emulator.machine.memory import Array

_BIAS_64, _SHIFT_64 = 1023, np.int64(52)


def scaled_rounding(
    value: Array, precision: int, least: int, rounding: Callable[[Array], Array]
) -> Array:
    """float64 rounded to a multiple of its last place in a format; no upper bound.

    Args:
        precision: significant bits, the leading one included. least: smallest normal exponent.
        rounding: of float64 to whole numbers.
    """
    exponent = (value.view(np.int64) >> _SHIFT_64 & 0x7FF) - _BIAS_64
    exponent = np.maximum(exponent, least) - (precision - 1)
    last_place = (exponent + _BIAS_64 << _SHIFT_64).view(np.float64)
    scale = (_BIAS_64 - exponent << _SHIFT_64).view(np.float64)
    rounded: Array = rounding(value * scale) * last_place
    return np.where(np.isfinite(value), rounded, value)


def _away(value: Array) -> Array:
    whole: Array = np.trunc(value)
    away: Array = whole + np.where(np.abs(value - whole) >= 0.5, np.copysign(1.0, value), 0.0)
    return away


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rna": _away,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
}


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Attributes:
        bits: of a code. mantissa: of its explicit fraction. bias: of its exponent.
        most: largest finite value. infinity: whether it has one. nan: the canonical code, or None.
    """

    name: str
    bits: int
    mantissa: int
    bias: int
    most: float
    infinity: bool
    nan: int | None
    signed: bool = True

    @property
    def sign_bit(self) -> int:
        return 1 << self.bits - 1 if self.signed else 0

    @cached_property
    def values(self) -> Array:
        """float64 [2 ** bits] of all codes."""
        codes = np.arange(1 << self.bits)
        magnitude = codes & ~self.sign_bit
        exponent, fraction = magnitude >> self.mantissa, magnitude & (1 << self.mantissa) - 1
        normal = np.ldexp(1.0 + fraction / (1 << self.mantissa), exponent - self.bias)
        subnormal = np.ldexp(fraction / (1 << self.mantissa), 1 - self.bias)
        value = np.where(exponent == 0, subnormal, normal)
        if self.name == "ue8m0":
            value = np.ldexp(1.0, codes - self.bias)
        value = np.where(value > self.most, np.nan, value)
        if self.infinity:
            top = (1 << self.bits - 1) - (1 << self.mantissa)
            value = np.where(magnitude == top, np.inf, value)
        return np.where(codes & self.sign_bit, -value, value)

    @cached_property
    def _magnitudes(self) -> Array:
        """Finite values from zero, by code."""
        positive = self.values[: self.sign_bit or len(self.values)]
        return positive[np.isfinite(positive)]

    def round(self, value: Array, mode: str, *, saturate: bool) -> Array:
        """float64 to the format's values, as float64; NaN stays."""
        least = 1 - self.bias
        rounded = scaled_rounding(value, self.mantissa + 1, least, ROUNDINGS[mode])
        beyond = np.abs(rounded) > self.most
        if b"\x01" not in beyond.tobytes():
            return rounded
        bound = np.copysign(self.most, value)
        if saturate:
            return np.where(beyond, bound, rounded)
        inwards = {
            "rz": np.isfinite(value),
            "rm": np.isfinite(value) & (value > 0),
            "rp": np.isfinite(value) & (value < 0),
        }.get(mode, np.zeros(value.shape, bool))
        outside = np.copysign(np.inf if self.infinity else np.nan, value)
        return np.where(beyond, np.where(inwards, bound, outside), rounded)

    def encode(self, value: Array, mode: str, *, saturate: bool) -> Array:
        """Codes, uint16, of float64. A NaN: its code, or the largest value where there is none."""
        rounded = self.round(value, mode, saturate=saturate)
        if self.name == "bf16":
            codes: Array = (rounded.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        elif self.name == "f16":
            codes = rounded.astype(np.float16).view(np.uint16)
        else:
            found = np.searchsorted(self._magnitudes, np.abs(rounded)).astype(np.uint16)
            codes = found | np.where(np.signbit(rounded), self.sign_bit, 0).astype(np.uint16)
        nans = rounded != rounded
        if b"\x01" not in nans.tobytes():
            return codes
        nan = len(self._magnitudes) - 1 if self.nan is None else self.nan
        return np.where(nans, np.uint16(nan), codes)

    def decode(self, codes: Array) -> Array:
        """float64 of codes."""
        found: Array = self.values[codes]
        return found


FORMATS = {
    f.name: f
    for f in (
        Format("f16", 16, 10, 15, 65504.0, True, 0x7FFF),
        Format("bf16", 16, 7, 127, float.fromhex("0x1.fep127"), True, 0x7FFF),
        Format("e4m3", 8, 3, 7, 448.0, False, 0x7F),
        Format("e5m2", 8, 2, 15, 57344.0, True, 0x7F),
        Format("e3m2", 6, 2, 3, 28.0, False, None),
        Format("e2m3", 6, 3, 1, 7.5, False, None),
        Format("e2m1", 4, 1, 1, 6.0, False, None),
        Format("ue8m0", 8, 0, 127, 2.0**127, False, 0xFF, signed=False),
    )
}


def bf16_of(value: Array) -> Array:
    """float32 to bf16 codes, nearest even; any NaN becomes 0x7fff."""
    bits = value.view(np.uint32)
    rounded: Array = (bits + (bits >> 16 & 1) + np.uint32(0x7FFF)) >> np.uint32(16)
    nans = value != value
    if b"\x01" in nans.tobytes():
        rounded = np.where(nans, np.uint32(0x7FFF), rounded)
    return rounded.astype(np.uint16)


def f32_of_bf16(codes: Array) -> Array:
    """bf16 codes to float32."""
    bits: Array = codes.astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def odd_single(exact: Array) -> Array:
    """float64 to float32, rounded to odd: ready to be rounded once more, to bf16."""
    near = exact.astype(np.float32)
    error = exact - near
    if not error.tobytes().strip(b"\0"):
        return near
    bits = near.view(np.int32)
    inexact = (error != 0) & np.isfinite(near) & np.isfinite(error) & (bits & 1 == 0)
    step = np.where((error > 0) == ((near > 0) | ((near == 0) & (exact > 0))), 1, -1)
    step = np.where((near == 0) & (exact != 0), 1, step)
    return np.where(inexact, bits + step.astype(np.int32), bits).astype(np.int32).view(np.float32)


def tf32_of(value: Array, mode: str, *, saturate: bool) -> Array:
    """float32 to tf32, kept in float32: 10 fraction bits, the exponents of float32."""
    rounded = scaled_rounding(value.astype(np.float64), 11, -126, ROUNDINGS[mode])
    if saturate:
        most = float.fromhex("0x1.ffcp127")
        rounded = np.clip(rounded, -most, most)
    return np.copysign(rounded, value).astype(np.float32)
