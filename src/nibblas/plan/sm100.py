"""Presets of the datacenter Blackwell kernels (kernels/sm100): which configuration takes a product.

Three presets, each a set of configurations with the rules by which they are chosen. The first two
are those of public kernels of the NVFP4 grouped-GEMM competition on B200:

    fused_persistent  128 x 128 tiles, clusters of 1, 2 or 4 along N that share their tokens, 4 to 6
                      stages, two sets of sums, contiguous runs of tiles
    wide_deep         128 x 256 tiles in clusters of 4 for wide products, else 128 x 128 tiles with
                      6 or 3 stages; one producer for tokens and one for weights
    swapped           weights on the tensor core's M side, 256 rows by pairs of CTAs, tokens on N,
                      as many as a group has; 5 to 8 stages (plan/sm100_swapped.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

from nibblas.errors import bad_value
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.sm100_config import (
    CAPACITIES,
    MAX_GROUPS_OF_TWO,
    SWAPPED_SOURCE,
    TILE_M,
    TOKENS_ON_M_SOURCE,
    Sm100Config,
)
from nibblas.plan.sm100_swapped import choose_swapped, loading, swapped

Preset = Literal["fused_persistent", "wide_deep", "swapped"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

DEFAULT_PRESET: Preset = "fused_persistent"
"""Where nobody names one and no model decides: of a submission to the competition."""


def _fused(cluster: int, stages: int) -> Sm100Config:
    return Sm100Config(
        tile_n=128,
        cluster=cluster,
        producers=1,
        accumulators=2,
        multicast_scales=cluster > 1,
        prefetches=True,
        bulk_scales=True,
        tensor_copies=True,
        capacity=1,
        stages=stages,
        order="runs",
    )


def _wide() -> Sm100Config:
    return Sm100Config(
        tile_n=256,
        cluster=4,
        producers=2,
        accumulators=1,
        multicast_scales=False,
        prefetches=False,
        bulk_scales=True,
        tensor_copies=True,
        capacity=1,
        stages=4,
        order="token_tiles",
    )


def _deep(stages: int) -> Sm100Config:
    return replace(_wide(), tile_n=128, cluster=1, stages=stages, order="interleaved")


def choose_fused(shapes: Sequence[GroupShape]) -> Sm100Config:
    """fused_persistent's configuration for products that share a launch.

    The cluster: 4 where every K is at least 4096, 2 from 1024 on, and no more than divides every
    group's tiles along N. The stages: 6 where even the group with the least arithmetic intensity,
    2MNK / (0.5 (MK + NK) + 2MN), has more than 150 operations per byte, 5 above 100, else 4.
    """
    busy = [s for s in shapes if s.m and s.n] or list(shapes)
    least_k = min(s.k for s in busy)
    cluster = 4 if least_k >= 4096 else 2 if least_k >= 1024 else 1
    while any(-(-s.n // 128) % cluster for s in busy):
        cluster //= 2
    intensity = min(map(_intensity, busy))
    return _fused(cluster, 6 if intensity > 150 else 5 if intensity > 100 else 4)


def _intensity(s: GroupShape) -> float:
    """Operations per byte as fused_persistent counts them: no scales, 2 bytes per output."""
    moved = 0.5 * (s.m * s.k + s.n * s.k) + 2 * s.m * s.n
    return 2 * s.m * s.n * s.k / moved if moved else 0.0


def is_wide(s: GroupShape) -> bool:
    """Whether wide_deep gives a group 256-wide tiles."""
    return s.n >= 4096 and s.k >= 2048 and s.n % 256 == 0


def choose_wide_deep(shapes: Iterable[GroupShape], sms: int) -> Sm100Config:
    """wide_deep's configuration for products that are all wide or all not.

    Narrow ones take 3 stages, of which two CTAs share a multiprocessor, when there are more than
    two waves of items for the 6-stage variant.
    """
    busy = list(shapes)
    if all(map(is_wide, busy)):
        return _wide()
    items = sum(-(-s.m // TILE_M) * -(-s.n // 128) for s in busy)
    deep, shallow = _deep(6), _deep(3)
    more_fit = shallow.ctas_per_sm > deep.ctas_per_sm and len(busy) <= MAX_GROUPS_OF_TWO
    return shallow if more_fit and items > 2 * sms * deep.ctas_per_sm else deep


def preset_named(name: str | None, argument: str) -> Preset:
    """The preset of that name, the default one for None; ValueError names ``argument``."""
    if name is None:
        return DEFAULT_PRESET
    for preset in PRESETS:
        if preset == name:
            return preset
    raise bad_value(argument, given=repr(name), wanted=f"one of {', '.join(map(repr, PRESETS))}")


def source_of(preset: Preset) -> str:
    """The kernel's file below kernels/."""
    return SWAPPED_SOURCE if preset == "swapped" else TOKENS_ON_M_SOURCE


def choose_configs(
    shapes: Sequence[GroupShape], preset: Preset, sms: int, *, most_rows: int | None = None
) -> tuple[Sm100Config, ...]:
    """The configurations of a problem's launches: two where wide_deep finds groups of both kinds.

    Layouts and capacity: as for aligned blocked operands of one product; ``adapted`` settles them.

    Args:
        most_rows: that any group may have, where ``shapes`` does not say it: see ``most_rows``.
    """
    if preset == "swapped":
        return (choose_swapped(shapes, sms, most_rows),)
    if preset == "fused_persistent":
        return (choose_fused(shapes),)
    kinds = [[s for s in shapes if is_wide(s) == wide] for wide in (True, False)]
    return tuple(choose_wide_deep(kind, sms) for kind in kinds if kind)


def most_rows(problem: Problem) -> int | None:
    """Rows that any group may have where its size is the device's; None: the host knows sizes."""
    if problem.form == "list":
        return None
    return problem.rows if problem.form == "packed" else max(s.m for s in problem.shapes)


def adapted(
    config: Sm100Config, *, products: int, bulk_scales: bool, tensor_copies: bool
) -> Sm100Config:
    """The variant for operands of that kind.

    Where codes cannot come through TMA, four warps load them, and every CTA for itself.
    """
    capacity = next(c for c in CAPACITIES if c >= products)
    config = replace(config, capacity=capacity)
    if config.swapped and not tensor_copies:
        return loading(config)
    if not tensor_copies:
        return replace(
            config,
            tile_n=128,
            cluster=1,
            producers=4,
            accumulators=2,
            multicast_scales=False,
            prefetches=False,
            bulk_scales=False,
            tensor_copies=False,
            order="runs",
            stages=4,
        )
    if not bulk_scales:
        return replace(config, multicast_scales=False, bulk_scales=False)
    return config


def all_configs() -> Iterator[Sm100Config]:
    """Every compiled variant that the presets and ``adapted`` can ask for, for prebuilding."""
    bases = [*(_fused(cluster, 4) for cluster in (1, 2, 4)), _wide(), _deep(6)]
    bases += [swapped(cluster, 128) for cluster in (2, 1)]
    kinds = ((True, True), (False, True), (False, False))
    seen: set[str] = set()
    for base in bases:
        for bulk_scales, tensor_copies in kinds:
            for capacity in CAPACITIES:
                config = adapted(
                    base, products=capacity, bulk_scales=bulk_scales, tensor_copies=tensor_copies
                )
                if config.render() not in seen:
                    seen.add(config.render())
                    yield config
