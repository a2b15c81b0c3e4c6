"""The public reference problem ``nvfp4_group_gemm``: its data, our kernel for it, a local harness.

``cases`` holds the public sizes, ``task`` the data contract, ``generate`` the inputs, ``checker``
the reference and the tolerances, ``solution`` the kernel, ``harness`` and ``timing`` the runs.

Example:
    >>> from nibblas import competition
    >>> all(result.verdict.bit_exact for result in competition.run_tests("cpu"))
    True
"""

from __future__ import annotations

from nibblas.competition.cases import BENCHMARKS, EDGE_CASES, TESTS, BenchmarkCase, Case
from nibblas.competition.checker import Verdict, WrongOutputError, check, reference
from nibblas.competition.generate import generate_full_range, generate_input
from nibblas.competition.harness import (
    PUBLIC_INPUTS,
    ProgressEvent,
    TestResult,
    check_reused_addresses,
    run_tests,
    time_case,
)
from nibblas.competition.solution import custom_kernel
from nibblas.competition.task import TaskData
from nibblas.competition.timing import StopRule, TimingResult, geometric_mean_us

__all__ = [
    "BENCHMARKS",
    "EDGE_CASES",
    "PUBLIC_INPUTS",
    "TESTS",
    "BenchmarkCase",
    "Case",
    "ProgressEvent",
    "StopRule",
    "TaskData",
    "TestResult",
    "TimingResult",
    "Verdict",
    "WrongOutputError",
    "check",
    "check_reused_addresses",
    "custom_kernel",
    "generate_full_range",
    "generate_input",
    "geometric_mean_us",
    "reference",
    "run_tests",
    "time_case",
]
