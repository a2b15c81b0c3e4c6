"""From public arguments to checked operands: what the public functions and ``explain`` share.

Here operands are checked against each other (shapes, dtypes, devices); contents are checked in
``ops``, which torch.compile does not trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nibblas.backends import registry
from nibblas.errors import bad_type, bad_value
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.validation import operands as check
from nibblas.validation.offs import check_offs_metadata

PRECISIONS = ("w4a16", "w4a4")
VALIDATE_MODES = ("default", "strict")


@dataclass(frozen=True)
class Epilogue:
    """What is applied to the sums: see ``grouped_mm``."""

    alpha: Tensor | None = None
    row_scale: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Options:
    """How a call is to be run: see ``grouped_mm``."""

    backend: str | None = None
    precision: str | None = None
    batch_invariant: bool = False
    validate: str = "default"

    def check(self, x: Tensor | NVFP4Array) -> None:
        """Refuses option values that do not exist, and a precision that x does not have."""
        if self.backend is not None:
            if not isinstance(self.backend, str):
                raise bad_type("backend", given=self.backend, wanted="a backend's name or None")
            registry.get(self.backend)
        if self.validate not in VALIDATE_MODES:
            raise bad_value(
                "validate", given=repr(self.validate), wanted=f"one of {VALIDATE_MODES}"
            )
        actual = "w4a4" if isinstance(x, NVFP4Array) else "w4a16"
        if self.precision is not None and self.precision not in PRECISIONS:
            raise bad_value("precision", given=repr(self.precision), wanted=f"one of {PRECISIONS}")
        if self.precision not in (None, actual):
            kind = "an NVFP4Array" if isinstance(x, NVFP4Array) else str(x.dtype)
            raise bad_value(
                "precision",
                given=repr(self.precision),
                wanted=f"{actual!r}, since x is {kind}: nothing is converted silently",
            )

    @property
    def arguments(self) -> tuple[str | None, bool, str]:
        """The operators' last arguments."""
        return self.backend, bool(self.batch_invariant), self.validate


def packed_product(
    x: Tensor | NVFP4Array, w: NVFP4Array, offs: Tensor, epilogue: Epilogue
) -> tuple[Any, ...]:
    """Checks the packed form; returns the operators' product arguments."""
    check.check_tokens(x)
    check.check_weights(w)
    check.check_contraction(x, w)
    groups = w.codes.shape[0]
    check.check_packed_scales(x, groups)
    check_offs_metadata(offs, groups, x.device, "offs")
    shape = (groups, x.shape[0], w.rows)
    check.check_epilogue(
        epilogue.alpha, epilogue.row_scale, epilogue.bias, shape=shape, device=x.device
    )
    return _product(x, w, offs, epilogue)


def masked_product(
    x: Tensor | NVFP4Array, w: NVFP4Array, masked_m: Tensor, epilogue: Epilogue
) -> tuple[Any, ...]:
    """Checks the masked form; returns the operators' product arguments, rows flattened."""
    check.check_tokens(x, ndim=3)
    check.check_weights(w)
    check.check_contraction(x, w)
    groups, max_m = x.shape[0], x.shape[1]
    if groups != w.groups:
        raise bad_value("x", given=f"{groups} groups", wanted=f"{w.groups}, as w {w.shape} has")
    parts = (x.codes, x.scales) if isinstance(x, NVFP4Array) else (x,)
    if not all(part.is_contiguous() for part in parts):
        raise bad_value("x", given="a tensor with gaps or permuted strides", wanted="contiguous")
    check_offs_metadata(masked_m, groups, x.device, "masked_m")
    row_scale = epilogue.row_scale
    if isinstance(row_scale, Tensor):
        if tuple(row_scale.shape) != (groups, max_m):
            given = f"shape {tuple(row_scale.shape)}"
            raise bad_value("row_scale", given=given, wanted=f"({groups}, {max_m})")
        row_scale = row_scale.flatten()
    flat = Epilogue(epilogue.alpha, row_scale, epilogue.bias)
    shape = (groups, groups * max_m, w.rows)
    check.check_epilogue(flat.alpha, flat.row_scale, flat.bias, shape=shape, device=x.device)
    return _product(x, w, masked_m, flat, masked=True)


