"""What the datacenter Blackwell kernel is given: ``Params`` of kernels/sm100/params.cuh."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.backends.product_params import ADDRESS_WORDS, PRODUCT_BYTES, pack_product
from nibblas.plan.sm100_config import ENTRY_BYTES, PARAMS_HEADER_BYTES, STAGE_K, Sm100Config
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, TensorMapSpec

_HEADER = struct.Struct("=8i")
_ENDS = struct.Struct("=2i")
_PRODUCT_AT = 2 * TENSOR_MAP_BYTES
_ROW_BYTES = STAGE_K // 2
_TMA_ALIGNMENT = 16


class Maps(Protocol):
    """Where tensor maps come from: ``TensorMaps``, or something else that encodes them."""

    def get(self, spec: TensorMapSpec, address: int) -> bytes: ...


def address_words(names: Sequence[str], config: Sm100Config) -> list[tuple[str, int]]:
    """(name, word of 8 bytes) of every address in the parameter of a launch of one product."""
    first = (PARAMS_HEADER_BYTES + _PRODUCT_AT) // 8
    words = [(name, first + ADDRESS_WORDS[name]) for name in names]
    if config.tensor_copies:
        at = PARAMS_HEADER_BYTES // 8
        words += [("x", at), ("w", at + TENSOR_MAP_BYTES // 8)]
    return words


def can_map_codes(product: Operands) -> bool:
    """Whether TMA can copy both operands' codes: all begins at multiples of 16 bytes.

    Expanded tensors, whose rows or groups are one and the same, are left to ordinary loads.
    """
    return all(
        not tensor.data_ptr() % _TMA_ALIGNMENT
        and all(stride and not stride % _TMA_ALIGNMENT for stride in _row_strides(tensor))
        for tensor in (product.x, product.w)
    )


def can_copy_scales(product: Operands) -> bool:
    """Whether both scales lie in aligned atoms of 128 rows and 4 blocks."""
    scales, w_scales = product.x_scales, product.w_scales
    assert scales is not None, "the kernel takes NVFP4 tokens"
    if product.x_scale_layout != "blocked" or product.w_scale_layout != "blocked":
        return False
    numbers = [scales.data_ptr(), w_scales.data_ptr()]
    if product.groups > 1:
        numbers.append(w_scales.stride(0))
    return all(not number % _TMA_ALIGNMENT for number in numbers)


def _row_strides(tensor: Tensor) -> list[int]:
    """Strides that mean something, but for the innermost dimension's."""
    return [
        stride
        for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
        if size > 1
    ]


def token_tiles(product: Operands, config: Sm100Config) -> int:
    """Tiles of tokens in all groups; what there may be where sizes are the device's."""
    tile = config.tile_tokens
    if product.max_m:
        return product.groups * -(-product.max_m // tile)
    return (product.m + (tile - 1) * min(product.groups, product.m)) // tile


def column_units(product: Operands, config: Sm100Config) -> int:
    """Items of work along N, for each tile of tokens."""
    return -(-product.n // config.cluster_columns)


def num_items(products: Sequence[Operands], config: Sm100Config) -> int:
    """Items of a launch; for a packed product the most that there may be."""
    if config.order == "interleaved":
        units = max(column_units(product, config) for product in products)
        return units * sum(token_tiles(product, config) for product in products)
    return sum(token_tiles(product, config) * column_units(product, config) for product in products)


def params_of(products: Sequence[Operands], config: Sm100Config, maps: Maps) -> bytes:
    """The kernel's by-value parameter.

    Args:
        products: one, packed or masked; or up to ``config.capacity`` of one group each.
        maps: where the maps of a configuration with ``tensor_copies`` come from.
    """
    tiles = items = 0
    entries = []
    for product in products:
        tiles += token_tiles(product, config)
        items += token_tiles(product, config) * column_units(product, config)
        entries.append(_entry(product, config, maps, _ENDS.pack(tiles, items)))
    header = _HEADER.pack(
        len(products),
        max(column_units(product, config) for product in products),
        config.stages,
        config.tensor_columns,
        config.group_capacity,
        config.tile_tokens,
        config.box_rows,
        config.scale_slots,
    )
    packed = header.ljust(PARAMS_HEADER_BYTES, b"\0") + b"".join(entries)
    return packed.ljust(config.params_bytes, b"\0")


def _entry(product: Operands, config: Sm100Config, maps: Maps, ends: bytes) -> bytes:
    both = bytes(2 * TENSOR_MAP_BYTES)
    if config.tensor_copies:
        x, w = product.x, product.w
        x_map = maps.get(_map_of(x[None], config.box_rows), x.data_ptr())
        both = x_map + maps.get(_map_of(w, config.tile_n), w.data_ptr())
    entry = both + pack_product(product) + ends
    assert len(entry) == _PRODUCT_AT + PRODUCT_BYTES + _ENDS.size
    return entry.ljust(ENTRY_BYTES, b"\0")


def _map_of(codes: Tensor, box_rows: int) -> TensorMapSpec:
    """Codes ``(matrices, rows, K/2)`` in boxes of rows of 256 values, with the 128-byte swizzle.

    A stride over a single element means nothing to torch; TMA wants a multiple of 16 all the same.
    """
    matrices, rows, row_bytes = codes.shape
    row_stride = codes.stride(1) if rows > 1 else -(-row_bytes // _TMA_ALIGNMENT) * _TMA_ALIGNMENT
    matrix_stride = codes.stride(0) if matrices > 1 else rows * row_stride
    return TensorMapSpec(
        "uint8",
        dims=(row_bytes, rows, matrices),
        stride_bytes=(row_stride, matrix_stride),
        box=(_ROW_BYTES, box_rows, 1),
        swizzle="128b",
        l2_promotion="l2_256b",
    )
