"""Tensor maps: our own 128 bytes, and which bytes a box is in global and in shared memory.

The encoding is the emulator's, with the address in the first eight bytes as on hardware, and every
field at a place of its own, so that tensormap.replace may build a map from zeros:

    0   address, u64            11  swizzle, u8         56  strides in bytes, u64 [4]
    8   rank - 1, u8            12  L2 promotion, u8    88  box, u16 [5]
    9   element type, u8        13  fill, u8            98  element strides, u8 [5]
    10  interleave, u8          16  dims, u64 [5]

Element types and modes have the numbers of the PTX ISA, "tensormap.replace".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import get_args

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.memory import POISON, Array
from nibblas.runtime.tensormap import (
    ELEMENT_BYTES,
    SWIZZLE_BYTES,
    TENSOR_MAP_BYTES,
    UNPACKED,
    DataType,
    L2Promotion,
    OobFill,
    TensorMapSpec,
)

ELEMENT_TYPES: dict[int, DataType] = {
    0: "uint8",
    1: "uint16",
    2: "uint32",
    6: "float16",
    7: "float32",
    10: "bfloat16",
    13: "16u4_align8b",
    14: "16u4_align16b",
    15: "16u6_align16b",
}
INTERLEAVES = ("none", "16b", "32b")
SWIZZLES = ("none", "32b", "64b", "128b")
FILLS: tuple[OobFill, ...] = get_args(OobFill)
PROMOTIONS: tuple[L2Promotion, ...] = get_args(L2Promotion)

#: Where tensormap.replace finds a field: (offset, struct format) of its first element.
FIELDS = {
    "global_address": (0, "Q"),
    "rank": (8, "B"),
    "elemtype": (9, "B"),
    "interleave_layout": (10, "B"),
    "swizzle_mode": (11, "B"),
    "fill_mode": (13, "B"),
    "global_dim": (16, "Q"),
    "global_stride": (56, "Q"),
    "box_dim": (88, "H"),
    "element_stride": (98, "B"),
}
_LAYOUT = struct.Struct("<Q6B2x5Q4Q5H5B")

_SWIZZLE_PERIOD = 1024
"""Bytes after which every swizzle pattern repeats, at most."""

_GROUP = 16
"""Elements of a type in ``UNPACKED`` that take 16 bytes of shared memory, the data first. PTX ISA,
"Packing Formats of sub-byte types": .b4x16_p64 and .b6x16_p32."""
_COLUMNS = 128
"""The first coordinate of those types is a multiple of it."""

_NANS = {
    "float16": np.uint16(0x7FFF),
    "bfloat16": np.uint16(0x7FFF),
    "float32": np.uint32(0x7FFF_FFFF),
}


def encode(spec: TensorMapSpec, address: int) -> bytes:
    """The 128 bytes of a map.

    Raises:
        ValueError: what cuTensorMapEncodeTiled refuses.
    """
    spec.check()
    spec.check_address(address)
    numbers = {name: number for number, name in ELEMENT_TYPES.items()}
    packed = _LAYOUT.pack(
        address,
        spec.rank - 1,
        numbers[spec.data_type],
        INTERLEAVES.index(spec.interleave),
        SWIZZLES.index(spec.swizzle),
        PROMOTIONS.index(spec.l2_promotion),
        FILLS.index(spec.oob_fill),
        *_padded(spec.dims, 5),
        *_padded(spec.stride_bytes, 4),
        *_padded(spec.box, 5),
        *_padded(spec.steps, 5),
    )
    return packed.ljust(TENSOR_MAP_BYTES, b"\0")


def _padded(values: Sequence[int], length: int) -> tuple[int, ...]:
    return (*values, *[0] * (length - len(values)))


@dataclass(frozen=True)
class Box:
    """One box of a tensor, at coordinates.

    Attributes:
        offsets: from the tensor's first byte, of the bytes inside the tensor. int64 [n]
        inside: which bytes of the box those are. bool [rows, row_bytes]
    """

    offsets: Array
    inside: Array


class TensorMap:
    """A decoded map.

    Attributes:
        address: of the tensor. spec: all else.
        rows: of a box, all dimensions but the innermost. row_bytes: of a row in shared memory.
        num_bytes: of a box in shared memory; what a copy counts on its mbarrier, tails included.
        padded: 16 elements do not fill their 16 bytes of shared memory; what a load leaves in the
            rest is poison here (the PTX ISA does not say).
    """

    def __init__(self, spec: TensorMapSpec, address: int) -> None:
        self.spec, self.address = spec, address
        self.element_bits = int(ELEMENT_BYTES[spec.data_type] * 8)
        self.padded = spec.data_type in UNPACKED
        self.row_bytes = row_bytes(spec)
        self._counts = [
            -(-box // step) for box, step in zip(spec.box[1:], spec.steps[1:], strict=True)
        ]
        self.rows = int(np.prod(self._counts, dtype=np.int64))
        self.num_bytes = self.rows * self.row_bytes
        self._orders: dict[int, Array] = {}
        self._fill = np.zeros(self.num_bytes, np.uint8)
        self._is_data = np.ones(self.row_bytes, bool)
        if self.padded:
            self._is_data = np.arange(self.row_bytes) % 16 < _GROUP * self.element_bits // 8
            self._fill.reshape(self.rows, -1)[:, ~self._is_data] = POISON
        if spec.oob_fill != "none":
            nan = _NANS[spec.data_type]
            self._fill = np.full(self.num_bytes // nan.itemsize, nan).view(np.uint8)

    def box(self, coordinates: Sequence[int]) -> Box:
        """Which bytes the box at these coordinates (innermost first) has in global memory."""
        inside = np.ones(1, bool)
        offsets = np.zeros(1, np.int64)
        dims = zip(
            coordinates[1:],
            self.spec.dims[1:],
            self.spec.stride_bytes,
            self._counts,
            self.spec.steps[1:],
            strict=True,
        )
        for first, extent, stride, count, step in dims:
            index = first + step * np.arange(count, dtype=np.int64)
            inside = (((index >= 0) & (index < extent))[:, None] & inside).reshape(-1)
            offsets = ((index * stride)[:, None] + offsets).reshape(-1)
        return self._rows_at(coordinates[0], inside, offsets)

    @cached_property
    def four_rows(self) -> TensorMap:
        """For .tile::gather4 and scatter4: the box is four rows, each with an index of its own.

        Raises:
            IllegalOperation: the map is not one of single rows.
        """
        spec = self.spec
        if spec.rank != 2 or spec.box[1] != 1 or spec.steps != (1, 1):
            raise IllegalOperation(
                f"four rows of a map of rank {spec.rank}, box {spec.box}, element strides "
                f"{spec.steps}: want rank 2, a box of one row, and no strides"
            )
        return TensorMap(replace(spec, box=(spec.box[0], 4)), self.address)

    def gather(self, column: int, rows: Sequence[int]) -> Box:
        """Which bytes the rows of these indices have in global memory, from one column."""
        index = np.array(rows, np.int64)
        inside = (index >= 0) & (index < self.spec.dims[1])
        return self._rows_at(column, inside, index * self.spec.stride_bytes[0])

    def _rows_at(self, column: int, inside: Array, offsets: Array) -> Box:
        """The box whose rows lie inside the tensor or not, at offsets; both [rows]."""
        if self.padded and column % _COLUMNS:
            raise IllegalOperation(
                f"coordinate {column} of a map of {self.spec.data_type}: want a multiple of "
                f"{_COLUMNS}"
            )
        first_byte, odd = divmod(column * self.element_bits, 8)
        if odd:
            raise IllegalOperation(f"coordinate {column} begins within a byte")
        places = first_byte + np.cumsum(self._is_data) - 1  # of padding: of the byte before it
        columns = (places >= 0) & (places < self.spec.dims[0] * self.element_bits // 8)
        every = inside[:, None] & columns & self._is_data
        return Box((offsets[:, None] + places)[every], every)

    def fill(self) -> Array:
        """A box full of what stands outside the tensor. uint8 [num_bytes]"""
        filled: Array = self._fill.copy()
        return filled

    def order(self, offset: int) -> slice | Array:
        """Where each byte of a box lies in shared memory that begins at an offset.

        The pattern is a function of the address, not of the place in the box: bits 4 to 6 of
        the address are changed by bits 7 to 9 (as many as the mode has).
        """
        if self.spec.swizzle == "none":
            return slice(offset, offset + self.num_bytes)
        phase = offset % _SWIZZLE_PERIOD
        if phase not in self._orders:
            places = phase + np.arange(self.num_bytes, dtype=np.int64)
            self._orders[phase] = swizzled(places, SWIZZLE_BYTES[self.spec.swizzle])
        return self._orders[phase] + (offset - phase)


def row_bytes(spec: TensorMapSpec) -> int:
    """Of a row of the box, in shared memory."""
    if spec.data_type in UNPACKED:
        return spec.box[0] // _GROUP * 16
    return int(spec.box[0] * ELEMENT_BYTES[spec.data_type])


def swizzled(addresses: Array, span: int) -> Array:
    """The physical place of a logical byte under a swizzle of 32, 64 or 128 bytes.

    PTX ISA, "Swizzling Modes": 16-byte pieces are permuted within the span.
    """
    bits = span // 16 - 1  # 1, 3, 7
    swapped: Array = addresses ^ ((addresses >> 7 & bits) << 4)
    return swapped


@lru_cache(maxsize=512)
def decode(data: bytes) -> TensorMap:
    """A map from its bytes.

    Raises:
        IllegalOperation: they are no map, or one that is not modelled.
    """
    address, rank, kind, interleave, swizzle, promotion, fill, *rest = _LAYOUT.unpack_from(data)
    rank += 1
    if kind not in ELEMENT_TYPES or interleave > 2 or swizzle > 3 or fill > 1 or promotion > 3:
        raise IllegalOperation(f"no tensor map: fields {[rank, kind, interleave, swizzle, fill]}")
    if rank > 5:
        raise IllegalOperation(f"no tensor map: rank {rank}")
    spec = TensorMapSpec(
        ELEMENT_TYPES[kind],
        tuple(rest[:rank]),
        tuple(rest[5 : 5 + rank - 1]),
        tuple(rest[9 : 9 + rank]),
        tuple(rest[14 : 14 + rank]),
        swizzle=SWIZZLES[swizzle],  # type: ignore[arg-type]
        interleave=INTERLEAVES[interleave],  # type: ignore[arg-type]
        l2_promotion=PROMOTIONS[promotion],
        oob_fill=FILLS[fill],
    )
    try:
        spec.check()
        spec.check_address(address)
    except ValueError as error:
        raise IllegalOperation(f"no tensor map that the driver would make: {error}") from None
    if spec.interleave != "none":
        raise IllegalOperation("interleaved maps are not modelled")
    span = SWIZZLE_BYTES.get(spec.swizzle)
    if span is not None and row_bytes(spec) != span:
        raise IllegalOperation(
            f"box rows of {row_bytes(spec)} bytes under a swizzle of {span} are not modelled"
        )
    return TensorMap(spec, address)
