"""checked.py and the table of docs/emulator.md say what the golden vectors show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from nibblas.emulator.isa.checked import CHECKED
from nibblas.emulator.isa.registry import MANUAL_ONLY, handler_name
from nibblas.emulator.isa.table import all_handlers

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("provenance", ROOT / "lab/emulator/provenance.py")
assert _spec and _spec.loader
provenance = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(provenance)


def test_what_is_called_checked_decodes_a_case_that_agrees() -> None:
    assert CHECKED.items() <= provenance.checked().items()


def test_checked_names_handlers() -> None:
    assert CHECKED.keys() <= {handler_name(handler) for handler in all_handlers()}
    for handler in all_handlers():
        checked = CHECKED.get(handler_name(handler))
        assert handler.provenance == checked or handler.provenance.startswith(MANUAL_ONLY)


def test_the_page_has_every_handler() -> None:
    page = (ROOT / "docs/emulator.md").read_text()
    assert provenance.with_table(page, provenance.table(all_handlers())) == page
