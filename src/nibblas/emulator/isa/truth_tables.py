"""Functions of three inputs from their truth tables, for lop3. PTX ISA, "lop3"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.machine.memory import Array

_Binary = Callable[[Array, Array], Array]
_BINARY: dict[int, tuple[int, _Binary]] = {  # truth table, bit 2 * a + b -> cost, function
    0b1000: (1, np.bitwise_and),
    0b1110: (1, np.bitwise_or),
    0b0110: (1, np.bitwise_xor),
    0b1100: (0, lambda a, b: a),
    0b1010: (0, lambda a, b: b),
    0b0011: (1, lambda a, b: ~a),
    0b0101: (1, lambda a, b: ~b),
    0b0111: (2, lambda a, b: ~(a & b)),
    0b0001: (2, lambda a, b: ~(a | b)),
    0b1001: (2, lambda a, b: ~(a ^ b)),
    0b0100: (2, lambda a, b: a & ~b),
    0b0010: (2, lambda a, b: ~a & b),
    0b1101: (2, lambda a, b: a | ~b),
    0b1011: (2, lambda a, b: ~a | b),
    0b0000: (1, lambda a, b: np.zeros_like(a)),
    0b1111: (1, lambda a, b: np.full_like(a, 0xFFFF_FFFF)),
}


def three_input(table: int) -> tuple[Callable[[Array, Array, Array], Array], tuple[int, int, int]]:
    """A function of three inputs from its truth table, bit ``4 a + 2 b + c``.

    One input, the pivot, selects between two functions of the other two; the pivot that costs
    least is taken.

    Returns:
        The function, and which inputs to give it: the two others, then the pivot.
    """
    choices = []
    for x, y, pivot in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        halves = [0, 0]
        for bits in range(8):
            inputs = (bits >> 2 & 1, bits >> 1 & 1, bits & 1)
            halves[inputs[pivot]] |= (table >> bits & 1) << 2 * inputs[x] + inputs[y]
        cost, function = _selected(*halves)
        choices.append((cost, (x, y, pivot), function))
    _, order, function = min(choices, key=lambda choice: choice[0])
    return function, order


def _selected(low: int, high: int) -> tuple[int, Callable[[Array, Array, Array], Array]]:
    """``high(x, y)`` where z is one, ``low(x, y)`` elsewhere."""
    low_cost, f0 = _BINARY[low]
    high_cost, f1 = _BINARY[high]
    if low == high:
        return low_cost, lambda x, y, z: f0(x, y)
    if low == 0:
        return high_cost + 1, lambda x, y, z: f1(x, y) & z
    if high == 0b1111:
        return low_cost + 1, lambda x, y, z: f0(x, y) | z
    if high == 0:
        return low_cost + 2, lambda x, y, z: f0(x, y) & ~z
    if low == 0b1111:
        return high_cost + 2, lambda x, y, z: f1(x, y) | ~z
    if low ^ high == 0b1111:
        return low_cost + 1, lambda x, y, z: f0(x, y) ^ z
    change_cost, change = _BINARY[low ^ high]
    return low_cost + change_cost + 2, lambda x, y, z: f0(x, y) ^ (z & change(x, y))
