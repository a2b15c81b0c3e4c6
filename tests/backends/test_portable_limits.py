"""Sizes that the portable kernel's counters do not hold are refused, with size and limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nibblas.backends.portable import PortableBackend
from nibblas.plan.portable import all_configs
from nibblas.plan.problem import Form, Problem, even_rows, uniform_shapes
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver

LARGEST = 2**31 - 1024


@pytest.fixture(autouse=True)
def _hopper() -> Iterator[None]:
    with use_driver(RecordingDriver(compute_capability=(9, 0), sms=132)):
        yield


def reasons(rows: tuple[int, ...], *, form: Form = "packed", n: int = 64, k: int = 64) -> list[str]:
    problem = Problem(uniform_shapes(rows, n, k), "bf16", "bf16", device="cuda", form=form)
    return PortableBackend().why_not(problem)


def test_the_limit_leaves_room_for_one_block_or_stage_more() -> None:
    assert all(LARGEST + max(c.stage_k, c.tokens) < 2**31 for c in all_configs())


def test_sizes_up_to_the_limit_are_taken() -> None:
    assert reasons(even_rows(LARGEST, 8)) == []
    assert reasons((4, 4), k=LARGEST) == []


def test_tokens_that_one_group_may_have() -> None:
    """Packed: offs may give them all to one group."""
    (reason,) = reasons(even_rows(2**31, 8))
    assert reason == (
        "it counts tokens in a group in 32 bits: at most 2,147,482,624, "
        "and there may be 2,147,483,648"
    )


@pytest.mark.parametrize("form", ["masked", "list"])
def test_groups_that_cannot_share_their_rows_count_alone(form: Form) -> None:
    assert reasons((2**30, 2**30, 2**30), form=form) == []
    (reason,) = reasons((1, 2**31), form=form)
    assert "tokens in a group" in reason


def test_values_along_k() -> None:
    (reason,) = reasons((4, 4), k=2**31)
    assert "values along K in 32 bits" in reason


def test_weight_rows_are_counted_in_64_bits() -> None:
    assert reasons((4, 4), n=2**33) == []
