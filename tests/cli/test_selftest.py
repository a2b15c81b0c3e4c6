"""``nibblas selftest``: a whole run on the emulated device, and what bad usage answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nibblas.cli.app import app
from nibblas.errors import NativeLibraryError
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.compile import compiler_version

RUNNER = CliRunner()
EMULATED = ("selftest", "--device", "emulated", "--arch", "sm_100", "--quick")


def test_an_emulated_run_reports_a_planted_hang_and_passes_the_rest(tmp_path: Path) -> None:
    """One run for all that a run shows: each is a worker that imports torch."""
    try:
        compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "nibblas.cli", *EMULATED, "--rehearse-hang", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # for the hang
    assert "HANG  hang: Deadlock: nothing can run" in done.stdout
    assert "nibblas_selftest_hang on device 0: grid (1, 1, 1) block (64, 1, 1)" in done.stdout
    assert "lacks 1 of 1 arrivals" in done.stdout
    assert "step 2  times: left out; the emulator has no clock" in done.stdout
    text = out.read_text()
    found = json.loads(text)
    assert str(tmp_path) not in text and str(Path.cwd()) not in text
    assert found["format"] == "nibblas selftest 1"
    hang, *rest = found["results"]
    assert (hang["kind"], hang["outcome"]) == ("hang", "hang")
    assert any("waits: mbarrier 0x400" in line for line in hang["state"])
    assert {each["outcome"] for each in rest} == {"passed"}
    assert {each["preset"] for each in rest if each["kind"] == "competition"} == set(PRESETS)
    assert {"competition", "check"} <= {each["kind"] for each in rest}
    assert found["times"] == [] and found["no_times"]
    assert found["machine"]["compute_capability"] == "10.0"
    predicted = {(each["case"], each["preset"]) for each in found["predictions"]}
    assert predicted == {(f"C{i}", preset) for i in range(4) for preset in PRESETS}
    entries = {kernel["entry"] for kernel in found["kernels"]}
    assert {"nibblas_sm100_grouped_mm", "nibblas_selftest_hang"} <= entries
    assert all(len(kernel["image_sha256"]) == 64 for kernel in found["kernels"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "emulated"), "arch: got none; want one of sm_80"),
        (("--device", "emulated", "--arch", "sm_70"), "arch: got 'sm_70'; want one of sm_80"),
        (("--device", "cuda", "--arch", "sm_90"), "arch: got 'sm_90'; want none"),
        (("--device", "cuda:99"), "device: got 'cuda:99'"),
        (("--device", "tpu"), "device: got 'tpu'"),
    ],
)
def test_bad_usage_is_one_sentence_and_writes_nothing(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    result = RUNNER.invoke(app, ["selftest", *arguments, "--out", str(out)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"nibblas: {message}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["selftest", "--out", str(tmp_path / "found.json")])
    assert result.exit_code == 2
    assert "PyTorch finds no CUDA device here; want a GPU, or --device emulated" in result.stderr


@pytest.mark.parametrize("out", ["missing/found.json", "."])
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nibblas.cli.selftest.run_selftest", None)  # not called
    result = RUNNER.invoke(app, [*EMULATED, "--out", out])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
