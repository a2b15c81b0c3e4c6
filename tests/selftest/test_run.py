"""The order of the steps, with a worker of the tests' own in place of a GPU's."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.selftest import run
from nibblas.selftest.jobs import Place
from nibblas.selftest.report import Report
from nibblas.selftest.run import Options, selftest
from nibblas.selftest.watch import Outcome, Watch

WORKER = """
import json, os, sys
def say(**event): print(json.dumps(event), flush=True)
jobs = json.loads(sys.stdin.readline())["jobs"]
say(ready=True)
passed = {"outcome": "passed", "detail": ""}
predictions = [{"case": f"C{i}", "preset": "", "predicted_us": 2.0, "bound": "memory",
                "backend": "portable"} for i in range(4)]
facts = {"machine": {"gpu": "a GPU", "core_dumps": os.environ.get("CUDA_COREDUMP_PIPE"),
                     "blocking": os.environ.get("CUDA_LAUNCH_BLOCKING")},
         "kernels": {"backends": {"w4a4": "portable", "w4a16": "portable"}, "presets": []},
         "predictions": predictions}
times = {"times": [{"preset": "", "median_us": 3.0, "p10_us": 2.5, "p90_us": 3.5}]}
kernel = {"image_sha256": "abc", "barrier_words": {"address": 0, "count": 1, "wide": True}}
for i, job in enumerate(jobs):
    say(begin=i)
    %s
    say(kernel=kernel)
    say(end=i, result=passed | {"facts": facts, "time": times}.get(job["kind"], {}))
"""


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


def run_with(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]], fault: str = "pass"
) -> Report:
    """A self-test of a GPU whose worker does ``fault`` before each job."""

    def tell(step: str, total: int, outcome: Outcome | None) -> None:
        told.append((step, str(total) if outcome is None else outcome.result["outcome"]))

    command = (sys.executable, "-c", WORKER % fault)
    monkeypatch.setattr(run, "Watch", partial(Watch, command=command))
    options = Options(quick=True, commit="abc123")
    return selftest(Place("cuda:0"), options, tell, begun=lambda report: None)


def test_results_come_first_then_times_beside_predictions(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]]
) -> None:
    report = run_with(monkeypatch, told)
    assert report.passed
    steps = [step for step, _ in told]
    assert steps == sorted(steps) and set(steps) == {"results", "times"}
    assert told.count(("times", "passed")) == 4
    assert [row["case"] for row in report.measured()] == ["C0", "C1", "C2", "C3"]
    assert {row["predicted_us"] for row in report.measured()} == {2.0}
    assert [kernel["image_sha256"] for kernel in report.kernels] == ["abc"]
    assert report.machine["blocking"] == "1"
    assert report.machine["core_dumps"].endswith("/corepipe")
    assert report.machine["commit"] == "abc123"


def test_nothing_is_timed_after_a_wrong_result(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]]
) -> None:
    fault = """if job["subject"] == "Q1": passed = {"outcome": "wrong", "detail": "group 0"}"""
    report = run_with(monkeypatch, told, fault)
    assert not report.passed
    assert report.times == []
    assert report.no_times.startswith("nothing was timed: competition Q1 full_range")


def test_core_dumps_that_cannot_be_had_are_done_without(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]]
) -> None:
    report = run_with(monkeypatch, told, """if facts["machine"]["core_dumps"]: sys.exit(3)""")
    assert report.passed
    assert report.machine["core_dumps"] is None
    assert report.machine["blocking"] == "1"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("""passed = {"outcome": "refused", "detail": "no kernel runs"}""", "no kernel runs"),
        ("sys.exit('no driver')", "cuda:0 cannot be used: the worker ended with .*; no driver"),
    ],
)
def test_a_device_that_cannot_be_used_ends_it_with_a_sentence(
    fault: str, message: str, monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, str]]
) -> None:
    with pytest.raises(NativeLibraryError, match=message):
        run_with(monkeypatch, told, fault)
    assert told == []
