"""How the shipped sm_100 kernel is run with faults in its text: small products of its variants."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends.sm100 import Sm100Backend
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.emulator import EmulatedDriver, EmulationError, backend, emulating
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound
from nibblas.plan.cost import Estimate
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100_config import Sm100Config
from nibblas.plan.sm100_swapped import swapped
from nibblas.runtime import source
from tests.api.problems import offs_of, random_array

Replacement = tuple[str, str, str]
"""A file below kernels/, what stands there once, and what takes its place."""

Schedule = tuple[str, int]
"""Order and seed."""

MAX_INSTRUCTIONS = 400_000
"""An unbroken kernel needs 20,000 to 150,000."""


@dataclass(frozen=True)
class Variant:
    """A configuration and a product that one cluster computes, more stages of K than its ring has.

    Attributes:
        rows: tokens of each group. layout: of the scales of both operands.
        spare: rows of x that belong to no group.
    """

    config: Sm100Config
    rows: tuple[int, ...] = (34, 3)
    n: int = 136
    k: int = 608
    layout: str = "blocked"
    spare: int = 2

    @property
    def ends(self) -> list[int]:
        return list(accumulate(self.rows))


ONE = Sm100Config(
    tile_n=128,
    cluster=1,
    producers=1,
    accumulators=1,
    multicast_scales=False,
    prefetches=True,
    bulk_scales=True,
    tensor_copies=True,
    order="runs",
    capacity=1,
    stages=2,
)
CLUSTER = replace(ONE, cluster=2, accumulators=2, multicast_scales=True)
WIDE = replace(ONE, tile_n=256, producers=2, prefetches=False, order="token_tiles")


def _pair(tile_tokens: int, stages: int) -> Sm100Config:
    return replace(swapped(2, tile_tokens), stages=stages)


SWAPPED_VARIANTS = {
    "pair": Variant(_pair(64, 2)),
    # Three items, one after the other.
    "items": Variant(_pair(64, 3), rows=(34, 3, 20)),
    # More stages than places for scales.
    "slots": Variant(_pair(256, 4), rows=(34,), k=1376),
    # Sums that share columns, scales in two units of 128 rows; K % 64 = 32.
    "large": Variant(_pair(256, 2), rows=(224, 200, 250), n=40, k=352),
    "tiles": Variant(_pair(128, 2), rows=(140,), n=40),
    # Vectors of outputs that N cuts.
    "ragged": Variant(_pair(64, 2), n=132),
    "alone": Variant(replace(swapped(1, 64), stages=2)),
}

VARIANTS = {
    **SWAPPED_VARIANTS,
    "one": Variant(ONE),
    "cluster": Variant(CLUSTER, rows=(3, 34, 2), n=248),
    # The odd CTA has no columns.
    "beyond": Variant(CLUSTER, n=120),
    "wide": Variant(WIDE, n=248),
    "gathered": Variant(replace(ONE, bulk_scales=False), layout="linear"),
    # Rows of 280 bytes: TMA refuses them.
    "loaded": Variant(replace(ONE, bulk_scales=False), layout="linear", k=560),
}


@cache
def operands(variant: Variant) -> tuple[NVFP4Array, NVFP4Array]:
    """x and w, their padding NaN."""
    groups, shape = len(variant.rows), (variant.ends[-1] + variant.spare, variant.k)
    w = random_array((groups, variant.n, variant.k), 1, layout=variant.layout)
    if variant.layout == "linear":
        return random_array(shape, 2), w
    return random_array(shape, 2, ends=variant.ends, rule="torch"), w


@cache
def right(variant: Variant) -> tuple[Exact, torch.Tensor]:
    """The product in float64, and how far from it float32 sums may be."""
    x, w = operands(variant)
    exact = grouped_mm_reference(x, w, offs_of(variant.ends))
    return exact, error_bound(exact, torch.float32)


@contextmanager
def planted(
    folder: Path, replacements: tuple[Replacement, ...], *, arch: str = "sm_100"
) -> Iterator[None]:
    """Inside, kernels come from a new copy in ``folder`` with replacements, for a new device.

    Raises:
        AssertionError: a text to be replaced does not stand there once.
    """
    copy = Path(shutil.copytree(source.KERNELS, folder / "kernels"))
    for name, old, new in replacements:
        text = (copy / name).read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
        (copy / name).write_text(text.replace(old, new))
    driver = EmulatedDriver(arch)
    with (
        patch.object(source, "KERNELS", copy),
        patch.object(backend, "driver_of", lambda arch: driver),
    ):
        yield


def complaint(variant: Variant, schedule: Schedule, *, shared_begin: int = 1024) -> str:
    """What is wrong with a product under a schedule: a report, "wrong: ...", or "": nothing."""
    x, w = operands(variant)
    out = torch.full((len(x.codes), variant.n), float("nan"))
    order, seed = schedule
    with (
        _forced(variant.config),
        emulating(
            "sm_100",
            order=order,
            seed=seed,
            num_sms=variant.config.cluster,
            shared_begin=shared_begin,
            max_instructions=MAX_INSTRUCTIONS,
            unwritten_shared="error",
        ),
    ):
        try:
            nibblas.grouped_mm(x, w, offs_of(variant.ends), out=out, backend="emulated")
        except EmulationError as error:
            return f"{type(error).__name__}: {error}"
    exact, bound = right(variant)
    end = variant.ends[-1]
    within = within_bound(out, exact, bound)[:end]
    if not bool(within.all()):
        return f"wrong: {int((~within).sum())} of {within.numel()} outputs"
    return "" if bool(out[end:].isnan().all()) else "wrong: rows of no group are written"


@contextmanager
def _forced(config: Sm100Config) -> Iterator[None]:
    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        choice = Sm100Choice("fused_persistent", (config,))
        return Plan(self.name, choice, Estimate(0.0, "forced", {}))

    nibblas.ops.forget_plans()
    try:
        with patch.object(Sm100Backend, "plan", plan):
            yield
    finally:
        nibblas.ops.forget_plans()
