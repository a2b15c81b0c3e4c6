"""Shared-memory descriptors of tcgen05. PTX ISA, "Shared memory descriptor".

    bits 0-13    start address >> 4          bits 49-51   base offset
    bits 16-29   leading byte offset >> 4    bit 52       leading mode: 1: an absolute address
    bits 32-45   stride byte offset >> 4     bits 53-60   zero
    bits 46-48   0b001                       bits 61-63   swizzle: 0: none, 6: 32, 4: 64, 2: 128,
                                                          1: 128 bytes of 32-byte pieces

Where the elements lie is the same as for wgmma (matrix_descriptor.py; PTX ISA, "Canonical
Layouts"). K-major with a swizzle does not use the leading byte offset, and no swizzle not the base
offset (Triton gives one all the same). The swizzle of 32-byte pieces exists for MN-major only
("Shared Memory Layout and Swizzling", table of swizzle atoms). The absolute mode serves K = 96,
which only sm_103a has; it is not modelled.
"""

from __future__ import annotations

from functools import lru_cache

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine import matrix_descriptor
from nibblas.emulator.machine.matrix_descriptor import Descriptor
from nibblas.emulator.machine.memory import Array

_SECTION = 'PTX ISA, "Shared memory descriptor"'
_SWIZZLES = {0: (0, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)}
"""(span, piece) in bytes by the value of bits 61-63."""

_UNUSED = 3 << 14 | 3 << 30
_ZERO = 0xFF << 53


@lru_cache(maxsize=4096)
def decode(bits: int) -> Descriptor:
    """The fields of a descriptor.

    Raises:
        IllegalOperation: a field has a value that the PTX ISA does not allow.
    """
    found = f"shared-memory descriptor {bits:#018x}"
    if bits & (_UNUSED | _ZERO):
        raise IllegalOperation(
            f"{found}: bits {bits & (_UNUSED | _ZERO):#x} must be zero ({_SECTION})"
        )
    version = bits >> 46 & 7
    if version != 1:
        raise IllegalOperation(f"{found}: bits 46-48 are {version}; want 0b001 ({_SECTION})")
    mode = bits >> 61
    if mode not in _SWIZZLES:
        raise IllegalOperation(
            f"{found}: swizzle mode {mode} (bits 61-63); want 0, 1, 2, 4 or 6 ({_SECTION})"
        )
    if bits >> 52 & 1:
        raise IllegalOperation(
            f"{found}: bit 52, the leading dimension as an absolute address, is for K = 96 on "
            f"sm_103a and not modelled ({_SECTION})"
        )
    span, piece = _SWIZZLES[mode]
    return Descriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        bits >> 49 & 7 if span else 0,
        span,
        piece,
    )


def check_base_offset(descriptor: Descriptor) -> None:
    """Raises IllegalOperation where a swizzled matrix begins inside a repetition of its pattern and
    the base offset does not say where, in steps of 128 bytes ("Shared memory descriptor").
    """
    found = (descriptor.start >> 7) % max(8 * descriptor.span >> 7, 1)
    if descriptor.piece == 16 and found != descriptor.base_offset:
        raise IllegalOperation(
            f"{descriptor}: it begins {128 * found} bytes after a multiple of "
            f"{8 * descriptor.span}, where its swizzle repeats; want base offset {found}, or "
            f"another address ({_SECTION})"
        )


def operand_offsets(descriptor: Descriptor, rows: int, element_bytes: int, mn_major: bool) -> Array:
    """Where each byte of A or B lies in a CTA's shared memory. int64 [K, rows, element bytes]

    Args:
        rows: of this CTA: of A, or columns of B.
        element_bytes: of a container; formats of 4 bits that lie two in a byte: 1, and K counts
            bytes. 32 bytes of a row in all.

    Raises:
        IllegalOperation: the descriptor contradicts itself or the operand.
    """
    if descriptor.piece == 32 and not mn_major:
        raise IllegalOperation(
            f"{descriptor}: only MN-major operands may have 128-byte swizzling with 32-byte pieces "
            '(PTX ISA, "Shared Memory Layout and Swizzling")'
        )
    if mn_major and (descriptor.piece == 32) != (element_bytes == 4):
        raise IllegalOperation(
            f"{descriptor}: MN-major operands of 32 bits need 128-byte swizzling with 32-byte "
            'pieces, and no others may have it (PTX ISA, "Valid Combinations of Type-Size, '
            'Major-ness and Swizzling")'
        )
    return matrix_descriptor.offsets_of(descriptor, rows, element_bytes, mn_major=mn_major)
