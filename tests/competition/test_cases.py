"""The published case table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nibblas.competition import BENCHMARKS, EDGE_CASES, TESTS, BenchmarkCase, Case

Sizes = tuple[int, ...]

B200_BYTES_PER_S = 7.68e12
B200_FLOP_PER_S = 6.9e15


def test_ten_tests_and_four_benchmarks_with_the_public_seed() -> None:
    assert len(TESTS) == 10
    assert len(BENCHMARKS) == 4
    assert {case.seed for case in (*TESTS, *BENCHMARKS)} == {1111}
    assert [case.g for case in TESTS] == [2, 2, 2, 3, 3, 3, 3, 4, 4, 4]


def test_names_are_unique() -> None:
    names = [case.name for case in (*TESTS, *BENCHMARKS, *EDGE_CASES)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [*TESTS, *BENCHMARKS], ids=lambda case: case.name)
def test_public_sizes_obey_the_problems_divisibility(case: Case) -> None:
    assert all(m % 4 == 0 and n % 128 == 0 and k % 256 == 0 for m, n, k in case.sizes)


@pytest.mark.parametrize("case", BENCHMARKS, ids=lambda case: case.name)
def test_published_speed_of_light_follows_from_the_bytes(case: BenchmarkCase) -> None:
    memory_us = case.bytes_moved / B200_BYTES_PER_S * 1e6
    assert case.flop / B200_FLOP_PER_S * 1e6 < memory_us
    assert case.speed_of_light_us == pytest.approx(memory_us, rel=0.01)


def test_edge_cases_have_what_the_public_ones_lack() -> None:
    sizes = [size for case in EDGE_CASES for size in case.sizes]
    assert {0, 1} <= {m for m, _, _ in sizes}
    assert {0, 16, 32, 48} == {k % 64 for _, _, k in sizes}
    assert any(n % 8 for _, n, _ in sizes)


def test_reseeded_changes_the_seed_only() -> None:
    case = BENCHMARKS[2]
    assert case.reseeded(7) == replace(case, seed=7)


@pytest.mark.parametrize(
    ("sizes", "argument"),
    [
        (((4,), (128, 128), (256, 256)), "m"),
        (((4, 4), (128,), (256, 256)), "n"),
        (((4, 4), (128, 128), (256, 250)), "k"),
        (((4, 4), (128, 128), (256, 0)), "k"),
        (((4, -4), (128, 128), (256, 256)), "m"),
    ],
)
def test_wrong_sizes_are_refused(sizes: tuple[Sizes, Sizes, Sizes], argument: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: got"):
        Case("X", 2, *sizes)
