"""The sweep on a real GPU: the portable backend passes, and planted faults are noticed there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nibblas import ops
from nibblas.backends import registry
from nibblas.check.sweep import SweepResult, random_problems, sweep
from nibblas.check.targets import Target, available
from nibblas.check.verdict import judge
from tests.check import faults

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_the_portable_backend_passes() -> None:
    result = SweepResult(seed=1)
    for _ in sweep(random_problems(20, seed=1), available(backend="portable"), result):
        pass
    assert result.violations == []
    assert result.targets[Target("portable", device="cuda")].ran == 20


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (faults.drops_last_k_block, "outputs wrong"),
        (faults.writes_row_after_out, "belong to no group"),
        (faults.changes_its_input, "input tensors changed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], found: str
) -> None:
    ops.forget_plans()
    backend = faults.FaultyBackend(fault)
    monkeypatch.setattr(registry, "all_backends", lambda: (backend,))
    target = Target("faulty", device="cuda")
    verdicts = [judge(problem, target) for problem in random_problems(40, seed=0)]
    assert any(found in violation for v in verdicts for violation in v.violations)
