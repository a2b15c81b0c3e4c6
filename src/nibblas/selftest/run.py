"""The steps of a self-test, in order: the machine, the results, the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nibblas.check.targets import device_named
from nibblas.emulator.limits import LIMITS
from nibblas.errors import NativeLibraryError, bad_value
from nibblas.selftest.hang_state import BLOCKING_LAUNCHES, CORE_DUMPS, describe_gpu
from nibblas.selftest.jobs import EMULATED, Job, Kernels, Place, result_jobs, time_jobs
from nibblas.selftest.report import Report
from nibblas.selftest.watch import Outcome, Watch

Tell = Callable[[str, int, "Outcome | None"], None]
"""Told of each step, "results" or "times", with the number of its jobs, then of each outcome."""

LIMIT_S = {"cuda": 30.0, EMULATED: 120.0}
"""Of one job; a kernel that must be compiled takes a few seconds of it, an emulated one more."""

TIMED_LIMITS = 4
"""Limits that a timed case may take: its inputs alone are gigabytes."""

_NO_CLOCK = "the emulator has no clock: nothing was timed"


@dataclass(frozen=True)
class Options:
    """How a self-test runs.

    Attributes:
        quick: few and small problems. limit_s: of one job; None: ``LIMIT_S``'s.
        rehearse_hang: a kernel that never ends is run first.
        dumps: see ``Watch``. commit: of the source tree, where git cannot tell.
    """

    quick: bool = False
    limit_s: float | None = None
    rehearse_hang: bool = False
    dumps: Path | None = None
    commit: str | None = None


def place_named(device: str, arch: str) -> Place:
    """The place that a user asks for.

    Raises:
        ValueError: no such device or architecture, or one that does not go with the other.
    """
    if device == EMULATED:
        if arch not in LIMITS:
            given = repr(arch) if arch else "none"
            wanted = f"one of {', '.join(LIMITS)}, to say what is emulated"
            raise bad_value("arch", given=given, wanted=wanted)
        return Place(device, arch)
    if arch:
        wanted = f"none: a real device knows its own; --device {EMULATED} takes one"
        raise bad_value("arch", given=repr(arch), wanted=wanted)
    if not torch.cuda.is_available():
        given = f"{device!r}, and PyTorch finds no CUDA device here"
        raise bad_value("device", given=given, wanted=f"a GPU, or --device {EMULATED}")
    where = device_named(device)
    if where.type != "cuda":
        raise bad_value("device", given=repr(device), wanted=f"cuda, cuda:INDEX or {EMULATED}")
    return Place(f"cuda:{where.index or 0}")


def selftest(
    place: Place, options: Options, tell: Tell, *, begun: Callable[[Report], None]
) -> Report:
    """Runs all steps.

    Args:
        begun: told once what is known of the machine.

    Raises:
        NativeLibraryError: none of our kernels runs there, or the device does not answer.
    """
    limit = options.limit_s or LIMIT_S[EMULATED if place.emulated else "cuda"]
    checking = Watch(place, limit, dumps=options.dumps)
    timing = Watch(place, TIMED_LIMITS * limit, dumps=options.dumps)
    if not place.emulated:
        checking.variables = {**BLOCKING_LAUNCHES, **CORE_DUMPS}
        checking.describe = timing.describe = describe_gpu
    report, kernels = _machine(checking, options)
    begun(report)
    jobs = [Job("hang")] if options.rehearse_hang else []
    jobs += result_jobs(kernels, quick=options.quick)
    _step("results", checking, jobs, report.results, tell)
    wrong = [outcome for outcome in report.results if not outcome.passed]
    wrong = [outcome for outcome in wrong if outcome.job.kind != "hang"]
    if place.emulated:
        report.no_times = _NO_CLOCK
    elif wrong:
        report.no_times = f"nothing was timed: {wrong[0].job} has not passed"
    else:
        _step("times", timing, time_jobs(kernels), report.times, tell)
    report.kernels = list({**checking.kernels, **timing.kernels}.values())
    return report


def _machine(watch: Watch, options: Options) -> tuple[Report, Kernels]:
    """What is known before any kernel runs; the watch gives up core dumps that cannot be had."""
    place, facts = watch.place, _facts(watch)
    if watch.variables and facts["outcome"] in ("error", "hang"):
        watch.variables = BLOCKING_LAUNCHES
        facts = _facts(watch)
    if facts["outcome"] == "refused":
        raise NativeLibraryError(facts["detail"])
    if facts["outcome"] != "passed":
        said = "; ".join([facts["detail"], *facts.get("stderr", ())[-1:]])
        raise NativeLibraryError(f"{place.device} cannot be used: {said}")
    shown = {"device": place.device, "quick": options.quick, "limit_s": watch.limit_s}
    if place.emulated:
        shown["arch"] = place.arch
    kernels = Kernels(facts["kernels"]["backends"], tuple(facts["kernels"]["presets"]))
    machine = facts["machine"] | ({"commit": options.commit} if options.commit else {})
    return Report(place, shown, machine, facts["predictions"]), kernels


def _facts(watch: Watch) -> Mapping[str, Any]:
    (outcome,) = watch.run([Job("facts")])
    return outcome.result


def _step(name: str, watch: Watch, jobs: list[Job], outcomes: list[Outcome], tell: Tell) -> None:
    tell(name, len(jobs), None)
    with closing(watch.run(jobs)) as found:
        for outcome in found:
            outcomes.append(outcome)
            tell(name, len(jobs), outcome)
