"""Machine code of a cubin as text, through nvdisasm of PyPI's nvidia-cuda-nvdisasm."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

DISTRIBUTION = "nvidia-cuda-nvdisasm"


def nvdisasm() -> Path:
    """The program; skips the test where it is not installed."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
        found = [Path(str(file.locate())) for file in files if file.name == "nvdisasm"]
    except importlib.metadata.PackageNotFoundError:
        found = []
    on_path = shutil.which("nvdisasm")
    found += [Path(on_path)] if on_path else []
    if not found:
        pytest.skip(f"nvdisasm is not installed: pip install {DISTRIBUTION}")
    return found[0]


def opcodes(cubin: bytes, folder: Path) -> Counter[str]:
    """How often each instruction occurs, modifiers included: "LDG.E", "HMMA.16816.F32".

    Args:
        folder: where the cubin is put for the program to read.
    """
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run(
        [nvdisasm(), "-c", path], capture_output=True, text=True, check=True
    ).stdout
    return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text))
