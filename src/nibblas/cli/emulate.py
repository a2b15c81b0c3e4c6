"""``nibblas emulate``: a kernel run and checked with no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nibblas.cli.report import CHECK_FAILED, Debug, Json, command, print_json
from nibblas.emulator import ORDERS, EmulationError, Site
from nibblas.emulator.launch_file import LaunchFile, Outcome, kernel_text

_SEEDS_OF_ALL = {"random": 3, "adversarial-starve": 3}
"""Seeds that ``--all-orders`` tries, for the orders that use one."""


@command
def emulate(
    kernel: Annotated[Path, typer.Argument(help="A .ptx file, or a .cu file of CUDA C++.")],
    *,
    args: Annotated[Path, typer.Option("--args", help="TOML or JSON: buffers, arguments, grid.")],
    order: Annotated[str | None, typer.Option(help="Order of events; see --all-orders.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the orders random and starve.")] = None,
    arch: Annotated[str | None, typer.Option(help="sm_80 to sm_90.")] = None,
    all_orders: Annotated[
        bool, typer.Option("--all-orders", help="Run under every order until one finds a fault.")
    ] = False,
    define: Annotated[
        list[str] | None, typer.Option("--define", "-D", help="Macro of a .cu file; repeatable.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a kernel without a GPU and report what it does wrong.

    The description's format is that of nibblas/emulator/launch_file.py; docs/emulator.md and
    examples/emulate have it with examples.

    \b
    Examples:
      nibblas emulate vector_add.cu --args vector_add.toml
      nibblas emulate pipeline.cu --args pipeline.toml --all-orders

    Exit codes: 0 it ran and what it wrote is as expected; 1 the kernel has a fault; 2 bad usage:
    a file that cannot be read, an instruction that is not modelled, arguments that do not fit.
    """
    launch = LaunchFile(args)
    first = launch.device(arch=arch, order=order, seed=seed)
    target = f"{first.arch}a" if first.arch == "sm_90" else first.arch
    text = kernel_text(kernel, target=target, defines=define or ())
    runs = [(first.order, first.seed)]
    if all_orders:
        runs = [(name, s) for name in ORDERS for s in range(_SEEDS_OF_ALL.get(name, 1))]
    for run_order, run_seed in runs:
        device = launch.device(arch=arch, order=run_order, seed=run_seed)
        try:
            outcome = launch.launch(device, text)
        except EmulationError as error:
            _print_fault(error, run_order, run_seed, kernel, as_json=as_json)
            raise typer.Exit(CHECK_FAILED) from None
        _print_outcome(outcome, run_order, run_seed, as_json=as_json, briefly=all_orders)
        if outcome.wrong:
            raise typer.Exit(CHECK_FAILED)


def _print_outcome(
    outcome: Outcome, order: str, seed: int, *, as_json: bool, briefly: bool
) -> None:
    if as_json:
        print_json(
            {
                "order": order,
                "seed": seed,
                "fault": None,
                "wrong": dict(outcome.wrong),
                "report": vars(outcome.report),
            }
        )
        return
    if briefly:
        print(f"order {order}, seed {seed}: {outcome.report.total_instructions} instructions")
    else:
        print(f"order {order}, seed {seed}")
        print(outcome.report)
    for name, difference in outcome.wrong.items():
        print(f"WRONG  {name}: {difference}")


def _print_fault(
    error: EmulationError, order: str, seed: int, kernel: Path, *, as_json: bool
) -> None:
    kind, site = type(error).__name__, error.site
    if as_json:
        fault: dict[str, Any] = {"kind": kind, "detail": error.detail, "site": None}
        if site is not None:
            fault["site"] = vars(site)
        print_json({"order": order, "seed": seed, "fault": fault, "wrong": {}, "report": None})
        return
    print(f"FAULT  {kind}, order {order}, seed {seed}")
    print(str(error))
    line = source_line(kernel, site)
    if line:
        print(f"\n{line}")


def source_line(kernel: Path, site: Site | None) -> str:
    """The line of the kernel's own file that a site names; empty: it names none."""
    if site is None or kernel.suffix != ".cu":
        return ""
    file, _, number = site.source.rpartition(":")
    if Path(file).name != kernel.name or not number.isdigit():
        return ""
    lines = kernel.read_text().splitlines()
    if not 1 <= int(number) <= len(lines):
        return ""
    return f"  {kernel.name}:{number}: {lines[int(number) - 1].strip()}"
