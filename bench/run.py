"""The benchmark, from the source tree: `nibblas bench` with a result file named after the machine.

    PYTHONPATH=src python bench/run.py --case c1 --case c4

Arguments are those of `nibblas bench`; lines are added to bench/results/MACHINE.jsonl.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from nibblas.bench.machine import processor
from nibblas.cli.app import app

RESULTS = Path(__file__).parent / "results"


def machine_name() -> str:
    """The GPU's name, or the CPU's, as a file name."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--out" not in arguments and "--list" not in arguments:
        arguments += ["--out", str(RESULTS / f"{machine_name()}.jsonl")]
    app(["bench", *arguments], prog_name="nibblas")
