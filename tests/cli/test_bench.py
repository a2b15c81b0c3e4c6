"""``nibblas bench``: what it prints and writes, exit codes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import nibblas
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
    tokens = ["--activations", "bf16,fp16"]
    result = run("--case", "t1,t2", *tokens, *QUICK, "--out", str(path))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    runs = {(line["case"], line["kind"]) for line in lines}
    assert runs == {(c, k) for c in ("t1", "t2m4") for k in cases.KINDS}
    assert result.stdout.count("torch mm") >= 6 and "/ floor" in result.stdout
    assert "Predicted by the planner before any run" in result.stdout
    assert str(lines[0]["commit"]) in result.stdout


def test_the_cases_are_listed():
    result = RUNNER.invoke(app, ["bench", "--list"])
    assert result.exit_code == 0
    assert "c4m256" in result.stdout and "G=128 M=256 N=1536 K=2048" in result.stdout


def test_a_fault_is_exit_code_1_after_everything_has_run(monkeypatch, tmp_path):
    right = nibblas.grouped_mm

    def wrong(*arguments, out, **options):
        right(*arguments, out=out, **options)
        out += 1e6
        return out

    monkeypatch.setattr(nibblas, "grouped_mm", wrong)
    path = tmp_path / "lines.jsonl"
    result = run("--case", "t1,t2", "--precision", "w4a4", *QUICK, "--out", str(path))
    assert result.exit_code == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    faults = [line for line in lines if line.get("fault")]
    assert {line["case"] for line in faults} == {"t1", "t2m4"}
    assert "FAULT  t2m4 w4a4 cpu/portable: WrongResultError" in result.stdout


def test_a_rival_that_is_not_here_is_no_fault():
    result = run("--case", "t1", "--precision", "w4a4", "--rivals", "mm,fp8", *QUICK)
    assert result.exit_code == 0, result.output
    assert "absent  t1 w4a4 fp8: NotImplementedError" in result.stdout
    result = run("--case", "t1", "--precision", "w4a4", "--rivals", "none", *QUICK)
    assert result.exit_code == 0 and "torch mm" not in result.stdout


def test_what_is_done_is_kept_when_a_later_case_breaks(monkeypatch, tmp_path):
    done = command.run_case

    def run_case(case, *rest):
        if case.name == "t2m4":
            raise RuntimeError("the GPU fell off the bus")
        return done(case, *rest)

    monkeypatch.setattr(command, "run_case", run_case)
    path = tmp_path / "lines.jsonl"
    result = run("--case", "t1,t2", "--precision", "w4a4", *QUICK, "--out", str(path))
    assert isinstance(result.exception, RuntimeError)
    assert '"t1"' in path.read_text() and "cpu/portable" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "c9"], "case: got 'c9'"),
        (["--case", "t1", "--precision", "w8a8"], "precision: got 'w8a8'"),
        (["--case", "t1", "--activations", "fp8"], "activations: got 'fp8'"),
        (["--case", "t1", "--rivals", "cublas"], "rivals: got 'cublas'"),
        (["--case", "t1", "--backend", "cudnn"], "backend: got 'cudnn'"),
        (["--case", "t1", "--level", "avx9000"], "avx9000"),
        (["--case", "t1", "--device", "tpu"], "device: got"),
        (["--case", "t1", *QUICK, "--out", "/nowhere/x.jsonl"], "/nowhere/x.jsonl: No such file"),
    ],
)
def test_bad_usage_is_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_a_gpu_case_without_a_gpu_is_exit_code_2_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "run_case", lambda *_: pytest.fail("it ran"))
    result = run("--case", "t1", "--case", "P2-skew")
    assert result.exit_code == 2
    assert "no CUDA device, for which P2-skew is made" in result.stderr


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    result = run("--case", "t1", *QUICK, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 2 and "pip install 'nibblas[plot]'" in result.stderr


def test_a_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib")
    result = run("--case", "t1", *QUICK, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "x.png").stat().st_size > 1000
