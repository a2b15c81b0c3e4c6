"""How tensor cores add block-scaled products: one model for tcgen05.mma and mma.sync.

kind::mxf8f6f4 is dot.py's fused sum; the exponent of a product is that of its factors and scales.

kind::mxf4 and kind::mxf4nvf4 first add 16 products exactly, in blocks of 16 whatever a scale
covers: an integer multiple of 1/4 below 2^10. A block's sum is multiplied by the two scales'
significands, exactly; its exponent is the sum of the scales' exponents, even where the sum itself
is zero. The four blocks and the accumulator are aligned to the largest exponent, cut towards zero
FRACTION_BITS below it, added, and the total is cut to float32. A NaN scale makes its whole row or
column NaN, whatever it multiplies. The sign of a .ue4m3 scale is not looked at.

Source: Xie et al., "MMA-Sim", arXiv:2511.10909, and its code, for Blackwell and RTX Blackwell
alike; for tcgen05.mma there it covers cta_group::1. Not compared with a device by us.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nibblas.emulator.dot import Accumulation, cut, exponents_of, multiply_add
from nibblas.emulator.formats import FORMATS
from nibblas.emulator.machine.memory import Array

FRACTION_BITS = 35
BLOCK = 16
"""Products that are added exactly, before any scale."""


def container_codes(containers: Array, kind: str, *, middle: bool = False) -> Array:
    """Codes of 8-, 6- or 4-bit floats that lie in a byte each, uint8.

    PTX ISA, "mma": .e2m1 in the four bits in the middle, .e3m2 and .e2m3 in the six low ones.

    Args:
        middle: .e3m2 and .e2m3 lie in the middle, too, as tensor memory has them. NVIDIA's example
            cp_narrow_a_to_tmem_mma.py says so; the PTX ISA shows it in figures only.
    """
    if kind == "e2m1":
        return containers >> 2 & 0x0F
    return containers >> middle & 0x3F if kind in ("e3m2", "e2m3") else containers


@cache
def _doubled_pairs() -> Array:
    """float32 [256, 2]: twice the two e2m1 values of a byte, low nibble first: whole numbers."""
    values = 2 * FORMATS["e2m1"].values
    codes = np.arange(256)
    pairs: Array = np.stack([values[codes & 15], values[codes >> 4]], axis=1).astype(np.float32)
    return pairs


@cache
def scale_factors(kind: str) -> Array:
    """float64 [2, 256]: the values of the codes of scales, NaNs included, and 2 to their exponents.

    Zeros have exponent 0 as a power, so that they never decide an alignment.
    """
    if kind == "ue8m0":
        values = FORMATS["ue8m0"].values
        return np.stack([values, np.where(values == values, values, 1.0)])
    form = FORMATS["e4m3"]
    values = form.values[np.arange(256) & 0x7F]
    smallest = 2.0 ** (1 - form.bias)
    finite = np.where(values == values, values, 1.0)
    powers = np.exp2(np.floor(np.log2(np.maximum(finite, smallest))))
    return np.stack([values, np.where(values == 0, 0.0, powers)])


def multiply_add_fp4(
    a: Array, b: Array, c: Array, sfa: Array, sfb: Array, scale: str, *, negate: bool = False
) -> Array:
    """D = (A scale_A) (B scale_B) + C of e2m1 values.

    Args:
        a: uint8 [M, K / 2], packed, low nibble = even k. b: uint8 [N, K / 2].
        c: float32 [M, N].
        sfa: uint8 [M, scales of a row]. sfb: uint8 [N, scales of a row].
        scale: "ue4m3" or "ue8m0". negate: of A or B, not both.

    Returns:
        float32 [M, N]
    """
    m, half = a.shape
    n = b.shape[0]
    blocks = 2 * half // BLOCK
    left = _doubled_pairs()[a].reshape(m, blocks, BLOCK).transpose(1, 0, 2)
    right = _doubled_pairs()[b].reshape(n, blocks, BLOCK).transpose(1, 2, 0)
    sums = np.matmul(left, right)  # float32, exact: whole numbers below 2^12
    repeat = blocks // sfa.shape[1]
    scales_a = scale_factors(scale)[:, np.repeat(sfa, repeat, axis=1)]
    scales_b = scale_factors(scale)[:, np.repeat(sfb, repeat, axis=1)]
    scales_a[0] *= -0.25 if negate else 0.25
    largest = exponents_of(c).astype(np.float64)
    for block in range(blocks):
        powers = np.multiply.outer(scales_a[1, :, block], scales_b[1, :, block])
        np.maximum(largest, powers, out=largest)
    unit = largest * 2.0**-FRACTION_BITS
    per_unit = 1 / unit  # both are powers of two
    total = np.trunc(c * per_unit) + 0.0  # a sum of zeros is +0
    for block in range(blocks):
        term = np.multiply.outer(scales_a[0, :, block], scales_b[0, :, block])
        term *= sums[block]
        term *= per_unit
        total += np.trunc(term, out=term)
    total *= unit
    return cut(total.ravel(), 23).reshape(m, n)


def multiply_add_scaled(
    a: Array, b: Array, c: Array, sfa: Array, sfb: Array, model: Accumulation
) -> Array:
    """D = (A scale_A) (B scale_B) + C of kind::mxf8f6f4.

    Args:
        a: float64 [2, 32, M] of dot.expanded. b: [2, 32, N]. c: float32 [N, M].
        sfa: uint8 [M] of .ue8m0. sfb: uint8 [N].

    Returns:
        float32 [N, M]
    """
    scales = scale_factors("ue8m0")
    return multiply_add(a * scales[:, None, sfa], b * scales[:, None, sfb], c, model)
