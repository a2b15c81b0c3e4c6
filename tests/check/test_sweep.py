"""The sweep passes the plain torch backend and notices every planted fault."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from nibblas import ops
from nibblas.backends import registry
from nibblas.check import verdict
from nibblas.check.exact import CHECKS
from nibblas.check.sweep import SweepResult, random_problems, sweep
from nibblas.check.targets import Target
from nibblas.check.verdict import Truth, judge
from nibblas.plan.problem import Problem
from tests.check import faults
from tests.check.faults import FaultyBackend

FAULTY = Target("faulty")
COPIED = Target("faulty", device="cpu:0")
"""A device like any other to the sweep, which copies all tensors there: the CPU by its other name.
"""
OUTS = ("float16", "bfloat16", "float32")
PROBLEMS = 80
"""Enough that every fault below has an occasion to show."""


@pytest.fixture(scope="module")
def problems() -> list[Truth]:
    return list(random_problems(PROBLEMS, seed=0))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FaultyBackend]:
    """Puts a backend with the given fault in the place of all others."""

    def planted(fault: Callable[..., None]) -> FaultyBackend:
        ops.forget_plans()
        backend = FaultyBackend(fault)
        monkeypatch.setattr(registry, "all_backends", lambda: (backend,))
        return backend

    return planted


def test_a_right_backend_passes(plant: Callable[..., FaultyBackend], problems: list[Truth]) -> None:
    plant(faults.none)
    result = SweepResult(seed=0)
    for _ in sweep(problems, [FAULTY], result):
        pass
    assert result.violations == []
    assert result.passed
    assert result.problems == PROBLEMS
    assert result.targets[FAULTY].ran == PROBLEMS
    worst = result.targets[FAULTY].worst
    assert set(worst) == {f"{p}, {out}" for p in ("w4a16", "w4a4") for out in OUTS}
    assert all(0.0 < ratio <= 1.0 for ratio in worst.values())


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (faults.drops_last_k_block, "outputs wrong"),
        (faults.writes_row_after_out, "belong to no group"),
        (faults.writes_spare_rows, "belong to no group"),
        (faults.ignores("alpha"), "outputs wrong"),
        (faults.ignores("row_scale"), "outputs wrong"),
        (faults.ignores("bias"), "outputs wrong"),
        (faults.ignores("x_global"), "outputs wrong"),
        (faults.ignores("w_global"), "outputs wrong"),
        (faults.reads_padded_scale_rows, "nan"),
        (faults.reads_rows_past_the_group, "nan"),
        (faults.takes_the_other_start_rule, "outputs wrong"),
        (faults.swaps_nibbles, "outputs wrong"),
        (faults.changes_its_input, "input tensors changed"),
        (faults.depends_on_group_size, "alone gives other bits"),
        (faults.rounds_tokens_to_bfloat16, "outputs wrong"),
        (faults.accumulates_in_bfloat16, "outputs wrong"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_is_noticed(
    plant: Callable[..., FaultyBackend],
    problems: list[Truth],
    fault: Callable[..., None],
    found: str,
) -> None:
    plant(fault)
    verdicts = (judge(problem, FAULTY) for problem in problems)
    assert any(found in violation for v in verdicts for violation in v.violations)


def test_a_right_backend_passes_on_a_device_of_its_own(
    plant: Callable[..., FaultyBackend], problems: list[Truth]
) -> None:
    plant(faults.none)
    result = SweepResult(seed=0)
    for _ in sweep(problems, [FAULTY, COPIED], result):
        pass
    assert result.violations == []
    assert result.targets[COPIED].ran == PROBLEMS
    assert result.targets[COPIED].worst == result.targets[FAULTY].worst
    assert set(result.to_dict()["targets"]) == {"faulty", "faulty on cpu:0"}


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (faults.drops_last_k_block, "outputs wrong"),
        (faults.writes_row_after_out, "belong to no group"),
        (faults.writes_spare_rows, "belong to no group"),
        (faults.reads_padded_scale_rows, "nan"),
        (faults.reads_rows_past_the_group, "nan"),
        (faults.changes_its_input, "input tensors changed"),
        (faults.depends_on_group_size, "alone gives other bits"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_is_noticed_on_a_device_of_its_own(
    plant: Callable[..., FaultyBackend],
    problems: list[Truth],
    fault: Callable[..., None],
    found: str,
) -> None:
    plant(fault)
    verdicts = (judge(problem, COPIED) for problem in problems)
    assert any(found in violation for v in verdicts for violation in v.violations)


def test_what_a_device_reports_late_is_a_violation(
    plant: Callable[..., FaultyBackend], problems: list[Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel's fault shows when the host waits for it, after the call has returned."""
    plant(faults.none)
    waited: list[str] = []

    def wait(device: str) -> None:
        waited.append(device)
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(verdict, "moved", lambda case, device: case)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    found = judge(problems[0], Target("faulty", device="cuda"))
    assert found.violations == ("raised RuntimeError: an illegal memory access was encountered",)
    assert waited == ["cuda"]


@pytest.mark.parametrize("name", CHECKS)
def test_two_ulp_off_is_noticed_by_every_exact_check(
    plant: Callable[..., FaultyBackend], name: str
) -> None:
    plant(faults.off_by_two_ulp)
    assert not all(judge(problem, FAULTY).passed for problem in CHECKS[name].problems())


@pytest.mark.parametrize("name", CHECKS)
def test_a_right_backend_passes_exact_problems(
    plant: Callable[..., FaultyBackend], name: str
) -> None:
    plant(faults.none)
    for index in range(4):
        assert judge(CHECKS[name].problem(index), FAULTY).violations == ()


def test_an_exception_is_a_violation(
    plant: Callable[..., FaultyBackend], problems: list[Truth]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of luck")

    plant(fails)
    found = judge(problems[0], FAULTY)
    assert found.violations == ("raised RuntimeError: out of luck",)


def test_a_refusal_is_counted_and_alone_does_not_pass(
    plant: Callable[..., FaultyBackend],
    problems: list[Truth],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def why_not(_: Problem) -> list[str]:
        return ["not today"]

    monkeypatch.setattr(plant(faults.none), "why_not", why_not)
    result = SweepResult(seed=0)
    for _ in sweep(problems[:3], [FAULTY], result):
        pass
    assert result.targets[FAULTY].refused == {"not today": 3}
    assert result.targets[FAULTY].ran == 0
    assert not result.passed


def test_coverage_shows_what_was_never_met(
    plant: Callable[..., FaultyBackend], problems: list[Truth]
) -> None:
    plant(faults.none)
    result = SweepResult(seed=0)
    without = [p for p in problems if p.spec.x_start != "flashinfer"][:10]
    for _ in sweep(without, [FAULTY], result):
        pass
    assert "token scales: blocked flashinfer" in result.never_met


def test_result_is_plain_json_and_names_the_reproducing_problem(
    plant: Callable[..., FaultyBackend], problems: list[Truth]
) -> None:
    plant(faults.drops_last_k_block)
    result = SweepResult(seed=0)
    for _ in sweep(problems[:20], [FAULTY], result):
        pass
    data = json.loads(json.dumps(result.to_dict()))
    assert data["passed"] is False
    assert data["violations"][0]["only"].startswith("0:")
    assert data["targets"]["faulty"]["failed"] > 0
