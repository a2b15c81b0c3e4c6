"""How a grouped product is split among workers: the Python twin of kernels/common/scheduler.h.

Tiles of weight rows, listed group by group, are cut into contiguous runs of equal cost. A tile
belongs to the worker in whose share of the total cost it starts, so shares differ by less than one
tile, and every worker finds its run from the group sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class GroupTiles(NamedTuple):
    """Tiles of one group, and the cost of each in any unit; 0: the group has no tokens."""

    tiles: int
    cost: int


class TilePosition(NamedTuple):
    """A tile; ``group`` equal to the number of groups is the end of the list."""

    group: int
    tile: int


class TileRun(NamedTuple):
    """Tiles from ``begin`` up to ``end``; tiles of empty groups may lie inside."""

    begin: TilePosition
    end: TilePosition


def tile_cost(tokens: int, fixed: int, per_token: int) -> int:
    """Cost of a tile of a group with that many tokens; ``fixed`` is for its weights."""
    return fixed + per_token * tokens if tokens else 0


def packed_tiles(
    offs: Sequence[int], rows: int, *, tiles_per_group: int, fixed: int, per_token: int
) -> list[GroupTiles]:
    """Groups of a packed product; ends in ``offs`` are clamped into ``[previous end, rows]``."""
    groups, previous = [], 0
    for end in offs:
        clamped = max(previous, min(end, rows))
        groups.append(GroupTiles(tiles_per_group, tile_cost(clamped - previous, fixed, per_token)))
        previous = clamped
    return groups


def find_run(groups: Sequence[GroupTiles], worker: int, workers: int) -> TileRun:
    """The run of one worker among ``workers``."""
    total = sum(group.tiles * group.cost for group in groups)
    return TileRun(
        _first_tile_from(groups, total * worker // workers),
        _first_tile_from(groups, total * (worker + 1) // workers),
    )


def _first_tile_from(groups: Sequence[GroupTiles], target: int) -> TilePosition:
    """First tile that starts at or after ``target`` units of cost from the beginning."""
    start = 0
    for g, (tiles, cost) in enumerate(groups):
        if tiles and cost and start + (tiles - 1) * cost >= target:
            return TilePosition(g, max(0, -((start - target) // cost)))
        start += tiles * cost
    return TilePosition(len(groups), 0)
