"""The commands, put together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import nibblas
from nibblas.cli import (
    bench,
    check,
    competition,
    emulate,
    explain,
    export,
    info,
    inspect,
    quantize,
    selftest,
    verify,
)

HELP = """NVFP4 grouped matrix multiplication: what is here, what runs, and is it right.

Exit codes: 0 all well; 1 a check failed; 2 bad usage or environment; 130 interrupted.
"""

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(name="nibblas", help=HELP, no_args_is_help=True, **_SETTINGS)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"nibblas {nibblas.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


for _command in (
    info.info,
    explain.explain,
    check.check,
    emulate.emulate,
    quantize.quantize,
    inspect.inspect,
    verify.verify,
    bench.bench,
    selftest.selftest,
):
    app.command()(_command)

_competition = typer.Typer(**_SETTINGS)
_competition.callback(invoke_without_command=True)(competition.competition)
_competition.command()(export.export)
app.add_typer(_competition, name="competition")
