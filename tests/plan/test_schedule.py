"""What the schedule promises, on many random group sizes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nibblas.plan.schedule import GroupTiles, TilePosition, find_run, packed_tiles

GROUPS = st.lists(st.builds(GroupTiles, st.integers(0, 9), st.integers(0, 50)), max_size=8)


def tiles_of_run(groups: list[GroupTiles], begin: TilePosition, end: TilePosition) -> list[int]:
    """Costs of the non-empty tiles of a run, in order."""
    return [
        group.cost
        for g, group in enumerate(groups)
        for tile in range(group.tiles)
        if group.cost and begin <= (g, tile) < end
    ]


@given(GROUPS, st.integers(1, 20))
def test_every_tile_with_work_is_in_exactly_one_run(groups: list[GroupTiles], workers: int) -> None:
    runs = [find_run(groups, worker, workers) for worker in range(workers)]
    assert all(a.end == b.begin for a, b in itertools.pairwise(runs))
    found = [cost for run in runs for cost in tiles_of_run(groups, *run)]
    end = TilePosition(len(groups), 0)
    assert found == tiles_of_run(groups, TilePosition(0, 0), end)


@given(GROUPS, st.integers(1, 20))
def test_shares_differ_by_less_than_one_tile(groups: list[GroupTiles], workers: int) -> None:
    total = sum(group.tiles * group.cost for group in groups)
    largest = max((group.cost for group in groups), default=0)
    for worker in range(workers):
        share = sum(tiles_of_run(groups, *find_run(groups, worker, workers)))
        assert abs(share - total / workers) < largest + 1


def test_no_group_has_work() -> None:
    groups = packed_tiles([0, 0, 0], 0, tiles_per_group=4, fixed=3, per_token=1)
    run = find_run(groups, 0, 2)
    assert run.begin == run.end == TilePosition(3, 0)
