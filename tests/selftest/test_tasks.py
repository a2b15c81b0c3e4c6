"""Jobs done here: the gate before the timing, and what is made of exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from nibblas.bench.contenders import Contender
from nibblas.bench.timing import Turn
from nibblas.competition import custom_kernel
from nibblas.competition.cases import BenchmarkCase
from nibblas.competition.task import TaskData
from nibblas.selftest import tasks
from nibblas.selftest.jobs import Job, Place
from nibblas.selftest.tasks import do, raised

CASE = BenchmarkCase("C9", 2, (3, 17), (32, 16), (64, 128), speed_of_light_us=1.0)
CPU = Place("cpu")
JOB = Job("time", "C9", backend="reference")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that a timer of the tests' own has timed; a case and a place that suit a CPU."""
    names: list[str] = []

    def timer(entry: Contender) -> Turn:
        """1 us, 2 us, ... in turn; the first does not count."""
        names.append(entry.name)

        def turn(i: int) -> float:
            entry.call(i % entry.sets)
            return (1 + i) * 1e-6

        return turn

    @contextmanager
    def anywhere(place: Place) -> Iterator[None]:
        yield

    monkeypatch.setattr(tasks, "turn_on_cuda", timer)
    monkeypatch.setattr(tasks, "ROUNDS", 5)
    monkeypatch.setattr(tasks, "BENCHMARKS", (CASE,))
    monkeypatch.setattr(tasks, "at", anywhere)
    monkeypatch.setattr(tasks, "ROTATED_BYTES", 0.0)
    monkeypatch.setattr(tasks, "LEAST_CALLS", 3)
    return names


def test_a_case_is_timed_once_its_outputs_are_right(timed: list[str]) -> None:
    result = do(JOB, CPU)
    assert result["outcome"] == "passed"
    assert timed == [""]
    (times,) = result["times"]
    assert times["median_us"] == pytest.approx(4.0)
    assert (times["calls_in_a_window"], times["window_us"]) == (3, pytest.approx(12.0))
    assert times["windows"] == 5


@pytest.mark.parametrize("first_wrong", [0, 2, 3])
def test_no_time_for_a_wrong_output_before_or_after(
    first_wrong: int, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is right until that call: three are checked before the timing."""
    calls: list[int] = []

    def spoilt(right: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
        def kernel(data: TaskData, *, backend: str) -> list[torch.Tensor]:
            outputs = right(data, backend=backend)
            if len(calls) >= first_wrong:
                outputs[1][0, 0] += 1
            calls.append(1)
            return outputs

        return kernel

    monkeypatch.setattr(tasks, "custom_kernel", spoilt(custom_kernel))
    result = do(JOB, CPU)
    assert result["outcome"] == "wrong"
    assert "group 1" in result["detail"] and "no time is given" in result["detail"]
    assert "times" not in result
    assert bool(timed) == (first_wrong == 3)


@pytest.mark.usefixtures("timed")
def test_an_exception_is_an_error_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: TaskData, *, backend: str) -> list[torch.Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(tasks, "custom_kernel", broken)
    result = do(JOB, CPU)
    assert result["outcome"] == "error"
    assert result["detail"] == "RuntimeError: CUDA error: an illegal memory access; more"
    competition = do(Job("competition", "Q1", "full_range", "cpu"), CPU)
    assert competition["outcome"] == "error"
    assert competition["detail"].startswith("RuntimeError: CUDA error")


@pytest.mark.usefixtures("timed")
def test_a_wrong_result_of_a_test_is_told_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(data: TaskData, *, backend: str) -> list[torch.Tensor]:
        return [c.fill_(1.0) for _, _, c in data[0]]

    monkeypatch.setattr(tasks, "custom_kernel", wrong)
    result = do(Job("competition", "Q0", "full_range", "cpu"), CPU)
    assert result["outcome"] == "wrong"
    assert "group 0: " in result["detail"]


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("backend", "outcome"), [("reference", "passed"), ("portable", "refused")])
def test_a_random_problem_passes_or_is_refused(backend: str, outcome: str) -> None:
    result = do(Job("check", "0:4", backend=backend), CPU)
    assert result["outcome"] == outcome
    assert result["problem"].startswith("0:4 form=")


def test_what_the_emulator_sees_never_end_is_a_hang() -> None:
    found = raised("Deadlock: nothing can run\n  warp 3\n    waits: mbarrier 0x400", seconds=1.0)
    assert found["outcome"] == "hang"
    assert found["state"] == ["warp 3", "waits: mbarrier 0x400"]
    assert found["seconds"] == 1.0
    assert raised("DataRace: two stores")["outcome"] == "error"
