"""Every case, by name."""

from __future__ import annotations

from functools import cache

from tests.emulator.golden import barriers, lanewise, memory, rarer, tensors, warpwide, wgmma
from tests.emulator.golden.case import Case

MODULES = (lanewise, warpwide, memory, barriers, tensors, wgmma, rarer)


@cache
def all_cases() -> dict[str, Case]:
    cases = [case for module in MODULES for case in module.cases()]
    named = {case.name: case for case in cases}
    assert len(named) == len(cases), "two cases of one name"
    return named
