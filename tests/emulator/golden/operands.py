"""Operands of lane-wise instructions: every edge of a type, then random bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.emulator.golden.draw import Draw

THREADS = 256

#: Bit patterns by kind and width in bits: zeros, ones, subnormals, extremes, infinities, NaNs.
_FLOAT_EDGES = {
    16: [
        *(0, 0x8000, 0x3C00, 0xBC00, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00),
        *(0x7E00, 0xFE01, 0x7C01, 0x3555, 0x4900),
    ],
    32: [
        *(0, 0x80000000, 0x3F800000, 0xBF800000, 1, 0x80000001, 0x007FFFFF, 0x00800000),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001),
        *(0x3EAAAAAB, 0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000, 0x3F000000, 0x40200000),
    ],
    64: [
        *(0, 1 << 63, 0x3FF0 << 48, 0xBFF0 << 48, 1, (1 << 63) + 1, (1 << 52) - 1, 1 << 52),
        *((0x7FF << 52) - 1, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, (0x7FF << 52) + 1),
        *(0x41E0 << 48, 0x43E0 << 48, 0x3FE0 << 48),
    ],
}
_BF16_EDGES = [
    *(0, 0x8000, 0x3F80, 0xBF80, 1, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80),
    *(0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x3EAB, 0x4B00),
]
_MANTISSA = {16: 10, 32: 23, 64: 52}
_BIAS = {16: 15, 32: 127, 64: 1023}


def integer_edges(bits: int) -> list[int]:
    top = 1 << bits - 1
    return [0, 1, 2, 7, 31, 32, 33, bits - 1, bits, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]


def edges(kind: str, bits: int) -> list[int]:
    """kind: "int", "float", or "bf16" (16-bit halves; 32 bits: pairs)."""
    if kind == "int":
        return integer_edges(bits)
    if kind == "bf16":
        return _BF16_EDGES if bits == 16 else pairs(_BF16_EDGES)
    if kind == "half" and bits == 32:
        return pairs(_FLOAT_EDGES[16])
    return _FLOAT_EDGES[bits]


def pairs(halves: list[int]) -> list[int]:
    """Two halves in one register: each with its neighbours."""
    return [low | high << 16 for low, high in zip(halves, halves[1:] + halves[:1], strict=True)]


def operands(kind: str, bits: int, seed: int, threads: int = THREADS) -> np.ndarray:
    """[threads, 3] unsigned: pairs of edges first (third operand: an edge), then random.

    Random floats: half of them with exponents near 1, so that sums cancel and round; the others are
    any bits.
    """
    random = Draw(seed, bits)
    known = edges(kind, bits)
    rows = [(a, b, known[(i + j) % len(known)]) for (i, a), (j, b) in _both(known)]
    rows = random.shuffled(rows)[: threads * 5 // 8]
    dtype = np.dtype(f"u{bits // 8}")
    table = np.zeros((threads, 3), dtype)
    table[: len(rows)] = rows
    rest = table[len(rows) :]
    rest[:] = random.integers(0, 1 << bits, rest.shape, dtype)
    if kind in ("float", "half", "bf16"):
        near = rest[: len(rest) // 2]
        near[:] = _near_one(random, kind, bits, near.shape)
    elif kind == "int":
        rest[: len(rest) // 4, 1] %= dtype.type(bits + 8)
    return table


def _both(known: list[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    return itertools.product(enumerate(known), enumerate(known))


def _near_one(random: Draw, kind: str, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Bits of floats with exponents within 6 of 1's, any sign and mantissa."""
    if kind in ("half", "bf16") and bits == 32:
        low, high = (_near_one(random, kind, 16, shape).astype(np.uint32) for _ in range(2))
        return low | high << np.uint32(16)
    bfloat = kind == "bf16" and bits == 16
    mantissa, bias = (7, 127) if bfloat else (_MANTISSA[bits], _BIAS[bits])
    exponent = random.integers(bias - 6, bias + 7, shape, np.uint64)
    sign = random.integers(0, 2, shape, np.uint64)
    fraction = random.integers(0, 1 << mantissa, shape, np.uint64)
    value = sign << np.uint64(bits - 1) | exponent << np.uint64(mantissa) | fraction
    return value.astype(f"u{bits // 8}")
