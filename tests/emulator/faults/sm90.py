"""How the shipped Hopper kernels are run with faults in their text: small products of one CTA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends import sm90
from nibblas.emulator import EmulationError
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound
from nibblas.plan.problem import Activations
from nibblas.plan.sm90 import Sm90Config
from tests.api.problems import offs_of, random_array
from tests.emulator.backend.sm90 import OneCut, OneUnit, on_hopper, tokens
from tests.emulator.backend.stale import written_late
from tests.emulator.faults import sm100
from tests.emulator.faults.sm100 import Replacement, Schedule

READER_LAST: Schedule = ("adversarial-starve", 9)
"""For ``written_late``: who compares offs waits last, when it is written."""
MAX_INSTRUCTIONS = 200_000
"""An unbroken kernel needs a fifth of it."""


@dataclass(frozen=True)
class Variant:
    """A product that one CTA computes, in more stages of K than its ring has.

    Attributes:
        rows: tokens of each group. layout: of the weights' scales. out: type of the outputs.
        cut: how the launch is cut. stale: what offs holds until the launches before have ended.
        factor: of the outputs, by the keyword of grouped_mm.
    """

    rows: tuple[int, ...] = (34, 3)
    n: int = 160
    k: int = 320
    layout: str = "blocked"
    kind: str = "fp16"
    out: torch.dtype = torch.float16
    cut: type[Sm90Config] = OneCut
    stale: tuple[int, ...] = ()
    factor: str = ""

    @property
    def ends(self) -> list[int]:
        return list(accumulate(self.rows))

    @property
    def factors(self) -> dict[str, Any]:
        """None makes outputs infinite; alpha times what the decode leaves out would."""
        end = self.ends[-1]
        made = {
            "bias": torch.linspace(-1, 1, self.n),
            "row_scale": torch.linspace(0.25, 1, end + 2),
            "alpha": torch.full((len(self.rows),), 2.0**115),
        }
        return {self.factor: made[self.factor]} if self.factor else {}

    def config(self, activations: Activations) -> Sm90Config:
        """Few widths, which compile fast; a ring of two."""
        return self.cut(activations, (8, 48), stages=2)


VARIANTS = {
    "plain": Variant(),
    "three tiles": Variant(rows=(130,), k=64),
    "stale": Variant(rows=(3, 2), n=32, k=64, stale=(3, 4)),
    "unit": Variant(cut=OneUnit),
    "tiles": Variant(rows=(9, 91), n=32, k=64),
    "groups": Variant(rows=(*(0,) * 33, 3, 0, 9), n=32, k=64),
    "short": Variant(rows=(3,), n=96, k=192),
    "elements": Variant(rows=(3,), n=96, k=64, out=torch.float32),
    "linear": Variant(rows=(3,), n=96, k=256, layout="linear"),
    "bf16": Variant(rows=(3,), n=96, k=64, kind="bf16"),
    "nvfp4": Variant(rows=(3, 2), n=32, k=192, kind="nvfp4"),
    "bias": Variant(rows=(3,), n=96, k=64, factor="bias"),
    "row scale": Variant(rows=(3,), n=96, k=64, factor="row_scale"),
    "huge factors": Variant(rows=(3,), n=96, k=64, factor="alpha", out=torch.bfloat16),
}


@cache
def operands(variant: Variant) -> tuple[Any, NVFP4Array]:
    """x, with rows of no group, and w, its padding NaN."""
    groups = len(variant.rows)
    w = random_array((groups, variant.n, variant.k), 1, layout=variant.layout)
    ends = variant.ends
    return tokens(variant.kind, ends[-1] + 2, variant.k, 2, ends=ends, rule="torch"), w


@cache
def right(variant: Variant) -> tuple[Exact, torch.Tensor]:
    """The product in float64, and how far from it outputs may be."""
    exact = grouped_mm_reference(*operands(variant), offs_of(variant.ends), **variant.factors)
    return exact, error_bound(exact, variant.out)


@contextmanager
def planted(folder: Path, replacements: tuple[Replacement, ...]) -> Iterator[None]:
    """Inside, kernels come from a new copy in ``folder`` with replacements, for a new Hopper."""
    with sm100.planted(folder, replacements, arch="sm_90"):
        yield


def complaint(variant: Variant, schedule: Schedule) -> str:
    """What is wrong with a product under a schedule: a report, "wrong: ...", or "": nothing."""
    x, w = operands(variant)
    end = variant.ends[-1]
    out = torch.full((end + 2, variant.n), float("nan"), dtype=variant.out)
    order, seed = schedule
    emulation: dict[str, Any] = {"order": order, "seed": seed}
    with (
        patch.object(sm90, "_ctas", lambda product, config, device: 1),
        on_hopper(config=variant.config, max_instructions=MAX_INSTRUCTIONS, **emulation),
    ):
        offs = offs_of(variant.ends)
        late = (
            written_late(offs, list(variant.stale), but_for=1) if variant.stale else nullcontext()
        )
        try:
            with late:
                nibblas.grouped_mm(x, w, offs, out=out, backend="emulated", **variant.factors)
        except EmulationError as error:
            return f"{type(error).__name__}: {error}"
    exact, bound = right(variant)
    within = within_bound(out, exact, bound)[:end]
    if not bool(within.all()):
        return f"wrong: {int((~within).sum())} of {within.numel()} outputs"
    return "" if bool(out[end:].isnan().all()) else "wrong: rows of no group are written"
