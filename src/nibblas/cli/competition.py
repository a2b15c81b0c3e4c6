"""``nibblas competition``: the public reference problem, checked and timed on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nibblas.backends.selection import explain_problem
from nibblas.check.targets import device_named
from nibblas.cli.report import (
    CHECK_FAILED,
    Debug,
    Json,
    command,
    console,
    duration,
    one_line,
    print_json,
    progress,
    table,
)
from nibblas.competition import (
    BENCHMARKS,
    PUBLIC_INPUTS,
    Case,
    ProgressEvent,
    StopRule,
    TestResult,
    TimingResult,
    WrongOutputError,
    custom_kernel,
    geometric_mean_us,
    run_tests,
    time_case,
)
from nibblas.competition.harness import Content
from nibblas.competition.harness import Progress as Report
from nibblas.competition.solution import problem_of

CPU_INPUTS = 2
"""Inputs per case on a CPU: the exact results of C0 alone take seconds per input."""
CPU_SECONDS_PER_CASE = 4.0


@dataclass
class Run:
    """What has been found so far."""

    device: str
    tests: list[tuple[Content, TestResult]] = field(default_factory=list)
    timings: list[TimingResult] = field(default_factory=list)
    wrong: str | None = None
    """Set when a timed kernel's outputs did not pass; timing stops there."""

    @property
    def passed(self) -> bool:
        return self.wrong is None and all(result.verdict.passed for _, result in self.tests)


@command
def competition(
    context: typer.Context,
    *,
    tests_only: Annotated[bool, typer.Option("--tests-only", help="Check, time nothing.")] = False,
    inputs: Annotated[
        int | None,
        typer.Option(min=1, help="Inputs per timed case. [default: 15; on a CPU 2]"),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="New copies in random order with NaN outputs every repeat."),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1. [default: cuda where present]")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Backend to run. [default: the fastest that can]")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the public nvfp4_group_gemm problem: 10 tests, then 4 timed cases, outputs checked.

    The tests run twice: on the public inputs, and on inputs with every code and scale and NaN in
    all padding. A timed case is checked on every input before and after each repeat; no time is
    shown for one that fails.

    \b
    Examples:
      nibblas competition
      nibblas competition --tests-only
      nibblas competition --strict --inputs 4 --json
      nibblas competition export submission.py

    Exit codes: 0 all outputs right; 1 a wrong output; 2 bad usage or environment.
    """
    if context.invoked_subcommand is not None:
        return
    where = device_named(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = Run(str(where))
    kernel = partial(custom_kernel, backend=backend)
    chosen = {case.name: _chosen(case, where, backend) for case in BENCHMARKS}
    with progress("competition") as bar:
        _run_tests(run, kernel, where, bar)
        if run.passed and not tests_only:
            count = inputs or (CPU_INPUTS if where.type == "cpu" else PUBLIC_INPUTS)
            _run_timings(run, kernel, where, bar, inputs=count, strict=strict)
    if as_json:
        print_json(_to_dict(run, chosen))
    else:
        _print_run(console(), run, chosen)
    if not run.passed:
        raise typer.Exit(CHECK_FAILED)


def _chosen(case: Case, device: torch.device, backend: str | None) -> str:
    """Backend and configuration that run the case, as the table shows them."""
    plan = explain_problem(problem_of(case, device), backend).plan
    return f"{plan.backend} ({plan.config})"


def _reporter(bar: Progress, label: str) -> Report:
    """A callback for the harness that keeps one line of the bar up to date."""
    task = bar.add_task(label, total=None, detail=label)

    def show(event: ProgressEvent) -> None:
        detail = f"{label}: {event.stage} {event.detail}"
        bar.update(task, completed=event.done, total=event.total, detail=detail)

    return show


def _run_tests(run: Run, kernel: Callable[..., Any], device: torch.device, bar: Progress) -> None:
    contents: tuple[Content, ...] = ("public", "full_range")
    for content in contents:
        report = _reporter(bar, f"{content} inputs")
        results = run_tests(device, kernel, content=content, progress=report)
        run.tests += [(content, result) for result in results]


def _run_timings(
    run: Run,
    kernel: Callable[..., Any],
    device: torch.device,
    bar: Progress,
    *,
    inputs: int,
    strict: bool,
) -> None:
    stop = StopRule(time_limit_s=CPU_SECONDS_PER_CASE) if device.type == "cpu" else None
    for case in BENCHMARKS:
        try:
            run.timings.append(
                time_case(
                    case,
                    kernel,
                    device=device,
                    inputs=inputs,
                    strict=strict,
                    stop=stop,
                    progress=_reporter(bar, case.name),
                )
            )
        except WrongOutputError as error:
            run.wrong = one_line(str(error))
            return


def _to_dict(run: Run, chosen: dict[str, str]) -> dict[str, Any]:
    return {
        "device": run.device,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "passed": run.passed,
        "tests": [
            {
                "case": result.case.name,
                "content": content,
                "passed": result.verdict.passed,
                "bit_exact": result.verdict.bit_exact,
                "largest_error": result.verdict.largest_error,
                "messages": list(result.verdict.messages),
            }
            for content, result in run.tests
        ],
        "benchmarks": [
            {**timing.to_dict(), "ran_on": chosen[timing.case_name]} for timing in run.timings
        ],
        "geometric_mean_us": geometric_mean_us(run.timings) if run.timings else None,
        "wrong": run.wrong,
    }


def _print_run(out: Console, run: Run, chosen: dict[str, str]) -> None:
    contents: tuple[Content, ...] = ("public", "full_range")
    for content in contents:
        results = [result for origin, result in run.tests if origin == content]
        passed = sum(result.verdict.passed for result in results)
        bit_exact = sum(result.verdict.bit_exact for result in results)
        kind = content.replace("_", "-")
        line = f"{kind} inputs: {passed} of {len(results)} cases passed, {bit_exact} bit-exact"
        out.print(line, markup=False, highlight=False)
        for result in results:
            if not result.verdict.passed:
                out.print(f"  {result.case.name}: {result.verdict}", markup=False, highlight=False)
    if run.timings:
        out.print(_timing_table(run, chosen))
        mean = duration(geometric_mean_us(run.timings))
        line = f"geometric mean {mean} over {len(run.timings)} cases on {run.device}"
        out.print(line, markup=False, highlight=False)
    if run.wrong is not None:
        out.print(f"WRONG OUTPUT: {run.wrong}", markup=False, highlight=False)


def _timing_table(run: Run, chosen: dict[str, str]) -> Table:
    """One row per case; the spread is (slowest - fastest repeat) / mean."""
    published = ">B200 speed of\nlight (published)"
    rows = table("case", "ran on", "bit-exact", ">mean", ">spread", ">repeats\nx inputs", published)
    for timing in run.timings:
        spread = (timing.worst_us - timing.best_us) / timing.mean_us
        rows.add_row(
            timing.case_name,
            chosen[timing.case_name],
            "yes" if timing.bit_exact else "no",
            duration(timing.mean_us),
            f"{spread:.1%}" if timing.repeats > 1 else "-",
            f"{timing.repeats} x {timing.inputs}",
            f"{timing.speed_of_light_us:.3f} us",
        )
    return rows
