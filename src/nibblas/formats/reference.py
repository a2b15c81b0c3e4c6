"""The oracle: grouped GEMM in float64 over exactly decoded values, and the error bound.

A decoded block value, E2M1 code times E4M3 scale, has at most 6 significant bits and is a multiple
of 2**-10 no larger than 2688 (6 * 448); the product of two of them has 12 bits, of one of them and
a float16 (bfloat16) activation 17 (14). So float64 represents every product, and, for the sizes of
real layers, nearly always the whole sum: what is left is 2**-53 relative, far inside the bound.

Epilogue, for row m of group g and column n in segment s of the weights' rows:

    out = cast(x_global[g] * w_global[g, s] * alpha[g] * row_scale[m] * acc[m, n] + bias[g, n])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nibblas.formats import e2m1, e4m3
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.scale_layout import BLOCK

#: Unit roundoff of each output type: half the spacing of values at 1.
UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
#: Half of each output type's smallest subnormal: the absolute error of rounding near zero.
HALF_SUBNORMAL = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134, torch.float32: 2.0**-150}

_FP32_ROUNDOFF = 2.0**-24
_FP32_HALF_SUBNORMAL = 2.0**-150
_FP32_HUGE = 2.0**127
_ROWS_AT_A_TIME = 1024

#: The least sizes, of tokens and of decoded weights, that a tensor core aligns by: the smallest
#: normal of its operands. Weights as float16 are decoded 2**-7 below their value.
_ALIGNED_BY = {torch.float16: (2.0**-14, 2.0**-7), torch.bfloat16: (2.0**-126, 0.0)}
#: What the decode leaves out.
_LEFT_OUT = 2.0**7
#: Values along K that share MMAs, and the most sums, of at least 8 products each, that they become.
_TOGETHER, _CUTS = 128, 16


@dataclass(frozen=True)
class Exact:
    """The float64 result of a grouped product and what its error bound needs; all ``(M, N)``.

    Attributes:
        value: the exact output before the cast; NaN in rows that belong to no group.
        magnitude: ``|scale factors| * sum_k |x[m, k] * w[n, k]|``, subnormal operands counted as
            the smallest normal of their type, which tensor cores align by; infinite where the sum
            or a product of factors on the way reaches 2**127, so that float32 may overflow.
        absolute: error, in units of half the smallest float32 subnormal, that sums and products of
            scale factors can add by falling below float32's normal range.
        k: terms of each sum.
        epilogue_rounds: fp32 multiplications and additions after the sum.
    """

    value: Tensor
    magnitude: Tensor
    absolute: Tensor
    k: int
    epilogue_rounds: int


def row_ranges(offs: Tensor | None, rows: int, max_m: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yields ``(g, begin, end)``: the rows of x that belong to group g. Reads offs on the host.

    Args:
        offs: int32 ``(G,)``: cumulative ends (packed), or rows in use (masked); None: one group.
        rows: rows of x; ranges are clamped into them.
        max_m: 0 for packed rows; else group g owns rows from ``g * max_m`` on.
    """
    previous = 0
    for g, entry in enumerate([rows] if offs is None else offs.tolist()):
        if max_m:
            begin = g * max_m
            end = begin + min(max(entry, 0), max_m)
        else:
            begin = previous
            end = min(max(entry, begin), rows)
            previous = end
        yield g, begin, end


def block_values(array: NVFP4Array, offs: Tensor | None = None) -> Tensor:
    """``code * scale`` in float64, exact, without the global scale: the logical shape."""
    codes: Tensor = e2m1.decode_packed(array.codes, torch.float64).unflatten(-1, (-1, BLOCK))
    scales = e4m3.decode(array.linear_scales(offs), torch.float64)
    return (codes * scales.unsqueeze(-1)).flatten(-2)


