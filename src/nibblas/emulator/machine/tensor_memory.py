"""Tensor memory of a CTA. PTX ISA, "Tensor Memory".

128 lanes (rows) of 512 columns of 32-bit cells. A 32-bit address holds the lane in bits 31-16 and
the column in bits 15-0. Operations claim rectangles of cells, a pair of slices (lanes, columns), as
claims.py says; tensor_order.py says which of them may follow each other, tensor_pipe.py puts them
in flight, tensor_allocation.py hands columns out.

Each CTA has all 512 columns: CTAs that would share an SM do not share them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import OutOfBounds, UnfinishedWork
from nibblas.emulator.machine.claims import Claim, check_unfinished
from nibblas.emulator.machine.memory import INITIALISED, Array, Claimable, Where

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.tensor_order import Touch

LANES, COLUMNS = 128, 512
WARP_LANES = 32
"""Lanes that one warp of a warpgroup reaches with ld and st."""

LANE_SHIFT = 16
"""Position of the lane in an address."""

Cells = tuple[slice, slice]
"""A rectangle: lanes, columns."""

_MOST_TOUCHES = 8192
_POISON = 0xCDCD_CDCD
_NAN = 0xFFFF_FFFF


class TensorMemory(Claimable):
    """The tensor memory of one CTA.

    Attributes:
        data: uint32 [128, 512]. state: uint8 [128, 512].
        allocations: columns of each, by its first column. allocated: by column.
        touches: by number, what has touched cells; [0]: nothing. last: int32 [128, 512], which
            touched a cell last.
        collector: what the tensor core may keep of an A, as tcgen05.mma left it; None: nothing.
        is_nan: cells that nothing has written may be read, and are 0xFFFFFFFF.
    """

    def __init__(self, name: str, *, is_nan: bool = False) -> None:
        self.name, self.is_nan = name, is_nan
        self.data: Array = np.full((LANES, COLUMNS), _POISON, np.uint32)
        self.state: Array = np.zeros((LANES, COLUMNS), np.uint8)
        self.tracked, self.watched = 1, 0
        self.claims: dict[int, Claim] = {}
        self.allocations: dict[int, tuple[int, Site]] = {}
        self.allocated = np.zeros(COLUMNS, bool)
        self.touches: list[Touch | None] = [None]
        self.collector: object = None
        self.last = np.zeros((LANES, COLUMNS), np.int32)

    def allocate(self, first: int, columns: int, site: Site) -> None:
        """Hands columns out; they hold nothing."""
        where = slice(first, first + columns)
        self.allocations[first] = (columns, site)
        self.allocated[where] = True
        self.data[:, where] = _NAN if self.is_nan else _POISON
        self.state[:, where] = INITIALISED if self.is_nan else 0
        self.last[:, where] = 0

    def free(self, first: int) -> None:
        columns, _ = self.allocations.pop(first)
        self.allocated[first : first + columns] = False

    def touch(self, where: Cells, touch: Touch) -> None:
        """Something touches cells, the last so far."""
        if len(self.touches) > _MOST_TOUCHES:
            self._forget()
        self.touches.append(touch)
        self.last[where] = len(self.touches) - 1

    def _forget(self) -> None:
        """Drops touches that are no cell's last."""
        used = np.union1d(self.last, [0])
        self.touches = [self.touches[number] for number in used.tolist()]
        self.last = np.searchsorted(used, self.last).astype(np.int32)

    def cells(self, address: int, lanes: int, columns: int, what: str) -> Cells:
        """The rectangle that begins at an address; OutOfBounds if it is not all allocated."""
        lane, column = address >> LANE_SHIFT, address & 0xFFFF
        where = slice(lane, lane + lanes), slice(column, column + columns)
        self.check_bounds(where, what)
        return where

    def check_bounds(self, where: Where, what: str) -> None:
        lanes, columns = rectangle(where)
        if lanes.stop > LANES or columns.stop > COLUMNS or lanes.start < 0 or columns.start < 0:
            raise OutOfBounds(
                f"{what} reaches {_range('lanes', lanes)}, {_range('columns', columns)} of "
                f"{self.name}, which has {LANES} lanes and {COLUMNS} columns"
            )
        if not self.allocated[columns].all():
            known = ", ".join(
                _range("columns", slice(first, first + count))
                for first, (count, _) in sorted(self.allocations.items())
            )
            raise OutOfBounds(
                f"{what} reaches {_range('columns', columns)} of {self.name}; allocated: "
                f"{known or 'none'}"
            )

    def place(self, where: Where, flags: Array) -> str:
        lanes, columns = rectangle(where)
        lane, column = np.argwhere(flags)[0].tolist()
        return f"lane {lanes.start + lane}, column {columns.start + column} of {self.name}"

    def check_end(self) -> None:
        """Raises UnfinishedWork if the CTA ends with columns allocated, or operations in flight."""
        check_unfinished(self)
        if self.allocations:
            first, (columns, site) = next(iter(self.allocations.items()))
            raise UnfinishedWork(
                f"a CTA ended with {_range('columns', slice(first, first + columns))} of "
                f"{self.name} allocated: want tcgen05.dealloc of all that was allocated "
                "(PTX ISA, Tensor Memory Allocation)",
                site=site,
            )


def rectangle(where: Where) -> Cells:
    assert isinstance(where, tuple), "pieces of tensor memory are a pair of slices"
    return where


def overlap(a: Cells, b: Cells) -> bool:
    """Whether two rectangles share a cell."""
    return all(
        mine.start < other.stop and other.start < mine.stop
        for mine, other in zip(a, b, strict=True)
    )


def _range(what: str, where: slice) -> str:
    return f"{what} {where.start} to {where.stop - 1}"
