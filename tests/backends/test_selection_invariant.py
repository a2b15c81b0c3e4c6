"""Which plan runs where rows must have the same bits in batches of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nibblas.backends.selection import explain_problem
from nibblas.plan.cost import Estimate
from nibblas.plan.problem import Problem, even_rows, uniform_shapes
from nibblas.plan.select import Plan, chosen
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver


def plan(backend: str, seconds: float) -> Plan:
    return Plan(backend, "", Estimate(seconds, "", {}))


def test_the_fastest_or_the_first() -> None:
    plans = [plan("a", 3.0), plan("b", 2.0), plan("c", 1.0)]
    assert chosen(plans, batch_invariant=False).backend == "c"
    assert chosen(plans, batch_invariant=True).backend == "a"
    assert chosen(plans[1:], batch_invariant=True).backend == "b"


@pytest.fixture
def h200() -> Iterator[None]:
    with use_driver(RecordingDriver(compute_capability=(9, 0), sms=132)):
        yield


def hopper(rows: int, *, batch_invariant: bool = True) -> Problem:
    """32 experts of 4096 x 7168."""
    shapes = uniform_shapes(even_rows(rows, 32), 4096, 7168)
    problem = Problem(shapes, "fp16", "fp16", device="cuda", rows_known=False)
    return replace(problem, batch_invariant=batch_invariant)


@pytest.mark.usefixtures("h200")
def test_on_hopper_the_faster_runs() -> None:
    few, many = (explain_problem(hopper(m, batch_invariant=False)) for m in (128, 8192))
    assert (few.plan.backend, many.plan.backend) == ("portable", "sm90")
    assert few.forced_by is many.forced_by is None


@pytest.mark.usefixtures("h200")
def test_on_hopper_few_rows_do_not_change_the_bits() -> None:
    few, many = (explain_problem(hopper(m)) for m in (128, 8192))
    assert few.plan.backend == many.plan.backend == "sm90"


def test_on_blackwell_few_rows_do_not_change_the_bits() -> None:
    """Whatever is predicted for the portable kernel, which adds in another order."""
    with use_driver(RecordingDriver(compute_capability=(10, 0), sms=148)):
        for rows in (1, 100_000):
            shapes = uniform_shapes((rows,), 256, 512)
            problem = Problem(shapes, "nvfp4", "fp16", device="cuda", batch_invariant=True)
            assert explain_problem(problem).plan.backend == "sm100"


def test_a_faster_plan_that_may_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from nibblas.backends import registry

    class Fake:
        devices = ("cuda",)

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def why_not(self, problem: Problem) -> list[str]:
            return []

        def plan(self, problem: Problem) -> Plan:
            return plan(self.name, self.seconds)

    monkeypatch.setattr(registry, "all_backends", lambda: (Fake("first", 2.0), Fake("quick", 1.0)))
    found = explain_problem(hopper(16))
    assert found.plan.backend == "first"
    assert "chosen by batch_invariant=True" in str(found)
    assert "faster     quick" in str(found)
    free = explain_problem(hopper(16, batch_invariant=False))
    assert free.plan.backend == "quick" and free.forced_by is None
