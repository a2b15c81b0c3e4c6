"""What tcgen05.cp and tcgen05.shift move. PTX ISA, "tcgen05.cp", "tcgen05.shift".

The source of cp is a K-major matrix of rows of 16 or 32 bytes, placed by a shared-memory
descriptor: 8 rows of 16 bytes lie together, LBO leads to the next 16 bytes of a row, SBO to the
next 8 rows; with a swizzle the rows are as long as its span, and LBO is not used. Row i of
SHAPES[shape] goes to the lanes whose entry is i, four bytes to a column (CUTLASS gives the same as
layouts, cute/atom/copy_traits_sm100.hpp).

Compressed sources hold 16 codes of 4 or 6 bits, the first in the low bits, in the first 8 or 12 of
every 16 bytes. Each becomes a byte with the code in the middle, 00xxxx00 or 0xxxxxx0: so says
NVIDIA's example cp_narrow_a_to_tmem_mma.py, the PTX ISA shows it in figures only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.matrix_descriptor import Descriptor
from nibblas.emulator.machine.memory import Array

PIECE = 16
"""Bytes that lie together in a row."""

_ALL = np.arange(128)


@dataclass(frozen=True)
class CopyShape:
    """Of one cp.

    Attributes:
        rows, row_bytes: of the source. lanes: of the destination, from the address's on;
        row_of: for each of them, the source's row. lane_step: distance between them.
    """

    rows: int
    row_bytes: int
    row_of: Array
    lane_step: int = 1

    @property
    def columns(self) -> int:
        return self.row_bytes // 4


SHAPES = {
    "128x256b": CopyShape(128, 32, _ALL),
    "128x128b": CopyShape(128, 16, _ALL),
    "4x256b": CopyShape(4, 32, np.arange(4), 32),
    "64x128b.warpx2::02_13": CopyShape(64, 16, _ALL % 64),
    "64x128b.warpx2::01_23": CopyShape(64, 16, _ALL // 64 * 32 + _ALL % 32),
    "32x128b.warpx4": CopyShape(32, 16, _ALL % 32),
}


def source_offsets(
    descriptor: Descriptor, rows: int, row_bytes: int, *, may_overlap: bool
) -> Array:
    """Where each byte of the source lies in the CTA's shared memory. int64 [rows, row bytes]

    Args:
        may_overlap: two rows may share bytes. Nothing forbids it, and it is seldom meant.

    Raises:
        IllegalOperation: the descriptor contradicts itself.
    """
    period = 1024
    phase = descriptor.start % period
    moved = Descriptor(
        phase,
        descriptor.leading,
        descriptor.stride,
        descriptor.base_offset,
        descriptor.span,
        descriptor.piece,
    )
    places, overlaps = _relative(moved, rows, row_bytes)
    if overlaps and not may_overlap:
        raise IllegalOperation(
            f"{descriptor}: rows of a source of {rows} x {row_bytes} bytes overlap; "
            'PTX ISA, "Canonical Layouts", has no such layout'
        )
    return places + (descriptor.start - phase)


@lru_cache(maxsize=256)
def _relative(d: Descriptor, rows: int, row_bytes: int) -> tuple[Array, bool]:
    """Places of the bytes, and whether some coincide."""
    if d.piece != PIECE:
        raise IllegalOperation(f"{d}: tcgen05.cp of 128-byte swizzling with 32-byte pieces")
    row = np.arange(rows, dtype=np.int64)[:, None]
    piece = np.arange(row_bytes // PIECE, dtype=np.int64)
    if d.span:
        if d.start % d.span + row_bytes > d.span:
            raise IllegalOperation(f"{d}: {row_bytes} bytes of a row cross the swizzle's span")
        places = d.start + row % 8 * d.span + row // 8 * d.stride + piece * PIECE
        places = places ^ (((places >> 7) - d.base_offset & (d.span // PIECE - 1)) << 4)
    else:
        places = d.start + row % 8 * PIECE + row // 8 * d.stride + piece * d.leading
    overlaps = len(np.unique(places)) < places.size
    found: Array = (places[:, :, None] + np.arange(PIECE)).reshape(rows, row_bytes)
    found.setflags(write=False)
    return found, overlaps


def expand_fours(raw: Array) -> Array:
    """16 codes of 4 bits and 8 bytes of padding, to 16 bytes. uint8 [rows, 16 n] to the same"""
    packed = raw.reshape(-1, 16)[:, :8]
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return (codes << 2).astype(np.uint8).reshape(raw.shape)


def expand_sixes(raw: Array) -> Array:
    """16 codes of 6 bits and 4 bytes of padding, to 16 bytes. uint8 [rows, 16 n] to the same"""
    triples = raw.reshape(-1, 16)[:, :12].reshape(-1, 4, 3).astype(np.uint32)
    words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = words[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & 63
    return (codes << 1).astype(np.uint8).reshape(raw.shape)


EXPANSIONS: dict[str, tuple[Callable[[Array], Array], int]] = {
    "b4x16_p64": (expand_fours, 8),
    "b6x16_p32": (expand_sixes, 12),
}
"""By source format: the expansion, and how many of every 16 bytes it reads."""

SHIFT_ROWS, SHIFT_COLUMNS = 31, 8
