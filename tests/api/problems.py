"""Random operands for the tests of the public functions, on torch's default device."""

from __future__ import annotations

from typing import Any

import torch

from nibblas import NVFP4Array
from nibblas.formats import scale_layout
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound


def random_array(
    shape: tuple[int, ...],
    seed: int,
    *,
    layout: Any = "linear",
    global_shape: tuple[int, ...] = (),
    ends: list[int] | None = None,
    rule: Any = None,
) -> NVFP4Array:
    """All codes, scales 0x20..0x5F, padding filled with NaN bytes."""
    draw: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed), "device": "cpu"}
    codes = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), **draw)
    scales = torch.randint(0x20, 0x60, (*shape[:-1], shape[-1] // 16), **draw)
    scales = scales.to(torch.uint8)
    if rule is not None:
        offs = torch.tensor(ends, dtype=torch.int32, device="cpu")
        scales = scale_layout.to_blocked_by_group(scales, offs, rule=rule, fill_byte=0x7F)
    elif layout == "blocked":
        scales = scale_layout.to_blocked(scales, fill_byte=0x7F)
    global_scale = torch.rand(global_shape, **draw) + 0.5
    array = NVFP4Array(
        codes.to(torch.uint8),
        scales,
        global_scale=global_scale,
        scale_layout="blocked" if rule else layout,
        group_start=rule,
    )
    return array.to(torch.get_default_device())


def random_tokens(rows: int, k: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, k, generator=generator, device="cpu").to(dtype)
    return values.to(torch.get_default_device())


def offs_of(ends: list[int]) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def small() -> tuple[torch.Tensor, NVFP4Array, torch.Tensor]:
    """x (5, 64) bfloat16, w (2, 32, 64), offs."""
    w = random_array((2, 32, 64), 1)
    return random_tokens(5, 64, 2, torch.bfloat16), w, offs_of([3, 5])


def quantized_small() -> tuple[NVFP4Array, NVFP4Array, torch.Tensor]:
    """The same with NVFP4 tokens, whose blocked scales are packed by group."""
    _, w, offs = small()
    return random_array((5, 64), 3, layout="blocked", ends=[3, 5], rule="torch"), w, offs


def assert_right(y: torch.Tensor, x: Any, w: Any, offs: torch.Tensor, **factors: Any) -> None:
    """y is the product within its error bound, in every row that belongs to a group."""
    exact = grouped_mm_reference(x, w, offs, **factors)
    within = within_bound(y, exact, error_bound(exact, y.dtype))
    assert bool(within[: int(offs[-1])].all())


__all__ = ["assert_right", "offs_of", "quantized_small", "random_array", "random_tokens", "small"]
