"""Where tensors that do not fit each other are refused; reads metadata only."""

from __future__ import annotations

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.plan.problem import Activations, OutType
from nibblas.validation.memory import check_no_self_overlap

ACTIVATION_NAMES: dict[torch.dtype, Activations] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
OUT_NAMES: dict[torch.dtype, OutType] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
}
SUPPORTED_DEVICES = ("cpu", "cuda")


def check_tokens(x: Tensor | NVFP4Array, name: str = "x", *, ndim: int = 2) -> None:
    """Refuses tokens of a wrong type, rank, dtype or layout.

    Args:
        x: bfloat16 or float16 tensor, or NVFP4Array, of rank ``ndim``.
        ndim: 2 for ``(M, K)``, 3 for the masked ``(G, max_m, K)``.
    """
    shape = "(M, K)" if ndim == 2 else "(G, max_m, K)"
    if not isinstance(x, (Tensor, NVFP4Array)):
        raise bad_type(name, given=x, wanted="a bfloat16 or float16 tensor, or an NVFP4Array")
    if x.ndim != ndim:
        raise bad_value(name, given=f"shape {tuple(x.shape)}", wanted=shape)
    if isinstance(x, NVFP4Array):
        _refuse_gradient_of(x.global_scale, f"{name}.global_scale")
        if x.global_scale.ndim == 2:
            given = f"global_scale of shape {tuple(x.global_scale.shape)}"
            raise bad_value(name, given=given, wanted="(), or (G,) per group of rows")
        return
    if x.dtype not in ACTIVATION_NAMES:
        hint = "; convert with .to(torch.bfloat16)" if x.dtype.is_floating_point else ""
        wanted = f"torch.bfloat16 or torch.float16{hint}"
        raise bad_type(name, given=str(x.dtype), wanted=wanted)
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise bad_value(
            name,
            given=f"strides {x.stride()}",
            wanted="adjacent values along K (last stride 1), as .contiguous() makes them",
        )


def check_weights(w: NVFP4Array, name: str = "w", *, ndim: int = 3) -> None:
    """Refuses weights that are not an NVFP4Array of rank ``ndim`` with at least one group."""
    if not isinstance(w, NVFP4Array):
        wanted = "an NVFP4Array, as quantize(weight), NVFP4Array(codes, scales) or a loader makes"
        raise bad_type(name, given=w, wanted=wanted)
    if w.ndim != ndim:
        shape = "(G, N, K)" if ndim == 3 else "(N, K)"
        raise bad_value(name, given=f"shape {w.shape}", wanted=shape)
    _refuse_gradient_of(w.global_scale, f"{name}.global_scale")
    if w.groups == 0:
        raise bad_value(name, given=f"shape {w.shape}", wanted="at least one group")
    if w.group_start is not None:
        given = f"group_start={w.group_start!r}"
        raise bad_value(name, given=given, wanted="weights, whose scales start with the matrix")
    if ndim == 2 and w.global_scale.ndim == 1:
        given = f"global_scale of shape {tuple(w.global_scale.shape)}"
        raise bad_value(name, given=given, wanted="() or (1, S) for a single matrix")


def check_contraction(
    x: Tensor | NVFP4Array, w: NVFP4Array, names: tuple[str, str] = ("x", "w")
) -> None:
    """Refuses operands whose K or device differ."""
    k = x.shape[-1]
    if k != w.k:
        transposed = f" (N, K order; is {names[1]} transposed?)" if k == w.rows else ""
        raise bad_value(
            names[0],
            given=f"K = {k} (shape {tuple(x.shape)})",
            wanted=f"K = {w.k}, as {names[1]} {w.shape} has{transposed}",
        )
    if x.device != w.device:
        raise bad_value(names[1], given=f"device {w.device}", wanted=f"{x.device}, as {names[0]}")
    if x.device.type not in SUPPORTED_DEVICES:
        wanted = f"one of {SUPPORTED_DEVICES}"
        raise bad_value(names[0], given=f"device {x.device}", wanted=wanted)


