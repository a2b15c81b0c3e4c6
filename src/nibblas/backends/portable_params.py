"""What the portable kernel is given: ``Params`` of kernels/portable/params.cuh, field by field.

Addresses are the tensors' own: weights and scales are read where the checkpoint has them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.plan.portable import (
    PARAMS_BYTES,
    TENSOR_MAP_ALIGNMENT,
    PortableConfig,
    round_up,
)
from nibblas.runtime.records import SCALE_LAYOUTS, SCALE_STARTS, TYPES, address
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, TensorMaps, TensorMapSpec

_PARAMS = struct.Struct("=4q4q2i4q4q2i6q6q4q3q2i")
assert _PARAMS.size == PARAMS_BYTES

#: Where ``params_of`` puts addresses, in words of 8 bytes, by the names of Operands.
_ADDRESS_WORDS = {
    "x": 0,
    "x_scales": 4,
    "w": 9,
    "w_scales": 13,
    "offs": 18,
    "x_global": 24,
    "w_global": 26,
    "alpha": 30,
    "row_scale": 31,
    "bias": 32,
    "out": 34,
}
_MAPS_AT = round_up(PARAMS_BYTES, TENSOR_MAP_ALIGNMENT)
#: The same for the addresses at the beginning of tensor maps.
_MAP_WORDS = {"w": _MAPS_AT // 8, "w_scales": (_MAPS_AT + TENSOR_MAP_BYTES) // 8}

_QUARTER_ROWS = 32  # weight rows between the lines of a set: half an atom's 64, four to an atom


def address_words(names: Sequence[str], config: PortableConfig) -> list[tuple[str, int]]:
    """(name, word) of every address in the parameter; those of mapped tensors stand there twice."""
    words = [(name, _ADDRESS_WORDS[name]) for name in names]
    return words + list(_MAP_WORDS.items()) if config.tensor_copies else words


def is_aligned(product: Operands, config: PortableConfig) -> bool:
    """Whether the aligned variant may run: see ``PortableConfig.aligned``."""
    if product.k % config.stage_k or product.n % config.row_multiple:
        return False
    tokens, weights = _token_fields(product), _weight_fields(product)
    x_row_bytes, x_vector, w_vector, w_scale_vector = tokens[2], tokens[3], weights[3], weights[7]
    scale_piece = 16 if product.w_scale_layout == "blocked" else min(16, config.stage_k // 16)
    rows_aligned = x_vector == w_vector == 16 and w_scale_vector >= scale_piece
    return rows_aligned and x_row_bytes < 2**32


def params_of(product: Operands, config: PortableConfig, maps: TensorMaps) -> bytes:
    """The kernel's by-value parameter.

    Args:
        maps: where the maps of a configuration with ``tensor_copies`` come from.
    """
    numbers = _numbers_of(product)
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
        dims=(product.k // 2, _QUARTER_ROWS, product.n // _QUARTER_ROWS, product.groups),
        stride_bytes=(w.stride(1), _QUARTER_ROWS * w.stride(1), w.stride(0)),
        box=(128, 4, 4, 1),
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
        dims=(k_blocks, _QUARTER_ROWS, product.n // _QUARTER_ROWS, product.groups),
        stride_bytes=(row, _QUARTER_ROWS * row, scales.stride(0)),
        box=(16, 4, 4, 1),
        l2_promotion="l2_256b",
    )


def _numbers_of(product: Operands) -> bytes:
    n = product.n
    w_global, x_global, bias = product.w_global, product.x_global, product.bias
    segments = w_global.shape[1] if w_global is not None and w_global.ndim == 2 else 1
    return _PARAMS.pack(
        *_token_fields(product),
        *_weight_fields(product),
        address(product.offs),
        product.groups,
        product.m,
        n,
        product.k,
        product.max_m,
        address(x_global),
        _stride(x_global, 0),
        address(w_global),
        _stride(w_global, 0),
        _stride(w_global, 1),
        max(n // segments, 1),
        address(product.alpha),
        address(product.row_scale),
        address(bias),
        bias.stride(0) if bias is not None and bias.ndim == 2 else 0,
        product.out.data_ptr(),
        *product.out.stride(),
        0 if bias is None else TYPES[bias.dtype],
        TYPES[product.out.dtype],
    )


def _token_fields(product: Operands) -> tuple[int, ...]:
    x, scales = product.x, product.x_scales
    row_bytes = x.stride(0) * x.element_size()
    rows = (x.data_ptr(), 0, row_bytes, common_alignment(x.data_ptr(), row_bytes))
    layout = SCALE_LAYOUTS[product.x_scale_layout]
    start = SCALE_STARTS[product.x_scale_start]
    if scales is None:
        return (*rows, 0, 0, 0, 1, layout, start)
    base, stride = address(scales), scales.stride(0)
    blocked = product.x_scale_layout == "blocked"
    numbers = (base,) if blocked else (base, stride, product.k // 16)
    return (*rows, base, 0, stride, common_alignment(*numbers), layout, start)


def _weight_fields(product: Operands) -> tuple[int, ...]:
    w, scales = product.w, product.w_scales
    group, row = w.stride(0), w.stride(1)
    base = address(w)
    rows = (base, group, row, common_alignment(base, group, row))
    scale_address, scale_group, scale_row = scales.data_ptr(), scales.stride(0), scales.stride(1)
    if product.w_scale_layout == "blocked":
        vector = common_alignment(scale_address, scale_group)
    else:
        vector = common_alignment(scale_address, scale_group, scale_row, product.k // 16)
    layout = SCALE_LAYOUTS[product.w_scale_layout]
    return (*rows, scale_address, scale_group, scale_row, vector, layout, 0)


def common_alignment(*numbers: int) -> int:
    """The largest of 16, 8, 4 and 1 that divides every address and stride."""
    bits = 16
    for number in numbers:
        bits |= number
    lowest = bits & -bits
    return lowest if lowest in (16, 8, 4) else 1


def _stride(tensor: Tensor | None, dimension: int) -> int:
    return tensor.stride(dimension) if tensor is not None and tensor.ndim > dimension else 0
