"""Floating point to NVFP4 and back.

The definition, in float32, every operation rounded once, in this order:

    amax  = max |t|                      over the tensor, group or segment
    g     = amax / (448 * 6)             global scale; 1 if amax is 0, at least 2**-117
    s     = e4m3((block_amax / 6) / g)   block scale: nearest, ties to even, at most 448
    d     = s * g
    code  = e2m1(t / d)                  nearest, ties to even, at most 6

A zero block gets s = 0 and codes 0. A block that is not zero but whose s would round to 0 gets
2**-9, the smallest: no element's error grows by it, while s = 0 would lose the block.

"four_over_six" is Cook et al., "Four Over Six: More Accurate NVFP4 Quantization with Adaptive
Block Scaling" (arXiv:2512.02010): each block is rounded twice, its largest magnitude mapped to 6
and to 4, and the smaller squared error kept, 6 when equal. There g = amax / (256 * 6), so that the
scale for 4, half as large again as that for 6, is at most 384.

Run eagerly, the same bits come out on every device: divisors are tensors, because PyTorch's CUDA
kernels multiply by the reciprocal of a scalar divisor, which rounds a third of all quotients by 6
another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats import e2m1, e4m3
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.scale_layout import (
    BLOCK,
    GroupStart,
    ScaleLayout,
    to_blocked,
    to_blocked_by_group,
)

Method = Literal["amax", "four_over_six"]

_LARGEST_SCALE = {"amax": 448.0, "four_over_six": 256.0}
_SMALLEST_GLOBAL = 2.0**-117
"""Times the smallest block scale, 2**-9, this is float32's smallest normal number."""
_VALUES_AT_A_TIME = {"cpu": 1 << 18}
"""Values rounded together: on the CPU what its caches hold."""
_VALUES_AT_A_TIME_ELSEWHERE = 1 << 24


