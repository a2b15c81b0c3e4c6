"""Contents of group sizes: what passes is what a plain statement of the rule lets pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nibblas.formats.scale_layout import group_start_rows, packed_rows_bound, padded_rows
from nibblas.validation.offs import check_group_sizes

ROWS = 300
entries = st.lists(st.integers(-2, ROWS + 2) | st.integers(-(2**31), 2**31 - 1), min_size=1)
sorted_entries = st.lists(st.integers(0, ROWS), min_size=1, max_size=9).map(sorted)


def passes(values: list[int], max_m: int = 0, scale_rows: int | None = None, rule: str = "torch"):
    offs = torch.tensor(values, dtype=torch.int32)
    try:
        check_group_sizes(offs, ROWS, max_m, scale_rows, rule)
    except ValueError:
        return False
    return True


@settings(deadline=None)
@given(entries | sorted_entries)
def test_cumulative_ends_never_decrease_and_end_within_the_rows(ends: list[int]):
    previous, right = 0, True
    for end in ends:
        right &= previous <= end <= ROWS
        previous = end
    assert passes(ends) == right


@settings(deadline=None)
@given(entries, st.integers(1, ROWS))
def test_rows_in_use_lie_within_each_group(used: list[int], max_m: int):
    assert passes(used, max_m) == all(0 <= rows <= max_m for rows in used)


@settings(deadline=None)
@given(sorted_entries, st.sampled_from(["torch", "flashinfer"]), st.integers(0, 12))
def test_scale_buffers_hold_the_last_group_of_the_packed_rows(
    ends: list[int], rule: str, atoms: int
):
    offs = torch.tensor(ends)
    sizes = torch.diff(offs, prepend=offs.new_zeros(1))
    needed = int((group_start_rows(offs, rule) + padded_rows(sizes)).max())  # type: ignore[arg-type]
    assert passes(ends, 0, 128 * atoms, rule) == (needed <= 128 * atoms)
    assert needed <= packed_rows_bound(ROWS, len(ends)), "a buffer of that size needs no reading"


@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_masked_scales_have_one_shape_and_need_no_contents(rule: str):
    assert passes([1, 2], max_m=4, scale_rows=0, rule=rule)