def grouped_mm_reference(
    x: Tensor | NVFP4Array,
    w: NVFP4Array,
    offs: Tensor | None,
    *,
    max_m: int = 0,
    alpha: Tensor | None = None,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    with_magnitude: bool = True,
    row_by_row: bool = False,
) -> Exact:
    """Grouped GEMM ``x[rows of g] @ w[g].T`` in float64, any device.

    Args:
        x: ``(M, K)`` floating point tensor or NVFP4Array; masked: ``(G * max_m, K)``, an
            NVFP4Array ``(G, max_m, K)``.
        w: ``(G, N, K)``.
        offs: int32 ``(G,)``; see ``row_ranges``.
        max_m: rows reserved per group in the masked form, 0 in the packed form.
        alpha: float32 ``(G,)``. row_scale: float32 ``(M,)``. bias: ``(N,)`` or ``(G, N)``.
        with_magnitude: False skips the second product and leaves ``magnitude`` and ``absolute``
            zero.
        row_by_row: one matrix-vector product per token, so that the last bit of a row does not
            depend on how many rows its group has; slower.

    Returns:
        Exact. Rows outside every group are NaN.
    """
    values = _token_values(x, offs)
    rows, n = values.shape[0], w.rows
    value = values.new_full((rows, n), float("nan"))
    magnitude, absolute = torch.zeros_like(value), torch.zeros_like(value)
    x_global = x.global_scale.double() if isinstance(x, NVFP4Array) else None
    least_token, least_weight, cut = _tensor_core_limits(x)
    for g, begin, end in row_ranges(offs, rows, max_m):
        if begin == end:
            continue
        scale, partial, unrounded = _column_scale(w, x_global, alpha, g)
        tokens = values[begin:end]
        row = None if row_scale is None else row_scale[begin:end].double()[:, None]
        for first in range(0, n, _ROWS_AT_A_TIME):
            columns = slice(first, min(first + _ROWS_AT_A_TIME, n))
            weights = _weight_rows(w, g, columns)
            y = _product(tokens, weights, row_by_row=row_by_row) * scale[columns]
            value[begin:end, columns] = y if row is None else y * row
            if with_magnitude:
                total = _at_least(tokens, least_token) @ _at_least(weights, least_weight).T
                factor = 1.0 if row is None else row.abs()
                scaled = total * scale[columns].abs()
                largest = torch.maximum(torch.maximum(total, scaled), scaled * factor)
                largest = torch.maximum(largest, partial[columns])
                magnitude[begin:end, columns] = torch.where(
                    largest >= _FP32_HUGE, torch.inf, scaled * factor
                )
                sums = unrounded * total + cut * scale[columns].abs()
                absolute[begin:end, columns] = (sums + 1) * factor + 1
        if bias is not None:
            value[begin:end] += (bias if bias.ndim == 1 else bias[g]).double()
    rounds = 1 + (x_global is not None) + sum(t is not None for t in (alpha, row_scale, bias))
    return Exact(value, magnitude, absolute, values.shape[1], rounds)


def error_bound(exact: Exact, out_dtype: torch.dtype, *, c: float = 1.0) -> Tensor:
    """Largest allowed ``|out - exact.value|``, float64 ``(M, N)``.

    With u = 2**-24 and u_out the output type's unit roundoff, an output obeys

        |out - exact| <= u_out * |exact|
                         + (1 + u_out) * (c * K * u + rounds * u) * magnitude   (sum and epilogue)
                         + (1 + u_out) * rounds * u * |exact|                   (bias)
                         + subnormal terms of float32 and of the output type

    The sum's term: each product is exact, and adding K of them in any order with fp32 roundings
    to nearest errs by at most (K-1) * u * sum|x*w| with no second-order term (Jeannerod and Rump,
    "Improved error bounds for inner products in floating-point arithmetic", SIAM J. Matrix Anal.
    Appl. 34, 2013); so c = 1 on a CPU. Tensor cores cut what they align, which c = 1 covers as long
    as subnormals count as what they are aligned by. Decision 6 derives this and all the rest.
    The bound is infinite where the magnitude is: where float32 may overflow on the way.

    Args:
        exact: what ``grouped_mm_reference`` returned, with its magnitude.
        out_dtype: float16, bfloat16 or float32.
        c: the accumulation constant of the unit that adds.
    """
    u_out = UNIT_ROUNDOFF[out_dtype]
    rounds = exact.epilogue_rounds
    value = exact.value.abs()
    sums = (c * exact.k + rounds) * _FP32_ROUNDOFF * exact.magnitude
    sums = sums + rounds * _FP32_ROUNDOFF * value + _FP32_HALF_SUBNORMAL * exact.absolute
    bound = u_out * value + (1 + u_out) * sums + HALF_SUBNORMAL[out_dtype]
    return torch.where(exact.magnitude.isinf(), torch.inf, bound)


def within_bound(out: Tensor, exact: Exact, bound: Tensor) -> Tensor:
    """Where ``out`` is acceptable, bool ``(M, N)``.

    A finite value must lie within the bound; infinity is right where the exact value, give or take
    the bound, reaches the output type's overflow threshold; NaN is right exactly where the exact
    value is NaN; rows outside every group (NaN there) are not judged and must be sliced away.
    """
    limit = torch.finfo(out.dtype).max * (1 + UNIT_ROUNDOFF[out.dtype] / 2)
    got, want = out.double(), exact.value
    close = (got - want).abs() <= bound
    overflow = got.isinf() & (want * got.sign() + bound >= limit)
    unknown = bound.isinf()
    return torch.where(want.isnan(), got.isnan() | unknown, close | overflow | unknown)


