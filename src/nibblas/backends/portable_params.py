"""What the portable kernel is given: ``Params`` of kernels/portable/params.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from nibblas.backends.base import Operands
from nibblas.backends.product_params import (
    ADDRESS_WORDS,
    PRODUCT_BYTES,
    pack_product,
    token_fields,
    weight_fields,
)
from nibblas.plan.portable import (
    PARAMS_BYTES,
    TENSOR_MAP_ALIGNMENT,
    PortableConfig,
    round_up,
)
from nibblas.runtime.records import address
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, TensorMaps, TensorMapSpec

assert PRODUCT_BYTES == PARAMS_BYTES

_MAPS_AT = round_up(PARAMS_BYTES, TENSOR_MAP_ALIGNMENT)
#: The same for the addresses at the beginning of tensor maps.
_MAP_WORDS = {"w": _MAPS_AT // 8, "w_scales": (_MAPS_AT + TENSOR_MAP_BYTES) // 8}

_BOX_SETS = 4  # sets of a copy of codes or of linear scales
_QUARTER_ROWS = 32  # weight rows between the lines of a set: half an atom's 64, four to an atom


def address_words(names: Sequence[str], config: PortableConfig) -> list[tuple[str, int]]:
    """(name, word) of every address in the parameter; those of mapped tensors stand there twice."""
    words = [(name, ADDRESS_WORDS[name]) for name in names]
    return words + list(_MAP_WORDS.items()) if config.tensor_copies else words


def is_aligned(product: Operands, config: PortableConfig) -> bool:
    """Whether the aligned variant may run: see ``PortableConfig.aligned``."""
    if product.k % config.stage_k or product.n % config.row_multiple:
        return False
    if config.tensor_copies and 0 in (product.w.stride(0), product.w_scales.stride(0)):
        return False  # one group for all: a map takes a stride of 0, but no such copy was tried
    tokens, weights = token_fields(product), weight_fields(product)
    x_row_bytes, x_vector, w_vector, w_scale_vector = tokens[2], tokens[3], weights[3], weights[7]
    scale_piece = 16 if product.w_scale_layout == "blocked" else min(16, config.stage_k // 16)
    rows_aligned = x_vector == w_vector == 16 and w_scale_vector >= scale_piece
    return rows_aligned and x_row_bytes < 2**32


def params_of(product: Operands, config: PortableConfig, maps: TensorMaps) -> bytes:
    """The kernel's by-value parameter.

    Args:
        maps: where the maps of a configuration with ``tensor_copies`` come from.
    """
    numbers = pack_product(product)
    if not config.tensor_copies:
        return numbers
    w_map = maps.get(_weights_map(product), address(product.w))
    w_scales_map = maps.get(_scales_map(product), address(product.w_scales))
    return numbers.ljust(_MAPS_AT, b"\0") + w_map + w_scales_map


def _weights_map(product: Operands) -> TensorMapSpec:
    """[groups][N / 32][32][K / 2] codes, a set's 16 lines of 256 values at a time."""
    w = product.w
    return TensorMapSpec(
        "uint8",
        dims=(product.k // 2, product.n // _QUARTER_ROWS, _QUARTER_ROWS, product.groups),
        stride_bytes=(_QUARTER_ROWS * w.stride(1), w.stride(1), w.stride(0)),
        box=(128, 4, 4 * _BOX_SETS, 1),
        swizzle="128b",
        l2_promotion="l2_256b",
    )


def _scales_map(product: Operands) -> TensorMapSpec:
    """The scales of the same lines: rows of K / 16 bytes, or 4 lines of 16 of each atom."""
    scales, k_blocks = product.w_scales, product.k // 16
    if product.w_scale_layout == "blocked":
        k_atoms, row_atoms = k_blocks // 4, -(-product.n // 128)
        return TensorMapSpec(
            "uint8",
            dims=(512, k_atoms, row_atoms, product.groups),
            stride_bytes=(512, 512 * k_atoms, scales.stride(0)),
            box=(64, 4, 1, 1),
            l2_promotion="l2_256b",
        )
    row = scales.stride(1)
    return TensorMapSpec(
        "uint8",
        dims=(k_blocks, product.n // _QUARTER_ROWS, _QUARTER_ROWS, product.groups),
        stride_bytes=(_QUARTER_ROWS * row, row, scales.stride(0)),
        box=(16, 4, 4 * _BOX_SETS, 1),
        l2_promotion="l2_256b",
    )
