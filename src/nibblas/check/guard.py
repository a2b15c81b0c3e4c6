"""Buffers with poison around and between their rows.

Poison in an input turns up in a result that read it; poison around an output shows who wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GUARD_ROWS = 2
ROW_GAP = 3
"""Elements between rows, odd so that no row but the first keeps any alignment."""

_OUT_POISON = {torch.float32: 0x7FC0BEEF, torch.bfloat16: 0x7FDB, torch.float16: 0x7EDB}
"""NaN in each type, with a payload that no computation produces."""
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def spread(tensor: Tensor, *, poison: float) -> Tensor:
    """A copy of ``tensor`` (..., rows, columns) whose rows lie ``ROW_GAP`` elements apart.

    The gaps and ``GUARD_ROWS`` rows on either side of every matrix hold ``poison``.
    """
    *lead, rows, columns = tensor.shape
    buffer = torch.full((*lead, rows + 2 * GUARD_ROWS, columns + ROW_GAP), poison).to(tensor.dtype)
    view = buffer[..., GUARD_ROWS : GUARD_ROWS + rows, 1 : 1 + columns]
    return view.copy_(tensor)


@dataclass(frozen=True)
class GuardedOut:
    """An output inside a larger buffer of NaN with a payload of its own.

    ``tensor`` is the (rows, N) view to be written; ``bits`` is the whole buffer as integers and
    ``inside`` marks, in the buffer, the elements of ``tensor``.
    """

    tensor: Tensor
    bits: Tensor
    inside: Tensor
    poison: int

    def foreign_writes(self, written_rows: Tensor) -> int:
        """How many elements changed that should not have.

        Args:
            written_rows: bool (rows,), True where the call has to write.
        """
        allowed = torch.zeros_like(self.inside)
        rows = written_rows.to(self.inside.device)
        allowed[self.inside] = rows[:, None].expand(self.tensor.shape).reshape(-1)
        return int(((self.bits != self.poison) & ~allowed).sum())


def guarded_out(rows: int, columns: int, *, dtype: torch.dtype, strides: str) -> GuardedOut:
    """A poisoned (rows, columns) output.

    Args:
        rows, columns: its shape.
        dtype: float32, bfloat16 or float16.
        strides: "contiguous", "row_stride" (gaps between rows), "column_stride" (every second
            element) or "transposed" (unit stride along the rows).
    """
    shape, region = _placement(rows, columns, strides)
    poison = _OUT_POISON[dtype]
    bits = torch.full(shape, poison, dtype=_BITS[dtype])
    inside = torch.zeros(shape, dtype=torch.bool)
    values = bits.view(dtype)
    if strides == "transposed":
        bits, inside, values = bits.T, inside.T, values.T
    inside[region] = True
    return GuardedOut(tensor=values[region], bits=bits, inside=inside, poison=poison)


def _placement(
    rows: int, columns: int, strides: str
) -> tuple[tuple[int, int], tuple[slice, slice]]:
    """Shape of the buffer as it is allocated, and the output's place in it."""
    row_slice = slice(GUARD_ROWS, GUARD_ROWS + rows)
    padded = rows + 2 * GUARD_ROWS
    if strides == "contiguous":
        return (padded, columns), (row_slice, slice(0, columns))
    if strides == "row_stride":
        return (padded, columns + ROW_GAP), (row_slice, slice(1, 1 + columns))
    if strides == "column_stride":
        return (padded, 2 * columns + 1), (row_slice, slice(1, 2 * columns + 1, 2))
    return (columns + ROW_GAP, padded), (row_slice, slice(1, 1 + columns))
