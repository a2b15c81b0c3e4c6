"""``nibblas check``: random problems against the oracle, and the bit-exact checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nibblas.check.exact import CHECKS
from nibblas.check.problems import draw
from nibblas.check.sweep import (
    EXACT_PROBLEMS,
    SweepResult,
    exact_problems,
    random_problems,
    sweep,
)
from nibblas.check.targets import Target, available
from nibblas.check.verdict import Truth, truth_of
from nibblas.cli.report import (
    CHECK_FAILED,
    Debug,
    Json,
    command,
    console,
    print_json,
    progress,
    table,
)
from nibblas.errors import bad_value


@command
def check(
    count: Annotated[int, typer.Option(min=0, help="Random problems to run.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the random problems.")] = 0,
    backend: Annotated[
        str | None, typer.Option(help="Check this backend only. [default: all that are here]")
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Check this CPU level only. [default: all that are here]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:1. [default: where each backend usually computes]"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run one problem again: SEED:INDEX or CHECK:INDEX, as a report names it."
        ),
    ] = None,
    max_violations: Annotated[int, typer.Option(min=1, help="Stop after this many.")] = 20,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run random problems and the bit-exact checks; compare with the float64 oracle.

    Every problem runs on every backend and CPU level of this machine, each on the device where it
    computes. A result must lie within the stated error bound, and padding, guard rows and inputs
    must stay as they were.

    \b
    Examples:
      nibblas check
      nibblas check --count 200 --seed 7 --backend cpu --level avx2
      nibblas check --count 300 --backend portable --device cuda
      nibblas check --only 7:113

    Exit codes: 0 no violation; 1 a violation, with the problem that shows it; 2 bad usage.
    """
    targets = available(backend=backend, level=level, device=device)
    if only is not None:
        problems: Iterable[Truth] = [_one_problem(only)]
        total = 1
    else:
        problems = itertools.chain(exact_problems(), random_problems(count, seed))
        total = EXACT_PROBLEMS + count
    result = _run(problems, targets, SweepResult(seed=seed), total, max_violations)
    if as_json:
        print_json(result.to_dict())
    else:
        _print_result(console(), result, with_coverage=only is None)
    if not result.passed:
        raise typer.Exit(CHECK_FAILED)


def _one_problem(name: str) -> Truth:
    """The problem that a report calls ``name``."""
    wanted = f"SEED:INDEX, or one of {', '.join(CHECKS)} and an index, as in one_hot:3"
    source, _, index = name.partition(":")
    specs = CHECKS[source].specs if source in CHECKS else None
    seed_is_number = source.removeprefix("-").isdecimal()
    if not index.isdecimal() or (specs is None and not seed_is_number):
        raise bad_value("only", given=repr(name), wanted=wanted)
    if specs is None:
        return truth_of(draw(int(source), int(index)))
    if int(index) >= len(specs):
        raise bad_value("only", given=repr(name), wanted=f"an index below {len(specs)}")
    return CHECKS[source].problem(int(index))


def _run(
    problems: Iterable[Truth],
    targets: tuple[Target, ...],
    result: SweepResult,
    total: int,
    max_violations: int,
) -> SweepResult:
    with progress("checking") as bar:
        task = bar.add_task("", total=total, detail="")
        for _ in sweep(problems, targets, result):
            found = len(result.violations)
            bar.update(task, advance=1, detail=f"{found} violations" if found else "")
            if found >= max_violations:
                break
    return result


def _print_result(out: Console, result: SweepResult, *, with_coverage: bool) -> None:
    out.print(_count_table(result))
    if any(found.worst for found in result.targets.values()):
        out.print("\nlargest error / bound", markup=False, highlight=False)
        out.print(_worst_table(result))
    for target, found in result.targets.items():
        for reason, times in found.refused.items():
            out.print(f"{target} refused {times}: {reason}", markup=False, highlight=False)
    if with_coverage:
        _print_coverage(out, result)
    _print_violations(out, result)


def _count_table(result: SweepResult) -> Table:
    rows = table("target", ">ran", ">refused", ">failed", ">bit-exact checks passed")
    for target, found in result.targets.items():
        counts = (found.ran, sum(found.refused.values()), found.failed)
        exact = f"{sum(found.exact_passed.values())} of {sum(found.exact_ran.values())}"
        rows.add_row(str(target), *map(str, counts), exact)
    return rows


def _worst_table(result: SweepResult) -> Table:
    """Largest error/bound of every target, per precision and output type."""
    kinds = sorted({kind for found in result.targets.values() for kind in found.worst})
    headings = (">" + kind.replace(", ", "\n") for kind in kinds)
    rows = table("target", *headings)
    for target, found in result.targets.items():
        worst = (f"{found.worst[kind]:.3f}" if kind in found.worst else "-" for kind in kinds)
        rows.add_row(str(target), *worst)
    return rows


def _print_coverage(out: Console, result: SweepResult) -> None:
    met = len(result.coverage) - len(result.never_met)
    line = f"{result.problems} problems; {met} of {len(result.coverage)} features met"
    if result.never_met:
        line += f"; never met: {', '.join(result.never_met)}"
    out.print(line, markup=False, highlight=False)


def _print_violations(out: Console, result: SweepResult) -> None:
    for verdict in result.violations:
        lines = [f"VIOLATION on {verdict.target}: {verdict.spec!r}"]
        lines += [f"  {finding}" for finding in verdict.violations]
        lines.append(f"  again: nibblas check --only {verdict.spec.name}{_options(verdict.target)}")
        out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if not result.passed and not result.violations:
        out.print("nothing ran: every problem was refused", markup=False, highlight=False)


def _options(target: Target) -> str:
    level = f" --level {target.level}" if target.level else ""
    device = f" --device {target.device}" if target.device != "cpu" else ""
    return f" --backend {target.backend}{level}{device}"
