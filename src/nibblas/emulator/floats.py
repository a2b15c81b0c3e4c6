"""IEEE 754 arithmetic in every rounding mode, on numpy arrays.

Method: float32 work is done in float64, where products are exact and sums are rounded to odd: such
a value, rounded once more to at most 51 bits in any mode, is the exact result rounded once (Boldo
and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Comput. 57, 2008).
float64 work in other modes than nearest, and its fma, goes through exact fractions, lane by lane.

Modes: ``rn`` nearest even, ``rna`` nearest away, ``rz`` zero, ``rm`` down, ``rp`` up.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from nibblas.emulator.machine.memory import Array

NAN_32 = np.uint32(0x7FFF_FFFF)
NAN_16 = np.uint16(0x7FFF)
"""Canonical NaNs of .f32, and of .f16 and .bf16."""

_NO_NANS = bytes(32)
_ZERO = b"\0"
_SMALLEST_NORMAL = np.float32(2.0**-126)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b of float64 arrays, rounded to odd."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    if not error.tobytes().strip(_ZERO):
        return total
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    outward = (error > 0) == (total > 0)
    odd: Array = np.where(inexact, bits + np.where(outward, 1, -1), bits).view(np.float64)
    return odd


def to_single(exact: Array, mode: str) -> Array:
    """float64, exact or rounded to odd, to float32."""
    near = exact.astype(np.float32)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    if mode == "rm":
        return np.where(back > exact, np.nextafter(near, np.float32(-np.inf)), near)
    return np.where(back < exact, np.nextafter(near, np.float32(np.inf)), near)


def _zero_sum(total: Array, a: Array, b: Array) -> Array:
    """Rounding down: an exact sum of zero is -0, unless both terms are +0."""
    negative = (total == 0) & ((a != 0) | np.signbit(a) | np.signbit(b))
    return np.where(negative, -0.0, total)


def add_single(mode: str) -> Callable[[Array, Array], Array]:
    if mode == "rn":
        return np.add

    def add(a: Array, b: Array) -> Array:
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        total = odd_sum(wide_a, wide_b)
        if mode == "rm":
            total = _zero_sum(total, wide_a, wide_b)
        return to_single(total, mode)

    return add


def multiply_single(mode: str) -> Callable[[Array, Array], Array]:
    if mode == "rn":
        return np.multiply
    return lambda a, b: to_single(a.astype(np.float64) * b, mode)


def fma_single(mode: str) -> Callable[[Array, Array, Array], Array]:
    """A sum rounded to float64 first is right too, unless it lies where float32 rounds to even."""

    def fma(a: Array, b: Array, c: Array) -> Array:
        product, addend = a.astype(np.float64) * b, c.astype(np.float64)
        if mode == "rn":
            total = product + addend
            if b"\x01" not in (total.view(np.uint64) & _TIE == 0).tobytes():
                return total.astype(np.float32)
        total = odd_sum(product, addend)
        if mode == "rm":
            total = _zero_sum(total, product, addend)
        return to_single(total, mode)

    return fma


_TIE = np.uint64((1 << 28) - 1)


def divide_single(mode: str) -> Callable[[Array, Array], Array]:
    if mode == "rn":
        return np.divide

    def divide(a: Array, b: Array) -> Array:
        near = a / b
        exact = near.astype(np.float64) * b  # at most 48 bits
        beyond = np.where(b < 0, exact < a, exact > a)
        below = np.where(b < 0, exact > a, exact < a)
        finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
        return _stepped(near, beyond & finite, below & finite, mode)

    return divide


def sqrt_single(mode: str) -> Callable[[Array], Array]:
    if mode == "rn":
        return np.sqrt

    def root(a: Array) -> Array:
        near = np.sqrt(a)
        exact = near.astype(np.float64) ** 2
        return _stepped(near, exact > a, exact < a, mode)

    return root


def _stepped(near: Array, above: Array, below: Array, mode: str) -> Array:
    """The nearest number, stepped to the neighbour where it lies on the mode's wrong side."""
    least, most = near.dtype.type(-np.inf), near.dtype.type(np.inf)
    negative = np.signbit(near)
    if mode == "rz":
        above, below = above & ~negative, below & negative
    if mode in ("rz", "rm"):
        near = np.where(above, np.nextafter(near, least), near)
    if mode in ("rz", "rp"):
        near = np.where(below, np.nextafter(near, most), near)
    return near


def canonical_single(value: Array) -> Array:
    """Any NaN becomes 0x7fffffff."""
    nans = value != value
    if nans.tobytes() == _NO_NANS:
        return value
    return np.where(nans, NAN_32, value.view(np.uint32)).view(np.float32)


_QUIET = np.uint64(1 << 51)


def nan_double(function: Callable[..., Array]) -> Callable[..., Array]:
    """A float64 function of two numbers; of two NaNs the second one is taken, made quiet."""

    def operate(a: Array, b: Array) -> Array:
        result = function(a, b)
        both = (a != a) & (b != b)
        if both.tobytes() == _NO_NANS:
            return result
        return np.where(both, b.view(np.uint64) | _QUIET, result.view(np.uint64)).view(np.float64)

    return operate


