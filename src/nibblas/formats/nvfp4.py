"""``NVFP4Array``: a matrix, or a stack of matrices, in NVFP4.

Element (r, k) is ``e2m1(codes[r, k]) * e4m3(scales[r, k // 16]) * global_scale``; two codes share
a byte, even k in the low nibble. ``global_scale`` multiplies (the decode direction, as PyTorch,
ModelOpt and vLLM use it); ``global_encode_scale`` is its reciprocal (compressed-tensors,
FlashInfer's quantiser) and divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nibblas.errors import bad_type, bad_value
from nibblas.formats import e2m1, e4m3, scale_layout
from nibblas.formats.scale_layout import BLOCK, GroupStart, ScaleLayout

_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class NVFP4Array:
    """A read-only view of NVFP4 tensors; nothing is copied but the 0-d global scale of a number.

    Args:
        codes: uint8 or float4_e2m1fn_x2, ``(rows, K/2)`` or ``(G, rows, K/2)``, K a multiple of
            16, adjacent bytes along K. Kept as a uint8 view.
        scales: uint8 or float8_e4m3fn, one per 16 values along K. Kept as float8_e4m3fn.
            Linear: ``(rows, K/16)`` or ``(G, rows, K/16)``. Blocked: ``(padded_rows, padded_kb)``
            or ``(G, padded_rows, padded_kb)``, or the same bytes flat (``(G, -1)`` for a stack).
        global_scale: multiplies. A number or a float32 tensor: ``()`` for all, ``(G,)`` per group
            (for a 2-D array: per group of rows, which then needs ``offs`` wherever rows are
            decoded), ``(G, S)`` or, for a 2-D array, ``(1, S)``: per equal segment of the rows,
            such as the gate and the up half of a fused projection.
        scale_layout: "linear" (row-major) or "blocked" (128x4 atoms, see ``scale_layout``).
        group_start: for 2-D blocked scales of tokens packed by group, the rule by which each
            group's scales start at a multiple of 128 rows: "torch" or "flashinfer".
        global_encode_scale: the reciprocal of ``global_scale``; give one of the two.

    Raises:
        TypeError, ValueError: naming the argument, what was given and what is wanted.

    Example:
        >>> w = NVFP4Array(torch.zeros(4, 8, dtype=torch.uint8), torch.zeros(4, 1).to(torch.uint8))
        >>> w.shape
        (4, 16)
    """

    codes: Tensor
    scales: Tensor
    global_scale: Tensor
    scale_layout: ScaleLayout
    group_start: GroupStart | None

    _pinned: ClassVar[Any] = None
    """What ``eager`` keeps of this array. No field: copies, pickles and pytrees leave it behind."""

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        *,
        global_scale: Tensor | float | None = None,
        scale_layout: ScaleLayout = "linear",
        group_start: GroupStart | None = None,
        global_encode_scale: Tensor | float | None = None,
    ) -> None:
        codes = _checked_codes(codes)
        _check_layout(scale_layout, group_start, codes.ndim)
        scales = _checked_scales(
            scales, codes, scale_layout, packed_by_group=group_start is not None
        )
        decode_scale = _decode_direction(global_scale, global_encode_scale, codes.device)
        _check_global_shape(decode_scale, codes, packed_by_group=group_start is not None)
        self._set(codes, scales, decode_scale, scale_layout, group_start)

    def _set(
        self,
        codes: Tensor,
        scales: Tensor,
        global_scale: Tensor,
        layout: ScaleLayout,
        group_start: GroupStart | None,
    ) -> None:
        for name, value in (
            ("codes", codes),
            ("scales", scales),
            ("global_scale", global_scale),
            ("scale_layout", layout),
            ("group_start", group_start),
        ):
            object.__setattr__(self, name, value)

    def _pin(self, view: object) -> None:
        object.__setattr__(self, "_pinned", view)

    @classmethod
    def _trusted(
        cls,
        codes: Tensor,
        scales: Tensor,
        global_scale: Tensor,
        layout: ScaleLayout,
        group_start: GroupStart | None,
    ) -> NVFP4Array:
        """Parts that came out of a checked array; also what pytree transformations make."""
        array = object.__new__(cls)
        array._set(codes, scales, global_scale, layout, group_start)
        return array

    @property
    def ndim(self) -> int:
        """2 for a matrix, 3 for a stack of G matrices."""
        return self.codes.ndim

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return self.codes.shape[-2]

    @property
    def k(self) -> int:
        """Values in a row, the contraction dimension."""
        return 2 * self.codes.shape[-1]

    @property
    def groups(self) -> int | None:
        """G of a stack, None for one matrix."""
        return self.codes.shape[0] if self.ndim == 3 else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: ``(rows, K)`` or ``(G, rows, K)``."""
        return (*self.codes.shape[:-1], self.k)

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def __repr__(self) -> str:
        start = f", group_start={self.group_start!r}" if self.group_start else ""
        return (
            f"NVFP4Array(shape={self.shape}, scale_layout={self.scale_layout!r}{start}, "
            f"global_scale={tuple(self.global_scale.shape)}, device={str(self.device)!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles scales as bytes: torch does not unpickle float8 tensors."""
        parts = (self.codes, self.scales.view(torch.uint8), self.global_scale)
        return _unpickle, (*parts, self.scale_layout, self.group_start)

    def group(self, g: int) -> NVFP4Array:
        """Matrix g of a stack, a view: ``(rows, K)``."""
        if self.ndim != 3:
            raise bad_value("array", given=f"a matrix {self.shape}", wanted="a stack (G, rows, K)")
        groups = self.codes.shape[0]
        if not 0 <= g < groups:
            raise bad_value("g", given=g, wanted=f"0..{groups - 1}")
        scale = self.global_scale
        if scale.ndim == 1:
            scale = scale[g]
        elif scale.ndim == 2:
            scale = scale[g : g + 1]
        return NVFP4Array._trusted(self.codes[g], self.scales[g], scale, self.scale_layout, None)

    def to(self, device: torch.device | str) -> NVFP4Array:
        """The same array with its tensors on ``device``."""
        moved = (self.codes.to(device), self.scales.to(device), self.global_scale.to(device))
        return NVFP4Array._trusted(*moved, self.scale_layout, self.group_start)

    def linear_scales(self, offs: Tensor | None = None) -> Tensor:
        """The block scales in row-major order, float8_e4m3fn ``(..., rows, K/16)``.

        Args:
            offs: int32 ``(G,)`` cumulative ends; needed when ``group_start`` is set. Rows past
                ``offs[-1]`` then read as zero.
        """
        if self.scale_layout == "linear":
            return self.scales
        k_blocks = self.k // BLOCK
        if self.group_start is None:
            return scale_layout.from_blocked(self.scales, self.rows, k_blocks)
        if offs is None:
            raise bad_value(
                "offs",
                given=None,
                wanted=f"each group's end, since scales start by the {self.group_start!r} rule",
            )
        return scale_layout.from_blocked_by_group(
            self.scales, offs, rule=self.group_start, rows=self.rows, k_blocks=k_blocks
        )

    def dequantize(self, dtype: torch.dtype = torch.float32, offs: Tensor | None = None) -> Tensor:
        """Decoded values of the logical shape, computed in ``dtype``.

        ``code * scale`` is exact in float16, bfloat16 and wider; the global scale is one more
        multiplication, rounded once in ``dtype`` (float16 and bfloat16: in float32, then cast).

        Args:
            dtype: a floating point type.
            offs: int32 ``(G,)`` cumulative ends, for tokens packed by group.
        """
        if not dtype.is_floating_point:
            raise bad_type("dtype", given=str(dtype), wanted="a floating point type")
        compute = torch.promote_types(dtype, torch.float32)
        values = e2m1.decode_packed(self.codes, compute)
        scales = e4m3.decode(self.linear_scales(offs), compute)
        blocks: Tensor = values.unflatten(-1, (-1, BLOCK)) * scales.unsqueeze(-1)
        return (blocks.flatten(-2) * self.row_global(offs).to(compute)).to(dtype)

    def row_global(self, offs: Tensor | None = None) -> Tensor:
        """The global scale of every row, float32, broadcastable to ``(..., rows, 1)``."""
        scale = self.global_scale
        if scale.ndim == 0:
            return scale
        if scale.ndim == 2:
            per_row = scale.repeat_interleave(self.rows // scale.shape[1], dim=1)
            return (per_row if self.ndim == 3 else per_row[0]).unsqueeze(-1)
        if self.ndim == 3:
            return scale[:, None, None]
        if offs is None:
            raise bad_value(
                "offs", given=None, wanted="each group's end, since global_scale is per group"
            )
        rows = torch.arange(self.rows, device=self.device, dtype=offs.dtype)
        group_of_row = torch.searchsorted(offs, rows, right=True).clamp_(max=scale.shape[0] - 1)
        return scale[group_of_row].unsqueeze(-1)


def _unpickle(
    codes: Tensor,
    scales: Tensor,
    global_scale: Tensor,
    layout: ScaleLayout,
    group_start: GroupStart | None,
) -> NVFP4Array:
    return NVFP4Array(
        codes, scales, global_scale=global_scale, scale_layout=layout, group_start=group_start
    )


def _checked_codes(codes: Tensor) -> Tensor:
    if not isinstance(codes, Tensor):
        raise bad_type("codes", given=codes, wanted="a torch.Tensor")
    if codes.dtype not in (torch.uint8, torch.float4_e2m1fn_x2):
        raise bad_type("codes", given=str(codes.dtype), wanted="torch.uint8 or float4_e2m1fn_x2")
    wanted = "(rows, K/2) or (G, rows, K/2) with K a positive multiple of 16"
    if codes.ndim not in (2, 3) or codes.shape[-1] == 0 or codes.shape[-1] % (BLOCK // 2):
        raise bad_value("codes", given=f"shape {tuple(codes.shape)}", wanted=wanted)
    if codes.stride(-1) != 1:
        raise bad_value(
            "codes",
            given=f"strides {codes.stride()}",
            wanted="adjacent bytes along K (last stride 1); pass the (rows, K/2) tensor itself",
        )
    return codes.view(torch.uint8)


def _check_layout(layout: str, group_start: str | None, ndim: int) -> None:
    if layout not in ("linear", "blocked"):
        raise bad_value("scale_layout", given=repr(layout), wanted="'linear' or 'blocked'")
    if group_start is None:
        return
    if group_start not in ("torch", "flashinfer"):
        raise bad_value("group_start", given=repr(group_start), wanted="'torch' or 'flashinfer'")
    if layout != "blocked" or ndim != 2:
        raise bad_value(
            "group_start",
            given=f"{group_start!r} with {layout} scales of a {ndim}-D array",
            wanted="None: it is for 2-D arrays of tokens packed by group, with blocked scales",
        )


def _checked_scales(
    scales: Tensor, codes: Tensor, layout: ScaleLayout, *, packed_by_group: bool
) -> Tensor:
    if not isinstance(scales, Tensor):
        raise bad_type("scales", given=scales, wanted="a torch.Tensor")
    if scales.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise bad_type("scales", given=str(scales.dtype), wanted="torch.uint8 or float8_e4m3fn")
    if scales.device != codes.device:
        raise bad_value("scales", given=f"device {scales.device}", wanted=f"{codes.device}")
    if layout == "linear":
        _check_linear(scales, codes)
    else:
        scales = _blocked_view(scales, codes, packed_by_group=packed_by_group)
    return scales.view(torch.float8_e4m3fn)


def _check_linear(scales: Tensor, codes: Tensor) -> None:
    wanted = (*codes.shape[:-1], 2 * codes.shape[-1] // BLOCK)
    if tuple(scales.shape) != wanted:
        raise bad_value(
            "scales",
            given=f"shape {tuple(scales.shape)}",
            wanted=f"{wanted}: one scale per {BLOCK} values along K (scale_layout='linear')",
        )
    if scales.stride(-1) != 1 and scales.shape[-1] > 1 and scales.numel():
        raise bad_value(
            "scales", given=f"strides {scales.stride()}", wanted="adjacent bytes along K"
        )


def _blocked_view(scales: Tensor, codes: Tensor, *, packed_by_group: bool) -> Tensor:
    """Blocked scales as ``(..., padded_rows, padded_kb)``, from that shape or from flat bytes."""
    rows = scale_layout.padded_rows(codes.shape[-2])
    columns = scale_layout.padded_k_blocks(2 * codes.shape[-1] // BLOCK)
    stack = tuple(codes.shape[:-2])
    if 0 in stack:
        return scales.new_empty((*stack, rows, columns))
    count = scales.numel() // stack[0] if stack else scales.numel()
    if packed_by_group:
        fits = count % (128 * columns) == 0 and count >= rows * columns
        wanted = f"whole 128-row atoms of {columns} columns, at least ({rows}, {columns})"
        rows = count // columns if fits else rows
    else:
        fits = count == rows * columns
        wanted = f"{(*stack, rows, columns)} or the same bytes flat (scale_layout='blocked')"
    shape = tuple(scales.shape)
    allowed = ((*stack, rows, columns), (*stack, rows * columns))
    if not fits or shape not in allowed:
        raise bad_value("scales", given=f"shape {shape}", wanted=wanted)
    if not (scales[0] if stack else scales).is_contiguous():
        raise bad_value("scales", given=f"strides {scales.stride()}", wanted="contiguous bytes")
    return scales.view(*stack, rows, columns)


def _decode_direction(
    decode: Tensor | float | None, encode: Tensor | float | None, device: torch.device
) -> Tensor:
    if decode is not None and encode is not None:
        raise bad_value(
            "global_encode_scale", given="both directions", wanted="one of them, or neither"
        )
    if encode is not None:
        return _float32_scale("global_encode_scale", encode, device).reciprocal()
    return _float32_scale("global_scale", 1.0 if decode is None else decode, device)


def _float32_scale(argument: str, scale: Tensor | float, device: torch.device) -> Tensor:
    if isinstance(scale, Real) and not isinstance(scale, bool):
        number = float(scale)
        if number and not _FLOAT32.tiny <= abs(number) <= _FLOAT32.max:
            raise bad_value(argument, given=number, wanted="a normal float32 number")
        # Not torch.tensor: its copy from the host makes a device wait, and is slower on a CPU too.
        return torch.full((), number, dtype=torch.float32, device=device)
    if not isinstance(scale, Tensor):
        raise bad_type(argument, given=scale, wanted="a number or a float32 tensor")
    if scale.dtype != torch.float32:
        raise bad_type(argument, given=str(scale.dtype), wanted="torch.float32")
    if scale.device != device:
        raise bad_value(argument, given=f"device {scale.device}", wanted=f"{device}")
    return scale.reshape(()) if scale.ndim == 1 and scale.numel() == 1 else scale


def _check_global_shape(scale: Tensor, codes: Tensor, *, packed_by_group: bool) -> None:
    rows = codes.shape[-2]
    shape = tuple(scale.shape)
    if codes.ndim == 3:
        groups = codes.shape[0]
        fits = shape in ((), (groups,)) or (
            len(shape) == 2 and shape[0] == groups and shape[1] > 0 and rows % shape[1] == 0
        )
        wanted = f"(), ({groups},) or ({groups}, S) with S dividing the {rows} rows"
    else:
        segments = len(shape) == 2 and shape[0] == 1 and shape[1] > 0 and rows % shape[1] == 0
        fits = len(shape) <= 1 or (segments and not packed_by_group)
        wanted = f"(), (G,) per group of rows, or (1, S) with S dividing the {rows} rows"
    if not fits:
        raise bad_value("global_scale", given=f"shape {shape}", wanted=wanted)


def _flatten(array: NVFP4Array) -> tuple[list[Any], tuple[ScaleLayout, GroupStart | None]]:
    return [array.codes, array.scales, array.global_scale], (array.scale_layout, array.group_start)


def _unflatten(children: Any, context: tuple[ScaleLayout, GroupStart | None]) -> NVFP4Array:
    codes, scales, global_scale = children
    return NVFP4Array._trusted(codes, scales, global_scale, *context)


def _flatten_with_keys(
    array: NVFP4Array,
) -> tuple[list[tuple[Any, Any]], tuple[ScaleLayout, GroupStart | None]]:
    children, context = _flatten(array)
    names = ("codes", "scales", "global_scale")
    return [(pytree.GetAttrKey(n), c) for n, c in zip(names, children, strict=True)], context


pytree.register_pytree_node(
    NVFP4Array,
    _flatten,
    _unflatten,
    serialized_type_name="nibblas.NVFP4Array",
    flatten_with_keys_fn=_flatten_with_keys,
)