def check_packed_scales(x: Tensor | NVFP4Array, groups: int, name: str = "x") -> None:
    """Refuses packed NVFP4 tokens whose blocked scales or global scales cannot belong to groups."""
    if not isinstance(x, NVFP4Array):
        return
    if x.scale_layout == "blocked" and x.group_start is None and groups > 1:
        raise bad_value(
            name,
            given="blocked scales with group_start=None",
            wanted="group_start='torch' or 'flashinfer': where each group's 128-row atoms start",
        )
    if x.global_scale.ndim == 1 and x.global_scale.shape[0] != groups:
        given = f"global_scale of shape {tuple(x.global_scale.shape)}"
        raise bad_value(name, given=given, wanted=f"() or ({groups},)")


def check_epilogue(
    alpha: Tensor | None,
    row_scale: Tensor | None,
    bias: Tensor | None,
    *,
    shape: tuple[int, int, int],
    device: torch.device,
    index: int | None = None,
) -> None:
    """Refuses epilogue tensors of a wrong dtype, shape or device.

    Args:
        shape: (G, M, N).
        index: place in the list form's lists, named in messages.
    """
    groups, m, n = shape
    place = "" if index is None else f"[{index}]"
    _check_factor("alpha", alpha, (groups,), device)
    _check_factor(f"row_scale{place}", row_scale, (m,), device)
    if bias is None:
        return
    name = f"bias{place}"
    _check_plain(name, bias, device)
    if bias.dtype not in OUT_NAMES:
        wanted = "torch.float32, torch.bfloat16 or torch.float16"
        raise bad_type(name, given=str(bias.dtype), wanted=wanted)
    if tuple(bias.shape) not in ((n,), (groups, n)):
        wanted = f"({n},) or ({groups}, {n})"
        raise bad_value(name, given=f"shape {tuple(bias.shape)}", wanted=wanted)


def check_out(
    out: Tensor,
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    name: str = "out",
) -> None:
    """Refuses an output of a wrong type, shape, dtype or device, or one that overlaps itself."""
    if not isinstance(out, Tensor):
        raise bad_type(name, given=out, wanted="a torch.Tensor")
    check_out_dtype(out.dtype, name)
    if dtype is not None and out.dtype != dtype:
        raise bad_type(name, given=str(out.dtype), wanted=f"{dtype}, as out_dtype says")
    if tuple(out.shape) != tuple(shape):
        raise bad_value(name, given=f"shape {tuple(out.shape)}", wanted=f"{tuple(shape)}")
    if out.device != device:
        raise bad_value(name, given=f"device {out.device}", wanted=f"{device}, where x is")
    if out.requires_grad:
        raise bad_value(name, given="a tensor that requires grad", wanted="one that does not")
    check_no_self_overlap(out, name)


def check_out_dtype(dtype: torch.dtype, name: str = "out_dtype") -> None:
    """Refuses an output type that no kernel writes."""
    if dtype not in OUT_NAMES:
        wanted = "torch.float16, torch.bfloat16 or torch.float32"
        raise bad_type(name, given=str(dtype), wanted=wanted)


def _check_factor(
    name: str, factor: Tensor | None, shape: tuple[int, ...], device: torch.device
) -> None:
    if factor is None:
        return
    _check_plain(name, factor, device)
    if factor.dtype != torch.float32:
        raise bad_type(name, given=str(factor.dtype), wanted="torch.float32")
    if tuple(factor.shape) != shape:
        per = "group" if name == "alpha" else "row of x"
        wanted = f"{shape}, one factor per {per}"
        raise bad_value(name, given=f"shape {tuple(factor.shape)}", wanted=wanted)


def _check_plain(name: str, t: Tensor, device: torch.device) -> None:
    """A contiguous tensor on the right device that asks for no gradient."""
    if not isinstance(t, Tensor):
        raise bad_type(name, given=t, wanted="a torch.Tensor, float32 (bias: 16-bit too)")
    if t.device != device:
        raise bad_value(name, given=f"device {t.device}", wanted=f"{device}, where x is")
    if not t.is_contiguous():
        raise bad_value(name, given=f"strides {t.stride()}", wanted="a contiguous tensor")
    _refuse_gradient_of(t, name)


def _refuse_gradient_of(t: Tensor, name: str) -> None:
    if t.requires_grad and torch.is_grad_enabled():
        raise bad_value(name, given="a tensor that requires grad", wanted="none: only x gets one")
