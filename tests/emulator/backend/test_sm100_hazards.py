"""Hazards of the host side and of sizes: stale copies, and numbers of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nibblas
from nibblas import NVFP4Array, env
from nibblas.emulator import EmulationError, emulating
from nibblas.plan.sm100 import PRESETS
from tests.api.problems import assert_right, offs_of, random_array
from tests.emulator.faults.sm100 import Replacement, planted

pytestmark = pytest.mark.usefixtures("nvrtc")

Multiply = Callable[..., torch.Tensor]


def _changed(array: NVFP4Array, seed: int, **how: Any) -> None:
    """New contents at the same addresses."""
    new = random_array((*array.codes.shape[:-1], 2 * array.codes.shape[-1]), seed, **how)
    array.codes.copy_(new.codes)
    array.scales.view(torch.uint8).copy_(new.scales.view(torch.uint8))


def multiply_twice(multiply: Multiply) -> None:
    """A product, and after all contents have changed where they lie, another; both are right."""
    ends = [3, 5]
    how: dict[str, Any] = {"ends": ends, "rule": "torch"}
    x, w = random_array((5, 96), 1, **how), random_array((2, 24, 96), 2, layout="blocked")
    offs, out = offs_of(ends), torch.empty(5, 24)
    with emulating("sm_100", num_sms=1):
        multiply(x, w, offs, out=out, backend="emulated")
        assert_right(out, x, w, offs)
        _changed(x, 3, **how)
        _changed(w, 4, layout="blocked")
        multiply(x, w, offs, out=out, backend="emulated")
        assert_right(out, x, w, offs)


@pytest.mark.parametrize("preset", PRESETS)
def test_new_contents_at_the_same_addresses(preset: str) -> None:
    with env.sm100_preset(preset):
        multiply_twice(nibblas.grouped_mm)


def test_a_copy_kept_by_address_is_noticed() -> None:
    kept: dict[int, NVFP4Array] = {}

    def multiply(x: NVFP4Array, *args: Any, **how: Any) -> torch.Tensor:
        copy = NVFP4Array(
            x.codes.clone(),
            x.scales.clone(),
            global_scale=x.global_scale,
            scale_layout=x.scale_layout,
            group_start=x.group_start,
        )
        return nibblas.grouped_mm(kept.setdefault(x.codes.data_ptr(), copy), *args, **how)

    with pytest.raises(AssertionError):
        multiply_twice(multiply)


def multiply_high_rows(preset: str) -> None:
    """Tokens that lie beyond row 65535, few of them."""
    x, w = random_array((2, 65600, 64), 1), random_array((2, 32, 64), 2)
    out = torch.full((2, 65600, 32), float("nan"))
    rows = torch.tensor([0, 3], dtype=torch.int32)
    with env.sm100_preset(preset), emulating("sm_100", num_sms=2) as runs:
        nibblas.grouped_mm_masked(x, w, rows, out=out, backend="emulated")
    assert "sm100" in runs.reports[-1].kernel
    tokens = NVFP4Array(x.codes[1, :3], x.scales[1, :3], global_scale=x.global_scale)
    own = NVFP4Array(w.codes[1:], w.scales[1:], global_scale=w.global_scale)
    assert_right(out[1, :3], tokens, own, offs_of([3]))
    assert bool(out[0].isnan().all()) and bool(out[1, 3:].isnan().all())


@pytest.mark.parametrize("preset", ["fused_persistent", "swapped"])
def test_rows_beyond_16_bits(preset: str) -> None:
    multiply_high_rows(preset)


IN_16_BITS: dict[str, Replacement] = {
    "rows": (
        "sm100/items.cuh",
        "item.row = begin + static_cast<i64>(place.tile) * tile_tokens(p_);",
        "item.row = static_cast<u16>(begin + static_cast<i64>(place.tile) * tile_tokens(p_));",
    ),
    "coordinates": (
        "sm100/copies.cuh",
        "const i32 row = static_cast<i32>(item.row) + slice;",
        "const i32 row = static_cast<u16>(item.row) + slice;",
    ),
    "coordinates, swapped": (
        "sm100/swapped_copies.cuh",
        "{static_cast<i32>(item.row) + rank_in_pair() * share,",
        "{static_cast<u16>(item.row) + rank_in_pair() * share,",
    ),
}


@pytest.mark.parametrize("what", IN_16_BITS)
def test_numbers_of_16_bits_are_noticed(what: str, tmp_path: Path) -> None:
    with (
        planted(tmp_path, (IN_16_BITS[what],)),
        pytest.raises((AssertionError, EmulationError)),
    ):
        multiply_high_rows("swapped" if "swapped" in what else "fused_persistent")
