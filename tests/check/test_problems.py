"""The draw: reproducible, valid, and wide enough."""

from __future__ import annotations

import random

import pytest
import torch

from nibblas.check.coverage import FEATURES, count_features
from nibblas.check.problems import MAX_PRODUCTS, MAX_WEIGHTS, draw
from nibblas.check.values import group_numbers
from nibblas.formats import e4m3

SPECS = [draw(0, index) for index in range(600)]


def test_same_seed_and_index_give_the_same_spec_and_numbers() -> None:
    assert draw(3, 14) == draw(3, 14)
    first, second = group_numbers(draw(3, 14)), group_numbers(draw(3, 14))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.w_codes, b.w_codes)


def test_the_draw_leaves_global_random_state_alone() -> None:
    state, torch_state = random.getstate(), torch.get_rng_state()
    group_numbers(draw(0, 1))
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_different_seeds_and_indices_differ() -> None:
    assert len({repr(draw(seed, index)) for seed in (0, 1) for index in range(50)}) == 100


def test_repr_is_one_line_that_starts_with_the_name() -> None:
    for spec in SPECS[:50]:
        assert repr(spec).startswith(f"0:{spec.index} ")
        assert "\n" not in repr(spec)


def test_specs_stay_within_the_budgets() -> None:
    for spec in SPECS:
        weights = [spec.group_n(g) * spec.group_k(g) for g in range(spec.groups)]
        assert sum(weights) <= MAX_WEIGHTS
        assert sum(m * size for m, size in zip(spec.rows, weights, strict=True)) <= MAX_PRODUCTS


def test_specs_are_valid_problems() -> None:
    for spec in SPECS:
        assert all(k > 0 and k % 16 == 0 for k in spec.k)
        assert all(n >= 1 and n % spec.segments == 0 for n in spec.n)
        assert (spec.x_start != "none") == (spec.form == "packed" and spec.x_layout == "blocked")
        assert (spec.precision == "w4a4") == (spec.x_dtype == "nvfp4")
        assert not (spec.strict and spec.nan_scales != "none")


def test_every_feature_is_met_within_600_problems() -> None:
    counts = count_features(SPECS)
    assert set(counts) == set(FEATURES)
    assert [name for name, count in counts.items() if count == 0] == []


def test_a_feature_that_is_never_met_shows_as_zero() -> None:
    counts = count_features([spec for spec in SPECS if spec.x_start != "flashinfer"])
    assert counts["token scales: blocked flashinfer"] == 0


def test_all_codes_and_all_valid_scale_bytes_occur() -> None:
    codes, scales = set(), set()
    for spec in SPECS[:40]:
        if spec.nan_scales == "none":
            for group in group_numbers(spec):
                codes |= set(group.w_codes.unique().tolist())
                scales |= set(group.w_scales.unique().tolist())
    assert codes == set(range(16))
    assert scales == set(range(e4m3.NAN_BYTE))


@pytest.mark.parametrize("kind", ["subnormal", "large", "nonfinite"])
def test_token_values_are_of_their_kind(kind: str) -> None:
    specs = [spec for spec in SPECS if spec.x_values == kind and any(spec.rows)]
    values = torch.cat([g.x.flatten().double() for g in group_numbers(specs[0])])
    if kind == "subnormal":
        smallest_normal = torch.finfo(getattr(torch, specs[0].x_dtype)).tiny
        assert bool(((values.abs() < smallest_normal) & (values != 0)).any())
        assert float(values.abs().max()) < smallest_normal
    elif kind == "large":
        assert float(values.abs().max()) > 1e3
        assert bool(values.isfinite().all())
    else:
        assert not bool(values.isfinite().all())
