"""Benchmarks: the case tables, rivals, floors, and a runner that times nothing that is wrong.

``cases`` holds the sizes, ``contenders`` what is timed of ours, ``torch_rivals`` and
``humming_rival`` what beside it, ``timing`` how, ``floors`` the least time any kernel can take,
``runner`` the gate and the order of it all, ``report`` lines and plot.
"""

from __future__ import annotations

from nibblas.bench.cases import CASES, BenchCase, cases_named
from nibblas.bench.report import Absence, Line
from nibblas.bench.runner import Settings, run_case

__all__ = [
    "CASES",
    "Absence",
    "BenchCase",
    "Line",
    "Settings",
    "cases_named",
    "run_case",
]