def sign_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """abs or neg of float64; a NaN becomes quiet and positive."""

    def operate(a: Array) -> Array:
        nan = (a.view(np.uint64) | _QUIET) & np.uint64((1 << 63) - 1)
        return np.where(a != a, nan, function(a).view(np.uint64)).view(np.float64)

    return operate


def flush_single(value: Array) -> Array:
    """Subnormal numbers become zeros of their sign."""
    tiny = np.abs(value) < _SMALLEST_NORMAL
    if tiny.tobytes() == _NO_NANS:
        return value
    return np.where(tiny, np.copysign(np.float32(0), value), value)


def saturate(value: Array) -> Array:
    """[0, 1]; NaN and -0 become +0."""
    clamped: Array = np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))
    positive: Array = clamped + value.dtype.type(0)
    return positive


def extreme(largest: bool, propagate: bool) -> Callable[[Array, Array], Array]:
    """min or max: -0 below +0; a NaN gives way to a number, unless it propagates."""

    def pick(a: Array, b: Array) -> Array:
        signed = np.dtype(f"i{a.dtype.itemsize}")
        top = signed.type(np.iinfo(signed).max)
        keys = [
            x.view(signed) ^ (x.view(signed) >> (8 * signed.itemsize - 1) & top) for x in (a, b)
        ]
        first = keys[0] > keys[1] if largest else keys[0] < keys[1]
        a_nan, b_nan = a != a, b != b
        taken, avoided = (a_nan, b_nan & ~a_nan) if propagate else (b_nan, a_nan)
        first = (first | taken) & ~avoided
        return np.where(first, a, b)

    return pick


def _exactly(
    exact: Callable[..., Fraction], simple: Callable[..., float], mode: str
) -> Callable[..., Array]:
    """A float64 operation lane by lane: ``simple`` where something is not finite or zero."""

    def operate(*operands: Array) -> Array:
        rows = zip(*(operand.tolist() for operand in operands), strict=True)
        return np.array([_one(exact, simple, mode, row) for row in rows], np.float64)

    return operate


def _one(
    exact: Callable[..., Fraction],
    simple: Callable[..., float],
    mode: str,
    row: tuple[float, ...],
) -> float:
    values = np.array(row)
    if not np.isfinite(values).all():
        return float(simple(*values))
    try:
        value = exact(*map(Fraction, row))
    except ZeroDivisionError:
        return float(simple(*values))
    if value == 0:
        return float(simple(*values))
    return round_fraction(value, mode)


def round_fraction(value: Fraction, mode: str) -> float:
    """A number that is not zero, rounded once to float64."""
    try:
        near = value.numerator / value.denominator
    except OverflowError:
        near = np.inf if value > 0 else -np.inf
    if near == 0:
        near = -0.0 if value < 0 else 0.0
    above = (np.isinf(near) and near > 0) or (np.isfinite(near) and Fraction(near) > value)
    below = (np.isinf(near) and near < 0) or (np.isfinite(near) and Fraction(near) < value)
    down = mode == "rm" or (mode == "rz" and value > 0)
    up = mode == "rp" or (mode == "rz" and value < 0)
    if above and down:
        return float(np.nextafter(near, -np.inf))
    if below and up:
        return float(np.nextafter(near, np.inf))
    return near


def add_double(mode: str) -> Callable[..., Array]:
    if mode == "rn":
        return np.add

    def add(a: Array, b: Array) -> Array:
        near = a + b
        back = near - a
        error = (a - (near - back)) + (b - back)
        stepped = _stepped(near, error < 0, error > 0, mode)
        infinite = np.isinf(near) & np.isfinite(a) & np.isfinite(b)
        stepped = np.where(infinite, _overflowed(near, mode), stepped)
        return _zero_sum(stepped, a, b) if mode == "rm" else stepped

    return add


def _overflowed(infinity: Array, mode: str) -> Array:
    return _stepped(infinity, infinity > 0, infinity < 0, mode)


def multiply_double(mode: str) -> Callable[..., Array]:
    return np.multiply if mode == "rn" else _exactly(lambda a, b: a * b, lambda a, b: a * b, mode)


def divide_double(mode: str) -> Callable[..., Array]:
    return np.divide if mode == "rn" else _exactly(lambda a, b: a / b, lambda a, b: a / b, mode)


def fma_double(mode: str) -> Callable[..., Array]:
    return _exactly(lambda a, b, c: a * b + c, _simple_fma(mode), mode)


def _simple_fma(mode: str) -> Callable[[float, float, float], float]:
    def fma(a: float, b: float, c: float) -> float:
        cancels = a != 0 and b != 0 and bool(np.isfinite((a, b, c)).all())
        total = 0.0 if cancels else a * b + c
        negative = np.signbit(a) != np.signbit(b) or np.signbit(c)
        return -0.0 if total == 0 and mode == "rm" and negative else float(total)

    return fma


def sqrt_double(mode: str) -> Callable[[Array], Array]:
    if mode == "rn":
        return np.sqrt

    def root(a: Array) -> Array:
        near = np.sqrt(a)
        usable = np.isfinite(near) & (a > 0)
        order = [
            (Fraction(r) ** 2 > Fraction(x)) - (Fraction(r) ** 2 < Fraction(x)) if ok else 0
            for r, x, ok in zip(near.tolist(), a.tolist(), usable.tolist(), strict=True)
        ]
        side = np.array(order)
        return _stepped(near, side > 0, side < 0, mode)

    return root
