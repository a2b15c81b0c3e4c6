"""What GPU kernels are given of a product: ``Product`` of kernels/common/product.cuh, by field.

Addresses are the tensors' own: weights and scales are read where the checkpoint has them.
"""

from __future__ import annotations

import struct

from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.runtime.records import SCALE_LAYOUTS, SCALE_STARTS, TYPES, address

_PRODUCT = struct.Struct("=4q4q2i4q4q2i6q6q4q3q2i")
PRODUCT_BYTES = _PRODUCT.size

#: Where ``pack_product`` puts addresses, in words of 8 bytes, by the names of Operands.
ADDRESS_WORDS = {
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


def pack_product(product: Operands) -> bytes:
    """All of the product's numbers and addresses, ``PRODUCT_BYTES`` long."""
    n = product.n
    w_global, x_global, bias = product.w_global, product.x_global, product.bias
    segments = w_global.shape[1] if w_global is not None and w_global.ndim == 2 else 1
    return _PRODUCT.pack(
        *token_fields(product),
        *weight_fields(product),
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


def token_fields(product: Operands) -> tuple[int, ...]:
    """``Rows`` and ``Scales`` of x."""
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
    return (*rows, base, scales.shape[0], stride, common_alignment(*numbers), layout, start)


def weight_fields(product: Operands) -> tuple[int, ...]:
    """``Rows`` and ``Scales`` of w."""
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
