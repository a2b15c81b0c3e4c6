"""Tensor maps: our own 128 bytes, and which bytes a box is in global and in shared memory.

The encoding is the emulator's. As on hardware the address is the first eight bytes, all that a map
holds is in the first 64 (CUTLASS's grouped GEMMs carry no more from a parameter to shared memory),
and every field is at a place of its own, so that tensormap.replace may build a map from zeros. The
64 bytes are one little-endian number; ``FIELDS`` says which of its bits a field has. Element types
and modes have the numbers of the PTX ISA, "tensormap.replace".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import get_args

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.memory import POISON, Array
from nibblas.errors import bad_value
from nibblas.runtime.tensormap import (
    ELEMENT_BYTES,
    SUB_BYTE,
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
    3: "int32",
    4: "uint64",
    5: "int64",
    6: "float16",
    7: "float32",
    9: "float64",
    10: "bfloat16",
    13: "16u4_align8b",
    14: "16u4_align16b",
    15: "16u6_align16b",
}
INTERLEAVES = ("none", "16b", "32b")
SWIZZLES = ("none", "32b", "64b", "128b")
FILLS: tuple[OobFill, ...] = get_args(OobFill)
PROMOTIONS: tuple[L2Promotion, ...] = get_args(L2Promotion)

MAP_BYTES_USED = 64
"""Of a map's 128; the others are neither read nor written."""


@dataclass(frozen=True)
class Field:
    """Bits of a map: ``count`` elements of ``width`` bits from bit ``start`` on."""

    start: int
    width: int
    count: int = 1

    def get(self, bits: int, index: int = 0) -> int:
        return bits >> self.start + index * self.width & (1 << self.width) - 1

    def all(self, bits: int) -> tuple[int, ...]:
        return tuple(self.get(bits, index) for index in range(self.count))

    def put(self, bits: int, value: int, index: int = 0) -> int:
        """The map with another value, which must fit the width."""
        at = self.start + index * self.width
        return bits & ~((1 << self.width) - 1 << at) | value << at


FIELDS = {
    "global_address": Field(0, 64),
    "rank": Field(64, 4),  # less one
    "elemtype": Field(68, 5),
    "interleave_layout": Field(73, 3),
    "swizzle_mode": Field(76, 3),
    "fill_mode": Field(79, 2),
    "l2_promotion": Field(81, 3),
    "global_dim": Field(84, 33, 5),
    "global_stride": Field(249, 41, 4),
    "box_dim": Field(413, 9, 5),
    "element_stride": Field(458, 4, 5),
}

_SWIZZLE_PERIOD = 1024
"""Bytes after which every swizzle pattern repeats, at most."""

_SUB_BYTE_SINCE = 100
"""The number of the first device that has maps of sub-byte types."""
_GROUP = 16
"""Elements of a type in ``UNPACKED`` that take 16 bytes of shared memory, the data first. PTX ISA,
"Packing Formats of sub-byte types": .b4x16_p64 and .b6x16_p32."""
_COLUMNS = 128
"""The first coordinate of those types is a multiple of it."""

_PIECE_BYTES = 16
"""A box's first column is a multiple of these, and a row in global memory is written in whole ones.

Seen on an H200 (driver 580.159.04, 2026-11-30; tests/emulator/golden/README.md): loads, stores,
reductions and prefetches of 8-, 16- and 32-bit elements from any other column, inside of the tensor
or not, end as an illegal instruction; Triton's tutorial of TMA says so for all types
(python/tutorials/gluon/04-tma.py). Stores and reductions of rows of 200 bytes write up to byte 208
where the box has as many; triton-lang/triton issue 11583 reports the same."""

#: What is out of bounds where NaN is asked for, as on an H200 (tests/emulator/golden).
_NANS = {
    "float16": np.uint16(0x7FF7),
    "bfloat16": np.uint16(0x7FF7),
    "float32": np.uint32(0x7FF7_7FF7),
}


def encode(spec: TensorMapSpec, address: int) -> bytes:
    """The 128 bytes of a map.

    Raises:
        ValueError: what cuTensorMapEncodeTiled refuses.
    """
    spec.check()
    spec.check_address(address)
    numbers = {name: number for number, name in ELEMENT_TYPES.items()}
    values: dict[str, Sequence[int]] = {
        "global_address": [address],
        "rank": [spec.rank - 1],
        "elemtype": [numbers[spec.data_type]],
        "interleave_layout": [INTERLEAVES.index(spec.interleave)],
        "swizzle_mode": [SWIZZLES.index(spec.swizzle)],
        "l2_promotion": [PROMOTIONS.index(spec.l2_promotion)],
        "fill_mode": [FILLS.index(spec.oob_fill)],
        "global_dim": spec.dims,
        "global_stride": spec.stride_bytes,
        "box_dim": spec.box,
        "element_stride": spec.steps,
    }
    bits = 0
    for name, elements in values.items():
        for index, value in enumerate(elements):
            bits = FIELDS[name].put(bits, value, index)
    return bits.to_bytes(TENSOR_MAP_BYTES, "little")


