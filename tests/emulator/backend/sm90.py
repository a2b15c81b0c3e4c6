"""How the Hopper kernels are run on the emulator: by the shipped launch code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends import sm90
from nibblas.backends.portable import PortableBackend
from nibblas.emulator import emulating
from nibblas.emulator.driver import Emulation
from nibblas.plan.problem import Activations, Problem
from nibblas.plan.sm90 import Sm90Config, choose_config
from tests.api.problems import random_array, random_tokens

PREPARE, MULTIPLY = "nibblas_sm90_prepare_tokens", "nibblas_sm90_grouped_mm"
PORTABLE = "nibblas_portable_grouped_mm"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

Shape = Callable[[Activations], Sm90Config]
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "few": Sm90Config.few,
        "some": Sm90Config.some,
        "one wave": Sm90Config.one_wave,
        "many": Sm90Config,
    }
)


class OneCut(Sm90Config):
    """Cuts tiles and blocks in one way, whatever the sizes."""

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        return ((self.max_tokens, self.multiply_groups),)


class OneUnit(Sm90Config):
    """The other kind of cut: a unit per CTA."""

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        return ((self.max_tokens, 1),)


@contextmanager
def on_hopper(
    *,
    shape: str = "",
    all_widths: bool = False,
    config: Shape | None = None,
    **emulation: Any,
) -> Iterator[Emulation]:
    """Inside, ``backend="emulated"`` is an sm_90 with that kernel, whatever is predicted.

    Args:
        shape: of SHAPES; empty: as the plan chooses.
        all_widths: those that ship, which take long to compile; else the least and the largest.
        config: in place of all that.
    """
    keywords: dict[str, Any] = {"num_sms": 2, "order": "random", **emulation}

    def config_of(problem: Problem) -> Sm90Config:
        if config is not None:
            return config(problem.activations)
        found = SHAPES[shape](problem.activations) if shape else choose_config(problem)
        return found if all_widths else replace(found, widths=(found.widths[0], found.widths[-1]))

    nibblas.ops.forget_plans()
    try:
        with (
            patch.object(PortableBackend, "why_not", lambda self, problem: ["not asked"]),
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


def launches_for(kind: str) -> list[str]:
    """Of a product whose 16-bit tokens TMA can copy."""
    return [PREPARE, MULTIPLY] if kind == "nvfp4" else [MULTIPLY]
