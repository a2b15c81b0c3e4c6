"""The arithmetic of one tcgen05.mma: bytes of operands to results. dot.py and block_scaled.py add.

An operand comes as 32 bytes of each row: from shared memory by its descriptor, from tensor memory
by its layout. PTX ISA, "Packing formats of elements in Tensor and Shared memory": kind::f8f6f4 and
mxf8f6f4 have 4- and 6-bit floats packed in shared memory, 16 of them in the first bytes of every
16; in tensor memory each in the middle of a byte.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nibblas.emulator.block_scaled import container_codes, multiply_add_fp4, multiply_add_scaled
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.machine.instruction_descriptor import InstructionDescriptor
from nibblas.emulator.machine.memory import Array

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
"""Of a container, by type; 1 for all others."""

ROW_BYTES = 32
_PACKED_BYTES = {"e2m1": 8, "e3m2": 12, "e2m3": 12}
"""Bytes with data in every 16 of shared memory, by type."""


@cache
def used_bytes(kind: str, element: str) -> Array:
    """Which of a row's 32 bytes in shared memory an operand of a kind has. int64"""
    count = _PACKED_BYTES.get(element, 16) if kind in ("f8f6f4", "mxf8f6f4") else 16
    places = np.arange(ROW_BYTES)
    return places[places % 16 < count]


def codes_of(raw: Array, element: str, *, packed: bool) -> Array:
    """Codes of a row's elements, not of kind::mxf4. [rows, 32 bytes] to [rows, K]

    Args:
        packed: 4- and 6-bit floats are, in shared memory.
    """
    size = ELEMENT_BYTES.get(element, 1)
    if size > 1:
        return raw.view(f"u{size}")
    if element not in _PACKED_BYTES:
        return raw
    if not packed:
        return container_codes(raw, element, middle=True)
    groups = raw.reshape(len(raw), 2, 16)[..., : _PACKED_BYTES[element]]
    if element == "e2m1":
        codes = np.stack([groups & 15, groups >> 4], axis=-1)
        return codes.reshape(len(raw), 32)
    triples = groups.reshape(len(raw), 8, 3).astype(np.uint32)
    words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    sixes = words[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & 63
    return sixes.reshape(len(raw), 32).astype(np.uint8)


def product(
    arch: str,
    d: InstructionDescriptor,
    a: Array,
    b: Array,
    c: Array,
    scales: tuple[Array, Array] | None,
    *,
    a_packed: bool,
    shift: int = 0,
) -> Array:
    """D of one CTA, or of some of its columns.

    Args:
        a: uint8 [M, 32] of the CTA's rows. b: uint8 [N, 32]. c: uint32 [M, N], cells.
        scales: of A, uint8 [M, scales of a row], and of B, uint8 [N, scales of a row].
        a_packed: A comes from shared memory. shift: C counts 2^-shift.

    Returns:
        uint32 [M, N], cells: .f16 results in the low half, the high half zero.
    """
    negate = d.negate_a != d.negate_b
    if scales is not None and d.kind != "mxf8f6f4":
        total = multiply_add_fp4(a, b, c.view(np.float32), *scales, d.scale, negate=negate)
        return total.view(np.uint32)
    left, right = (
        codes_of(raw, element, packed=packed).T
        for raw, element, packed in ((a, d.a, a_packed), (b, d.b, True))
    )
    if d.kind == "i8":
        return _integers(left, right, c, d)
    left, right = expanded(left, d.a), expanded(right, d.b)
    if negate:
        left = left * np.array([-1.0, 1.0])[:, None, None]
    model = accumulation(arch, d.a)
    half = d.d == "f16"
    start = c.astype(np.uint16).view(np.float16) if half else c.view(np.float32)
    if shift:
        start = start.astype(np.float32) * np.float32(2.0**-shift)
    start = np.ascontiguousarray(start.T)
    if scales is not None:
        total = multiply_add_scaled(left, right, start, scales[0][:, 0], scales[1][:, 0], model)
    else:
        total = multiply_add(left, right, start, model, half=half)
    found: Array = np.ascontiguousarray(total.T).view(np.uint16 if half else np.uint32)
    return found.astype(np.uint32)


def _integers(a: Array, b: Array, c: Array, d: InstructionDescriptor) -> Array:
    """Exact; wraps unless the descriptor says that it saturates."""
    left, right = (
        codes.view(np.int8 if element == "s8" else np.uint8).astype(np.float64)
        for codes, element in ((np.ascontiguousarray(a), d.a), (np.ascontiguousarray(b), d.b))
    )
    total = left.T @ right + c.view(np.int32)
    if d.saturates:
        total = np.clip(total, -(2.0**31), 2.0**31 - 1)
    found: Array = total.astype(np.int64).astype(np.int32).view(np.uint32)
    return found
