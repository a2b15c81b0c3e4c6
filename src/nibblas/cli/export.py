"""``nibblas competition export``: a submission to the public competition, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nibblas.cli.files import file_errors, write_text
from nibblas.cli.report import Debug, Json, command, print_json
from nibblas.competition.export import submission_text
from nibblas.errors import bad_value
from nibblas.plan.sm100 import DEFAULT_PRESET, PRESETS, preset_named


@command
def export(
    out: Annotated[Path, typer.Argument(help="The file to write.")] = Path("submission.py"),
    *,
    preset: Annotated[str, typer.Option(help=f"{' or '.join(PRESETS)}.")] = DEFAULT_PRESET,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the sm_100 kernel as one file that the competition takes: custom_kernel on a B200.

    The file needs torch and CUDA's own libraries, NVRTC 12.9 or newer among them, and not nibblas.

    \b
    Examples:
      nibblas competition export
      nibblas competition export wide.py --preset wide_deep

    Exit codes: 0 written; 2 bad usage, a file that exists or cannot be written.
    """
    text = submission_text(preset_named(preset, "preset"))
    with file_errors():
        if out.exists() and not force:
            raise bad_value("out", given=f"{out}, which exists", wanted="a new file, or --force")
        write_text(out, text)
    lines = text.count("\n")
    if as_json:
        print_json({"out": str(out), "preset": preset, "lines": lines, "bytes": len(text)})
    else:
        print(f"{out}: {preset}, {lines} lines, {len(text)} bytes")
