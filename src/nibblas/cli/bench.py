"""``nibblas bench``: our kernels beside PyTorch, interleaved, after a check of the results."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from nibblas.bench.cases import (
    CASES,
    PRECISIONS,
    TOKEN_TYPES,
    BenchCase,
    Kind,
    cases_named,
    kinds_of,
)
from nibblas.bench.report import Absence, Line, Result, append_lines, plot
from nibblas.bench.runner import RIVALS, Settings, compile_ahead, place_of, run_case
from nibblas.check.targets import device_named
from nibblas.cli.files import file_errors
from nibblas.cli.report import (
    CHECK_FAILED,
    Debug,
    command,
    console,
    duration,
    one_line,
    progress,
    table,
)
from nibblas.errors import bad_value

NO_RIVALS = "none"
USUAL_TOKENS = "bf16"


@command
def bench(
    *,
    case: Annotated[
        list[str] | None,
        typer.Option(help="c1, c4m64, c4 (all of c4), S1, ... [default: all made for the device]"),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(PRECISIONS)}. [default: both]")
    ] = None,
    activations: Annotated[
        list[str] | None,
        typer.Option(help=f"Tokens of w4a16: {', '.join(TOKEN_TYPES)}. [default: {USUAL_TOKENS}]"),
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Ours to time. [default: all that take the case]")
    ] = None,
    level: Annotated[
        list[str] | None, typer.Option(help="CPU levels to time. [default: all here]")
    ] = None,
    rivals: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(RIVALS)}, or {NO_RIVALS}. [default: all; on a CPU the first three]"
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [default: the one that the case is made for]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads. [default: PyTorch's]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of timing.")] = None,
    rotate: Annotated[
        float | None,
        typer.Option(min=0, help="MB of inputs to rotate over. [default: 400; on a GPU 300]"),
    ] = None,
    gflops: Annotated[
        float | None, typer.Option(min=0, help="GFLOP/s of the CPU's matrix unit, for the floor.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="Of the source tree, where git is not there to tell.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Append a JSON line per contender to this file.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Draw the times; needs matplotlib.")
    ] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, run none.")] = False,
    debug: Debug = False,
) -> None:
    """Time the benchmark cases on our backends and levels, and others on the same numbers.

    Each result is checked first and again at the end; a wrong one has no time. Contenders take
    turns, on inputs that rotate over more memory than caches hold. Options that name several may
    be repeated, or take commas.

    \b
    Examples:
      nibblas bench --list
      nibblas bench --case c1,c4m64 --precision w4a16
      nibblas bench --device cuda --activations fp16 --out results.jsonl --plot results.png

    Exit codes: 0 timed; 1 ours failed or a result was wrong; 2 bad usage, or no such device.
    """
    if list_cases:
        _print_cases(console())
        return
    if picture is not None and importlib.util.find_spec("matplotlib") is None:
        raise bad_value("plot", given="no matplotlib", wanted="pip install 'nibblas[plot]'")
    if device is not None:
        device_named(device)
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = cases_named(_split(case), _kind_of_device(device))
    kinds = kinds_of(_split(precision) or PRECISIONS, _split(activations) or (USUAL_TOKENS,))
    settings = Settings(
        device=device,
        backends=_split(backend),
        levels=_split(level),
        rivals=_rivals(rivals),
        rounds=rounds,
        rotate_bytes=None if rotate is None else rotate * 1e6,
        flop_per_s=None if gflops is None else gflops * 1e9,
        commit=commit,
    )
    work = [(each, kind) for each in chosen for kind in kinds]
    for each in chosen:
        place_of(each, settings)
    results: list[Result] = []
    began = time.perf_counter()
    with file_errors():
        if out is not None:
            append_lines(out, [])
        try:
            _run(work, settings, out, results)
        finally:
            _print_results(console(), results)
            print(f"{time.perf_counter() - began:.0f} s in all")
        lines = [result for result in results if isinstance(result, Line)]
        if picture is not None and lines:
            plot(picture, lines)
    if any(isinstance(result, Absence) and result.fault for result in results):
        raise typer.Exit(CHECK_FAILED)


def _run(
    work: Sequence[tuple[BenchCase, Kind]],
    settings: Settings,
    out: Path | None,
    results: list[Result],
) -> None:
    """Adds to ``results``, case by case, so that what is done is kept if a later case breaks."""
    with progress("timing") as bar:
        task = bar.add_task("", total=len(work), detail="compiling")
        compile_ahead(work, settings)
        for case, kind in work:
            bar.update(task, detail=f"{case.name} {kind}")
            found = run_case(case, kind, settings)
            if out is not None:
                append_lines(out, found)
            results += found
            bar.update(task, advance=1)


def _kind_of_device(device: str | None) -> str:
    if device is not None:
        return torch.device(device).type
    return "cuda" if torch.cuda.is_available() else "cpu"


def _split(values: list[str] | None) -> tuple[str, ...]:
    """Names given one by one or with commas."""
    return tuple(name for value in values or () for name in value.split(",") if name)


def _rivals(values: list[str] | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    return tuple(name for name in _split(values) if name != NO_RIVALS)


def _print_cases(out: Console) -> None:
    rows = table("case", "made for", "sizes")
    for case in CASES:
        rows.add_row(case.name, case.device, str(case))
    out.print(rows)


def _print_results(out: Console, results: Sequence[Result]) -> None:
    lines = [result for result in results if isinstance(result, Line)]
    absences = [result for result in results if isinstance(result, Absence)]
    if lines:
        _print_times(out, lines)
        _print_predictions(out, lines)
    for absence in absences:
        mark = "FAULT" if absence.fault else "absent"
        text = f"{absence.case} {absence.kind} {absence.contender}: {one_line(absence.absent)}"
        print(f"{mark}  {text}")
    if results:
        machine = results[0].machine
        print(
            f"{machine.get('gpu') or machine['processor']}, {machine['threads']} threads, torch "
            f"{machine['torch']}, commit {machine['commit']}"
        )


def _print_times(out: Console, lines: Sequence[Line]) -> None:
    columns = (">median", ">p10", ">p90", ">/ best rival", ">/ floor", ">error", ">host")
    rows = table("case", "kind", "contender", *columns)
    for line in lines:
        rows.add_row(
            line.case,
            line.kind,
            f"{line.contender} (other maths)" if line.other_maths else line.contender,
            *map(duration, (line.median_us, line.p10_us, line.p90_us)),
            _ratio(line.ratio_to_best_rival),
            _ratio(line.ratio_to_floor),
            f"{line.relative_error:.2e}",
            "-" if line.host_us is None else duration(line.host_us),
        )
    out.print(rows)


def _print_predictions(out: Console, lines: Sequence[Line]) -> None:
    """What the planner thought of ours, apart from what was measured."""
    rows = table("case", "kind", "contender", ">predicted", "bound", ">measured", ">/ predicted")
    for line in lines:
        if line.predicted_us is None or not math.isfinite(line.predicted_us):
            continue
        rows.add_row(
            line.case,
            line.kind,
            line.contender,
            duration(line.predicted_us),
            line.predicted_bound or "",
            duration(line.median_us),
            _ratio(line.median_us / line.predicted_us),
        )
    if rows.row_count:
        out.print("\nPredicted by the planner before any run, beside the measured medians:")
        out.print(rows)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
