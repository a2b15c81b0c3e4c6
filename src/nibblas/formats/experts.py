"""Weights put together from checkpoint tensors: what each must be, and many stacked into one.

Contents are read: a scale byte that is NaN or negative, or a global scale that is no positive
number, would make whole columns of every product wrong. For tensors on a device that synchronises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.scale_layout import BLOCK

_LARGEST_VALID_SCALE = 0x7E


@dataclass(frozen=True)
class Part:
    """A tensor of a weight (a global scale may be a number) and its name in error messages."""

    name: str
    value: object


@dataclass(frozen=True)
class WeightParts:
    """One weight matrix as checkpoints store it.

    Attributes:
        codes: uint8 or float4_e2m1fn_x2 ``(N, K/2)``.
        scales: float8_e4m3fn ``(N, K/16)``, linear.
        global_scale: one float32; which direction it has is the reader's to know.
    """

    codes: Part
    scales: Part
    global_scale: Part


def stack_experts(
    experts: Iterable[Sequence[WeightParts]], *, groups: int, divides: bool
) -> NVFP4Array:
    """One ``(G, P * N, K)`` array of G experts with P projections each, in the given order.

    Bytes are copied once, into the stack, one expert after the other. The global scales stay
    apart, as ``(G, P)``: no projection's is folded into another's.

    Args:
        experts: per expert, its projections; all of one shape, on one device.
        groups: how many experts there are, at least 1.
        divides: the direction of the global scales: True for compressed-tensors.
    """
    remaining = iter(experts)
    first = next(remaining)
    model = _check_codes(first[0].codes, ndim=2)
    n, packed_k = model.shape
    codes = model.new_empty((groups, len(first), n, packed_k))
    scales = model.new_empty((groups, len(first), n, 2 * packed_k // BLOCK))
    global_scales = torch.empty((groups, len(first)), dtype=torch.float32, device=model.device)
    for e, expert in enumerate(chain([first], remaining)):
        if len(expert) != len(first):
            given = f"{len(expert)} projections"
            wanted = f"{len(first)}, as of {first[0].codes.name}"
            raise bad_value(expert[0].codes.name, given=given, wanted=wanted)
        for p, weight in enumerate(expert):
            piece = _check_codes(weight.codes, ndim=2)
            _check_alike(weight.codes.name, piece, first[0].codes.name, model)
            codes[e, p] = piece
            scales[e, p] = _check_scales(weight.scales, piece)
            global_scales[e, p] = one_number(weight.global_scale, model.device)
    return _array(
        codes.flatten(1, 2),
        scales.flatten(1, 2),
        global_scales.squeeze(1) if len(first) == 1 else global_scales,
        divides=divides,
    )


def weight_in_place(weight: WeightParts, *, divides: bool) -> NVFP4Array:
    """One weight or one stack over the tensors themselves, no copy.

    Args:
        weight: codes ``(N, K/2)`` or ``(G, N, K/2)``, scales alike; the global scale a number or
            float32, ``()``, ``(1, S)`` or, of a stack, ``()``, ``(G,)``, ``(G, S)``.
        divides: the direction of the global scale: True for compressed-tensors.
    """
    codes = _check_codes(weight.codes)
    scales = _check_scales(weight.scales, codes)
    for part, tensor in ((weight.codes, codes), (weight.scales, scales)):
        if tensor.stride(-1) != 1:
            given = f"strides {tensor.stride()}"
            raise bad_value(part.name, given=given, wanted="adjacent bytes along K")
    return _array(codes, scales, _global_of_rows(weight.global_scale, codes), divides=divides)


def _array(codes: Tensor, scales: Tensor, global_scale: Tensor, *, divides: bool) -> NVFP4Array:
    return NVFP4Array(
        codes,
        scales,
        global_scale=None if divides else global_scale,
        global_encode_scale=global_scale if divides else None,
    )


def _check_codes(part: Part, ndim: int | None = None) -> Tensor:
    """The codes of ``part`` as uint8, of ``ndim`` dimensions (default: 2 or 3)."""
    codes = _tensor(part)
    if codes.dtype not in (torch.uint8, torch.float4_e2m1fn_x2):
        raise bad_type(
            part.name, given=str(codes.dtype), wanted="torch.uint8, two E2M1 codes per byte"
        )
    if codes.ndim not in ((2, 3) if ndim is None else (ndim,)) or not _whole_blocks(codes):
        shape = {2: "(N, K/2)", 3: "(G, N, K/2)", None: "(N, K/2) or (G, N, K/2)"}[ndim]
        wanted = f"{shape} with K a positive multiple of {BLOCK}"
        raise bad_value(part.name, given=f"shape {tuple(codes.shape)}", wanted=wanted)
    return codes.view(torch.uint8)


def _check_scales(part: Part, codes: Tensor) -> Tensor:
    """The linear block scales of ``part`` as uint8, checked against ``codes``.

    uint8 is refused: the scales of MXFP4 checkpoints (E8M0, one per 32 values) are stored so.
    """
    scales = _tensor(part)
    if scales.dtype != torch.float8_e4m3fn:
        raise bad_type(part.name, given=str(scales.dtype), wanted="torch.float8_e4m3fn")
    wanted = (*codes.shape[:-1], 2 * codes.shape[-1] // BLOCK)
    if tuple(scales.shape) != wanted:
        raise bad_value(
            part.name,
            given=f"shape {tuple(scales.shape)}",
            wanted=f"{wanted}, one scale per {BLOCK} values along K",
        )
    if scales.device != codes.device:
        raise bad_value(part.name, given=f"device {scales.device}", wanted=f"{codes.device}")
    encoded = scales.view(torch.uint8)
    bad = encoded > _LARGEST_VALID_SCALE
    if not isinstance(scales, FakeTensor) and bool(bad.any()):
        where = tuple(torch.nonzero(bad)[0].tolist())
        raise bad_value(
            part.name,
            given=f"byte 0x{int(encoded[where]):02X} at {where}",
            wanted="E4M3 scales 0x00..0x7E: neither NaN nor negative",
        )
    return encoded


def _check_positive(name: str, scales: Tensor) -> None:
    """Refuses global scales that are not finite and positive in both directions."""
    if isinstance(scales, FakeTensor):
        return
    bad = ~(scales.isfinite() & (scales > 0) & scales.reciprocal().isfinite())
    if bool(bad.any()):
        wanted = "finite positive scales, whose reciprocal float32 can hold"
        raise bad_value(name, given=float(scales[bad][0]), wanted=wanted)


def one_number(part: Part, device: torch.device) -> Tensor:
    """The positive float32 of ``part``, ``()``."""
    scale = _global_scale(part, device)
    if scale.numel() != 1:
        raise bad_value(part.name, given=f"shape {tuple(scale.shape)}", wanted="one number")
    return scale.reshape(())


def _global_of_rows(part: Part, codes: Tensor) -> Tensor:
    """The global scale of ``part``, of a shape that fits the rows of ``codes``."""
    scale = _global_scale(part, codes.device)
    if scale.numel() == 1:
        return scale.reshape(())
    groups = codes.shape[0] if codes.ndim == 3 else 1
    rows = codes.shape[-2]
    by_segment = scale.ndim == 2 and scale.shape[1] > 0 and rows % scale.shape[1] == 0
    if scale.shape[0] != groups or not (scale.ndim == 1 or by_segment):
        shape = tuple(scale.shape)
        wanted = f"(), ({groups},) or ({groups}, S) with S dividing the {rows} rows"
        raise bad_value(part.name, given=f"shape {shape}", wanted=wanted)
    return scale


def _global_scale(part: Part, device: torch.device) -> Tensor:
    """The global scale of ``part``, float32, positive, on ``device``, of its own shape."""
    if isinstance(part.value, (int, float)) and not isinstance(part.value, bool):
        scale = torch.tensor(float(part.value), dtype=torch.float32, device=device)
    elif isinstance(part.value, Tensor):
        scale = part.value
    else:
        raise bad_type(
            part.name, given=type(part.value).__name__, wanted="a float32 tensor or a number"
        )
    if scale.dtype != torch.float32:
        raise bad_type(part.name, given=str(scale.dtype), wanted="torch.float32")
    if scale.device != device:
        raise bad_value(part.name, given=f"device {scale.device}", wanted=f"{device}")
    _check_positive(part.name, scale)
    return scale


def _tensor(part: Part) -> Tensor:
    if not isinstance(part.value, Tensor):
        raise bad_type(part.name, given=type(part.value).__name__, wanted="a torch.Tensor")
    return part.value


def _whole_blocks(codes: Tensor) -> bool:
    return codes.shape[-1] > 0 and codes.shape[-1] % (BLOCK // 2) == 0


def _check_alike(name: str, codes: Tensor, first_name: str, first: Tensor) -> None:
    if codes.shape != first.shape or codes.device != first.device:
        raise bad_value(
            name,
            given=f"shape {tuple(codes.shape)} on {codes.device}",
            wanted=f"{tuple(first.shape)} on {first.device}, as {first_name}: a stack has one "
            "shape, and global scales of projections need equal row segments",
        )
