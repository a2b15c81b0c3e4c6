"""Which cases of tests that run whole kernels are run: every n-th of a test, EVERY_CASE=1 for all.

A case takes seconds, and there are many. The first of each test is always run, and so is what
docs/parity.md names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: By file below tests/emulator: one case of so many.
ONE_OF = {
    "backend/test_portable.py": 3,
    "backend/test_sm100.py": 8,
    "backend/test_sm100_given.py": 3,
    "backend/test_sm100_items.py": 6,
    "backend/test_sm100_swapped.py": 10,
    "backend/test_sm90.py": 5,
    "backend/test_sm90_walk.py": 11,
    "faults/test_faults.py": 3,
    "faults/test_sm100_faults.py": 5,
    "faults/test_sm90_faults.py": 5,
}


def split(items: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """(kept, left out), each in order. Items are pytest's: a nodeid says file, test and case."""
    named = (ROOT / "docs/parity.md").read_text(encoding="utf-8")
    kept: list[Any] = []
    left_out: list[Any] = []
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        step = ONE_OF.get(test.partition("::")[0].removeprefix("tests/emulator/"), 1)
        wanted = seen[test] % step == 0 or ("[" in item.nodeid and f"`{item.nodeid}`" in named)
        (kept if wanted else left_out).append(item)
        seen[test] += 1
    return kept, left_out


def is_asked_for_all() -> bool:
    return any(os.environ.get(name) for name in ("EVERY_CASE", "EVERY_FAULT"))
