"""Shared-memory matrix descriptors: of wgmma, and where the elements lie, for tcgen05 too.

PTX ISA, "Matrix Descriptor Format" of wgmma; tcgen05_descriptors.py decodes those of sm_100.

    bits 0-13    start address >> 4        bits 49-51   base offset
    bits 16-29   leading byte offset >> 4  bits 62-63   0: no swizzle, 1: 128, 2: 64, 3: 32 bytes
    bits 32-45   stride byte offset >> 4   all others   zero

A core matrix is 8 rows of 16 bytes. Where element (row, k) lies, with 16-byte pieces of T elements,
S the swizzle's bytes, LBO and SBO the two offsets (CUTLASS, cute/arch/mma_sm90_desc.hpp, gives the
same as layouts):

    K-major   no swizzle   (row % 8) 16 + (row / 8) SBO + (k / T) LBO + (k % T) elements
              swizzle      (row % 8) S  + (row / 8) SBO + k elements; LBO is not used
    MN-major  no swizzle   (k % 8) 16 + (k / 8) LBO + (row / T) SBO + (row % T) elements
              swizzle      (k % 8) S + (k / 8) SBO + (row / W) LBO + (row % W) elements, W = S bytes

The swizzle then permutes 16-byte pieces by bits of the address, as tensor copies do. tcgen05 has
one that permutes the four 32-byte pieces of 128 bytes; it repeats every 4 rows, not 8, so its
MN-major layout has k % 4 and k / 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.memory import Array

_RESERVED = ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62) & (1 << 64) - 1
_SWIZZLE_BYTES = (0, 128, 64, 32)
_PERIOD = 1024
K_BYTES = 32
"""Bytes of a row that one wgmma takes in."""


@dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor, all in bytes.

    Attributes:
        span: of the swizzle; 0: none. piece: what it permutes.
    """

    start: int
    leading: int
    stride: int
    base_offset: int
    span: int
    piece: int = 16

    def __str__(self) -> str:
        swizzle = str(self.span or "none") + (" of 32-byte pieces" if self.piece == 32 else "")
        return (
            f"descriptor (start {self.start:#x}, LBO {self.leading}, SBO {self.stride}, base "
            f"offset {self.base_offset}, swizzle {swizzle})"
        )


def decode(bits: int) -> Descriptor:
    """Raises IllegalOperation if bits are set that must be zero."""
    if bits & _RESERVED:
        raise IllegalOperation(
            f"matrix descriptor {bits:#018x}: bits {bits & _RESERVED:#x} must be zero"
        )
    found = Descriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        bits >> 49 & 7,
        _SWIZZLE_BYTES[bits >> 62],
    )
    if found.base_offset and not found.span:
        raise IllegalOperation(f"{found}: a base offset needs a swizzle")
    return found


def offsets_of(descriptor: Descriptor, rows: int, element_bytes: int, *, mn_major: bool) -> Array:
    """Where each byte of an operand lies in the CTA's shared memory. int64 [K, rows, element bytes]

    Raises:
        IllegalOperation: the descriptor contradicts itself.
    """
    phase = descriptor.start % _PERIOD
    moved = replace(descriptor, start=phase)
    relative = _relative(moved, rows, element_bytes, mn_major)
    if relative is None:
        raise IllegalOperation(f"{descriptor}: elements of a {rows}-row operand overlap")
    return relative + (descriptor.start - phase)


@lru_cache(maxsize=1024)
def _relative(d: Descriptor, rows: int, element_bytes: int, mn_major: bool) -> Array | None:
    k = np.arange(K_BYTES // element_bytes, dtype=np.int64)[:, None]
    row = np.arange(rows, dtype=np.int64)
    piece = 16 // element_bytes
    if not mn_major and d.span:
        if d.start % d.span + K_BYTES > d.span:
            raise IllegalOperation(f"{d}: {K_BYTES} bytes of a row cross the swizzle's span")
        places = row % 8 * d.span + row // 8 * d.stride + k * element_bytes
    elif not mn_major:
        places = row % 8 * 16 + row // 8 * d.stride + k // piece * d.leading
        places = places + k % piece * element_bytes
    elif d.span:
        width, repeat = d.span // element_bytes, 8 * 16 // d.piece
        places = k % repeat * d.span + k // repeat * d.stride + row // width * d.leading
        places = places + row % width * element_bytes
    else:
        places = k % 8 * 16 + k // 8 * d.leading + row // piece * d.stride
        places = places + row % piece * element_bytes
    places = places + d.start
    if d.span:
        bits = d.span // d.piece - 1
        places = places ^ (((places >> 7) - d.base_offset & bits) * d.piece)
    if len(np.unique(places)) < places.size:
        return None
    found: Array = places[:, :, None] + np.arange(element_bytes)
    found.setflags(write=False)
    return found
