"""The order of work of the datacenter Blackwell kernel: its own items.cuh, CTA by CTA.

A kernel of a few lines includes it and writes down what every CTA would compute; the expected
lists are made here from the definitions, with no bisection and no division of tile numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nibblas.backends.base import Operands
from nibblas.backends.sm100_params import num_items, params_of
from nibblas.emulator import Device
from nibblas.emulator.compile import cuda_ptx
from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100 import choose_fused, choose_wide_deep
from nibblas.plan.sm100_config import CAPACITIES, Sm100Config
from nibblas.plan.sm100_swapped import swapped
from nibblas.runtime.source import KernelSource
from tests.backends.sm100_records import operands

pytestmark = pytest.mark.usefixtures("nvrtc")

MOST = 400
"""Items that a CTA may write down."""

TEXT = f"""
#include "sm100/items.cuh"
using namespace nibblas::sm100;
extern "C" __global__ void items(const __grid_constant__ Params params, long long* found) {{
  extern __shared__ __align__(1024) nibblas::u8 shared[];
  Control& control = *reinterpret_cast<Control*>(shared);
  find_groups(params, control);
  __syncthreads();
  if (threadIdx.x != 0) return;
  long long* to = found + blockIdx.x * {MOST * 6}LL;
  for (Items items(params, control); !items.done(); items.advance(), to += 6) {{
    const Item item = items.item();
    to[0] = item.entry - params.entries;
    to[1] = item.group;
    to[2] = item.row;
    to[3] = item.rows;
    to[4] = item.column;
    to[5] = item.scale_atom;
  }}
}}
"""


class Item(NamedTuple):
    product: int
    group: int
    row: int
    rows: int
    column: int
    scale_atom: int


class NoMaps:
    """Stands for ``TensorMaps``: the order of work needs none."""

    def get(self, spec: Any, address: int) -> bytes:
        return bytes(128)


class Tile(NamedTuple):
    """Tokens of one group, and the columns of its product."""

    product: int
    group: int
    row: int
    rows: int
    scale_atom: int
    n: int


FUSED = {cluster: choose_fused([GroupShape(1, 512, 1024 * cluster)]) for cluster in (1, 2, 4)}
FUSED[1] = choose_fused([GroupShape(1, 512, 512)])
SWAPPED = {
    (cluster, tile): swapped(cluster, tile) for cluster, tile in ((1, 128), (2, 128), (2, 256))
}
WIDE = choose_wide_deep([GroupShape(1, 4096, 2048)], 148)
DEEP = choose_wide_deep([GroupShape(1, 128, 512)], 148)

SIZES = [0, 1, 300, 0, 129, 128, 40]
LIST = [(0, 640), (300, 1000), (5, 8), (128, 640), (129, 129)]


@cache
def ptx_of(config: Sm100Config) -> str:
    headers = dict(KernelSource.of(config, "sm_100f").headers)
    return cuda_ptx(TEXT, target="sm_100f", name="items.cu", headers=headers)


def found_by(products: Sequence[Operands], config: Sm100Config, clusters: int) -> list[list[Item]]:
    """What each CTA of a grid of so many clusters walks."""
    capacity = next(c for c in CAPACITIES if c >= len(products))
    config = replace(config, capacity=capacity)
    device = Device("sm_100", seed=clusters, order="random")
    params = params_of(products, config, NoMaps())
    for product in products:
        if product.offs is None:
            continue
        offs = device.from_numpy(product.offs.numpy(), name="offs")
        host = product.offs.data_ptr().to_bytes(8, "little")
        assert params.count(host) == 1
        params = params.replace(host, offs.address.to_bytes(8, "little"))
    ctas = clusters * config.cluster
    found = device.from_numpy(np.full((ctas, MOST, 6), -1, np.int64))
    device.load_ptx(ptx_of(config)).kernel("items").launch(
        ctas,
        config.threads,
        [params, found],
        smem=config.shared_bytes - config.stages * config.stage_bytes,
    )
    return [[Item(*row) for row in rows if row[0] >= 0] for rows in found.to_numpy().tolist()]


def packed_tiles(sizes: Sequence[int], n: int, most: int = 128) -> list[Tile]:
    """Tiles of packed groups whose scales start at the next multiple of 128 rows."""
    tiles, row, atom = [], 0, 0
    for group, size in enumerate(sizes):
        for first in range(0, size, most):
            rows = min(most, size - first)
            tiles.append(Tile(0, group, row + first, rows, atom + first // 128, n))
        row += size
        atom += -(-size // 128)
    return tiles


def list_tiles(most: int = 128) -> list[Tile]:
    return [
        Tile(product, 0, first, min(most, m - first), first // 128, n)
        for product, (m, n) in enumerate(LIST)
        for first in range(0, m, most)
    ]


def packed(most: int = 128) -> tuple[list[Operands], list[Tile]]:
    product = operands(groups=len(SIZES), rows=sum(SIZES) + 3, n=1000, k=512, bare=True)
    assert product.offs is not None
    product.offs.copy_(torch.tensor(list(itertools.accumulate(SIZES))))
    return [product], packed_tiles(SIZES, 1000, most)


def listed(most: int = 128) -> tuple[list[Operands], list[Tile]]:
    products = [operands(groups=1, rows=m, n=n, k=512, one_group=True, bare=True) for m, n in LIST]
    return products, list_tiles(most)


def units(tile: Tile, config: Sm100Config) -> int:
    """Clusters' widths that cover the columns of a tile."""
    return -(-tile.n // (config.tile_n * config.cluster))


def by_group(tiles: list[Tile]) -> list[list[Tile]]:
    return [list(group) for _, group in itertools.groupby(tiles, lambda t: (t.product, t.group))]


def runs(tiles: list[Tile], config: Sm100Config) -> list[tuple[Tile, int]]:
    """(tile, unit): group by group, and in it all tokens for one set of weight rows first."""
    return [
        (tile, unit)
        for group in by_group(tiles)
        for unit in range(units(group[0], config))
        for tile in group
    ]


def token_tiles(tiles: list[Tile], config: Sm100Config) -> list[tuple[Tile, int]]:
    """All columns for one tile of tokens first."""
    return [(tile, unit) for tile in tiles for unit in range(units(tile, config))]


def interleaved(tiles: list[Tile], config: Sm100Config) -> list[tuple[Tile, int] | None]:
    """All groups for one set of columns first; None where a product has no such columns."""
    most = max(units(tile, config) for tile in tiles)
    return [
        (tile, unit) if unit < units(tile, config) else None
        for unit in range(most)
        for tile in tiles
    ]


def item_of(place: tuple[Tile, int], rank: int, config: Sm100Config) -> Item:
    tile, unit = place
    column = (unit * config.cluster + rank) * config.tile_n
    return Item(tile.product, tile.group, tile.row, tile.rows, column, tile.scale_atom)


def strided(places: Sequence[Any], worker: int, workers: int) -> list[Any]:
    return [place for place in places[worker::workers] if place is not None]


def contiguous(places: Sequence[Any], worker: int, workers: int) -> list[Any]:
    begin, end = (len(places) * edge // workers for edge in (worker, worker + 1))
    return list(places[begin:end])


def in_phases(places: Sequence[Any], worker: int, workers: int) -> list[Any]:
    """Every so manieth, of as few workers as need no more rounds."""
    rounds = -(-len(places) // workers)
    used = -(-len(places) // rounds)
    return list(places[worker::used]) if worker < used else []


Problem = Callable[..., tuple[list[Operands], list[Tile]]]
each_form = pytest.mark.parametrize("problem", [packed, listed])
each_grid = pytest.mark.parametrize("clusters", [1, 3, 7])


def assert_walks(
    problem: Problem, config: Sm100Config, clusters: int, order: Any, share: Any
) -> None:
    products, tiles = problem(config.tile_tokens) if config.swapped else problem()
    places = order(tiles, config)
    assert len(places) >= clusters, "none is idle"
    for cta, items in enumerate(found_by(products, config, clusters)):
        worker, rank = divmod(cta, config.cluster)
        mine = share(places, worker, clusters)
        assert items == [item_of(place, rank, config) for place in mine]
    assert len(places) <= num_items(products, config)


@each_form
@each_grid
@pytest.mark.parametrize("cluster", FUSED)
def test_fused_persistent_takes_contiguous_runs_tokens_first(
    problem: Problem, clusters: int, cluster: int
) -> None:
    config = FUSED[cluster]
    assert (config.order, config.cluster) == ("runs", cluster)
    assert_walks(problem, config, clusters, runs, contiguous)


@each_form
@each_grid
def test_wide_tiles_stride_with_all_columns_of_a_token_tile_first(
    problem: Problem, clusters: int
) -> None:
    assert (WIDE.order, WIDE.cluster, WIDE.tile_n) == ("token_tiles", 4, 256)
    assert_walks(problem, WIDE, clusters, token_tiles, strided)


@each_form
@each_grid
def test_narrow_tiles_stride_with_groups_interleaved(problem: Problem, clusters: int) -> None:
    assert (DEEP.order, DEEP.cluster) == ("interleaved", 1)
    assert_walks(problem, DEEP, clusters, interleaved, strided)


@each_form
@each_grid
@pytest.mark.parametrize("kind", SWAPPED, ids=str)
def test_swapped_tiles_stride_with_a_groups_tokens_side_by_side(
    problem: Problem, clusters: int, kind: tuple[int, int]
) -> None:
    config = SWAPPED[kind]
    assert config.order == "phases"
    assert_walks(problem, config, clusters, runs, in_phases)


def test_the_last_phase_is_as_wide_as_the_others() -> None:
    """13 units for 7 single CTAs: all of them. 13 for 12: seven and six, not twelve and one."""
    found = {}
    for clusters in (7, 12):
        product = operands(groups=1, rows=5, n=13 * 128, k=64, bare=True, one_group=True)
        items = found_by([product], SWAPPED[1, 128], clusters)
        found[clusters] = [len(of_cta) for of_cta in items]
    assert found == {7: [2] * 6 + [1], 12: [2] * 6 + [1] + [0] * 5}


@pytest.mark.parametrize(("m", "n"), [(131_080, 8), (5, 65_608)], ids=["m", "n"])
def test_rows_and_columns_beyond_16_bits(m: int, n: int) -> None:
    def problem() -> tuple[list[Operands], list[Tile]]:
        product = operands(groups=1, rows=m, n=n, k=64, bare=True)
        assert product.offs is not None
        product.offs.fill_(m)
        return [product], packed_tiles([m], n)

    assert_walks(problem, FUSED[1], 3, runs, contiguous)
    assert_walks(problem, DEEP, 3, interleaved, strided)


def test_the_table_of_token_tiles_follows_offs_on_the_device() -> None:
    """The same parameter with other contents of offs: other tiles, and nothing from the host."""
    (product,), _ = packed()
    assert product.offs is not None
    for sizes in ([471, 0, 0, 0, 0, 0, 127], [0, 0, 0, 0, 0, 0, 1], [86, 85, 85, 85, 85, 85, 87]):
        product.offs.copy_(torch.tensor(list(itertools.accumulate(sizes))))
        (items,) = found_by([product], FUSED[1], 1)
        wanted = runs(packed_tiles(sizes, 1000), FUSED[1])
        assert items == [item_of(place, 0, FUSED[1]) for place in wanted]
