"""What the Hopper kernel is given: ``Params`` of kernels/sm90/params.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.backends.product_params import ADDRESS_WORDS, pack_product
from nibblas.plan.sm90 import (
    K_MULTIPLE,
    N_MULTIPLE,
    PARAMS_HEADER_BYTES,
    STAGE_K,
    UNIT_ROWS,
    Sm90Config,
)
from nibblas.plan.sm90_prepare import Sm90PrepareConfig
from nibblas.runtime.records import address
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, TensorMapSpec

_TMA_ALIGNMENT = 16
_MOST_OF_A_BOX = 256
"""Elements along a dimension."""
_LINE_VALUES = 64
"""16-bit values of a line of the 128-byte swizzle."""


class Maps(Protocol):
    """Where tensor maps come from."""

    def get(self, spec: TensorMapSpec, address: int) -> bytes: ...


def address_words(names: Sequence[str], config: Sm90Config) -> list[tuple[str, int]]:
    """(name, word of 8 bytes) of every address in the parameter; maps begin with theirs."""
    mapped = ["x"] * len(config.widths) + ["w", "w_scales"]
    first, step = PARAMS_HEADER_BYTES // 8, TENSOR_MAP_BYTES // 8
    words = [(name, ADDRESS_WORDS[name]) for name in names]
    return words + [(name, first + i * step) for i, name in enumerate(mapped)]


def prepare_params_of(product: Operands, prepared: Tensor) -> bytes:
    """``PrepareParams`` of kernels/sm90/prepare_tokens.cu."""
    return pack_product(product) + address(prepared).to_bytes(8, "little")


def prepare_words(names: Sequence[str]) -> list[tuple[str, int]]:
    """(name, word of 8 bytes) of every address in it; the last name is the prepared tokens'."""
    *operands, prepared = names
    words = [(name, ADDRESS_WORDS[name]) for name in operands]
    return [*words, (prepared, Sm90PrepareConfig.prepared_word)]


def can_map_tokens(product: Operands) -> bool:
    """Whether TMA can copy x as it is."""
    return product.x_scales is None and is_aligned(product.x, (0,))


def can_map_weights(product: Operands) -> bool:
    """Whether TMA can copy codes and scales as the kernel wants them: their layout decides."""
    if product.k % K_MULTIPLE or product.n % N_MULTIPLE:
        return False
    if product.w_scale_layout == "blocked":
        return is_aligned(product.w, (0, 1)) and is_aligned(product.w_scales, (0,))
    return not product.k // 16 % _TMA_ALIGNMENT and all(
        is_aligned(tensor, (0, 1)) for tensor in (product.w, product.w_scales)
    )


def is_aligned(tensor: Tensor, dimensions: Sequence[int]) -> bool:
    """Begin and strides at multiples of 16 bytes, and no element that stands for several."""
    strides = [tensor.stride(i) * tensor.element_size() for i in dimensions if tensor.shape[i] > 1]
    return not tensor.data_ptr() % _TMA_ALIGNMENT and all(
        stride and not stride % _TMA_ALIGNMENT for stride in strides
    )


def params_of(product: Operands, config: Sm90Config, maps: Maps) -> bytes:
    """The kernel's by-value parameter; the product's x are 16-bit values that TMA can copy."""
    x_maps = [maps.get(_tokens_map(product, rows), address(product.x)) for rows in config.widths]
    w_map = maps.get(_weights_map(product), address(product.w))
    w_scales_map = maps.get(_scales_map(product), address(product.w_scales))
    header = pack_product(product).ljust(PARAMS_HEADER_BYTES, b"\0")
    packed = header + b"".join(x_maps) + w_map + w_scales_map
    assert len(packed) == config.params_bytes
    return packed


def _tokens_map(product: Operands, rows: int) -> TensorMapSpec:
    """[K / 64][rows][64]: a tile of tokens with a stage's values along K."""
    row = _stride_bytes(product.x, 0, product.k)
    return TensorMapSpec(
        "float16",
        dims=(_LINE_VALUES, product.m, product.k // _LINE_VALUES),
        stride_bytes=(row, 2 * _LINE_VALUES),
        box=(_LINE_VALUES, rows, STAGE_K // _LINE_VALUES),
        swizzle="128b",
        l2_promotion="l2_256b",
    )


def _weights_map(product: Operands) -> TensorMapSpec:
    """[groups][N][K / 2] codes, a unit's rows of 128 values at a time."""
    w = product.w
    row = _stride_bytes(w, 1, w.shape[2])
    return TensorMapSpec(
        "uint8",
        dims=(product.k // 2, product.n, product.groups),
        stride_bytes=(row, _stride_bytes(w, 0, product.n * row)),
        box=(STAGE_K // 2, UNIT_ROWS, 1),
        l2_promotion="l2_128b",
    )


def _scales_map(product: Operands) -> TensorMapSpec:
    """The scales of the same rows: 16 bytes of each, or two atoms of 64 values along K."""
    scales, k_blocks = product.w_scales, product.k // 16
    if product.w_scale_layout == "blocked":
        k_atoms, row_atoms = k_blocks // 4, -(-product.n // 128)
        group = _stride_bytes(scales, 0, 512 * k_atoms * row_atoms)
        return TensorMapSpec(
            "uint8",
            dims=(_MOST_OF_A_BOX, 2 * k_atoms, row_atoms, product.groups),
            stride_bytes=(_MOST_OF_A_BOX, 512 * k_atoms, group),
            box=(_MOST_OF_A_BOX, 4, 1, 1),
            l2_promotion="l2_256b",
        )
    row = _stride_bytes(scales, 1, k_blocks)
    return TensorMapSpec(
        "uint8",
        dims=(k_blocks, product.n, product.groups),
        stride_bytes=(row, _stride_bytes(scales, 0, product.n * row)),
        box=(16, UNIT_ROWS, 1),
        l2_promotion="l2_128b",
    )


def _stride_bytes(tensor: Tensor, dimension: int, otherwise: int) -> int:
    """The stride; over a single element, which means nothing to torch, one that TMA takes."""
    if tensor.shape[dimension] > 1:
        return tensor.stride(dimension) * tensor.element_size()
    bytes_wanted = otherwise * tensor.element_size()
    return -(-bytes_wanted // _TMA_ALIGNMENT) * _TMA_ALIGNMENT
