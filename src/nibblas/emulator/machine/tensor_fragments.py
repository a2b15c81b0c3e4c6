"""Which cell of tensor memory a register of a lane is, for ld and st. PTX ISA, "Data Movement
Shape" and the figures of its "Matrix fragments".

A shape names the lanes and the bits of a row that one repetition moves. With a warp's lane t and
its register r, cells are (row, column) from the first of the access:

    32x32b     (t, r)
    16x64b     (t / 4 + 8 (t % 2), 2 r + t / 2 % 2)
    16x128b    (t / 4 + 8 (r % 2), 4 (r / 2) + t % 4)
    16x256b    (t / 4 + 8 (r / 2 % 2), 8 (r / 4) + 2 (t % 4) + r % 2)
    16x32bx2   (t % 16, r), from the split offset on for t >= 16

With pack::16b and unpack::16b a register stands for two cells, columns 2 c and 2 c + 1 instead of
c: the low 16 bits of each, the first in the register's low half. CUTLASS gives the same as layouts
(cute/atom/copy_traits_sm100.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from nibblas.emulator.machine.memory import Array

SHAPES = {"16x64b": 1, "16x128b": 2, "16x256b": 4, "32x32b": 1, "16x32bx2": 1}
"""Registers of a lane that one repetition fills."""

MOST_REGISTERS = 128


@dataclass(frozen=True)
class Fragment:
    """The cells of an access, from its first row and column.

    Attributes:
        lanes: that it touches. columns: of each piece; pieces: first column of each.
        row, column: int [registers, 32], or [registers, 32, 2] where two cells make a register.
    """

    lanes: int
    columns: int
    pieces: tuple[int, ...]
    row: Array
    column: Array

    @property
    def paired(self) -> bool:
        return self.row.ndim == 3


@cache
def fragment(shape: str, repetitions: int, split: int, *, paired: bool) -> Fragment:
    """The cells that an ld or st moves.

    Args:
        split: first column of the second half, for "16x32bx2".
        paired: two 16-bit cells make a register.
    """
    registers = SHAPES[shape] * repetitions
    r, t = np.indices((registers, 32))
    if shape == "32x32b":
        row, column = t, r
    elif shape == "16x64b":
        row, column = t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2
    elif shape == "16x128b":
        row, column = t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
    elif shape == "16x256b":
        row, column = t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
    else:
        row, column = t % 16, r
    columns = int(column.max()) + 1
    if paired:
        columns *= 2
        row = np.stack([row, row], axis=2)
        column = np.stack([2 * column, 2 * column + 1], axis=2)
    pieces: tuple[int, ...] = (0,)
    if shape == "16x32bx2":
        pieces = (0, split)
        second = np.where(t < 16, 0, split)
        column = column + (second[:, :, None] if paired else second)
    return Fragment(32 if shape == "32x32b" else 16, columns, pieces, row, column)


def gather(data: Array, lane: int, column: int, cells: Fragment) -> Array:
    """What an ld brings. uint32 [registers, 32]"""
    values: Array = data[cells.row + lane, cells.column + column]
    if cells.paired:
        low = values & np.uint32(0xFFFF)
        values = low[:, :, 0] | low[:, :, 1] << np.uint32(16)
    return values


def scatter(data: Array, lane: int, column: int, cells: Fragment, values: Array) -> None:
    """What an st leaves; ``values``: uint32 [registers, 32]."""
    if cells.paired:
        values = np.stack([values & np.uint32(0xFFFF), values >> np.uint32(16)], axis=2)
    data[cells.row + lane, cells.column + column] = values
