"""How every command speaks: results on stdout, progress and errors on stderr, exit codes."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nibblas.errors import NativeLibraryError

CHECK_FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

Command = TypeVar("Command", bound=Callable[..., None])

_USER_ERRORS = (ValueError, TypeError, NotImplementedError, NativeLibraryError)
"""What nibblas raises for input or an environment that it cannot work with."""


def command(function: Command) -> Command:
    """Turns errors of the library into one line on stderr and exit code 2.

    The function must take ``debug``; with it set, errors keep their traceback.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # typer leaves quietly, as a reader that has seen enough expects
        except OSError as error:
            print(f"nibblas: cannot write the result: {error}", file=sys.stderr)
            raise typer.Exit(BAD_USAGE) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except _USER_ERRORS as error:
            if kwargs["debug"]:
                raise
            print(f"nibblas: {one_line(str(error))}", file=sys.stderr)
            raise typer.Exit(BAD_USAGE) from None

    return run  # type: ignore[return-value]


def one_line(text: str) -> str:
    """``text`` with its line breaks turned into "; "."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def console() -> Console:
    """Standard output, as wide as the terminal; wide enough for any table when it is none."""
    return Console(soft_wrap=False) if sys.stdout.isatty() else Console(width=160)


def table(*columns: str) -> Table:
    """A plain table; columns whose name starts with ">" are aligned to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left")
    return made


def progress(description: str) -> Progress:
    """A bar on stderr that goes away when done; silent unless stderr is a terminal."""
    return Progress(
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json_text(value))


def json_text(value: dict[str, Any]) -> str:
    """One JSON object; infinities and NaN, which JSON lacks, become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def duration(microseconds: float) -> str:
    """A time in the unit that suits it, three digits: "18.8 us", "4.52 ms", "1.20 s"."""
    if not math.isfinite(microseconds):
        return "-"
    for limit, divisor, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{_three_digits(microseconds / divisor)} {unit}"
    return f"{_three_digits(microseconds / 1e6)} s"


def _three_digits(value: float) -> str:
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"
