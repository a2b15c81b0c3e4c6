"""Conversion from and to torchao's ``NVFP4Tensor``; no codes or scales are copied."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from nibblas.errors import bad_type, bad_value
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.scale_layout import ATOM_ROWS, BLOCK, padded_k_blocks, padded_rows


def to_torchao(array: NVFP4Array, orig_dtype: torch.dtype = torch.bfloat16) -> Any:
    """The ``NVFP4Tensor`` over the bytes of ``array``.

    Args:
        array: ``(rows, K)`` or ``(G, rows, K)``, linear or blocked scales, a global scale per
            tensor or per group. torchao has no place for global scales of row segments or for
            scales packed by group, and blocks a stack as one matrix of ``G * rows`` rows: blocked
            scales of a stack need rows in multiples of 128.
        orig_dtype: the type that the tensor is to present and to dequantise to.
    """
    if not isinstance(array, NVFP4Array):
        raise bad_type("array", given=array, wanted="an NVFP4Array")
    scale = array.global_scale
    if scale.ndim == 2 or (scale.ndim == 1 and array.ndim == 2):
        raise bad_value(
            "array.global_scale",
            given=f"shape {tuple(scale.shape)} of an array {array.shape}",
            wanted="one per tensor or per group of a stack",
        )
    if array.group_start is not None:
        raise bad_value("array.group_start", given=repr(array.group_start), wanted="None")
    blocked = array.scale_layout == "blocked"
    scales = array.scales
    if blocked:
        _check_stack_rows("array", array.groups, array.rows)
        rows, columns = scales.shape[-2:]  # torchao: the 512 bytes of an atom as 32 rows of 16
        scales = scales.reshape(*scales.shape[:-2], rows // 4, columns * 4)
    return _nvfp4_tensor_class()(
        array.codes,
        scales,
        BLOCK,
        orig_dtype,
        per_tensor_scale=scale[:, None, None] if scale.ndim else scale,
        is_swizzled_scales=blocked,
    )


def from_torchao(tensor: Any) -> NVFP4Array:
    """The array over the bytes of an ``NVFP4Tensor``.

    What torchao keeps for activations stays behind: ``act_per_tensor_scale``, ``act_quant_kwargs``.

    Args:
        tensor: ``(rows, K)`` or ``(G, rows, K)`` with values adjacent along K, linear or swizzled
            scales, ``per_tensor_scale`` (multiplies) None, ``()`` or ``(G, 1, 1)``.
    """
    if not isinstance(tensor, _nvfp4_tensor_class()):
        raise bad_type("tensor", given=tensor, wanted="a torchao NVFP4Tensor")
    codes, scales, scale = tensor.qdata, tensor.scale, tensor.per_tensor_scale
    if codes.stride(-1) != 1:
        raise bad_value(
            "tensor",
            given=f"a transposed tensor {tuple(tensor.shape)}",
            wanted="values adjacent along K: its transpose(-2, -1)",
        )
    if scale is not None and scale.ndim == 3:
        scale = scale.reshape(-1)
    if tensor.is_swizzled_scales:
        groups = codes.shape[0] if codes.ndim == 3 else None
        rows, k_blocks = codes.shape[-2], 2 * codes.shape[-1] // BLOCK
        _check_stack_rows("tensor", groups, rows)
        scales = scales.reshape(*codes.shape[:-2], padded_rows(rows), padded_k_blocks(k_blocks))
    return NVFP4Array(
        codes,
        scales,
        global_scale=scale,
        scale_layout="blocked" if tensor.is_swizzled_scales else "linear",
    )


def _check_stack_rows(argument: str, groups: int | None, rows: int) -> None:
    if groups is not None and groups > 1 and rows % ATOM_ROWS:
        raise bad_value(
            argument,
            given=f"blocked scales of {groups} matrices of {rows} rows",
            wanted=f"linear scales, or rows a multiple of {ATOM_ROWS}",
        )


def _nvfp4_tensor_class() -> Any:
    try:
        module = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    except ModuleNotFoundError as error:
        raise ImportError("converting from and to torchao needs it: pip install torchao") from error
    return module.NVFP4Tensor
