"""docs/parity.md names tests that exist and are not skipped, in every row.

Here they are collected; that they ran and passed is seen in CI, from the report of the whole run
(.ci/check_parity.py), whose own logic is tested here too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
SCRIPT = ROOT / ".ci" / "check_parity.py"

WANTED_ROWS = {
    *(f"A.{i}" for i in range(1, 12)),
    *(f"B.{i}" for i in range(1, 8)),
    *(f"H.{i}" for i in range(1, 11)),
}

COLLECTOR = """
import pytest

def is_skipped(mark):
    return mark.name in ("skip", "xfail") or (mark.name == "skipif" and any(mark.args))

class Collected:
    def pytest_collection_finish(self, session):
        for item in session.items:
            state = "marked" if any(map(is_skipped, item.iter_markers())) else "free"
            print("ID", item.nodeid, state, sep="\\t")

raise SystemExit(pytest.main(["--collect-only", "-qq", *FILES], plugins=[Collected()]))
"""


@pytest.fixture(scope="module")
def parity() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("check_parity", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def names(parity: Any) -> list[str]:
    found: list[str] = parity.named_tests(PAGE.read_text())
    assert len(found) > 40
    return found


@pytest.fixture(scope="module")
def collected(names: list[str]) -> dict[str, str]:
    """Of every test in the files that the page names: "free", or "marked" to be skipped."""
    files = sorted({name.split("::")[0] for name in names})
    missing = [file for file in files if not (ROOT / file).is_file()]
    assert missing == []
    surroundings = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-c", f"FILES = {files!r}\n{COLLECTOR}"],
        cwd=ROOT,
        env={**surroundings, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("ID\t")]
    return dict(rows)


def test_every_row_names_a_test(parity: Any) -> None:
    rows = re.findall(r"^\| ([ABH]\.\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert {number for number, _ in rows} == WANTED_ROWS
    assert len(rows) == len(WANTED_ROWS)
    assert [number for number, text in rows if not parity.named_tests(text)] == []


def test_no_named_test_is_overlooked(names: list[str]) -> None:
    """Whatever looks like a test is one that the script finds."""
    looks = set(re.findall(r"[^\s`]*::test_[^`]*", PAGE.read_text()))
    assert looks == set(names)


def test_every_test_exists(parity: Any, names: list[str], collected: dict[str, str]) -> None:
    assert [name for name in names if not parity.cases_of(name, collected)] == []


def test_no_test_is_marked_to_be_skipped(
    parity: Any, names: list[str], collected: dict[str, str]
) -> None:
    cases = [case for name in names for case in parity.cases_of(name, collected)]
    assert [case for case in cases if collected[case] == "marked"] == []


REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.plan.test_a" name="test_one[1-x y]" time="0.5"/>
<testcase classname="tests.plan.test_a" name="test_one[2]" time="0.5"/>
<testcase classname="tests.plan.test_a" name="test_two"><failure message="wrong"/></testcase>
<testcase classname="tests.plan.test_a" name="test_three"><skipped message="no GPU"/></testcase>
<testcase classname="tests.plan.test_a" name="test_four"><error message="teardown"/></testcase>
</testsuite></testsuites>
"""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("test_one", ""),
        ("test_one[1-x y]", ""),
        ("test_one[3]", "absent"),
        ("test_on", "absent"),
        ("test_two", "failed"),
        ("test_three", "skipped"),
        ("test_four", "failed"),
    ],
)
def test_absent_skipped_and_failed_tests_are_noticed(parity: Any, name: str, fault: str) -> None:
    node = f"tests/plan/test_a.py::{name}"
    assert parity.named_tests(f"text `{node}` `other` `{node}`") == [node]
    lines = parity.faults([node], parity.outcomes(REPORT))
    assert lines == ([f"{node}: {fault}"] if fault else [])


def test_the_script_ends_with_1_where_a_test_is_absent(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(report)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count(": absent\n") > 40
