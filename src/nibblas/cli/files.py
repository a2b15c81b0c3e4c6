"""What the commands about checkpoint files share: their errors, signals and progress."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nibblas.cli.report import progress
from nibblas.formats.file_quantize import Progress

_MIB = 1 << 20


@contextmanager
def file_errors() -> Iterator[None]:
    """Turns the system's errors about files into the one line and exit code of bad input."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise ValueError(f"{place}{error.strerror or error}") from error


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM ends the command as Ctrl-C does, so that no half file stays behind."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@contextmanager
def byte_progress(description: str) -> Iterator[Progress]:
    """A bar on stderr in MiB, with the tensor at work."""
    with progress(description) as bar:
        task = bar.add_task("", total=None, detail="")

        def show(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done // _MIB, total=total // _MIB, detail=f"MiB {name}")

        yield show


def write_text(path: Path, text: str) -> None:
    """Writes a small file, as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
