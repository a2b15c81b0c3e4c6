"""``Params`` of kernels/sm100/params.cuh as ctypes lays it out, and operands to fill it with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_uint8, c_void_p
from typing import Any

import torch
from torch import Tensor

from nibblas import env
from nibblas.backends.base import Operands
from nibblas.backends.sm100 import Sm100Backend
from nibblas.plan.problem import GroupShape, Problem, even_rows, uniform_shapes
from nibblas.plan.select import Plan
from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.recording import RecordingDriver

BACKEND = Sm100Backend()


class Rows(ctypes.Structure):
    _fields_ = (
        ("bytes", c_int64),
        ("group_bytes", c_int64),
        ("row_bytes", c_int64),
        ("vector", c_int64),
    )


class Scales(ctypes.Structure):
    _fields_ = (
        ("bytes", c_int64),
        ("group_bytes", c_int64),
        ("row_bytes", c_int64),
        ("vector", c_int64),
        ("layout", c_int32),
        ("start_rule", c_int32),
    )


class Product(ctypes.Structure):
    _fields_ = (
        ("x", Rows),
        ("x_scales", Scales),
        ("w", Rows),
        ("w_scales", Scales),
        *((name, c_int64) for name in ("offs", "groups", "rows", "n", "k", "max_m")),
        ("x_global", c_int64),
        ("x_global_stride", c_int64),
        ("w_global", c_int64),
        ("w_global_group_stride", c_int64),
        ("w_global_segment_stride", c_int64),
        ("segment_columns", c_int64),
        ("alpha", c_int64),
        ("row_scale", c_int64),
        ("bias", c_int64),
        ("bias_group_stride", c_int64),
        ("out", c_int64),
        ("out_row_stride", c_int64),
        ("out_column_stride", c_int64),
        ("bias_type", c_int32),
        ("out_type", c_int32),
    )


class Entry(ctypes.Structure):
    """Aligned to 64 bytes, as the maps are."""

    _fields_ = (
        ("x_map", c_int64 * 16),
        ("w_map", c_int64 * 16),
        ("product", Product),
        ("tile_end", c_int32),
        ("item_end", c_int32),
        ("aligned", c_uint8 * 8),
    )


class Header(ctypes.Structure):
    _fields_ = (
        ("products", c_int32),
        ("column_units", c_int32),
        ("stages", c_int32),
        ("tensor_columns", c_int32),
        ("group_capacity", c_int32),
        ("tile_tokens", c_int32),
        ("box_rows", c_int32),
        ("scale_slots", c_int32),
        ("aligned", c_uint8 * 32),
    )


assert ctypes.sizeof(Header) % 64 == 0 and ctypes.sizeof(Entry) % 64 == 0
assert ctypes.sizeof(c_float) == 4 and ctypes.sizeof(c_void_p) == 8


def unpack(parameters: bytes) -> tuple[Header, list[Entry]]:
    """The header, and as many entries as there are products."""
    header = Header.from_buffer_copy(parameters)
    sizes = ctypes.sizeof(Header), ctypes.sizeof(Entry)
    assert (len(parameters) - sizes[0]) % sizes[1] == 0
    entries = [
        Entry.from_buffer_copy(parameters, sizes[0] + i * sizes[1]) for i in range(header.products)
    ]
    return header, entries


def values(record: ctypes.Structure) -> dict[str, Any]:
    """A record's fields by name, but for those that align; records within it too."""
    found = {name: getattr(record, name) for name, *_ in record._fields_ if name != "aligned"}
    return {
        name: values(value) if isinstance(value, ctypes.Structure) else value
        for name, value in found.items()
    }


def operands(
    *,
    groups: int = 4,
    rows: int = 300,
    n: int = 384,
    k: int = 512,
    x_layout: str = "blocked",
    w_layout: str = "blocked",
    max_m: int = 0,
    one_group: bool = False,
    bare: bool = False,
    **changes: Any,
) -> Operands:
    """A product with every tensor that there can be; ``bare``: with none that can be left out.

    Args:
        max_m: above 0, masked: ``groups * max_m`` rows. one_group: no offs.
        changes: other tensors and values.
    """
    rows = groups * max_m if max_m else rows
    scale_rows = 128 * (-(-rows // 128) + groups) if x_layout == "blocked" else rows
    fields: dict[str, Any] = {
        "x": zeros(rows, k // 2),
        "x_scales": zeros(scale_rows, scale_columns(k, x_layout)),
        "x_scale_layout": x_layout,
        "x_scale_start": "stacked" if max_m else "torch",
        "x_global": None if bare else torch.ones(groups),
        "w": zeros(groups, n, k // 2),
        "w_scales": zeros(
            groups,
            -(-n // 128) * 128 if w_layout == "blocked" else n,
            scale_columns(k, w_layout),
        ),
        "w_scale_layout": w_layout,
        "w_global": None if bare else torch.ones(groups, 3),
        "offs": None if one_group else torch.zeros(groups, dtype=torch.int32),
        "max_m": max_m,
        "alpha": None if bare else torch.ones(groups),
        "row_scale": None if bare else torch.ones(rows),
        "bias": None if bare else torch.zeros(groups, n, dtype=torch.bfloat16),
        "out": torch.zeros(rows, n, dtype=torch.float16),
    }
    return Operands(**(fields | changes))


def zeros(*shape: int) -> Tensor:
    """Bytes."""
    return torch.zeros(shape, dtype=torch.uint8)


def scale_columns(k: int, layout: str) -> int:
    """Bytes of a row of scales, padded where they are blocked."""
    return -(-k // 64) * 4 if layout == "blocked" else k // 16


def off_alignment(tensor: Tensor, by: int = 1) -> Tensor:
    """The same values ``by`` bytes beyond a multiple of 16, in rows of the same stride."""
    larger = torch.zeros(tensor.numel() + by, dtype=tensor.dtype)
    return larger[by:].view_as(tensor)


def at(tensor: Tensor | None) -> int:
    """The address of a tensor that is there."""
    assert tensor is not None
    return tensor.data_ptr()


def problem_of(products: Operands | Sequence[Operands]) -> Problem:
    """As the operator describes tensors of a GPU: rows of a product shared out evenly."""
    one = isinstance(products, Operands)
    shapes: list[GroupShape] = []
    for product in listed(products):
        rows = even_rows(product.m, product.groups)
        shapes += uniform_shapes(rows, product.n, product.k)
    form = listed(products)[0].form if one else "list"
    return Problem(tuple(shapes), "nvfp4", "fp16", device="cuda", form=form, rows_known=False)


def listed(products: Operands | Sequence[Operands]) -> list[Operands]:
    return [products] if isinstance(products, Operands) else list(products)


def plan_of(products: Operands | Sequence[Operands], preset: str = "fused_persistent") -> Plan:
    with env.sm100_preset(preset):
        return BACKEND.plan(problem_of(products))


def launched(
    driver: RecordingDriver,
    products: Operands | Sequence[Operands],
    preset: str = "fused_persistent",
) -> list[LaunchSpec]:
    """The launches of a call whose kernels are loaded."""
    plan = plan_of(products, preset)
    BACKEND.run(listed(products), plan)
    driver.clear()
    BACKEND.run(listed(products), plan)
    assert driver.count("launch") == len(driver.events), "a warm call does nothing but launch"
    return driver.launches
