"""Rounding by definition, in exact fractions: what the fast code is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Shape:
    """A binary format: significant bits, least normal exponent, greatest exponent."""

    precision: int
    least: int
    most: int


SHAPES = {
    "f16": Shape(11, -14, 15),
    "bf16": Shape(8, -126, 127),
    "tf32": Shape(11, -126, 127),
    "f32": Shape(24, -126, 127),
    "f64": Shape(53, -1022, 1023),
}


def log2_floor(value: Fraction) -> int:
    """Of a positive number."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def rounded(value: Fraction, kind: str, mode: str) -> Fraction | float:
    """To a format's values; an infinity where it overflows to one."""
    shape = SHAPES[kind]
    if value == 0:
        return value
    size = abs(value)
    unit = Fraction(2) ** (max(log2_floor(size), shape.least) - shape.precision + 1)
    low = size // unit
    rest = size / unit - low
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": rest > 0 and value < 0,
        "rp": rest > 0 and value > 0,
    }[mode]
    size = (low + up) * unit
    top = (2 - Fraction(2) ** (1 - shape.precision)) * Fraction(2) ** shape.most
    if size > top:
        outward = mode in ("rn", "rna") or ((mode == "rm") == (value < 0) and mode != "rz")
        if outward:
            return math.inf if value > 0 else -math.inf
        size = top
    return size if value > 0 else -size


def as_float(value: Fraction | float) -> float:
    return value if isinstance(value, float) else value.numerator / value.denominator


def edge_floats(kind: str, count: int, seed: int) -> np.ndarray:
    """Numbers of f16, f32 or f64 with every edge: zeros, subnormals, extremes, infinities, NaN."""
    dtype = np.dtype({"f16": "f2", "f32": "f4", "f64": "f8"}[kind])
    info = np.finfo(dtype)
    rng = np.random.default_rng(seed)
    edges = [0.0, -0.0, 1.0, -1.0, 1.5, 3.0, info.max, -info.max, info.tiny, -info.tiny]
    edges += [float(info.smallest_subnormal), -float(info.smallest_subnormal) * 3]
    edges += [math.inf, -math.inf, math.nan, 1 + float(info.eps), 2 - float(info.eps)]
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize) - 1, count, np.uint64, endpoint=True)
    wild = bits.astype(f"u{dtype.itemsize}").view(dtype)
    near = rng.standard_normal(count).astype(dtype)
    small = (rng.integers(-64, 64, count) * 0.5).astype(dtype)
    values = np.where(rng.random(count) < 0.4, near, np.where(rng.random(count) < 0.5, wild, small))
    values[: len(edges)] = np.array(edges, np.float64).astype(dtype)
    return rng.permutation(values.astype(dtype))
