"""Launches of the texts in triton/, with the parameters that Triton gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nibblas.emulator import Buffer, Device, Report

TEXTS = Path(__file__).parent / "triton"


def launch(dev: Device, name: str, grid: Any, *arguments: Any) -> Report:
    """A compiled kernel with its own launch parameters; Triton appends two scratch pointers.

    ``grid`` counts what the kernel calls programs: CTAs, or clusters of them.
    """
    stem = TEXTS / f"{name}-{dev.arch}"
    about = json.loads(stem.with_suffix(".json").read_text())
    x, y, z = (grid, 1, 1) if isinstance(grid, int) else grid
    grid = (x * about.get("ctas", 1), y, z)
    blocks = int(np.prod(grid))
    scratch: Buffer | int = 0
    if about["scratch_bytes"]:
        scratch = dev.empty(about["scratch_bytes"] * blocks, name="scratch")
    kernel = dev.load_ptx(stem.with_suffix(".ptx").read_text()).kernel(about["entry"])
    return kernel.launch(
        grid, about["threads"], [*arguments, scratch, 0], smem=about["shared_bytes"]
    )
