"""``nibblas selftest``: is all well on this GPU, how fast is it, and a file that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from nibblas.cli.files import file_errors, terminated_like_interrupted, write_text
from nibblas.cli.report import (
    CHECK_FAILED,
    Debug,
    Json,
    command,
    console,
    duration,
    json_text,
    progress,
    table,
)
from nibblas.errors import bad_value
from nibblas.selftest.report import Report
from nibblas.selftest.run import Options, place_named
from nibblas.selftest.run import selftest as run_selftest
from nibblas.selftest.watch import Outcome

_LINES_SHOWN = 40
_STEPS = {"results": "step 1  results", "times": "step 2  times"}


@command
def selftest(
    *,
    device: Annotated[str, typer.Option(help="cuda, cuda:1, or emulated.")] = "cuda",
    arch: Annotated[str, typer.Option(help="What is emulated: sm_80 to sm_120.")] = "",
    out: Annotated[
        Path, typer.Option("--out", help="The file to write; one that exists is replaced.")
    ] = Path("nibblas-selftest.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Few and small problems.")] = False,
    limit: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds after which a test hangs. [default: 30; emulated 120]"),
    ] = None,
    rehearse_hang: Annotated[
        bool, typer.Option("--rehearse-hang", help="Run a kernel that never ends first.")
    ] = False,
    commit: Annotated[
        str | None, typer.Option(help="Of the source tree, where git is not there to tell.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Test the kernels on this machine's GPU, time them, and write one file worth sending.

    The public competition's tests and random problems come first, each under a time limit in
    another process, so that a kernel that hangs is reported: which launch, and where the GPU
    stands. Then the four public benchmark cases are timed, beside their predictions. The file
    names the machine and the kernels, and no person, host or folder.

    \b
    Examples:
      nibblas selftest
      nibblas selftest --device cuda:1 --out b200.json
      nibblas selftest --device emulated --arch sm_100 --quick

    Exit codes: 0 all well; 1 a wrong result, an error or a hang; 2 bad usage, no GPU, or a file
    that cannot be written.
    """
    place = place_named(device, arch)
    with file_errors():
        _check_writable(out)
    options = Options(quick, limit, rehearse_hang, out.with_suffix(""), commit)
    say = _nothing if as_json else print
    with terminated_like_interrupted(), progress("testing") as bar:
        report = run_selftest(
            place, options, _teller(bar, say), begun=lambda r: _say_machine(r, say)
        )
    text = json_text(report.to_dict())
    with file_errors():
        write_text(out, text + "\n")
    if as_json:
        print(text)
    else:
        _say_times(report)
        print(f"step 3  {out} is worth sending{_dumps(report)}")
    if not report.passed:
        raise typer.Exit(CHECK_FAILED)


def _nothing(*_: object) -> None: ...


def _check_writable(out: Path) -> None:
    """Raises now what writing the file after minutes of tests would."""
    if out.is_dir():
        raise bad_value("out", given=f"{out}, a folder", wanted="a file")
    write_text(out.with_name(f".{out.name}.probe"), "")
    out.with_name(f".{out.name}.probe").unlink()


def _say_machine(report: Report, say: Callable[[str], None]) -> None:
    facts = report.machine
    name = facts.get("gpu") or f"emulated {report.place.arch}"
    backends = sorted({each["backend"] for each in report.predictions})
    presets = [each for each in dict.fromkeys(p["preset"] for p in report.predictions) if each]
    named = f" ({', '.join(presets)})" if presets else ""
    say(
        f"{name}, compute capability {facts['compute_capability']}, "
        f"{facts['multiprocessors']} multiprocessors; kernel of the w4a4 cases: "
        f"{', '.join(backends)}{named}"
    )


def _teller(
    bar: Progress, say: Callable[[str], None]
) -> Callable[[str, int, Outcome | None], None]:
    """Keeps the bar up to date; says at once what has not passed, and each step's count."""
    tasks: dict[str, Any] = {}
    counts: dict[str, Counter[str]] = {}

    def tell(step: str, total: int, outcome: Outcome | None) -> None:
        if outcome is None:
            tasks[step] = bar.add_task("", total=total, detail=step)
            counts[step] = Counter()
        else:
            counts[step][outcome.result["outcome"]] += 1
            bar.update(tasks[step], advance=1, detail=str(outcome.job))
            if not outcome.passed:
                say("\n".join(_lines(outcome)))
        if counts[step].total() == total:
            say(f"{_STEPS[step]}: {', '.join(f'{n} {what}' for what, n in counts[step].items())}")

    return tell


def _lines(outcome: Outcome) -> list[str]:
    """An outcome that is none to be glad of."""
    result = outcome.result
    lines = [f"{result['outcome'].upper()}  {outcome.job}: {result['detail']}"]
    launch = result.get("last_launch")
    if launch:
        lines.append(f"  launch {result['launches']} of the test: {launch['launch']}")
        lines.append(f"  image  {launch['image']}")
    for name in ("problem", "state_from"):
        if result.get(name):
            lines.append(f"  {name.replace('_', ' ')}: {result[name]}")
    for name in ("state", "host_stack", "stderr"):
        shown = list(result.get(name, ()))
        lines += [f"  {name.replace('_', ' ')}:"] * bool(shown)
        lines += [f"    {line}" for line in shown[:_LINES_SHOWN]]
        lines += [f"    and {len(shown) - _LINES_SHOWN} more"] * (len(shown) > _LINES_SHOWN)
    return lines


def _say_times(report: Report) -> None:
    if report.no_times:
        print(f"{_STEPS['times']}: left out; {report.no_times}")
        return
    rows = table("case", "preset", ">measured", ">p10", ">p90", ">predicted", "bound by")
    for row in report.measured():
        times = (duration(row[name]) for name in ("median_us", "p10_us", "p90_us"))
        predicted = row["predicted_us"]
        shown = "-" if predicted is None else duration(predicted)
        rows.add_row(row["case"], row["preset"] or "-", *times, shown, row["bound"])
    console().print(rows)
    print("measured: median of windows of calls in a CUDA graph; predicted: by the planner's model")


def _dumps(report: Report) -> str:
    """The GPU's own files, if any."""
    names = [
        o.result["core_dump"] for o in (*report.results, *report.times) if o.result.get("core_dump")
    ]
    return f", with {', '.join(names)} beside it" if names else ""
