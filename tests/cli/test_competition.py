from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from nibblas import competition as problem
from nibblas.cli import competition as command
from nibblas.cli.app import app
from nibblas.competition import BenchmarkCase, Case, TaskData

RUNNER = CliRunner()
SMALL_TEST = Case("T", 2, (5, 0), (8, 16), (64, 48))
SMALL_BENCHMARK = BenchmarkCase(
    name="C", g=2, m=(4, 8), n=(16, 16), k=(64, 64), speed_of_light_us=1.25
)


@pytest.fixture(autouse=True)
def _small_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem.harness, "TESTS", (SMALL_TEST,))
    monkeypatch.setattr(problem.harness, "EDGE_CASES", ())
    monkeypatch.setattr(command, "BENCHMARKS", (SMALL_BENCHMARK,))
    monkeypatch.setattr(command, "CPU_SECONDS_PER_CASE", 0.05)


def test_checks_times_and_labels_the_published_bound() -> None:
    result = RUNNER.invoke(app, ["competition", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "public inputs: 1 of 1 cases passed, 1 bit-exact" in result.stdout
    assert "full-range inputs: 1 of 1 cases passed" in result.stdout
    assert "B200 speed of" in result.stdout
    assert "light (published)" in result.stdout
    assert "1.250 us" in result.stdout
    assert "geometric mean" in result.stdout


def test_json_has_tests_and_times() -> None:
    arguments = ["competition", "--inputs", "3", "--strict", "--device", "cpu", "--json"]
    data = json.loads(RUNNER.invoke(app, arguments).stdout)
    assert data["passed"] is True
    assert data["benchmarks"][0]["inputs"] == 3
    assert data["benchmarks"][0]["strict"] is True
    assert data["geometric_mean_us"] > 0


def test_tests_only_times_nothing() -> None:
    result = RUNNER.invoke(app, ["competition", "--tests-only", "--device", "cpu", "--json"])
    assert json.loads(result.stdout)["benchmarks"] == []


def test_a_wrong_kernel_exits_1_and_shows_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(data: TaskData, *, backend: str | None = None) -> list[torch.Tensor]:
        return [c.fill_(1.0) for _, _, c in data[0]]

    monkeypatch.setattr(command, "custom_kernel", wrong)
    result = RUNNER.invoke(app, ["competition", "--device", "cpu"])
    assert result.exit_code == 1
    assert "T: failed" in result.stdout
    assert "geometric mean" not in result.stdout


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99", "cpu:x"])
def test_an_unknown_device_exits_2(device: str) -> None:
    result = RUNNER.invoke(app, ["competition", "--device", device])
    assert result.exit_code == 2
    assert "device: got" in result.stderr


def test_an_unknown_backend_exits_2() -> None:
    result = RUNNER.invoke(app, ["competition", "--backend", "abacus", "--device", "cpu"])
    assert result.exit_code == 2
    assert "backend: got 'abacus'" in result.stderr
