"""Configurations of kernels/sm100/swapped.cu, which has weights on the M side, and their choice.

Pairs of CTAs multiply 256 weight rows by up to 256 tokens, single CTAs 128 by up to 128, which is
for few columns. A launch's largest tile of tokens is a parameter, and so is the depth of the ring:
as deep as shared memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100_config import MAX_GROUPS, SHARED_BYTES, STAGE_K, Sm100Config

PAIR_TILES = (16, 32, 64, 128, 192, 256)
SINGLE_TILES = (16, 32, 64, 128)
_FOR_LARGER_GROUPS = (128, 256)
"""A group's blocked scales begin at a multiple of 128 rows, and so do its tiles."""

_STEP = 16
"""Tokens are multiplied in multiples of it."""


def swapped(cluster: int, tile_tokens: int) -> Sm100Config:
    """The configuration of pairs (2) or single CTAs (1), as deep as it can be."""
    return as_deep_as_fits(
        Sm100Config(
            tile_n=128,
            cluster=cluster,
            producers=1,
            accumulators=2,
            multicast_scales=False,
            prefetches=False,
            bulk_scales=True,
            tensor_copies=True,
            order="phases",
            capacity=1,
            stages=1,
            swapped=True,
            tile_tokens=tile_tokens,
            programmatic=True,
        )
    )


def as_deep_as_fits(config: Sm100Config) -> Sm100Config:
    """With so many stages that a table of ``MAX_GROUPS`` groups still fits."""
    rest = config.staging_bytes + config.control_bytes + MAX_GROUPS * config.bytes_per_group
    fitting = (SHARED_BYTES - rest) // config.stage_bytes
    return replace(config, stages=min(config.max_stages, fitting))


def loading(config: Sm100Config) -> Sm100Config:
    """The variant whose warps load codes and scales by themselves: single CTAs."""
    config = replace(
        config,
        cluster=1,
        producers=4,
        bulk_scales=False,
        tensor_copies=False,
        tile_tokens=min(config.tile_tokens, SINGLE_TILES[-1]),
    )
    return as_deep_as_fits(config)


def choose_swapped(
    shapes: Sequence[GroupShape], sms: int, most_rows: int | None = None
) -> Sm100Config:
    """The configuration that lands the fewest bytes in a multiprocessor, for the whole launch.

    Every configuration reads each weight from DRAM once, so what differs is how many phases there
    are and what a phase brings to one CTA: 128 weight rows and its share of the tokens.

    Args:
        most_rows: that a group may have where the host does not know sizes, which ``shapes`` then
            has shared out evenly; None: they are known. Where they are not, a group is taken to
            have up to twice its share.
    """
    busy = [s for s in shapes if s.m and s.n] or list(shapes)
    share = max(s.m for s in busy)
    most = share if most_rows is None else most_rows
    least = most if most <= 128 else 128
    if most_rows is not None:
        least = min(most, 2 * share)
    configs = [
        swapped(cluster, tile)
        for cluster, tiles in ((2, PAIR_TILES), (1, SINGLE_TILES))
        for tile in _tiles_for(most, tiles)
        if tile >= min(least, tiles[-1])
    ]
    return min(configs, key=lambda config: (_landed(config, busy, sms), -config.stages))


def _tiles_for(most_rows: int, tiles: Sequence[int]) -> list[int]:
    """The smallest tile that holds every group, and those that may be one of several."""
    holding = [tile for tile in tiles if tile >= most_rows][:1]
    return sorted({*holding, *(tile for tile in _FOR_LARGER_GROUPS if tile in tiles)})


def _landed(config: Sm100Config, shapes: Sequence[GroupShape], sms: int) -> int:
    """Rows and values of K that arrive in the shared memory of the busiest CTA."""
    tile, rows = config.tile_tokens, config.cluster_columns
    items = sum(-(-s.m // tile) * -(-s.n // rows) for s in shapes)
    phases = -(-items // max(1, sms // config.cluster))

    def of_item(s: GroupShape) -> int:
        tokens = min(tile, -(-s.m // _STEP) * _STEP)
        return -(-s.k // STAGE_K) * (config.tile_n + tokens // config.cluster)

    return phases * max(map(of_item, shapes))
