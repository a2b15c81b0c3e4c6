"""One file out of several modules: what is taken, what is left, what cannot be moved."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from nibblas.competition import bundle

ROOT = '''"""What the file is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nibblas.far import Shape, unused
from nibblas.near import area_of

KIND: str = compute()
"""Which kind."""


@dataclass
class Kept:
    side: int

    def __str__(self) -> str:
        return "kept whole"


# Why it is so.
def run() -> float:
    """Runs.

    In full, for this module.
    """
    return area_of(Shape(math.floor(2.5))) if KIND else 0
'''
NEAR = '''"""Near."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from nibblas.far import Shape

if TYPE_CHECKING:
    from nibblas.root import Kept

assert Shape

LIMIT = 3


def area_of(shape: Shape) -> float:
    """The area.

    Args:
        shape: of which.
    """
    return helper(shape.area)


def helper(area: int) -> int:
    return min(area, LIMIT * LIMIT)


def other(x: Tensor) -> Kept: ...
'''
FAR = '''"""Far."""

from __future__ import annotations


class Shape:
    """A square."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __str__(self) -> str:
        return "a square"

    @property
    def area(self) -> int:
        """Of the square."""
        return self.squared()

    @property
    def perimeter(self) -> int:
        return 4 * self.side

    def squared(self) -> int:
        return self.side**2


unused = 1
'''


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "nibblas"
    package.mkdir()
    for name, text in (("root", ROOT), ("near", NEAR), ("far", FAR)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(bundle, "PACKAGE", package)
    return package


def bundled() -> str:
    return bundle.Bundle("nibblas.root", {"KIND": "'round'"}).text()


def test_it_runs_without_the_modules(modules: Path, tmp_path: Path) -> None:
    path = tmp_path / "one_file.py"
    path.write_text(bundled())
    names = runpy.run_path(str(path), run_name="one_file")
    assert names["run"]() == 4
    assert names["KIND"] == "round"


def test_modules_come_before_those_that_use_them(modules: Path) -> None:
    headings = [line for line in bundled().splitlines() if line.startswith("# From")]
    assert headings == ["# From nibblas.far", "# From nibblas.near", "# From nibblas.root"]


def test_only_what_is_used_is_taken(modules: Path) -> None:
    text = bundled()
    for left in ("unused = 1", "def other", "perimeter", "a square", "assert", "Tensor"):
        assert left not in text
    for taken in ("LIMIT = 3", "def squared", "def __init__", "kept whole", "# Why it is so."):
        assert taken in text


def test_docstrings_are_whole_in_the_root_and_summaries_elsewhere(modules: Path) -> None:
    text = bundled()
    assert text.startswith('"""What the file is."""\n')
    assert "In full, for this module." in text
    assert '    """The area."""\n' in text
    assert '"""Which kind."""' in text


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("far", "unused = 1", "def helper(): ...\nunused = helper()", "helper: defined in"),
        ("far", '"""Far."""', "import math as m", "math as m: cannot be put into"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    modules: Path, file: str, old: str, new: str, message: str
) -> None:
    path = modules / f"{file}.py"
    path.write_text(path.read_text().replace(old, new))
    root = modules / "root.py"
    root.write_text(root.read_text() + "\n\nMORE = unused\n")
    with pytest.raises(ValueError, match=f"^{message}"):
        bundled()
