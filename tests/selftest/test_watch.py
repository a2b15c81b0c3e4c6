"""The watcher, on workers that answer, die, fall silent or talk nonsense."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nibblas.selftest.barriers import Words
from nibblas.selftest.hang_state import HangState
from nibblas.selftest.jobs import Job, Place
from nibblas.selftest.watch import MOST_WORKERS, Outcome, Watch

JOBS = tuple(Job("competition", name, "public") for name in ("A", "B", "C", "D"))

BEGINNING = """
import faulthandler, json, os, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1, all_threads=False)
def say(**event): print(json.dumps(event), flush=True)
jobs = [job["subject"] for job in json.loads(sys.stdin.readline())["jobs"]]
say(ready=True)
def passed(i): say(begin=i); say(end=i, result={"outcome": "passed", "subject": jobs[i]})
"""
KERNEL = {"image_sha256": "abc", "barrier_words": {"address": 1024, "count": 2}}
LAUNCH = f"say(kernel={KERNEL!r}); say(launch='a_kernel on device 0', image='abc')\n"


def watch(body: str, *, limit_s: float = 20.0, **more: Any) -> Watch:
    """One whose worker is this Python text, of which each job is a line."""
    command = (sys.executable, "-c", BEGINNING + body)
    return Watch(Place("emulated", "sm_100"), limit_s, command=command, **more)


def outcomes_of(results: Sequence[Outcome]) -> list[str]:
    return [outcome.result["outcome"] for outcome in results]


def test_every_job_has_its_own_outcome_in_order() -> None:
    body = "print('noise')\nfor i in range(len(jobs)): passed(i)"
    results = list(watch(body).run(JOBS))
    assert [outcome.job for outcome in results] == list(JOBS)
    assert [outcome.result["subject"] for outcome in results] == ["A", "B", "C", "D"]
    assert all(outcome.passed for outcome in results)


def test_a_hang_is_reported_within_its_limit_and_the_rest_is_done() -> None:
    """The second job never ends, wherever it is met; the launches before it are told."""
    body = (
        "for i, name in enumerate(jobs):\n"
        "  if name != 'B': passed(i); continue\n"
        "  say(begin=i)\n"
        f"  {LAUNCH}"
        "  while True: time.sleep(60)\n"
    )
    begin = time.monotonic()
    results = list(watch(body, limit_s=1.0).run(JOBS))
    assert time.monotonic() - begin < 30
    assert outcomes_of(results) == ["passed", "hang", "passed", "passed"]
    hang = results[1].result
    assert hang["detail"] == "no end within 1 s"
    assert hang["launches"] == 1
    assert hang["last_launch"]["launch"] == "a_kernel on device 0"
    assert hang["state_from"] == "no state of barriers: there is no GPU to ask"
    assert results[1].job == JOBS[1] and not results[1].passed


def test_the_gpu_of_a_hang_is_asked_and_its_dump_is_kept(tmp_path: Path) -> None:
    asked: list[tuple[int, Words]] = []

    def describe(pid: int, folder: Path, words: Words) -> HangState:
        os.kill(pid, 0)  # it still runs
        asked.append((pid, words))
        (folder / "core").write_bytes(b"state")
        return HangState(["warp 0 at 0x10"], "a GPU core dump", str(folder / "core"))

    watched = watch(
        f"say(begin=0)\n{LAUNCH}time.sleep(600)",
        limit_s=1.0,
        describe=describe,
        dumps=tmp_path / "b200",
    )
    (outcome,) = watched.run(JOBS[:1])
    assert asked[0][1] == Words(1024, 2)
    assert outcome.result["state"] == ["warp 0 at 0x10"]
    assert outcome.result["core_dump"] == "b200.1.core"
    assert (tmp_path / "b200.1.core").read_bytes() == b"state"
    with pytest.raises(ProcessLookupError):
        os.kill(asked[0][0], 0)


def test_a_worker_that_dies_leaves_its_last_words() -> None:
    body = (
        "if jobs[0] == 'A':\n"
        "  say(begin=0); sys.stderr.write('Fatal: out of order\\n'); sys.stderr.flush()\n"
        "  os.kill(os.getpid(), signal.SIGSEGV)\n"
        "for i in range(len(jobs)): passed(i)"
    )
    first, *rest = watch(body).run(JOBS)
    assert first.result["outcome"] == "error"
    assert first.result["detail"] == "the worker ended with signal SIGSEGV"
    assert first.result["stderr"] == ["Fatal: out of order"]
    assert outcomes_of(rest) == ["passed"] * 3


def test_after_enough_hangs_nothing_more_is_tried() -> None:
    body = "say(begin=0)\ntime.sleep(600)"
    jobs = [Job("check", str(i)) for i in range(MOST_WORKERS + 2)]
    results = list(watch(body, limit_s=0.3).run(jobs))
    assert outcomes_of(results) == ["hang"] * MOST_WORKERS + ["not run"] * 2
    assert not results[-1].passed


def test_a_worker_that_does_not_start_is_a_hang_of_the_start() -> None:
    command = (sys.executable, "-c", "input()\nimport time\ntime.sleep(600)")
    watched = Watch(Place("cuda:0"), 5.0, command=command, start_limit_s=1.0)
    (outcome,) = watched.run([Job("facts")])
    assert outcome.result["detail"] == "no end within 1 s of the worker's start"


def test_the_host_stack_of_a_hang_is_told() -> None:
    """As the real worker does it: its handler works while Python stands still in C."""
    body = (
        "def wait_for_the_gpu():\n"
        "  lock = threading.Lock()\n"
        "  lock.acquire()\n"
        "  lock.acquire()\n"
        "say(begin=0)\n"
        "wait_for_the_gpu()"
    )
    (outcome,) = watch(body, limit_s=1.0).run(JOBS[:1])
    assert any("wait_for_the_gpu" in line for line in outcome.result["host_stack"])


def test_what_a_result_lacks_a_hang_adds_to_its_json() -> None:
    body = f"say(begin=0)\n{LAUNCH}say(end=0, result={{'outcome': 'wrong', 'detail': 'd'}})"
    (outcome,) = watch(body).run(JOBS[:1])
    found = json.loads(json.dumps(outcome.to_dict()))
    assert (found["subject"], found["outcome"], found["launches"]) == ("A", "wrong", 1)


@pytest.mark.parametrize(
    ("device", "workers"), [("emulated", 1), ("cuda:0", 2)], ids=["emulated", "GPU"]
)
def test_an_error_spoils_a_gpu_for_its_process(device: str, workers: int, tmp_path: Path) -> None:
    body = (
        f"open({str(tmp_path)!r} + '/started', 'a').write('x')\n"
        "for i, name in enumerate(jobs):\n"
        "  if name != 'A': passed(i); continue\n"
        "  say(begin=i); say(end=i, result={'outcome': 'error', 'detail': 'illegal access'})\n"
    )
    command = (sys.executable, "-c", BEGINNING + body)
    results = list(Watch(Place(device), 20.0, command=command).run(JOBS))
    assert outcomes_of(results) == ["error", "passed", "passed", "passed"]
    assert (tmp_path / "started").read_text() == "x" * workers


def test_a_worker_has_what_it_is_given_and_no_forced_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIBBLAS_BACKEND", "reference")
    monkeypatch.setenv("NIBBLAS_CACHE_DIR", "kept")
    names = ("NIBBLAS_BACKEND", "NIBBLAS_CACHE_DIR", "PIPE")
    body = (
        f"found = [os.environ.get(name) for name in {names}]\n"
        "say(begin=0); say(end=0, result={'outcome': 'passed', 'found': found})"
    )
    (outcome,) = watch(body, variables={"PIPE": "{folder}/pipe"}).run(JOBS[:1])
    backend, cache, pipe = outcome.result["found"]
    assert (backend, cache) == (None, "kept")
    assert Path(pipe).name == "pipe" and "nibblas-selftest-" in pipe
    assert not Path(pipe).parent.exists()


def test_whoever_stops_listening_ends_the_worker() -> None:
    body = (
        "say(begin=0); say(end=0, result={'outcome': 'passed', 'pid': os.getpid()})\n"
        "say(begin=1)\n"
        "time.sleep(600)"
    )
    outcomes = watch(body).run(JOBS)
    pid = next(outcomes).result["pid"]
    os.kill(pid, 0)
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
