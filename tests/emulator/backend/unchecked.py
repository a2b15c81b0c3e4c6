"""Products past the checks, with contents of offs as a device may hold; what they may write."""

from __future__ import annotations

from typing import Any

import torch

from nibblas import NVFP4Array
from nibblas.backends.base import Operands

UNTOUCHED = 7.0
"""What outputs hold before."""


def unchecked(x: Any, w: NVFP4Array, entries: list[int], *, max_m: int = 0) -> Operands:
    """A packed product, or with max_m a masked one, into new outputs. x: 16-bit values or NVFP4."""
    array = x if isinstance(x, NVFP4Array) else None
    return Operands(
        x=x if array is None else array.codes.view(torch.uint8),
        x_scales=None if array is None else array.scales.view(torch.uint8),
        x_scale_layout="linear" if array is None else array.scale_layout,
        x_scale_start="stacked" if max_m else "torch",
        x_global=None,
        w=w.codes.view(torch.uint8),
        w_scales=w.scales.view(torch.uint8),
        w_scale_layout=w.scale_layout,
        w_global=w.global_scale,
        offs=torch.tensor(entries, dtype=torch.int32),
        max_m=max_m,
        alpha=None,
        row_scale=None,
        bias=None,
        out=torch.full((len(x if array is None else array.codes), w.codes.shape[1]), UNTOUCHED),
    )


def assert_clamped(product: Operands) -> None:
    """Rows of groups are written, offs clamped into the rows and made monotone; others are not."""
    assert product.offs is not None
    out, rows, max_m, previous = product.out, len(product.out), product.max_m, 0
    for g, entry in enumerate(product.offs.tolist()):
        if max_m:
            begin, end = max_m * g, max_m * g + min(max(entry, 0), max_m)
            assert bool((out[end : max_m * (g + 1)] == UNTOUCHED).all())
        else:
            begin, end = previous, min(max(entry, previous), rows)
            previous = end
        assert bool((out[begin:end] != UNTOUCHED).any(1).all())
    if not max_m:
        assert bool((out[previous:] == UNTOUCHED).all())
