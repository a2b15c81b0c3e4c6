"""How a job is done, in the process that does it. Every result is plain data for JSON.

A result has an ``outcome``: "passed", "wrong" (a result out of bounds), "error" (something was
raised), "hang" (the emulator saw that the kernel cannot end), "refused" (no kernel takes it); a
``detail`` in words; and figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nibblas.bench.contenders import Contender
from nibblas.bench.timing import Quantiles, take_turns, turn_on_cuda
from nibblas.check.problems import draw
from nibblas.check.targets import Target
from nibblas.check.verdict import judge, truth_of
from nibblas.competition.cases import BENCHMARKS
from nibblas.competition.checker import Expected, compare, expected
from nibblas.competition.generate import generate_input
from nibblas.competition.harness import Content, run_tests
from nibblas.competition.solution import custom_kernel
from nibblas.competition.task import TaskData, clone_data, poison_outputs
from nibblas.emulator.errors import Deadlock, NoProgress
from nibblas.errors import NativeLibraryError
from nibblas.plan.sm100 import PRESETS
from nibblas.selftest.facts import at, collect, preset
from nibblas.selftest.hang import launch_and_wait
from nibblas.selftest.jobs import Job, Place, case_named

Result = dict[str, Any]

ROTATED_BYTES = 600e6
"""Of inputs between two calls on the same ones: several times any L2."""
LEAST_CALLS = 24
"""In one timed window: an event's clock moves in steps of 2.048 us on a B200, and C3 takes a few
microseconds."""
ROUNDS = 50

_HANGS = tuple(kind.__name__ for kind in (Deadlock, NoProgress))


def do(job: Job, place: Place) -> Result:
    """The job's result; whatever is raised is one."""
    tasks: dict[str, Callable[[Job, Place], Result]] = {
        "facts": _facts,
        "competition": _competition,
        "check": _check,
        "time": _time,
        "hang": _hang,
    }
    try:
        return tasks[job.kind](job, place)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
        return raised(f"{type(error).__name__}: {error}")


def raised(message: str, **figures: Any) -> Result:
    """What an exception's name and text tell: a hang that the emulator saw, or an error."""
    kind, _, text = message.partition(": ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if kind in _HANGS:
        return {
            "outcome": "hang",
            "detail": f"{kind}: {lines[0] if lines else ''}",
            "state": lines[1:],
            "state_from": "the emulator's own account of every wait",
            **figures,
        }
    return {
        "outcome": "error",
        "detail": "; ".join([f"{kind}: {lines[0] if lines else ''}", *lines[1:]]),
        **figures,
    }


def _facts(job: Job, place: Place) -> Result:
    try:
        return {"outcome": "passed", "detail": "", **collect(place)}
    except NativeLibraryError as error:
        return {"outcome": "refused", "detail": str(error)}


def _competition(job: Job, place: Place) -> Result:
    content: Content = "public" if job.content == "public" else "full_range"
    kernel = partial(custom_kernel, backend=job.backend)
    with at(place), preset(job.preset):
        (test,) = run_tests(place.tensors, kernel, content=content, cases=[case_named(job.subject)])
    figures = {"bit_exact": test.verdict.bit_exact, "seconds": round(test.seconds, 4)}
    if test.verdict.passed:
        return {
            "outcome": "passed",
            "detail": str(test.verdict),
            "largest_error": test.verdict.largest_error,
            **figures,
        }
    first = test.verdict.messages[0]
    if first.startswith("group "):
        return {"outcome": "wrong", "detail": "; ".join(test.verdict.messages), **figures}
    return raised(first, seconds=figures["seconds"])


def _check(job: Job, place: Place) -> Result:
    seed, _, index = job.subject.partition(":")
    spec = draw(int(seed), int(index))
    with at(place), preset(job.preset):
        verdict = judge(truth_of(spec), Target(job.backend, "", place.tensors))
    again = {"problem": repr(spec)}
    if verdict.refused is not None:
        return {"outcome": "refused", "detail": verdict.refused, **again}
    if verdict.passed:
        return {"outcome": "passed", "detail": "", "error_over_bound": verdict.worst, **again}
    first = verdict.violations[0]
    if first.startswith("raised "):
        return raised(first.removeprefix("raised "), **again)
    return {"outcome": "wrong", "detail": "; ".join(verdict.violations), **again}


def _time(job: Job, place: Place) -> Result:
    case = {each.name: each for each in BENCHMARKS}[job.subject]
    with at(place):
        data = generate_input(**case.generator_arguments(), device=place.device)
        want = expected(data)
        count = max(LEAST_CALLS, 1 + math.ceil(ROTATED_BYTES / case.bytes_moved))
        copies = [data, *(clone_data(data) for _ in range(count - 1))]
        entries = [_contender(name, copies, job.backend) for name in _presets(job.backend)]
        for entry in entries:
            wrong = _first_wrong(entry, copies, want)
            if wrong:
                return {
                    "outcome": "wrong",
                    "detail": f"{entry.name or job.backend}: {wrong}: no time is given",
                }
        turns = {entry.name: turn_on_cuda(entry) for entry in entries}
        seconds = take_turns(turns, dict.fromkeys(turns, ROUNDS))
        wrong = _compare_all(copies, want)
    if wrong:
        return {"outcome": "wrong", "detail": f"after the timing: {wrong}: no time is given"}
    times = [_times(entry, seconds[entry.name]) for entry in entries]
    return {"outcome": "passed", "detail": "", "times": times}


def _presets(backend: str) -> tuple[str, ...]:
    return PRESETS if backend == "sm100" else ("",)


def _contender(name: str, copies: Sequence[TaskData], backend: str) -> Contender:
    def call(i: int) -> list[Tensor]:
        with preset(name):
            return custom_kernel(copies[i], backend=backend)

    return Contender(name, call, len(copies), lambda i: copies[i][0][0][2], ours=True)


def _first_wrong(entry: Contender, copies: Sequence[TaskData], want: Expected) -> str:
    for i, copy in enumerate(copies):
        poison_outputs(copy)
        entry.call(i)
    return _compare_all(copies, want)


def _compare_all(copies: Sequence[TaskData], want: Expected) -> str:
    """Why some copy's outputs are wrong; empty: all are right."""
    for copy in copies:
        verdict = compare(want, [c for _, _, c in copy[0]])
        if not verdict.passed:
            return "; ".join(verdict.messages)
    return ""


def _times(entry: Contender, seconds: Sequence[float]) -> Result:
    quantiles = Quantiles.of(seconds)
    return {
        "preset": entry.name,
        "median_us": quantiles.median * 1e6,
        "p10_us": quantiles.p10 * 1e6,
        "p90_us": quantiles.p90 * 1e6,
        "calls_in_a_window": entry.sets,
        "window_us": quantiles.median * 1e6 * entry.sets,
        "windows": len(seconds),
    }


def _hang(job: Job, place: Place) -> Result:
    with at(place):
        launch_and_wait(torch.device(place.tensors).index or 0)
    return {"outcome": "wrong", "detail": "the kernel that must not end has ended"}
