"""``nibblas bench``: our kernels beside PyTorch, interleaved, after a check of the results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from nibblas.bench.cases import CASES, KINDS, Kind, cases_named
from nibblas.bench.report import Line, append_lines, plot
from nibblas.bench.runner import Settings, WrongResultError, place_of, run_case
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

DEFAULT_KINDS: tuple[Kind, ...] = ("w4a4", "w4a16-bf16")


@command
def bench(
    *,
    case: Annotated[
        list[str] | None,
        typer.Option(help="c1, c4m64, c4 (all of c4), S1, ...; repeatable. [default: all]"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="w4a4, w4a16-bf16, w4a16-fp16; repeatable. [default: w4a4 and w4a16-bf16]"
        ),
    ] = None,
    level: Annotated[
        list[str] | None, typer.Option(help="CPU levels to time; repeatable. [default: all here]")
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
        typer.Option(min=0, help="MB of weights to rotate over. [default: 400; on a GPU 600]"),
    ] = None,
    gflops: Annotated[
        float | None, typer.Option(min=0, help="GFLOP/s of the CPU's matrix unit, for the floor.")
    ] = None,
    json_lines: Annotated[
        Path | None, typer.Option("--json", help="Append a JSON line per contender to this file.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Draw the times; needs matplotlib.")
    ] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, run none.")] = False,
    debug: Debug = False,
) -> None:
    """Time the benchmark cases on every backend and level here, and PyTorch on the same numbers.

    Each result is checked first and again at the end; a wrong one ends the run without a time.
    Contenders take turns, on weights that rotate over more memory than caches hold.

    \b
    Examples:
      nibblas bench --list
      nibblas bench --case c1 --case c4m64 --kind w4a16-bf16
      nibblas bench --json results.jsonl --plot results.png

    Exit codes: 0 timed; 1 a result was wrong; 2 bad usage, or a device that is not here.
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
    chosen = cases_named(case or (), device or _usual_device())
    settings = Settings(
        device=device,
        levels=tuple(level or ()),
        rounds=rounds,
        rotate_bytes=None if rotate is None else rotate * 1e6,
        flop_per_s=None if gflops is None else gflops * 1e9,
    )
    for each in chosen:
        place_of(each, settings)
    work = [(each, one) for each in chosen for one in _kinds(kind)]
    lines: list[Line] = []
    with file_errors(), progress("timing") as bar:
        task = bar.add_task("", total=len(work), detail="")
        for each, one in work:
            bar.update(task, detail=f"{each.name} {one}")
            try:
                found = run_case(each, one, settings)
            except WrongResultError as error:
                print(f"{each.name} {one}: {one_line(str(error))}")
                raise typer.Exit(CHECK_FAILED) from None
            if json_lines is not None:
                append_lines(json_lines, found)
            lines += found
            bar.update(task, advance=1)
        if picture is not None:
            plot(picture, lines)
    _print_lines(console(), lines)


def _usual_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _kinds(asked: list[str] | None) -> tuple[Kind, ...]:
    for kind in asked or ():
        if kind not in KINDS:
            raise bad_value("kind", given=repr(kind), wanted=f"one of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in (asked or DEFAULT_KINDS))


def _print_cases(out: Console) -> None:
    rows = table("case", "made for", "sizes")
    for case in CASES:
        rows.add_row(case.name, case.device, str(case))
    out.print(rows)


def _print_lines(out: Console, lines: list[Line]) -> None:
    columns = (">median", ">p10", ">p90", ">/ torch mm", ">/ floor")
    rows = table("case", "kind", "contender", *columns)
    for line in lines:
        times = (line.median_us, line.p10_us, line.p90_us)
        to_floor = "-" if line.ratio_to_floor is None else f"{line.ratio_to_floor:.2f}"
        rows.add_row(
            line.case,
            line.kind,
            line.contender,
            *map(duration, times),
            f"{line.ratio_to_mm:.3f}",
            to_floor,
        )
    out.print(rows)
    machine = lines[0].machine
    out.print(
        f"{machine.get('gpu') or machine['processor']}, {machine['threads']} threads, torch "
        f"{machine['torch']}, commit {machine['commit']}",
        markup=False,
        highlight=False,
    )