def list_product(
    a: Sequence[Tensor | NVFP4Array],
    b: Sequence[NVFP4Array],
    *,
    alpha: Tensor | None,
    row_scale: Sequence[Tensor] | None,
    bias: Sequence[Tensor] | None,
) -> tuple[Any, ...]:
    """Checks the list form; returns the list operator's arguments before ``out``."""
    _check_lists(a, b, row_scale=row_scale, bias=bias)
    for i, x in enumerate(a):
        check.check_tokens(x, f"a[{i}]")
    device = a[0].device
    for i, (x, w) in enumerate(zip(a, b, strict=True)):
        check.check_weights(w, f"b[{i}]", ndim=2)
        check.check_contraction(x, w, (f"a[{i}]", f"b[{i}]"))
        check.check_packed_scales(x, 1, f"a[{i}]")
        if x.device != device or _kind(x) != _kind(a[0]):
            given = f"{_kind(x)} on {x.device}"
            raise bad_value(f"a[{i}]", given=given, wanted=f"{_kind(a[0])} on {device}, as a[0]")
        scales, biases = row_scale[i] if row_scale else None, bias[i] if bias else None
        shape = (1, x.shape[0], w.rows)
        check.check_epilogue(None, scales, biases, shape=shape, device=device, index=i)
    check.check_epilogue(alpha, None, None, shape=(len(a), 0, 0), device=device)
    quantized = [x for x in a if isinstance(x, NVFP4Array)]
    return (
        [x.codes if isinstance(x, NVFP4Array) else x for x in a],
        [_scale_bytes(x) for x in quantized],
        [x.scale_layout for x in quantized],
        [x.global_scale for x in quantized],
        [w.codes for w in b],
        [_scale_bytes(w) for w in b],
        [w.scale_layout for w in b],
        [w.global_scale for w in b],
        alpha,
        list(row_scale or ()),
        list(bias or ()),
    )


def out_dtype_of(
    x: Tensor | NVFP4Array, out: Tensor | None, out_dtype: torch.dtype | None
) -> torch.dtype:
    """The output's type: asked for, else out's, else x's (bfloat16 for an NVFP4Array)."""
    if out_dtype is None and isinstance(out, Tensor):
        check.check_out_dtype(out.dtype, "out")
        return out.dtype
    if out_dtype is None:
        return torch.bfloat16 if isinstance(x, NVFP4Array) else x.dtype
    if not isinstance(out_dtype, torch.dtype):
        raise bad_type("out_dtype", given=out_dtype, wanted="a torch.dtype")
    check.check_out_dtype(out_dtype)
    return out_dtype


def refuse_gradient(x: Tensor | NVFP4Array, name: str) -> None:
    """Refuses tokens that require grad where the call would lose the gradient silently."""
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        raise bad_value(
            name,
            given="a tensor that requires grad",
            wanted="none here: gradients need grouped_mm or grouped_mm_masked without out=",
        )


def _product(
    x: Tensor | NVFP4Array, w: NVFP4Array, offs: Tensor, epilogue: Epilogue, masked: bool = False
) -> tuple[Any, ...]:
    """The operators' product arguments, in the order of ``backends.base.Operands``.

    A masked x without rows is a packed one without rows.
    """
    max_m = x.shape[1] if masked else 0
    tokens: tuple[Any, ...]
    if isinstance(x, NVFP4Array):
        start = "stacked" if max_m else (x.group_start or "torch")
        codes, scales = x.codes, _scale_bytes(x)
        if masked:
            codes, scales = codes.flatten(0, 1), scales.flatten(0, 1)
        tokens = (codes, scales, x.scale_layout, start, x.global_scale)
    else:
        tokens = (x.flatten(0, 1) if masked else x, None, "linear", "torch", None)
    weights = (w.codes, _scale_bytes(w), w.scale_layout, w.global_scale)
    return (*tokens, *weights, offs, max_m, epilogue.alpha, epilogue.row_scale, epilogue.bias)


def _check_lists(
    a: Sequence[Any],
    b: Sequence[Any],
    *,
    row_scale: Sequence[Tensor] | None,
    bias: Sequence[Tensor] | None,
) -> None:
    """Refuses arguments that are not sequences of one length, or are empty."""
    given = (("a", a), ("b", b), ("row_scale", row_scale), ("bias", bias))
    for name, values in given:
        if values is None and name in ("row_scale", "bias"):
            continue
        if not isinstance(values, (list, tuple)):
            raise bad_type(name, given=values, wanted="a list or tuple, one entry per group")
        if len(values) != len(a):
            raise bad_value(name, given=f"{len(values)} entries", wanted=f"{len(a)}, as a has")
    if not a:
        raise bad_value("a", given="an empty list", wanted="at least one group")


def _kind(x: Tensor | NVFP4Array) -> str:
    return "NVFP4" if isinstance(x, NVFP4Array) else str(x.dtype)


def _scale_bytes(array: NVFP4Array) -> Tensor:
    """Block scales as uint8: operators carry bytes, since few of torch's own know float8."""
    return array.scales.view(torch.uint8)
