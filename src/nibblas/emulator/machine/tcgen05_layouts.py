"""Which cells of tensor memory hold which elements of tcgen05.mma's matrices.

PTX ISA, "Data Path Layout Organization", where the layouts have letters, and "Scale Factor A ID",
"Scale Factor B ID". The PTX ISA gives them as figures; CUTLASS, cute/atom/mma_traits_sm100_frag.hpp
(tmem_frg, tmem_sf_frg), gives the same as layouts.

The accumulator of one CTA, M/2 rows of it each with cta_group::2, a column per column of cells:

    D (M = 128, 1 CTA), A (M = 256, 2 CTAs)   row i on lane i
    F (M = 64, 1 CTA)      row i on lane 32 (i / 16) + i % 16, or 16 lanes on
    B (M = 128, 2 CTAs)    row i on lane i: the first N/2 columns; on lane 64 + i: the others

A lies likewise, 32 bits of a row per column of cells, 8 columns; in layout B it is there twice, on
lanes i and 64 + i.

Scales: those of row i are bytes of one cell, on lane i % 32 and column i / 32, and the same in the
other three quarters of the lanes. In layout B the columns of B that a half of the lanes works on
are counted from the half's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.tensor_memory import LANES, WARP_LANES, Cells, TensorMemory

_PATHS = 'PTX ISA, "Data Path Layout Organization"'
A_COLUMNS = 8
"""Of A in tensor memory: 32 bytes of a row."""


@dataclass(frozen=True)
class Piece:
    """Lanes ``lane`` to ``lane + rows - 1`` hold rows of a CTA's part of a matrix from ``row`` on.

    Attributes:
        columns: of cells, from the matrix's first one on. first: the matrix's column there.
    """

    lane: int
    row: int
    rows: int
    columns: int
    first: int = 0

    def cells(self, column: int) -> Cells:
        """For a matrix whose first column of cells is ``column``."""
        return slice(self.lane, self.lane + self.rows), slice(column, column + self.columns)

    @property
    def part(self) -> tuple[slice, slice]:
        """Rows and columns of the matrix."""
        return (
            slice(self.row, self.row + self.rows),
            slice(self.first, self.first + self.columns),
        )


def is_split(m: int, cta_group: int) -> bool:
    """Layout B: each half of the lanes works on half of the columns."""
    return cta_group == 2 and m == 128


def accumulator(m: int, n: int, cta_group: int, lane: int) -> list[Piece]:
    """Where a CTA has its part of D; ``lane``: of the address.

    Raises:
        IllegalOperation: it may not begin on that lane.
    """
    _check_lane("D", m, lane)
    if is_split(m, cta_group):
        return [Piece(0, 0, 64, n // 2), Piece(64, 0, 64, n // 2, n // 2)]
    return _rows(m, n, lane)


def multiplicand(m: int, cta_group: int, lane: int) -> list[Piece]:
    """Where a CTA has its part of A in tensor memory; arguments and errors as for accumulator."""
    _check_lane("A", m, lane)
    if is_split(m, cta_group):
        return [Piece(0, 0, 64, A_COLUMNS), Piece(64, 0, 64, A_COLUMNS)]
    return _rows(m, A_COLUMNS, lane)


def _check_lane(name: str, m: int, lane: int) -> None:
    allowed = (0, 16) if m == 64 else (0,)
    if lane not in allowed:
        raise IllegalOperation(
            f"{name} begins on lane {lane}; with M = {m} it may on lane "
            f"{' or '.join(map(str, allowed))} ({_PATHS})"
        )


def _rows(m: int, columns: int, lane: int) -> list[Piece]:
    if m == 64:
        return [Piece(lane + 32 * i, 16 * i, 16, columns) for i in range(4)]
    return [Piece(0, 0, LANES, columns)]


def scale_cells(rows: int, column: int) -> list[Cells]:
    """The cells that hold the scales of so many rows, in all quarters of the lanes."""
    whole, rest = divmod(rows, WARP_LANES)
    every = slice(0, LANES)
    found: list[Cells] = [(every, slice(column, column + whole))] if whole else []
    if rest:
        last = slice(column + whole, column + whole + 1)
        found += [(slice(lane, lane + rest), last) for lane in range(0, LANES, WARP_LANES)]
    return found


def read_scales(
    memory: TensorMemory, column: int, rows: int, first_byte: int, count: int, *, halves: bool
) -> list[Array]:
    """Scales of the rows that each half of the lanes works with. two uint8 [rows, count]

    Args:
        halves: the two halves differ (B's scales in layout B); else they must be equal.

    Raises:
        IllegalOperation: copies that must be equal differ.
    """
    columns = -(-rows // WARP_LANES)
    words = np.ascontiguousarray(memory.data[:, column : column + columns]).view(np.uint8)
    quarters = words.reshape(4, WARP_LANES, columns, 4).transpose(0, 2, 1, 3)
    scales = quarters.reshape(4, columns * WARP_LANES, 4)[:, :rows, first_byte : first_byte + count]
    equal = [scales[0] == scales[1], scales[2] == scales[3]]
    if not halves:
        equal.append(scales[0] == scales[2])
    if not all(same.all() for same in equal):
        differs = np.logical_not(np.logical_and.reduce(equal)).any(axis=1)
        raise IllegalOperation(
            f"scales of row {int(np.flatnonzero(differs)[0])} at column {column} of {memory.name} "
            "differ between the quarters of the lanes: they must be the same in all 32-lane "
            'partitions (PTX ISA, "Block Scaling for tcgen05.mma.sync")'
        )
    return [scales[0], scales[2]]


def read_rows(memory: TensorMemory, pieces: Sequence[Piece], column: int, rows: int) -> Array:
    """A from tensor memory. uint8 [rows, 32]

    Raises:
        IllegalOperation: it must be there twice and the copies differ.
    """
    found = np.empty((rows, A_COLUMNS), np.uint32)
    for number, piece in enumerate(pieces):
        cells = memory.data[piece.cells(column)]
        where = piece.part[0]
        if number and piece.row == pieces[number - 1].row and (found[where] != cells).any():
            raise IllegalOperation(
                f"A at column {column} of {memory.name} differs between lanes 0-63 and 64-127: "
                f"with M = 128 and cta_group::2 both must hold it ({_PATHS}, layout B)"
            )
        found[where] = cells
    return found.view(np.uint8)
