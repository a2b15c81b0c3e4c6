"""The documentation says what is so: its Python runs, what it names exists.

Blocks of one page run in order and share their names. A block of ``>>>`` examples must give the
output that it shows; any other Python block must run.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import nibblas
from nibblas import competition
from nibblas.backends import registry
from nibblas.competition import BenchmarkCase, StopRule

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "nibblas"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")])
MODULES = sorted(m.name for m in pkgutil.walk_packages(nibblas.__path__, "nibblas."))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TAGS = {"", "c", "cpp", "python", "sh", "text", "toml"}


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


class Block(NamedTuple):
    """A fenced block; ``line`` is its first line in the page, from 1."""

    tag: str
    line: int
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        yield Block(match.group(1), text[: match.start(2)].count("\n") + 1, match.group(2))


def run_block(block: Block, page: Path, names: dict[str, object]) -> None:
    if ">>>" not in block.text:
        # Empty lines in front make a traceback's line numbers those of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        return
    title = f"{page.name}, block at line {block.line}"
    test = doctest.DocTestParser().get_doctest(block.text, names, title, str(page), block.line - 1)
    test.globs = names
    result = doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, clear_globs=False)
    assert result.failed == 0, f"{title}: see the captured output"


def python_blocks_of(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.tag == "python"]


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No forced backend, a fixed seed, and an empty folder to write into."""
    monkeypatch.delenv("NIBBLAS_BACKEND", raising=False)
    monkeypatch.delenv("NIBBLAS_CPU_LEVEL", raising=False)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.fixture
def _short_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small case and few repeats in place of minutes of the public benchmark."""
    case = BenchmarkCase("C", g=2, m=(4, 8), n=(16, 16), k=(64, 64), speed_of_light_us=1.0)
    short = partial(competition.time_case, stop=StopRule(time_limit_s=0.1), flush_bytes=1 << 20)
    monkeypatch.setattr(competition, "BENCHMARKS", (case,))
    monkeypatch.setattr(competition, "time_case", short)


@pytest.mark.usefixtures("_short_benchmark")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks_of(page)], ids=page_name)
def test_python_blocks_run_and_give_what_they_show(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks_of(page):
        run_block(block, page, names)


@each_page
def test_blocks_say_what_they_hold(page: Path) -> None:
    """A Python block under another tag would go unrun."""
    for block in blocks_of(page):
        assert block.tag in TAGS, f"{page.name}:{block.line}: unknown tag {block.tag!r}"
        if block.tag != "python":
            assert not re.search(r"^(>>> |import |from \w+ import )", block.text, re.MULTILINE), (
                f"{page.name}:{block.line}: looks like Python, is tagged {block.tag!r}"
            )


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@each_page
def test_files_and_functions_named_in_code_spans_exist(page: Path) -> None:
    """`folder/file.py` and `folder/file.py::function`, from the root or from src/nibblas."""
    spans = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|h|cpp|md))(?:::(\w+))?`", page.read_text())
    for path, function in spans:
        found = [base / path for base in (ROOT, SOURCE, page.parent) if (base / path).is_file()]
        assert found, f"{page.name}: no file {path}"
        if function:
            defined = re.search(rf"\b{function}\b", found[0].read_text())
            assert defined, f"{page.name}: no {function} in {path}"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_show(name: str) -> None:
    if name.startswith("nibblas.cli"):
        pytest.importorskip("typer", reason="the command line's extra is not installed")
    module = importlib.import_module(name)
    names = {"torch": torch, "nibblas": nibblas}
    assert doctest.testmod(module, extraglobs=names, optionflags=FLAGS).failed == 0


def test_api_page_names_everything_public() -> None:
    """Public names, backends and environment variables, from where they are defined."""
    page = (ROOT / "docs" / "api.md").read_text()
    names = [name for name in nibblas.__all__ if name not in page]
    names += [b.name for b in registry.all_backends() if f"| `{b.name}` |" not in page]
    variables = re.findall(r'_VARIABLE = "(\w+)"', (SOURCE / "env.py").read_text())
    assert variables
    names += [variable for variable in variables if f"| `{variable}` |" not in page]
    assert names == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (">>> 1 + 1\n3\n", AssertionError),
        (">>> undefined\n", AssertionError),
        ("x = 1\nassert x == 2\n", AssertionError),
        ("import nibblas\nnibblas.no_such_name\n", AttributeError),
    ],
)
def test_a_block_that_is_not_so_is_noticed(
    text: str, fault: type[Exception], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\n{text}```\n")
    (block,) = blocks_of(page)
    assert (block.tag, block.line) == ("python", 4)
    with pytest.raises(fault):
        run_block(block, page, {})
