from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from nibblas import ops
from nibblas.backends import registry
from nibblas.check.targets import one_thread
from nibblas.cli import check as check_command
from nibblas.cli.app import app
from tests.check import faults

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a backend with the given fault in the place of all others."""

    def planted(fault: Callable[..., None]) -> None:
        ops.forget_plans()
        backend = faults.FaultyBackend(fault)
        monkeypatch.setattr(registry, "all_backends", lambda: (backend,))
        monkeypatch.setattr(check_command, "exact_problems", lambda: iter(()))

    return planted


def test_a_right_backend_exits_0(plant: Callable[..., None]) -> None:
    plant(faults.none)
    result = RUNNER.invoke(app, ["check", "--count", "20"])
    assert result.exit_code == 0, result.stdout
    assert "faulty" in result.stdout
    assert "20 problems" in result.stdout


def test_a_violation_exits_1_and_names_the_problem(plant: Callable[..., None]) -> None:
    plant(faults.drops_last_k_block)
    result = RUNNER.invoke(app, ["check", "--count", "20", "--seed", "3", "--max-violations", "1"])
    assert result.exit_code == 1
    assert "VIOLATION on faulty: 3:" in result.stdout
    assert "again: nibblas check --only 3:" in result.stdout
    assert "--backend faulty" in result.stdout


def test_a_violation_names_the_device(plant: Callable[..., None]) -> None:
    plant(faults.drops_last_k_block)
    arguments = ["check", "--count", "20", "--max-violations", "1", "--device", "cpu:0"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert "VIOLATION on faulty on cpu:0: 0:" in result.stdout
    assert "--backend faulty --device cpu:0" in result.stdout


def test_only_runs_the_named_problem_again(plant: Callable[..., None]) -> None:
    plant(faults.ignores("bias"))
    report = json.loads(RUNNER.invoke(app, ["check", "--count", "20", "--json"]).stdout)
    name = report["violations"][0]["only"]
    again = json.loads(RUNNER.invoke(app, ["check", "--only", name, "--json"]).stdout)
    assert again["problems"] == 1
    assert again["violations"] == [report["violations"][0]]


def test_only_runs_a_problem_of_an_exact_check(plant: Callable[..., None]) -> None:
    plant(faults.off_by_two_ulp)
    result = RUNNER.invoke(app, ["check", "--only", "one_hot:3"])
    assert result.exit_code == 1
    assert "one_hot:3" in result.stdout


def test_json_is_clean(plant: Callable[..., None]) -> None:
    plant(faults.none)
    result = RUNNER.invoke(app, ["check", "--count", "5", "--json"])
    assert json.loads(result.stdout)["passed"] is True
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "three"], "only: got 'three'"),
        (["--only", "one_hot:100000"], "only: got 'one_hot:100000'"),
        (["--backend", "abacus"], "backend: got 'abacus'"),
        (["--backend", "reference", "--level", "avx2"], "level: got 'avx2'"),
        (["--backend", "cpu", "--device", "cuda:9"], "device: got 'cuda:9'"),
    ],
)
def test_bad_usage_exits_2(arguments: list[str], message: str) -> None:
    result = RUNNER.invoke(app, ["check", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
