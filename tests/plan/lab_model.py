"""lab/model as modules; tests that need it are skipped where an sdist has left lab/ out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "lab" / "model"


def load(name: str) -> ModuleType:
    """The module of that name; those that it imports from the same folder are found."""
    path = FOLDER / f"{name}.py"
    if not path.exists():
        pytest.skip("an sdist leaves out lab/", allow_module_level=True)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
