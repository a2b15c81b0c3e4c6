"""The public problem's data: its types, its checks, and whole-data copies.

One call takes ``data = (abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes)``,
four lists with one entry per group:

=========  ======================  =====================  ==========================  ======
tensor     dtype                   shape                  strides                     device
=========  ======================  =====================  ==========================  ======
a          float4_e2m1fn_x2        [m, k/2, 1]            (k/2, 1, m*k/2)             kernel
b          float4_e2m1fn_x2        [n, k/2, 1]            (k/2, 1, n*k/2)             kernel
c          float16                 [m, n, 1]              (n, 1, m*n)                 kernel
sfa, sfb   float8_e4m3fn           [rows, k/16, 1]        (k/16, 1, rows*k/16)        CPU
reordered  float8_e4m3fn           [32, 4, rm, 4, rk, 1]  (16, 4, rk*512, 1, 512, ..) kernel
sizes      (m, n, k, l) of int     l = 1                                              host
=========  ======================  =====================  ==========================  ======

with rm = ceil(rows/128) and rk = ceil((k/16)/4). The kernel fills c and returns the c of every
group in order. Source: reference.py of gpu-mode/reference-kernels,
problems/nvidia/nvfp4_group_gemm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.scale_layout import (
    BLOCK,
    from_competition_view,
    padded_k_blocks,
    padded_rows,
)

TaskData = tuple[
    list[tuple[Tensor, Tensor, Tensor]],
    list[tuple[Tensor, Tensor]],
    list[tuple[Tensor, Tensor]],
    list[tuple[int, int, int, int]],
]
Kernel = Callable[[TaskData], list[Tensor]]

PARTS = ("abc_tensors", "sfasfb_tensors", "sfasfb_reordered_tensors", "problem_sizes")
_ENTRY_LENGTHS = (3, 2, 2, 4)
_CODE_DTYPES = (torch.float4_e2m1fn_x2, torch.uint8)
_SCALE_DTYPES = (torch.float8_e4m3fn, torch.uint8)


@dataclass(frozen=True)
class Group:
    """One group of checked data; nothing is copied."""

    a: Tensor
    """(m, k/2) codes, unit stride along k."""
    b: Tensor
    """(n, k/2) codes, unit stride along k."""
    c: Tensor
    """[m, n, 1] float16, any strides."""
    sfa: Tensor
    """(padded_rows, padded_kb) blocked scales of a, over the bytes of the 6-D view."""
    sfb: Tensor
    """(padded_rows, padded_kb) blocked scales of b, likewise."""


def checked_groups(data: TaskData) -> list[Group]:
    """The groups of ``data``, in order; reads metadata only and writes nothing.

    Raises:
        TypeError: ``data`` or an entry is not of the contract's types.
        ValueError: wrong lengths; sizes that do not match the tensors; l other than 1; k not a
            multiple of 16; a or b not K-major; tensors on several devices.
    """
    if not isinstance(data, (tuple, list)):
        raise bad_type("data", given=data, wanted=f"a tuple of {', '.join(PARTS)}")
    if len(data) != len(PARTS):
        raise bad_value(
            "data", given=f"{len(data)} parts", wanted=f"{len(PARTS)}: {', '.join(PARTS)}"
        )
    parts: tuple[Sequence[object], ...] = tuple(data)
    for name, part in zip(PARTS, parts, strict=True):
        if not isinstance(part, (list, tuple)):
            raise bad_type(name, given=part, wanted="a list with one entry per group")
    for name, part in zip(PARTS, parts, strict=True):
        if len(part) != len(data[3]):
            raise bad_value(
                name, given=f"{len(part)} entries", wanted=f"{len(data[3])}, as problem_sizes has"
            )
    groups = [_checked_group(data, index) for index in range(len(data[3]))]
    _check_one_device(groups)
    return groups


def _checked_group(data: TaskData, index: int) -> Group:
    entries = (part[index] for part in data)
    for name, entry, length in zip(PARTS, entries, _ENTRY_LENGTHS, strict=True):
        if not isinstance(entry, (tuple, list)) or len(entry) != length:
            raise bad_value(f"{name}[{index}]", given=repr(entry)[:80], wanted=f"{length} items")
    m, n, k = _checked_sizes(data[3][index], index)
    a, b, c = data[0][index]
    sfa, sfb = data[2][index]
    for name, codes, rows in (("a", a, m), ("b", b, n)):
        argument = f"abc_tensors[{index}].{name}"
        _check_tensor(argument, codes, dtypes=_CODE_DTYPES, shape=(rows, k // 2, 1))
        if codes.stride(1) != 1:
            raise bad_value(
                argument,
                given=f"strides {tuple(codes.stride())}",
                wanted="K-major data: stride 1 along k",
            )
    _check_tensor(f"abc_tensors[{index}].c", c, dtypes=(torch.float16,), shape=(m, n, 1))
    return Group(
        a[:, :, 0],
        b[:, :, 0],
        c,
        _blocked_scales(f"sfasfb_reordered_tensors[{index}].sfa", sfa, m, k),
        _blocked_scales(f"sfasfb_reordered_tensors[{index}].sfb", sfb, n, k),
    )


def _blocked_scales(argument: str, view6: Tensor, rows: int, k: int) -> Tensor:
    shape = (32, 4, padded_rows(rows) // 128, 4, padded_k_blocks(k // BLOCK) // 4, 1)
    _check_tensor(argument, view6, dtypes=_SCALE_DTYPES, shape=shape)
    try:
        return from_competition_view(view6)[0]
    except ValueError as error:
        raise bad_value(
            argument,
            given=f"strides {tuple(view6.stride())}",
            wanted=f"(16, 4, {shape[4] * 512}, 1, 512, any), as blocked scales have",
        ) from error


def _checked_sizes(sizes: Sequence[int], index: int) -> tuple[int, int, int]:
    argument = f"problem_sizes[{index}]"
    if not all(isinstance(size, int) for size in sizes):
        raise bad_type(argument, given=repr(sizes), wanted="(m, n, k, l) as Python ints")
    m, n, k, batch = sizes
    if batch != 1:
        raise bad_value(argument, given=f"l = {batch}", wanted="l = 1, one matrix per group")
    if m < 0 or n < 0 or k <= 0 or k % BLOCK:
        raise bad_value(
            argument, given=tuple(sizes), wanted=f"m, n >= 0 and k a positive multiple of {BLOCK}"
        )
    return m, n, k


def _check_tensor(
    argument: str, tensor: object, *, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> None:
    if not isinstance(tensor, Tensor):
        raise bad_type(argument, given=tensor, wanted="a tensor")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise bad_type(argument, given=str(tensor.dtype), wanted=wanted)
    if tuple(tensor.shape) != shape:
        raise bad_value(
            argument, given=f"shape {tuple(tensor.shape)}", wanted=f"{shape}, as problem_sizes says"
        )


def _check_one_device(groups: list[Group]) -> None:
    for index, group in enumerate(groups):
        for name in ("a", "b", "c", "sfa", "sfb"):
            device = getattr(group, name).device
            if device != groups[0].a.device:
                raise bad_value(
                    f"{name} of group {index}",
                    given=f"device {device}",
                    wanted=f"{groups[0].a.device}, as the first a",
                )


def data_tensors(data: TaskData) -> Iterator[Tensor]:
    """Every tensor of ``data`` in one fixed order."""
    for part in data[:3]:
        for entry in part:
            yield from entry


def clone_data(data: TaskData) -> TaskData:
    """New tensors with the same shapes, strides, devices and contents."""
    abc, scales, reordered, sizes = data
    return (
        [(_clone(a), _clone(b), _clone(c)) for a, b, c in abc],
        [(_clone(sfa), _clone(sfb)) for sfa, sfb in scales],
        [(_clone(sfa), _clone(sfb)) for sfa, sfb in reordered],
        list(sizes),
    )


def overwrite_data(destination: TaskData, source: TaskData) -> None:
    """Copy the contents of ``source`` into the tensors of ``destination``: same addresses."""
    for into, new in zip(data_tensors(destination), data_tensors(source), strict=True):
        _as_copyable(into).copy_(_as_copyable(new))


def poison_outputs(data: TaskData) -> None:
    """Fill every c with NaN, so that an element the kernel does not write is seen."""
    for _, _, c in data[0]:
        c.fill_(float("nan"))


def _clone(tensor: Tensor) -> Tensor:
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    _as_copyable(copy).copy_(_as_copyable(tensor))
    return copy


def _as_copyable(tensor: Tensor) -> Tensor:
    """One-byte types as uint8: not every torch release copies float4_e2m1fn_x2."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
