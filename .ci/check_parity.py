"""Whether every test that docs/parity.md names has run and passed: ``check_parity.py REPORT``.

REPORT is the JUnit file of a whole run, ``pytest --junitxml=REPORT``. Ends with 1 and a line for
every test that is absent, was skipped, or failed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "parity.md"

_ID = re.compile(r"`(tests/[\w/]+\.py::\w+(?:\[[^`]+\])?)`")


def named_tests(text: str) -> list[str]:
    """The pytest node ids in code spans of a page, each once; without [...] all its cases."""
    return list(dict.fromkeys(_ID.findall(text)))


def cases_of(name: str, ids: Iterable[str]) -> list[str]:
    """Which of the ids a name stands for."""
    return [each for each in ids if each == name or each.startswith(f"{name}[")]


def outcomes(report: str) -> dict[str, str]:
    """Of each test of a JUnit report, by node id: "passed", "skipped", "failed"."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        tags = {child.tag for child in case}
        skipped = "skipped" if "skipped" in tags else "passed"
        found[f"{path}::{case.attrib['name']}"] = (
            "failed" if tags & {"failure", "error"} else skipped
        )
    return found


def faults(names: Iterable[str], results: Mapping[str, str]) -> list[str]:
    """A line for every test that is absent or did not pass."""
    lines = []
    for name in names:
        cases = cases_of(name, results)
        if not cases:
            lines.append(f"{name}: absent")
        lines += [f"{case}: {results[case]}" for case in cases if results[case] != "passed"]
    return lines


def main(arguments: list[str]) -> int:
    (report,) = arguments
    names = named_tests(PAGE.read_text(encoding="utf-8"))
    if not names:
        print(f"{PAGE} names no test", file=sys.stderr)
        return 1
    lines = faults(names, outcomes(Path(report).read_text(encoding="utf-8")))
    for line in lines:
        print(line, file=sys.stderr)
    print(f"parity: {len(names)} tests named, {len(lines)} absent, skipped or failed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