def quantize(
    t: Tensor,
    *,
    method: Method = "amax",
    global_scale: Tensor | float | None = None,
    global_encode_scale: Tensor | float | None = None,
    segments: int = 1,
    scale_layout: ScaleLayout = "linear",
    offs: Tensor | None = None,
    group_start: GroupStart | None = None,
) -> NVFP4Array:
    """Rounds ``t`` to NVFP4 by the definition at the top of this module.

    Args:
        t: float16, bfloat16, float32 or float64 (rounded to float32 first), ``(rows, K)`` or
            ``(G, rows, K)``, K a multiple of 16, any strides. On the CPU NaN and infinities are
            refused. On other devices, where looking would synchronise, a block that holds one
            gets a NaN scale and is left out of the global scale.
        method: "amax" maps each block's largest magnitude to 6, "four_over_six" to 6 or to 4.
        global_scale: used in place of the computed one; multiplies. A number or float32, ``()``,
            ``(G,)`` (2-D ``t``: per group of rows, needs ``offs``), ``(G, S)`` or ``(1, S)``.
        global_encode_scale: its reciprocal, 448 * 6 / amax; divides. Give at most one.
        segments: equal segments of the rows, each with a global scale of its own: 2 for a fused
            gate and up projection. The global scale becomes ``(G, segments)``, of 2-D ``t``
            ``(1, segments)``; with 1 it is ``(G,)``, of 2-D ``t`` ``()``.
        scale_layout: "linear" or "blocked" (padding bytes are 0).
        offs: int32 ``(G,)``, cumulative ends of groups of rows of 2-D ``t``. Rows past
            ``offs[-1]`` become 0 and do not count. Read on the host only where it is a CPU tensor.
        group_start: with ``offs`` and "blocked" scales, where a group's scales start: "torch"
            (default) or "flashinfer". ``packed_rows_bound(rows, G)`` scale rows are allocated.

    Raises:
        TypeError, ValueError: naming the argument, what was given and what is wanted.

    Example:
        >>> quantize(torch.ones(4, 32)).dequantize().unique()
        tensor([1.])
    """
    _check_input(t, segments)
    _check_choice("method", method, Method)
    _check_choice("scale_layout", scale_layout, ScaleLayout)
    _check_groups(t, segments, offs, scale_layout, group_start)
    source = t.detach()
    block_amax = _block_amax(source, offs)
    encode = global_encode_scale is not None
    if global_scale is None and not encode:
        global_scale = _global_scale(block_amax, segments, method)
    array = NVFP4Array(
        source.new_empty((*t.shape[:-1], t.shape[-1] // 2), dtype=torch.uint8),
        torch.empty_like(block_amax, dtype=torch.uint8),
        global_scale=global_scale,
        global_encode_scale=global_encode_scale,
    )
    _check_global(array, segments, offs, "global_encode_scale" if encode else "global_scale")
    _fill(array, source, block_amax, offs, method)
    return array if scale_layout == "linear" else _with_blocked_scales(array, offs, group_start)


def dequantize(
    array: NVFP4Array, dtype: torch.dtype = torch.float32, *, offs: Tensor | None = None
) -> Tensor:
    """Decoded values of ``array``, of its logical shape; see ``NVFP4Array.dequantize``.

    Args:
        dtype: a floating point type; the products are formed in float32 or wider.
        offs: int32 ``(G,)`` cumulative ends, for rows packed by group.
    """
    if not isinstance(array, NVFP4Array):
        raise bad_type("array", given=array, wanted="an NVFP4Array")
    return array.dequantize(dtype, offs)


@dataclass(frozen=True)
class _Rounded:
    codes: Tensor
    """uint8 ``(rows, K/16, 16)``, one per byte."""
    scales: Tensor
    """float8_e4m3fn ``(rows, K/16)``."""
    quotients: Tensor
    """What was rounded to codes: float32 ``(rows, K/16, 16)``."""

    def squared_error(self) -> Tensor:
        """Sum over each block, in units of the squared global scale: float32 ``(rows, K/16)``.

        In these units nothing overflows or vanishes, whatever the magnitude of the tensor; the
        halves are added in a fixed order, so that every device takes the same choice.
        """
        error = (self.quotients - e2m1.decode(self.codes)) * e4m3.decode(self.scales).unsqueeze(-1)
        total = error * error
        while total.shape[-1] > 1:
            half = total.shape[-1] // 2
            total = total[..., :half] + total[..., half:]
        return total.squeeze(-1)


def _round_blocks(
    blocks: Tensor, block_amax: Tensor, row_global: Tensor, largest_code: float
) -> _Rounded:
    """Scales and codes that map each block's largest magnitude to ``largest_code``.

    Args:
        blocks: float32 ``(rows, K/16, 16)``.
        block_amax: float32 ``(rows, K/16)``, NaN where a block is to get a NaN scale.
        row_global: float32 ``()`` or ``(rows, 1)``.
    """
    wanted = block_amax / _divisor(largest_code, block_amax) / row_global
    wanted = torch.where(block_amax == 0, 0.0, wanted.clamp(min=e4m3.SMALLEST_SUBNORMAL))
    scales = e4m3.encode(wanted)
    step = (e4m3.decode(scales) * row_global).unsqueeze(-1)
    quotients = blocks / step
    codes = torch.where(step > 0, e2m1.encode(quotients), 0)
    return _Rounded(codes, scales, quotients)


def _round_four_over_six(blocks: Tensor, block_amax: Tensor, row_global: Tensor) -> _Rounded:
    six = _round_blocks(blocks, block_amax, row_global, e2m1.MAX)
    four = _round_blocks(blocks, block_amax, row_global, 4.0)
    take_four = four.squared_error() < six.squared_error()
    scales = torch.where(take_four, four.scales.view(torch.uint8), six.scales.view(torch.uint8))
    in_block = take_four.unsqueeze(-1)
    return _Rounded(
        torch.where(in_block, four.codes, six.codes),
        scales.view(torch.float8_e4m3fn),
        torch.where(in_block, four.quotients, six.quotients),
    )


def _fill(
    array: NVFP4Array, source: Tensor, block_amax: Tensor, offs: Tensor | None, method: Method
) -> None:
    """Writes codes and linear scales, some rows at a time: the float32 temporaries stay small."""
    k = array.k
    values = source.reshape(-1, k)
    block_amax = block_amax.reshape(-1, k // BLOCK)
    codes, scales = array.codes.view(-1, k // 2), array.scales.view(-1, k // BLOCK)
    row_global = array.row_global(offs)
    if row_global.ndim:
        row_global = row_global.expand(*array.shape[:-1], 1).reshape(-1, 1)
    at_a_time = _VALUES_AT_A_TIME.get(source.device.type, _VALUES_AT_A_TIME_ELSEWHERE)
    step = max(1, at_a_time // k)
    for begin in range(0, values.shape[0], step):
        part = slice(begin, begin + step)
        blocks = values[part].to(torch.float32).unflatten(-1, (-1, BLOCK))
        part_global = row_global[part] if row_global.ndim else row_global
        if method == "four_over_six":
            rounded = _round_four_over_six(blocks, block_amax[part], part_global)
        else:
            rounded = _round_blocks(blocks, block_amax[part], part_global, e2m1.MAX)
        codes[part] = e2m1.pack(rounded.codes.flatten(-2))
        scales[part] = rounded.scales


def _block_amax(t: Tensor, offs: Tensor | None) -> Tensor:
    """Largest magnitude of each block, float32 ``(..., rows, K/16)``.

    0 in rows past ``offs[-1]``; NaN in blocks that hold NaN or an infinity (CPU: refused).
    """
    blocks = t.unflatten(-1, (-1, BLOCK))
    amax = torch.maximum(blocks.amax(-1), -blocks.amin(-1)).to(torch.float32)
    if offs is not None:
        in_a_group = torch.arange(t.shape[0], device=t.device) < offs[-1]
        amax = torch.where(in_a_group.unsqueeze(-1), amax, 0.0)
    finite = torch.isfinite(amax)
    if _readable(t) and not bool(finite.all()):
        *row, k_block = torch.nonzero(~finite)[0].tolist()
        place = f"{', '.join(map(str, row))}, {BLOCK * k_block}:{BLOCK * (k_block + 1)}"
        raise bad_value("t", given=f"NaN or infinity in t[{place}]", wanted="finite float32 values")
    return torch.where(finite, amax, math.nan)


def global_scale_of(amax: Tensor, method: Method) -> Tensor:
    """The definition's ``g`` of largest magnitudes ``amax``, float32 of any shape; 1 where it is 0.

    ``quantize`` of all of a tensor's rows, a part at a time with this for ``global_scale``, gives
    the same bits as of the whole.
    """
    scale = amax / _divisor(_LARGEST_SCALE[method] * e2m1.MAX, amax)
    return torch.where(amax == 0, 1.0, scale.clamp(min=_SMALLEST_GLOBAL))


def _global_scale(block_amax: Tensor, segments: int, method: Method) -> Tensor:
    """Per tensor, group or segment."""
    stacked = block_amax.ndim == 3
    by_segment = torch.nan_to_num(block_amax, nan=0.0).unflatten(-2, (segments, -1)).flatten(-2)
    amax = (
        by_segment.amax(-1) if block_amax.numel() else by_segment.new_zeros(by_segment.shape[:-1])
    )
    scale = global_scale_of(amax, method)
    if segments == 1:
        return scale.squeeze(-1)
    return scale if stacked else scale.unsqueeze(0)


def _with_blocked_scales(
    array: NVFP4Array, offs: Tensor | None, group_start: GroupStart | None
) -> NVFP4Array:
    if offs is None:
        rule, scales = None, to_blocked(array.scales)
    else:
        rule = group_start or "torch"
        scales = to_blocked_by_group(array.scales, offs, rule=rule)
    return NVFP4Array(
        array.codes,
        scales,
        global_scale=array.global_scale,
        scale_layout="blocked",
        group_start=rule,
    )


def _divisor(value: float, like: Tensor) -> Tensor:
    """A 0-d tensor on the device of ``like``: see the module's note on scalar divisors."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _readable(t: Tensor) -> bool:
    """Whether looking at the contents needs no synchronisation: a real tensor on the CPU."""
    real = not isinstance(t, FakeTensor) and not torch.compiler.is_compiling()
    return real and t.device.type == "cpu"


def _check_input(t: Tensor, segments: int) -> None:
    if not isinstance(t, Tensor):
        raise bad_type("t", given=t, wanted="a torch.Tensor")
    if not t.dtype.is_floating_point or t.dtype.itemsize < 2:
        raise bad_type("t", given=str(t.dtype), wanted="float16, bfloat16, float32 or float64")
    if t.ndim not in (2, 3) or t.shape[-1] == 0 or t.shape[-1] % BLOCK:
        raise bad_value(
            "t",
            given=f"shape {tuple(t.shape)}",
            wanted=f"(rows, K) or (G, rows, K) with K a positive multiple of {BLOCK}",
        )
    if not isinstance(segments, int) or segments < 1 or t.shape[-2] % segments:
        raise bad_value(
            "segments", given=segments, wanted=f"a positive divisor of the {t.shape[-2]} rows"
        )


def _check_choice(argument: str, given: str, choices: object) -> None:
    if given not in get_args(choices):
        wanted = " or ".join(repr(choice) for choice in get_args(choices))
        raise bad_value(argument, given=repr(given), wanted=wanted)


def _check_groups(
    t: Tensor,
    segments: int,
    offs: Tensor | None,
    scale_layout: ScaleLayout,
    group_start: GroupStart | None,
) -> None:
    if group_start is not None:
        _check_choice("group_start", group_start, GroupStart)
        if offs is None or scale_layout != "blocked":
            raise bad_value(
                "group_start",
                given=f"{group_start!r} with {scale_layout} scales and offs={offs is not None}",
                wanted="None: it places the blocked scales of the groups that offs describes",
            )
    if offs is None:
        return
    if not isinstance(offs, Tensor):
        raise bad_type("offs", given=offs, wanted="an int32 torch.Tensor")
    if offs.dtype != torch.int32:
        raise bad_type("offs", given=str(offs.dtype), wanted="torch.int32")
    if offs.ndim != 1 or offs.shape[0] == 0 or offs.device != t.device:
        given = f"shape {tuple(offs.shape)} on {offs.device}"
        raise bad_value("offs", given=given, wanted=f"(G,) with G >= 1 on {t.device}")
    if t.ndim != 2 or segments != 1:
        given = f"offs with a {t.ndim}-D t and segments={segments}"
        raise bad_value("offs", given=given, wanted="None, or 2-D t without segments")
    if _readable(offs):
        ends = offs.tolist()
        if sorted([0, *ends, t.shape[0]]) != [0, *ends, t.shape[0]]:
            wanted = f"cumulative ends that never decrease, from 0 to at most {t.shape[0]}"
            raise bad_value("offs", given=ends, wanted=wanted)


def _check_global(array: NVFP4Array, segments: int, offs: Tensor | None, argument: str) -> None:
    scale = array.global_scale
    shape = tuple(scale.shape)
    if segments != 1 and (scale.ndim != 2 or shape[1] != segments):
        raise bad_value(argument, given=f"shape {shape}", wanted=f"{segments} segments in a row")
    if array.ndim == 2 and scale.ndim == 1 and offs is not None and scale.shape != offs.shape:
        raise bad_value(argument, given=f"shape {shape}", wanted=f"() or {tuple(offs.shape)}")
    if _readable(scale) and not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise bad_value(argument, given=scale.tolist(), wanted="finite positive scales")