def input_gradient(
    grad: Tensor,
    w: NVFP4Array,
    offs: Tensor | None,
    *,
    max_m: int = 0,
    alpha: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> Tensor:
    """Gradient of a product with respect to its tokens, float64 ``(M, K)``.

    Args:
        grad: gradient of the output, ``(M, N)``.
        w: ``(G, N, K)``. offs, max_m: as in ``grouped_mm_reference``.
        alpha: float32 ``(G,)``. row_scale: float32 ``(M,)``.

    Returns:
        ``row_scale[m] * alpha[g] * sum_n grad[m, n] * w[g, n, k]``; zero outside every group.
    """
    result = grad.new_zeros((grad.shape[0], w.k), dtype=torch.float64)
    for g, begin, end in row_ranges(offs, grad.shape[0], max_m):
        if begin == end:
            continue
        scaled = grad[begin:end].double() * _column_scale(w, None, alpha, g).scale
        if row_scale is not None:
            scaled = scaled * row_scale[begin:end].double()[:, None]
        for first in range(0, w.rows, _ROWS_AT_A_TIME):
            columns = slice(first, min(first + _ROWS_AT_A_TIME, w.rows))
            result[begin:end] += scaled[:, columns] @ _weight_rows(w, g, columns)
    return result


def round_once(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 to float16, bfloat16 or float32 with one rounding, to nearest even.

    torch casts to the 16-bit types through float32 and so rounds twice. A float32 step that rounds
    to odd leaves the second rounding right: its 24 bits are more than 2 above theirs (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008).
    """
    near = exact.to(torch.float32)
    if dtype == torch.float32:
        return near
    inexact = near.to(torch.float64) != exact
    away_from_zero = near.to(torch.float64).abs() > exact.abs()
    bits = near.view(torch.int32)
    odd = (bits - away_from_zero.to(torch.int32)) | 1
    return torch.where(inexact, odd, bits).view(torch.float32).to(dtype)


def _tensor_core_limits(x: Tensor | NVFP4Array) -> tuple[float, float, float]:
    """Of sums on tensor cores: least sizes of tokens and weights; what cuts of sums can take away.

    Only float32 sums of bfloat16 tokens reach float32's subnormals: then all terms, 2**-7 below
    their values, are multiples of 2**-150, so each cut takes away at most that. A kernel may take
    the values of 128 k for its MMAs in any order, so that few values may be spread over all sums;
    each of them has at least two, since codes come in bytes.

    Returns:
        The last in units of 2**-150 of a sum.
    """
    if isinstance(x, NVFP4Array) or x.dtype not in _ALIGNED_BY:
        return 0.0, 0.0, 0.0
    whole, rest = divmod(x.shape[-1], _TOGETHER)
    cuts = _CUTS * whole + min(_CUTS, rest // 2) if x.dtype == torch.bfloat16 else 0
    return *_ALIGNED_BY[x.dtype], _LEFT_OUT * cuts


def _at_least(values: Tensor, least: float) -> Tensor:
    """Sizes of values, those of nonzero ones at least ``least``."""
    sizes = values.abs()
    return torch.where(sizes > 0, sizes.clamp(min=least), sizes) if least else sizes


def _product(tokens: Tensor, weights: Tensor, *, row_by_row: bool) -> Tensor:
    """``tokens @ weights.T``, (m, n)."""
    if row_by_row:
        return torch.stack([weights.mv(token) for token in tokens])
    return tokens @ weights.T


def _token_values(x: Tensor | NVFP4Array, offs: Tensor | None) -> Tensor:
    """Tokens in float64, ``(M, K)``, without the global scale."""
    if isinstance(x, NVFP4Array):
        return block_values(x, offs).flatten(0, -2)
    return x.double()


def _weight_rows(w: NVFP4Array, g: int, rows: slice) -> Tensor:
    """``code * scale`` of some rows of expert g, float64."""
    one = w.group(g)
    part = NVFP4Array._trusted(
        one.codes[rows], one.linear_scales()[rows], one.global_scale, "linear", None
    )
    return block_values(part)


class _ColumnScale(NamedTuple):
    """Factors of each output column of a group, float64 ``(N,)``.

    Attributes:
        scale: all factors but row_scale. partial: the largest product of some of them on the way.
        unrounded: the weight of their underflow terms.
    """

    scale: Tensor
    partial: Tensor
    unrounded: float | Tensor


def _column_scale(
    w: NVFP4Array, x_global: Tensor | None, alpha: Tensor | None, g: int
) -> _ColumnScale:
    scale = w.group(g).row_global().double().reshape(-1).expand(w.rows)
    if x_global is not None:
        scale = scale * (x_global if x_global.ndim == 0 else x_global[g])
    partial = scale.abs()
    unrounded: float | Tensor = 1.0
    if alpha is not None:
        scale = scale * alpha[g].double()
        partial = torch.maximum(partial, scale.abs())
        unrounded = 1.0 + alpha[g].double().abs()
    return _ColumnScale(scale, partial, unrounded)
