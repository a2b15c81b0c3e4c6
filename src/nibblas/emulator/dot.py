"""How tensor cores add: one model for mma.sync, wgmma and tcgen05.

A step sums a few exact products and the accumulator at once: every term is aligned to the largest
exponent among them and cut, towards zero, ``fraction_bits`` below it; the sum of what is left is
exact; it is cut to float32 (for .f16 results: rounded to nearest). A product's exponent is the sum
of its factors' exponents, whether or not the product of the significands reaches 2. Subnormals
count with the smallest normal exponent, zeros not at all; the accumulator never lies below 2^-126.

Sources: Xie et al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores",
arXiv:2511.10909, for the numbers below; the one for .f16 and .bf16 on sm_90 measured by us too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from nibblas.emulator.floats import canonical_single
from nibblas.emulator.formats import FORMATS
from nibblas.emulator.machine.memory import Array

_AMPERE, _HOPPER = ("sm_80", "sm_86", "sm_89"), ("sm_90", "sm_100", "sm_103", "sm_120")
FRACTION_BITS = {**dict.fromkeys(_AMPERE, 24), **dict.fromkeys(_HOPPER, 25)}
STEP_BYTES = {**dict.fromkeys(_AMPERE, 16), **dict.fromkeys(_HOPPER, 32)}
"""Bytes of one operand's row that a step takes in."""

NARROW_FRACTION_BITS = 13
"""For 8-bit floats: mma.sync on sm_89, wgmma on sm_90. The sum keeps as many."""

_SMALLEST = 2.0**-126


@dataclass(frozen=True)
class Accumulation:
    """One instruction's way to add.

    Attributes:
        fraction_bits: below the largest exponent. terms: products of a step.
        kept_bits: fraction bits of a float32 result.
        widened: mma.sync of 8-bit floats on sm_90, which becomes two of .f16: the first takes
            elements 0 and 1 of every four, both begin at zero, and C is added last, rounded to
            nearest (found by comparison with an H200).
    """

    fraction_bits: int
    terms: int
    kept_bits: int = 23
    widened: bool = False


def accumulation(arch: str, kind: str, *, wgmma: bool = False) -> Accumulation:
    """The model for operands of a type: "f16", "bf16", "tf32", "e4m3", "e5m2"."""
    size = {"tf32": 4, "f16": 2, "bf16": 2}.get(kind, 1)
    terms = STEP_BYTES[arch] // size
    if size == 1 and (arch == "sm_89" or (arch == "sm_90" and wgmma)):
        return Accumulation(NARROW_FRACTION_BITS, terms, NARROW_FRACTION_BITS)
    if size == 1 and arch == "sm_90":
        return Accumulation(FRACTION_BITS[arch], terms // 2, widened=True)
    return Accumulation(FRACTION_BITS[arch], terms)


@cache
def factors(kind: str) -> Array:
    """float64 [2, codes]: the value of every code, and 2 to its exponent; zeros: 0."""
    form = FORMATS[kind]
    values = form.values
    smallest = 2.0 ** (1 - form.bias)
    finite = np.where(np.isfinite(values), values, 1.0)
    powers = np.exp2(np.floor(np.log2(np.maximum(np.abs(finite), smallest))))
    return np.stack([values, np.where(values == 0, 0.0, powers)])


def expanded(codes: Array, kind: str) -> Array:
    """float64 [2, ...]: values and powers of codes; tf32: uint32, its low 13 bits ignored."""
    if kind != "tf32":
        pairs: Array = factors(kind).take(codes, axis=1)
        return pairs
    bits = codes & np.uint32(0xFFFF_E000)
    return np.stack([bits.view(np.float32).astype(np.float64), _powers(bits)])


def _powers(bits: Array) -> Array:
    """2 to the exponent of float32 bits, float64; at least 2^-126, at most 2^127."""
    exponents = np.clip((bits >> np.uint32(23)) & np.uint32(0xFF), 1, 254)
    powers: Array = exponents.astype(np.uint32) << np.uint32(23)
    floats: Array = powers.view(np.float32).astype(np.float64)
    zeros = bits & np.uint32(0x7FFF_FFFF) == 0
    return np.where(zeros, 0.0, floats)


def multiply_add(a: Array, b: Array, c: Array, model: Accumulation, *, half: bool = False) -> Array:
    """A matrix product, D = A B + C.

    Args:
        a: float64 [2, K, M] of ``expanded``. b: [2, K, N].
        c: float32 [N, M], or float16 where ``half``.
        half: results are .f16: each step's sum is rounded to nearest.

    Returns:
        [N, M] of c's type.
    """
    if model.widened:
        return _widened_multiply_add(a, b, c, replace(model, widened=False), half)
    k, m = a.shape[1:]
    n = b.shape[2]
    a4, b4 = a.reshape(2, k, 1, m), b.reshape(2, k, n, 1)
    d: Array = c.reshape(n * m)
    for begin in range(0, k, model.terms):
        end = min(k, begin + model.terms)
        products, powers = (a4[:, begin:end] * b4[:, begin:end]).reshape(2, end - begin, n * m)
        d = _step(products, powers, d, model, half)
    result: Array = d.reshape(n, m)
    return result


def _widened_multiply_add(a: Array, b: Array, c: Array, model: Accumulation, half: bool) -> Array:
    first = np.arange(a.shape[1]) % 4 < 2
    order = np.concatenate([np.flatnonzero(first), np.flatnonzero(~first)])
    zero = np.zeros(c.shape, np.float32)
    products = multiply_add(a[:, order], b[:, order], zero, model)
    total = products + c.astype(np.float32)
    return _nearest_half(total) if half else canonical_single(total)


def _step(products: Array, powers: Array, c: Array, model: Accumulation, half: bool) -> Array:
    """[terms, outputs] and the accumulators [outputs] to new accumulators."""
    single = c.astype(np.float32) if half else c
    largest = np.maximum(np.maximum.reduce(powers, axis=0), exponents_of(single))
    scale = 2.0**model.fraction_bits / largest
    np.multiply(products, scale, out=products)
    np.trunc(products, out=products)
    total = _ones(len(products)) @ products
    total += np.trunc(single * scale)
    total /= scale
    return _nearest_half(total) if half else cut(total, model.kept_bits)


@cache
def _ones(count: int) -> Array:
    return np.ones(count)


def exponents_of(c: Array) -> Array:
    """2 to the exponent, float32 [outputs]; 2^-126 for what is smaller, 2^127 for infinities."""
    exponents = c.view(np.uint32) & np.uint32(0x7F80_0000)
    bounded: Array = np.minimum(np.maximum(exponents, _LOWEST), _HIGHEST)
    return bounded.view(np.float32)


_LOWEST, _HIGHEST = np.uint32(0x0080_0000), np.uint32(0x7F00_0000)


def cut(total: Array, kept_bits: int) -> Array:
    """float64 towards zero to float32 of so many fraction bits; beyond 2^128: infinity."""
    mask = np.uint64((1 << 64) - (1 << 52 - kept_bits))
    result: Array = (total.view(np.uint64) & mask).view(np.float64).astype(np.float32)
    usual = np.abs(total) >= _SMALLEST
    if b"\x00" not in usual.tobytes():
        return result
    quantum = 2.0 ** (-126 - kept_bits)
    tiny = (np.trunc(total / quantum) * quantum).astype(np.float32)  # and zeros, and NaNs
    return canonical_single(np.where(usual, result, tiny))


def _nearest_half(total: Array) -> Array:
    halves = total.astype(np.float16)
    canonical = np.array(0x7FFF, np.uint16).view(np.float16)
    return np.where(total != total, canonical, halves)
