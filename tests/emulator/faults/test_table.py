"""docs/emulator.md lists the faults that are planted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("faults", ROOT / "lab/emulator/planted_faults.py")
assert _spec and _spec.loader
planted_faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted_faults)


def test_the_page_has_every_fault() -> None:
    page = (ROOT / "docs/emulator.md").read_text()
    assert planted_faults.with_table(page) == page
