"""Where an operand of tcgen05.mma lies in shared memory, by CuTe's layout algebra.

PTX ISA, "Canonical Layouts": shapes and strides of layouts; written here a second time, element by
element, for tests to compare the emulator with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

MODES = {"none": 0, "128/32": 1, "128": 2, "64": 4, "32": 6}
SWIZZLES = {
    "none": (0, 4, 3),
    "32": (1, 4, 3),
    "64": (2, 4, 3),
    "128": (3, 4, 3),
    "128/32": (2, 5, 2),
}
WIDTH = {"none": 1, "32": 2, "64": 4, "128": 8, "128/32": 8}
"""Of a swizzle's atom, in 128-bit pieces along the leading dimension."""


def bits_of(start: int, lbo: int, sbo: int, mode: str, *, base: int = 0) -> int:
    """PTX ISA, table "Shared memory descriptor layout"."""
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | base << 49 | MODES[mode] << 61


def evaluate(index: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """A CuTe mode of one level: the index is split over the shape, the first fastest."""
    total = 0
    for size, step in zip(shape, stride, strict=True):
        total += index % size * step
        index //= size
    return total


def canonical(
    mode: str, mn_major: bool, element_bits: int, lbo: int, sbo: int
) -> Callable[[int, int, int], int]:
    """Byte address of element (row, k) by the PTX ISA's table "Canonical Layouts", swizzled.

    LBO and SBO in bytes; the others in elements of ``element_bits``.
    """
    t = 128 // element_bits
    width = WIDTH[mode]
    many = 1 << 20
    long, stride_ = (8 * lbo // element_bits, 8 * sbo // element_bits)
    rows: tuple[tuple[int, ...], tuple[int, ...]]
    if mn_major and mode == "none":
        rows, ks = ((t, 1, many), (1, t, stride_)), ((8, many), (t, long))
    elif mn_major:
        repeat = 4 if mode == "128/32" else 8
        rows, ks = ((t, width, many), (1, t, long)), ((repeat, many), (width * t, stride_))
    elif mode == "none":
        rows, ks = ((8, many), (t, stride_)), ((t, many), (1, long))
    else:
        rows, ks = ((8, many), (width * t, stride_)), ((t, many), (1, t))
    b, m, s = SWIZZLES[mode]

    def place(start: int, row: int, k: int) -> int:
        bits = 8 * start + element_bits * (evaluate(row, *rows) + evaluate(k, *ks))
        address = bits // 8
        return address ^ (address >> s & (1 << b) - 1 << m)

    return place


def strides(mode: str, mn_major: bool, element_bits: int, rows: int) -> tuple[int, int]:
    """LBO and SBO, in bytes, of an operand that lies densely."""
    span, k_size = 16 * WIDTH[mode], 256 // element_bits
    if mode == "none":
        return rows * 16, 128
    if not mn_major:
        return 0, 8 * span
    return k_size * span, (4 if mode == "128/32" else 8) * span


def image(
    rows: np.ndarray, room: int, mode: str, mn_major: bool, element_bits: int
) -> np.ndarray:  # fmt: skip
    """uint8 [room] of an operand, bytes [rows, 32]: what a descriptor of ``strides`` finds."""
    place = canonical(
        mode, mn_major, element_bits, *strides(mode, mn_major, element_bits, len(rows))
    )
    size = max(1, element_bits // 8)
    found = np.zeros(room, np.uint8)
    for row, k in np.ndindex(len(rows), 32 // size):
        at = place(0, row, k * (2 if element_bits == 4 else 1))
        found[at : at + size] = rows[row, k * size : (k + 1) * size]
    return found
