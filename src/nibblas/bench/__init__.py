"""Benchmarks: the case tables, rivals, floors, and a runner that times nothing that is wrong.

``cases`` holds the sizes, ``contenders`` what is timed, ``timing`` how, ``floors`` the least time
any kernel can take, ``runner`` the gate and the order of it all, ``report`` lines, table and plot.
"""

from __future__ import annotations

from nibblas.bench.cases import CASES, BenchCase, cases_named
from nibblas.bench.report import Line
from nibblas.bench.runner import Settings, WrongResultError, run_case

__all__ = [
    "CASES",
    "BenchCase",
    "Line",
    "Settings",
    "WrongResultError",
    "cases_named",
    "run_case",
]