def check_type(spec: TensorMapSpec, arch: str) -> None:
    """Raises ValueError if a device, "sm_90", has no maps of the element type."""
    if spec.data_type in SUB_BYTE and int(arch.removeprefix("sm_")) < _SUB_BYTE_SINCE:
        wanted = f"8-bit elements or wider on {arch}"
        raise bad_value("data_type", given=repr(spec.data_type), wanted=wanted)


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
        pitch: bytes from row to row there: the width of the swizzle, of which a narrower row
            leaves the rest alone (CUDA Programming Guide, "Swizzle"; seen on an H200).
        num_bytes: of a box in shared memory. counted_bytes: what a load counts on its mbarrier,
            tails included, padding and what narrow rows leave alone not (DeepGEMM and CUTLASS
            expect that many).
        padded: 16 elements do not fill their 16 bytes of shared memory; what a load leaves in the
            rest is poison here (the PTX ISA does not say).
    """

    def __init__(self, spec: TensorMapSpec, address: int) -> None:
        self.spec, self.address = spec, address
        self.element_bits = int(ELEMENT_BYTES[spec.data_type] * 8)
        self.padded = spec.data_type in UNPACKED
        self.row_bytes = row_bytes(spec)
        self.pitch = max(self.row_bytes, SWIZZLE_BYTES.get(spec.swizzle, 0))
        self._counts = [
            -(-box // step) for box, step in zip(spec.box[1:], spec.steps[1:], strict=True)
        ]
        self.rows = int(np.prod(self._counts, dtype=np.int64))
        self.num_bytes = self.rows * self.pitch
        self.counted_bytes = self.rows * spec.box[0] * self.element_bits // 8
        self._orders: dict[int, Array] = {}
        data_bytes = self.rows * self.row_bytes
        self._fill = np.zeros(data_bytes, np.uint8)
        self._is_data = np.ones(self.row_bytes, bool)
        if self.padded:
            self._is_data = np.arange(self.row_bytes) % 16 < _GROUP * self.element_bits // 8
            self._fill.reshape(self.rows, -1)[:, ~self._is_data] = POISON
        self._places = np.cumsum(self._is_data) - 1  # of a gap: of the byte before it
        if spec.oob_fill != "none":
            nan = _NANS[spec.data_type]
            self._fill = np.full(data_bytes // nan.itemsize, nan).view(np.uint8)

    def box(self, coordinates: Sequence[int], *, written: bool = False) -> Box:
        """Which bytes the box at these coordinates (innermost first) has in global memory.

        Args:
            written: it goes there, so that rows are taken in whole pieces.
        """
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
        return self._rows_at(coordinates[0], inside, offsets, written=written)

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

    def gather(self, column: int, rows: Sequence[int], *, written: bool = False) -> Box:
        """Which bytes the rows of these indices have in global memory, from one column."""
        index = np.array(rows, np.int64)
        inside = (index >= 0) & (index < self.spec.dims[1])
        offsets = index * self.spec.stride_bytes[0]
        return self._rows_at(column, inside, offsets, written=written)

    def _rows_at(self, column: int, inside: Array, offsets: Array, *, written: bool) -> Box:
        """The box whose rows lie inside the tensor or not, at offsets; both [rows].

        Raises:
            IllegalOperation: hardware takes no box from this column.
        """
        if self.padded and column % _COLUMNS:
            raise IllegalOperation(
                f"coordinate {column} of a map of {self.spec.data_type}: want a multiple of "
                f"{_COLUMNS}"
            )
        first_bit = column * self.element_bits
        if first_bit % (8 * _PIECE_BYTES):
            raise IllegalOperation(
                f"innermost coordinate {column} of a map of {self.spec.data_type} is "
                f"{first_bit / 8:g} bytes from the row's begin: want a multiple of {_PIECE_BYTES} "
                "bytes, also outside of the tensor (any other is an illegal instruction)"
            )
        first_byte = first_bit // 8
        places = first_byte + self._places
        end = self.spec.dims[0] * self.element_bits // 8
        if written:
            end = -(-end // _PIECE_BYTES) * _PIECE_BYTES
        columns = (places >= 0) & (places < end)
        every = inside[:, None] & columns & self._is_data
        return Box((offsets[:, None] + places)[every], every)

    def fill(self) -> Array:
        """A box full of what stands outside the tensor. uint8 [rows * row_bytes]"""
        filled: Array = self._fill.copy()
        return filled

    def order(self, offset: int) -> slice | Array:
        """Where each byte of a box's rows lies in shared memory that begins at an offset.

        The pattern is a function of the address, not of the place in the box: bits 4 to 6 of
        the address are changed by bits 7 to 9 (as many as the mode has).
        """
        if self.spec.swizzle == "none":
            return slice(offset, offset + self.num_bytes)
        phase = offset % _SWIZZLE_PERIOD
        if phase not in self._orders:
            starts = phase + self.pitch * np.arange(self.rows, dtype=np.int64)
            places = starts[:, None] + np.arange(self.row_bytes, dtype=np.int64)
            span = SWIZZLE_BYTES[self.spec.swizzle]
            self._orders[phase] = swizzled(places.reshape(-1), span)
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
    bits = int.from_bytes(data[:MAP_BYTES_USED], "little")
    address, rank = FIELDS["global_address"].get(bits), FIELDS["rank"].get(bits) + 1
    modes = ("elemtype", "interleave_layout", "swizzle_mode", "l2_promotion", "fill_mode")
    kind, interleave, swizzle, promotion, fill = (FIELDS[name].get(bits) for name in modes)
    if kind not in ELEMENT_TYPES or interleave > 2 or swizzle > 3 or fill > 1 or promotion > 3:
        raise IllegalOperation(f"no tensor map: fields {[rank, kind, interleave, swizzle, fill]}")
    if rank > 5:
        raise IllegalOperation(f"no tensor map: rank {rank}")
    spec = TensorMapSpec(
        ELEMENT_TYPES[kind],
        FIELDS["global_dim"].all(bits)[:rank],
        FIELDS["global_stride"].all(bits)[: rank - 1],
        FIELDS["box_dim"].all(bits)[:rank],
        FIELDS["element_stride"].all(bits)[:rank],
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
    return TensorMap(spec, address)
