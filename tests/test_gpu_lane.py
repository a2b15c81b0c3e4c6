"""The GPU lane's own logic, with no GPU: what fails it, what it skips, what it writes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "gpu_lane.py"

REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.gpu" name="test_a[1]" time="0.5"/>
<testcase classname="tests.gpu" name="test_b" time="0.25"><failure message="wrong"/></testcase>
<testcase classname="tests.gpu" name="test_c" time="0"><skipped message="one GPU here"/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture(scope="module")
def gpu_lane() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_lane", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_lane"] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lane(gpu_lane: Any, tmp_path: Path) -> Any:
    return gpu_lane.Lane("cuda", dict(os.environ), tmp_path, limit_s=60.0)


@pytest.fixture
def results(gpu_lane: Any, tmp_path: Path) -> Any:
    return gpu_lane.Results(tmp_path / "results.jsonl", {"machine": "a GPU"})


def lines_of(results: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.path.read_text().splitlines()]


def answering(gpu_lane: Any, status: int | None, stdout: str = "", stderr: str = "") -> Any:
    """In place of ``Lane.python``: one answer to every command, which are kept in ``calls``."""
    calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def python(
        *arguments: str, under: tuple[str, ...] = (), settings: dict[str, str] | None = None
    ) -> Any:
        calls.append((arguments, under))
        return gpu_lane.Finished(status, stdout, stderr)

    return SimpleNamespace(python=python, calls=calls)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "check"], "no GPU: PyTorch"),
        (["--steps", "chekc"], "--steps: got ['chekc']; want some of tests, check"),
        (["--wheels", "/dev/null"], "--wheels: got /dev/null; want a folder with nibblas-*.whl"),
    ],
)
def test_without_a_gpu_or_a_known_step_nothing_runs(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--out", str(out)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert not out.exists()


def test_at_the_time_limit_a_command_ends_with_its_children(lane: Any, tmp_path: Path) -> None:
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True);"
    lane.limit_s = 2.0
    finished = lane.python("-c", f"{child} import time; time.sleep(600)")
    assert finished.status is None
    process = Path(f"/proc/{int(finished.stdout)}/status")
    deadline = time.monotonic() + 10  # a killed process ends when it is next scheduled
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process)


def is_running(process: Path) -> bool:
    try:
        return "State:\tZ" not in process.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_cases_of_a_test_report(gpu_lane: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    passed, failed, skipped = gpu_lane.cases_of(report, "tests")
    assert (passed.name, passed.outcome) == ("tests: tests.gpu.test_a[1]", "passed")
    assert passed.seconds == 0.5
    assert (failed.outcome, failed.detail) == ("failed", "wrong")
    assert (skipped.outcome, skipped.detail) == ("skipped", "one GPU here")


@pytest.mark.parametrize(
    ("status", "report", "detail"),
    [
        (0, REPORT, ""),
        (1, REPORT, "exit status 1: "),
        (None, "", "ran out of time"),
        (0, REPORT.replace("/>\n", "><skipped/></testcase>\n", 1), "no test ran"),
        (0, "", "no test ran"),
    ],
)
def test_a_step_of_tests_fails_by_exit_status_time_or_without_a_test(
    gpu_lane: Any,
    lane: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: int | None,
    report: str,
    detail: str,
) -> None:
    if report:
        (lane.scratch / "tests.xml").write_text(report)
    monkeypatch.setattr(lane, "python", answering(gpu_lane, status).python)
    *_, step = gpu_lane.tests(lane)
    assert step.outcome == ("failed" if detail else "passed")
    assert step.detail.startswith(detail)


def test_a_violation_of_the_sweep_is_a_line_of_its_own(
    gpu_lane: Any, lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"problems": 9, "violations": [{"only": "0:3", "target": "portable", "found": ["nan"]}]}
    answer = answering(gpu_lane, 1, json.dumps(found), "")
    monkeypatch.setattr(lane, "python", answer.python)
    violation, step = gpu_lane.check(lane)
    assert (violation.name, violation.outcome) == ("check: 0:3 on portable", "failed")
    assert (step.outcome, step.figures["problems"]) == ("failed", 9)
    ((arguments, _),) = answer.calls
    assert arguments[:7] == (
        *("-m", "nibblas.cli", "check"),
        *("--backend", "portable", "--device", "cuda"),
    )


@pytest.mark.parametrize("capability", ["9.0", "10.0", ""])
def test_hoppers_kernel_is_checked_where_it_runs(
    gpu_lane: Any, lane: Any, monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    answer = answering(gpu_lane, 0, json.dumps({"problems": 9}), "")
    monkeypatch.setattr(lane, "python", answer.python)
    lane.capability = capability
    (step,) = gpu_lane.check_sm90(lane)
    assert step.name == "check-sm90"
    assert step.outcome == ("passed" if capability == "9.0" else "skipped")
    asked = [arguments[3:5] for arguments, _ in answer.calls]
    assert asked == ([("--backend", "sm90")] if capability == "9.0" else [])


def test_output_that_is_no_json_is_a_failure(
    gpu_lane: Any, lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "python", answering(gpu_lane, 0, "hello").python)
    (step,) = gpu_lane.competition(lane)
    assert (step.outcome, step.detail) == ("failed", "no JSON on stdout")


NO_ERRORS = "========= ERROR SUMMARY: 0 errors"
NO_HAZARDS = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
ONE_HAZARD = "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"


@pytest.mark.parametrize(
    ("status", "stdout", "detail"),
    [
        (0, NO_ERRORS, ""),
        (0, NO_HAZARDS, ""),
        (86, NO_ERRORS, "exit status 86"),
        (0, ONE_HAZARD, ONE_HAZARD),
        (0, f"{NO_ERRORS}\n{NO_ERRORS.replace('0', '10')}", "========= ERROR SUMMARY: 10 errors"),
        (0, "all passed", "no summary of the tool"),
    ],
)
def test_a_sanitizer_runs_the_small_problems_and_its_findings_fail_the_step(
    gpu_lane: Any,
    lane: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    stdout: str,
    detail: str,
) -> None:
    (lane.scratch / "racecheck.xml").write_text(REPORT)
    monkeypatch.setattr(gpu_lane.shutil, "which", lambda *_, **__: "/opt/compute-sanitizer")
    answer = answering(gpu_lane, status, stdout)
    monkeypatch.setattr(lane, "python", answer.python)
    *_, step = gpu_lane.STEPS["racecheck"].run(lane)
    assert step.outcome == ("failed" if detail else "passed")
    assert step.detail.startswith(detail)
    ((arguments, under),) = answer.calls
    assert under[:3] == ("/opt/compute-sanitizer", "--tool", "racecheck")
    assert "tests/gpu/test_small.py" in arguments


def test_a_sanitizer_that_is_not_there_is_skipped(
    gpu_lane: Any, lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lane.shutil, "which", lambda *_, **__: None)
    (step,) = gpu_lane.STEPS["memcheck"].run(lane)
    assert (step.outcome, step.detail) == ("skipped", "there is no compute-sanitizer")


def test_no_time_is_given_after_a_failure(gpu_lane: Any, lane: Any, results: Any) -> None:
    results.add(gpu_lane.Line("check", "failed", 1.0))
    gpu_lane.run_step("speed", lane, results)
    failed, skipped = lines_of(results)
    assert (failed["outcome"], failed["machine"]) == ("failed", "a GPU")
    assert (skipped["name"], skipped["outcome"]) == ("speed", "skipped")
    assert skipped["detail"] == "check failed"
    assert results.failed == ["check"]


def test_what_the_lane_runs_is_there(gpu_lane: Any) -> None:
    root = SCRIPT.parents[1]
    if not (root / "lab").exists():
        pytest.skip("an sdist leaves out lab/, where the lane's timings are")
    for path in (*gpu_lane.TESTS, gpu_lane.SANITIZED_TESTS, "lab/portable/first_speed.py"):
        assert (root / path).exists(), path
