"""The file: nothing private, measured beside predicted, and what counts as passed."""

from __future__ import annotations

import json

import pytest

from nibblas.selftest import report as module
from nibblas.selftest.jobs import Job, Place
from nibblas.selftest.report import Report
from nibblas.selftest.watch import Outcome

PREDICTIONS = [
    {"case": "C0", "preset": preset, "predicted_us": us, "bound": "memory", "backend": "sm100"}
    for preset, us in (("one", 20.0), ("two", 30.0))
]
TIMES = [
    {"preset": preset, "median_us": us, "p10_us": us - 1, "p90_us": us + 1}
    for preset, us in (("one", 25.0), ("two", 28.0))
]


def outcome(kind: str = "check", **result: object) -> Outcome:
    return Outcome(Job("time" if kind == "time" else "check", "C0"), result, 1.0)


def report_of(*results: Outcome, times: tuple[Outcome, ...] = ()) -> Report:
    return Report(
        Place("cuda:0"), {}, predictions=PREDICTIONS, results=list(results), times=list(times)
    )


PASSED = outcome(outcome="passed", detail="")
REFUSED = outcome(outcome="refused", detail="no")


@pytest.mark.parametrize("kind", ["wrong", "error", "hang", "not run"])
def test_one_result_that_is_not_right_fails_the_whole(kind: str) -> None:
    bad = outcome(outcome=kind, detail="d")
    assert report_of(PASSED, REFUSED).passed
    assert not report_of(PASSED, bad).passed
    assert not report_of(PASSED, times=(bad,)).passed


def test_nothing_that_ran_is_not_passed() -> None:
    assert not report_of().passed
    assert not report_of(REFUSED).passed


def test_a_time_stands_beside_the_prediction_of_its_own_preset() -> None:
    timed = outcome("time", outcome="passed", detail="", times=TIMES)
    rows = report_of(PASSED, times=(timed,)).measured()
    found = [(r["case"], r["preset"], r["median_us"], r["predicted_us"]) for r in rows]
    assert found == [("C0", "one", 25.0, 20.0), ("C0", "two", 28.0, 30.0)]


def test_nothing_private_is_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_private_names", lambda: ("ada-desk", "lovelace"))
    bad = outcome(
        outcome="hang",
        detail='File "/home/lovelace/venv/lib/nibblas/ops.py", line 3 on ada-desk',
        state=["at PTX line 3 (/tmp/st/common/ptx/mbarrier.cuh:33): x", "core of lovelace"],
        state_from="cuda-gdb: Command '['/usr/local/cuda/bin/cuda-gdb', '-p']' timed out",
    )
    text = json.dumps(report_of(bad).to_dict())
    for private in ("/home", "/tmp", "/usr", "lovelace", "ada-desk"):
        assert private not in text
    for kept in ("ops.py", "mbarrier.cuh:33", "cuda-gdb", "PTX line 3"):
        assert kept in text


def test_what_is_no_path_stays() -> None:
    said = "0.5 us / call, cpu/avx2, error / bound, 3/4 done, https://example.org/a/b"
    report = report_of(outcome(outcome="passed", detail=said))
    assert report.to_dict()["results"][0]["detail"] == said


def test_names_of_this_machine_are_known() -> None:
    names = module._private_names()
    assert all(len(name) >= 4 for name in names)
    assert "root" not in names
