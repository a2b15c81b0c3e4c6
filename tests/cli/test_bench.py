"""``nibblas bench``: what it prints and writes, exit codes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from nibblas.bench import cases, runner
from nibblas.bench.cases import BenchCase
from nibblas.cli import bench as command
from nibblas.cli.app import app

RUNNER = CliRunner()
SMALL = (BenchCase("t1", (2, 1), 16, 32, "cpu"), BenchCase("t2m4", (4,), 16, 32, "cpu"))
QUICK = ["--rounds", "1", "--rotate", "0"]


@pytest.fixture(autouse=True)
def _small_cases(monkeypatch):
    monkeypatch.setattr(cases, "CASES", (*SMALL, cases.CASES[-1]))
    monkeypatch.setattr(runner, "read_bytes_per_s", lambda: 1e10)
    monkeypatch.delenv("NIBBLAS_BACKEND", raising=False)


def run(*arguments: str):
    return RUNNER.invoke(app, ["bench", *arguments])


def test_a_table_and_lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    kinds = ["--kind", "w4a16-bf16", "--kind", "w4a4"]
    result = run("--case", "t1", "--case", "t2", *kinds, *QUICK, "--json", str(path))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    runs = {(line["case"], line["kind"]) for line in lines}
    assert runs == {(c, k) for c in ("t1", "t2m4") for k in ("w4a4", "w4a16-bf16")}
    assert result.stdout.count("torch mm") >= 4 and "/ floor" in result.stdout
    assert str(lines[0]["commit"]) in result.stdout


def test_the_cases_are_listed():
    result = RUNNER.invoke(app, ["bench", "--list"])
    assert result.exit_code == 0
    assert "c4m256" in result.stdout and "G=128 M=256 N=1536 K=2048" in result.stdout


def test_a_wrong_result_is_exit_code_1(monkeypatch):
    def wrong(*_: object) -> None:
        raise runner.WrongResultError("cpu/avx2 gives a wrong result: no time is shown")

    monkeypatch.setattr(command, "run_case", wrong)
    result = run("--case", "t1", *QUICK)
    assert result.exit_code == 1
    assert result.stdout == "t1 w4a4: cpu/avx2 gives a wrong result: no time is shown\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "c9"], "case: got 'c9'"),
        (["--case", "t1", "--kind", "w8a8"], "kind: got 'w8a8'"),
        (["--case", "t1", "--level", "avx9000"], "avx9000"),
        (["--case", "t1", "--device", "tpu"], "device: got"),
        (["--case", "t1", *QUICK, "--json", "/nowhere/x.jsonl"], "/nowhere/x.jsonl: No such file"),
    ],
)
def test_bad_usage_is_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_a_gpu_case_without_a_gpu_is_exit_code_2_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "run_case", lambda *_: pytest.fail("it ran"))
    result = run("--case", "t1", "--case", "P2")
    assert result.exit_code == 2
    assert "no CUDA device, for which P2 is made" in result.stderr


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    result = run("--case", "t1", *QUICK, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 2 and "pip install 'nibblas[plot]'" in result.stderr


def test_a_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib")
    result = run("--case", "t1", *QUICK, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "x.png").stat().st_size > 1000
