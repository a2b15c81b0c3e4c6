"""The cost model's formula: items, bytes, terms, bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nibblas.plan.kernel_schedule import (
    Instructions,
    KernelSchedule,
    Order,
    items_of,
    num_items,
    row_units,
    token_tiles,
)
from nibblas.plan.machines import MACHINES
from nibblas.plan.model import (
    LONG_CALL_BYTES,
    dram_bytes_per_us,
    mma_cycles,
    new_bytes,
    predict,
    turn_us,
)
from nibblas.plan.problem import GroupShape, Problem, uniform_shapes

B200, H200 = MACHINES["b200"], MACHINES["h200"]

SCHEDULE = KernelSchedule(
    tile_tokens=128,
    token_step=128,
    tile_rows=128,
    block_k=256,
    stages=6,
    ctas=148,
    order="runs",
    mma="tcgen05",
)
ORDERS: tuple[Order, ...] = ("runs", "strided", "token_tiles", "interleaved")


def w4a4(*shapes: tuple[int, int, int]) -> Problem:
    return Problem(tuple(GroupShape(*shape) for shape in shapes), "nvfp4", "fp16", form="list")


def drawn(seed: int) -> tuple[Problem, KernelSchedule]:
    """A list of products with ragged sizes, and a grid that does not divide its items."""
    draw = np.random.default_rng(seed)
    shapes = [
        (int(draw.integers(0, 400)), int(draw.integers(1, 900)), 16 * int(draw.integers(1, 40)))
        for _ in range(draw.integers(1, 6))
    ]
    cluster = int(draw.choice([1, 2, 4]))
    schedule = replace(
        SCHEDULE,
        ctas=cluster * int(draw.integers(1, 12)),
        cluster=cluster,
        tile_rows=int(draw.choice([64, 128])),
        order=ORDERS[seed % len(ORDERS)],
    )
    return w4a4(*shapes, (5, 64, 64)), schedule


def busy(problem: Problem) -> list[GroupShape]:
    return [shape for shape in problem.shapes if shape.m and shape.n]


# Items


@pytest.mark.parametrize("seed", range(24))
def test_every_item_belongs_to_one_worker_and_phase(seed: int) -> None:
    problem, schedule = drawn(seed)
    shapes = busy(problem)
    items = items_of(shapes, schedule)
    found = np.stack([items.group, items.tile, items.unit], axis=-1)[items.group >= 0]
    tiles, units = token_tiles(shapes, schedule), row_units(shapes, schedule)
    wanted = [
        (g, t, u) for g in range(len(shapes)) for t in range(tiles[g]) for u in range(units[g])
    ]
    assert sorted(map(tuple, found.tolist())) == wanted
    assert len(wanted) == num_items(shapes, schedule)


@pytest.mark.parametrize("seed", range(24))
def test_nobody_waits_while_others_have_two_items_more(seed: int) -> None:
    problem, schedule = drawn(seed)
    count = (items_of(busy(problem), schedule).group >= 0).sum(axis=0)
    if schedule.order != "interleaved":  # which passes over columns that narrow products lack
        assert count.max() - count.min() <= 1


def test_orders_as_drawn() -> None:
    shapes = [GroupShape(200, 256, 64), GroupShape(100, 384, 64)]
    drawings: dict[Order, str] = {
        "runs": "000 001 010 011 100 110 120",
        "strided": "000 001 010 011 100 110 120",
        "token_tiles": "000 010 001 011 100 110 120",
        "interleaved": "000 001 100 010 011 110 120",
    }
    for order, drawing in drawings.items():
        items = items_of(shapes, replace(SCHEDULE, order=order, ctas=1))
        names = zip(items.group[:, 0], items.unit[:, 0], items.tile[:, 0], strict=True)
        assert " ".join(f"{g}{u}{t}" for g, u, t in names) == drawing, order


def test_runs_are_contiguous_and_the_others_take_turns() -> None:
    shapes = [GroupShape(128, 128 * 5, 64)]
    runs = items_of(shapes, replace(SCHEDULE, ctas=2))
    assert runs.unit.T.tolist() == [[0, 1, -1], [2, 3, 4]]
    strided = items_of(shapes, replace(SCHEDULE, ctas=2, order="strided"))
    assert strided.unit.T.tolist() == [[0, 2, 4], [1, 3, -1]]


# Bytes


@pytest.mark.parametrize("seed", range(24))
def test_each_byte_is_new_once(seed: int) -> None:
    problem, schedule = drawn(seed)
    shapes = busy(problem)
    total = new_bytes(problem, shapes, items_of(shapes, schedule), schedule).sum()
    assert total == pytest.approx(problem.work().total_bytes, rel=1e-3, abs=len(shapes))


def test_weights_are_new_in_the_first_phase_that_reads_them() -> None:
    problem = w4a4((256, 128, 256))
    phases = new_bytes(
        problem, busy(problem), items_of(busy(problem), replace(SCHEDULE, ctas=1)), SCHEDULE
    )
    weights, tokens, out = 128 * 144, 128 * 144, 128 * 128 * 2
    assert phases.tolist() == [weights + tokens + out, tokens + out]


def test_a_pair_takes_in_half_of_the_tokens_each() -> None:
    problem, tokens = w4a4((128, 128, 256)), np.array([128.0])
    alone = turn_us(problem, B200, SCHEDULE, tokens)["ingest"]
    paired = turn_us(problem, B200, replace(SCHEDULE, pair=True), tokens)["ingest"]
    assert paired == pytest.approx(0.75 * alone)


# Time


def test_one_item_by_hand() -> None:
    """128 x 128 with K = 1536 on B200: six turns of 36,864 bytes, 121.6 bytes per nanosecond."""
    found = predict(w4a4((128, 128, 1536)), B200, SCHEDULE)
    assert found.loop["ingest"] == pytest.approx(6 * 256 * 144 / (64 * 1900))
    assert found.loop["tensor"] == pytest.approx(6 * 4 * 64 / 1900)
    assert found.loop["latency"] == pytest.approx(6 * 0.9 / 6)
    assert found.loop["turn"] == pytest.approx(6 * 0.13)
    assert found.loop["memory"] == pytest.approx((2 * 128 * 1536 * 9 / 16 + 2 * 128**2) / 6.3e6)
    assert found.fixed == {"gap": 1.0, "prologue": 0.5, "first latency": 0.9, "tail": 2.1}
    assert found.total_us == pytest.approx(4.5 + found.loop["ingest"])
    assert found.bound == "fixed"


LARGE = w4a4((1024, 4096, 4096))

BOUNDS: dict[str, tuple[Problem, dict[str, Any], dict[str, Any]]] = {
    "memory": (w4a4(*[(16, 4096, 4096)] * 8), {}, {"token_step": 16}),
    "ingest": (LARGE, {}, {}),
    "tensor": (w4a4((4096, 4096, 4096)), {"ingest_bytes_per_cycle": 1000}, {"stages": 16}),
    "latency": (LARGE, {"short_tb_per_s": 100}, {"stages": 2}),
    "turn": (LARGE, {"short_tb_per_s": 100, "turn_us": 1.0}, {}),
    "issue": (LARGE, {}, {"instructions": Instructions(3000, 100, 8)}),
    "fixed": (w4a4((1, 128, 64)), {}, {}),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_longest_term_names_the_bound(bound: str) -> None:
    problem, machine, schedule = BOUNDS[bound]
    found = predict(problem, replace(B200, **machine), replace(SCHEDULE, **schedule))
    assert found.bound == bound
    if bound != "fixed":
        assert found.loop[bound] == max(found.loop.values())
        assert found.loop_us > found.fixed_us


@pytest.mark.parametrize("rows", [(), (0, 0), (0,)])
def test_no_rows_take_the_fixed_time(rows: tuple[int, ...]) -> None:
    problem = Problem(uniform_shapes((0, *rows), 256, 256), "nvfp4", "fp16")
    found = predict(problem, B200, SCHEDULE)
    assert (found.bound, found.loop_us) == ("fixed", 0.0)
    assert found.total_us == pytest.approx(4.5)


def test_empty_groups_cost_nothing() -> None:
    shape = (100, 512, 512)
    alone = predict(w4a4(shape, shape), B200, SCHEDULE)
    among = predict(w4a4((0, 512, 512), shape, (0, 64, 64), shape), B200, SCHEDULE)
    assert alone == among


def test_sums_that_are_not_overlapped_cost_a_tail_between_items() -> None:
    problem = w4a4((256, 128 * 148, 256))
    one_set = predict(problem, B200, replace(SCHEDULE, overlapped=False))
    assert one_set.between_us == pytest.approx(2.1)
    assert predict(problem, B200, SCHEDULE).between_us == 0


def test_every_wave_of_a_kernel_that_restarts_pays() -> None:
    problem = w4a4((256, 128 * 148, 256))
    found = predict(problem, B200, replace(SCHEDULE, restart_us=7.2))
    assert found.fixed == {"gap": 1.0, "waves": 2 * 7.2}


def test_a_programmatic_launch_hides_what_comes_before_the_first_copy() -> None:
    problem = w4a4((128, 128, 1536))
    usual = predict(problem, B200, SCHEDULE).total_us
    hidden = predict(problem, B200, replace(SCHEDULE, programmatic=True)).total_us
    assert usual - hidden == pytest.approx(1.0 + 0.5)


def test_what_nobody_has_published_is_left_out() -> None:
    found = predict(w4a4((128, 128, 1536)), MACHINES["gb10"], SCHEDULE)
    assert found.fixed_us == 1.0
    assert found.loop["latency"] == found.loop["turn"] == 0


def test_two_ctas_on_a_multiprocessor_share_its_rates() -> None:
    problem, tokens = w4a4((128, 128, 256)), np.array([128.0])
    one = turn_us(problem, B200, SCHEDULE, tokens)
    two = turn_us(problem, B200, replace(SCHEDULE, ctas=296, ctas_per_sm=2), tokens)
    for term, factor in {"ingest": 2, "tensor": 2, "latency": 1, "turn": 1}.items():
        assert two[term] == pytest.approx(factor * one[term]), term


def test_a_grid_is_no_larger_than_its_work() -> None:
    """So few items that each has a multiprocessor of its own, though two would fit."""
    few, shared = w4a4((128, 128 * 148, 2048)), replace(SCHEDULE, ctas=296, ctas_per_sm=2)
    assert predict(few, B200, shared) == predict(few, B200, SCHEDULE)
    many = w4a4((128, 128 * 296, 2048))
    alone, together = (predict(many, B200, s).loop["ingest"] for s in (SCHEDULE, shared))
    assert alone == pytest.approx(together)


def test_many_phases_as_one_are_near_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = w4a4(*[(m, 4096, 2048) for m in (100, 200, 300, 500, 128, 77, 900)])
    apart = predict(problem, B200, SCHEDULE)
    monkeypatch.setattr("nibblas.plan.model.MAX_PHASES", 1)
    together = predict(problem, B200, SCHEDULE)
    assert together.total_us == pytest.approx(apart.total_us, rel=0.1)
    assert together.total_us <= apart.total_us
    assert together.bound == apart.bound


def test_shares_that_are_cut_evenly_are_not_rounded_up() -> None:
    problem = w4a4((128, 128 * 150, 2048))
    even = predict(problem, B200, replace(SCHEDULE, order="even"))
    whole = predict(problem, B200, SCHEDULE)
    assert whole.loop["ingest"] / even.loop["ingest"] == pytest.approx(2 / (150 / 148))


def test_an_evenly_cut_share_is_no_shorter_than_an_item() -> None:
    found = predict(w4a4((128, 128, 2048)), B200, replace(SCHEDULE, order="even"))
    assert found.loop_us == pytest.approx(8 * 256 * 144 / (64 * 1900))


def test_long_calls_get_the_long_rate_by_and_by() -> None:
    assert dram_bytes_per_us(B200, 1e6) == dram_bytes_per_us(B200, LONG_CALL_BYTES) == 6.3e6
    assert dram_bytes_per_us(B200, 1e12) == pytest.approx(7.2e6, rel=1e-3)
    times = [n / dram_bytes_per_us(B200, n) for n in np.linspace(1e8, 1e9, 50)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("pair", "tokens", "published", "rel"),
    [
        (False, 64, 48, 0.01),
        (False, 96, 56, 0.01),
        (False, 128, 64, 0.01),
        (False, 256, 128, 0.01),
        (True, 64, 43.5, 0.1),
        (True, 96, 49.5, 0.1),
        (True, 128, 64, 0.01),
        (True, 256, 128, 0.01),
    ],
)
def test_cycles_of_tcgen05_mma(pair: bool, tokens: int, published: float, rel: float) -> None:
    """Published cycles of one instruction after another on B200, 128 rows a CTA, K = 64."""
    schedule = replace(SCHEDULE, block_k=64, pair=pair)
    found = mma_cycles(B200, schedule, np.array([float(tokens)]))
    assert found == pytest.approx(published, rel=rel)


@pytest.mark.parametrize(("tokens", "cycles"), [(8, 19), (64, 32), (256, 128)])
def test_cycles_of_wgmma(tokens: int, cycles: float) -> None:
    """m64nNk16: half a cycle per token, and no less than 19."""
    schedule = replace(SCHEDULE, tile_rows=64, block_k=16, mma="wgmma", reads_fp16=True)
    assert mma_cycles(H200, schedule, np.array([float(tokens)])) == pytest.approx(cycles)


def test_a_machine_without_the_unit_never_ends() -> None:
    assert predict(w4a4((128, 128, 256)), H200, SCHEDULE).total_us == float("inf")


@pytest.mark.parametrize("seed", range(8))
def test_a_better_machine_is_never_slower(seed: int) -> None:
    problem, schedule = drawn(seed)
    usual = predict(problem, B200, schedule).total_us
    for field in ("short_tb_per_s", "ingest_bytes_per_cycle", "clock_ghz"):
        better = replace(B200, **{field: 2 * getattr(B200, field)})
        assert predict(problem, better, schedule).total_us <= usual
    assert predict(problem, B200, schedule).total_us == usual
