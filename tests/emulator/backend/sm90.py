"""How the Hopper kernels are run on the emulator: by the shipped launch code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends import sm90
from nibblas.backends.portable import PortableBackend
from nibblas.backends.sm90 import Sm90Backend
from nibblas.emulator import emulating
from nibblas.emulator.driver import Emulation
from nibblas.plan.problem import Problem
from nibblas.plan.sm90 import Sm90Config, choose_config
from tests.api.problems import random_array, random_tokens

PREPARE, MULTIPLY = "nibblas_sm90_prepare_tokens", "nibblas_sm90_grouped_mm"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def on_hopper(
    *, chosen: str = "sm90", cluster: int | None = None, **emulation: Any
) -> Iterator[Emulation]:
    """Inside, ``backend="emulated"`` is an sm_90 with that kernel, whatever is predicted.

    Args:
        cluster: CTAs of a cluster; None: as the plan chooses.
    """
    other = {"sm90": PortableBackend, "portable": Sm90Backend}[chosen]
    keywords: dict[str, Any] = {"num_sms": 2, "order": "random", **emulation}

    def config_of(problem: Problem) -> Sm90Config:
        config = choose_config(problem)
        return config if cluster is None else replace(config, cluster=cluster)

    nibblas.ops.forget_plans()
    try:
        with (
            patch.object(other, "why_not", lambda self, problem: ["not asked"]),
            patch.object(sm90, "choose_config", config_of),
            emulating("sm_90", **keywords) as it,
        ):
            yield it
    finally:
        nibblas.ops.forget_plans()


def tokens(kind: str, rows: int, k: int, seed: int, *, ends: list[int], rule: Any = None) -> Any:
    """Of that kind; NVFP4 ones with scales by group if a rule is given."""
    if kind != "nvfp4":
        return random_tokens(rows, k, seed, DTYPES[kind])
    if rule is None:
        return random_array((rows, k), seed, global_shape=(len(ends),))
    return random_array((rows, k), seed, ends=ends, rule=rule, global_shape=(len(ends),))


def rows_of(x: Any, m: int) -> Any:
    """The first m rows."""
    if isinstance(x, NVFP4Array):
        return NVFP4Array(x.codes[:m], x.scales[:m], global_scale=x.global_scale)
    return x[:m]


def launched(emulation: Emulation) -> list[str]:
    return [report.kernel for report in emulation.reports]
