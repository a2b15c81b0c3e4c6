"""A kernel as the cost model sees it: how work is cut into items, and what one turn of its loop is.

An *item* is a tile of one group's tokens with the weight rows of one worker, over all of K. A
*worker* is a cluster of CTAs whose rows lie side by side. A *phase* is every worker's p-th item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nibblas.plan.problem import GroupShape

Order = Literal["runs", "strided", "phases", "token_tiles", "interleaved", "even"]
"""Of items; ``items_of`` draws the first five. "even": cut so finely that all CTAs end together."""

Mma = Literal["tcgen05", "wgmma", "mma.sync"]


@dataclass(frozen=True)
class Instructions:
    """Warp instructions that a CTA issues in a turn, counted in machine code.

    Attributes:
        fixed: whatever the item's tokens. per_token_tile: more for every ``tile`` tokens.
    """

    fixed: float
    per_token_tile: float
    tile: int

    def of(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.fixed + self.per_token_tile * np.ceil(tokens / self.tile)


@dataclass(frozen=True)
class KernelSchedule:
    """What a kernel's configuration means for time, computed by the configuration itself.

    Attributes:
        tile_tokens: most tokens of an item. token_step: tokens are multiplied in multiples of it.
        tile_rows: weight rows of an item in one CTA.
        block_k: values along K of a turn: of one stage of the ring. stages: of the ring.
        ctas: of the grid at most. ctas_per_sm: that share a multiprocessor.
        cluster: CTAs of a worker.
        order: of items.
        mma: the instruction that multiplies. reads_fp16: it multiplies decoded values.
        pair: two CTAs multiply together: each takes in its own rows and half of the tokens.
        overlapped: an item's sums leave while the next item is multiplied.
        programmatic: the launch overlaps the kernel before it (programmatic dependent launch).
        restart_us: not persistent: what every wave pays instead of prologue, latency and tail;
            None: persistent.
        instructions: None: too few to matter.
    """

    tile_tokens: int
    token_step: int
    tile_rows: int
    block_k: int
    stages: int
    ctas: int
    order: Order
    mma: Mma
    ctas_per_sm: int = 1
    cluster: int = 1
    reads_fp16: bool = False
    pair: bool = False
    overlapped: bool = True
    programmatic: bool = False
    restart_us: float | None = None
    instructions: Instructions | None = None

    @property
    def workers(self) -> int:
        return self.ctas // self.cluster

    @property
    def unit_rows(self) -> int:
        """Weight rows of a worker's item."""
        return self.tile_rows * self.cluster


@dataclass(frozen=True)
class Items:
    """Who computes what when; arrays of shape (phases, workers), -1 where a worker has nothing.

    Attributes:
        group, tile, unit: an item's group, tile of tokens and unit of weight rows.
    """

    group: NDArray[np.int64]
    tile: NDArray[np.int64]
    unit: NDArray[np.int64]

    @property
    def phases(self) -> int:
        return len(self.group)


def token_tiles(shapes: Sequence[GroupShape], schedule: KernelSchedule) -> NDArray[np.int64]:
    """Tiles of tokens of each group."""
    return np.array([-(-s.m // schedule.tile_tokens) for s in shapes], dtype=np.int64)


def row_units(shapes: Sequence[GroupShape], schedule: KernelSchedule) -> NDArray[np.int64]:
    """Units of weight rows of each group."""
    return np.array([-(-s.n // schedule.unit_rows) for s in shapes], dtype=np.int64)


def num_items(shapes: Sequence[GroupShape], schedule: KernelSchedule) -> int:
    return int((token_tiles(shapes, schedule) * row_units(shapes, schedule)).sum())


def items_of(shapes: Sequence[GroupShape], schedule: KernelSchedule) -> Items:
    """Every worker's items in the order in which it computes them.

    ::

        runs         g0: u0 (t0 t1) u1 (t0 t1) ... g1: ...    a contiguous run per worker
        strided      the same list, every so manieth item
        phases       the same with as few workers as need no more phases
        token_tiles  g0: t0 (u0 u1 ...) t1 (u0 u1 ...) ...    every so manieth item
        interleaved  u0: g0 (t0 t1) g1 (t0) ...  u1: ...      every so manieth item

    All but "strided" are the orders of kernels/sm100/items.cuh.
    """
    tiles, units = token_tiles(shapes, schedule), row_units(shapes, schedule)
    interleaved = schedule.order == "interleaved"
    if interleaved:
        total = int(tiles.sum()) * int(units.max(initial=0))
    else:
        total = int((tiles * units).sum())
    workers = min(schedule.workers, max(total, 1))
    if schedule.order == "phases":
        workers = -(-total // -(-total // workers)) if total else 1
    number = _numbers(total, workers, schedule.order == "runs")
    known = np.maximum(number, 0)
    if interleaved:
        ends = tiles.cumsum()
        within = known % max(int(ends[-1]), 1)
        group = np.searchsorted(ends, within, side="right").clip(max=len(shapes) - 1)
        tile, unit = within - (ends - tiles)[group], known // max(int(ends[-1]), 1)
        number = np.where(unit < units[group], number, -1)
    else:
        ends = (tiles * units).cumsum()
        group = np.searchsorted(ends, known, side="right").clip(max=len(shapes) - 1)
        within = known - (ends - tiles * units)[group]
        if schedule.order == "token_tiles":
            tile, unit = np.divmod(within, np.maximum(units[group], 1))
        else:
            unit, tile = np.divmod(within, np.maximum(tiles[group], 1))
    items = Items(*(np.where(number >= 0, values, -1) for values in (group, tile, unit)))
    return _without_gaps(items) if interleaved else items


def _without_gaps(items: Items) -> Items:
    """Workers pass over what does not exist at once."""
    order = np.argsort(items.group < 0, axis=0, kind="stable")
    order = order[: int((items.group >= 0).sum(axis=0).max(initial=0))]
    arrays = (items.group, items.tile, items.unit)
    return Items(*(np.take_along_axis(values, order, axis=0) for values in arrays))


def _numbers(total: int, workers: int, runs: bool) -> NDArray[np.int64]:
    """Numbers in the list of items, (phases, workers); -1: none."""
    worker = np.arange(workers + 1, dtype=np.int64)
    phase = np.arange(-(-total // workers), dtype=np.int64)[:, None]
    if runs:
        starts = total * worker // workers
        number, ends = starts[:-1] + phase, starts[1:]
    else:
        number, ends = phase * workers + worker[:-1], np.array(total)
    return np.where(number < ends, number, -1)
