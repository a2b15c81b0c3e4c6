"""Configurations with weights on the M side: what they occupy, which one is chosen."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from nibblas.plan.problem import GroupShape, Problem, uniform_shapes
from nibblas.plan.sm100 import adapted, all_configs, choose_configs, most_rows
from nibblas.plan.sm100_config import CAPACITIES, MAX_GROUPS, Sm100Config
from nibblas.plan.sm100_swapped import PAIR_TILES, SINGLE_TILES, choose_swapped, swapped

SMS = 148
C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)
C1 = uniform_shapes((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048)
C2 = uniform_shapes((192, 320), 3072, 4096)
C3 = uniform_shapes((128, 384), 4096, 1536)

KINDS = ((True, True), (False, True), (False, False))
"""(bulk_scales, tensor_copies)."""

PLANNED = [
    *(swapped(2, tile) for tile in PAIR_TILES),
    *(swapped(1, tile) for tile in SINGLE_TILES),
]
REACHABLE = list(
    dict.fromkeys(
        adapted(config, products=capacity, bulk_scales=bulk, tensor_copies=tensor)
        for config, (bulk, tensor), capacity in itertools.product(PLANNED, KINDS, CAPACITIES)
    )
)
every_config = pytest.mark.parametrize(
    "config", [config for config in REACHABLE if config.capacity == 1], ids=str
)


@every_config
def test_shared_memory_is_within_a_multiprocessor(config: Sm100Config) -> None:
    assert config.shared_bytes <= 227 * 1024
    assert config.ctas_per_sm == 1
    assert config.group_capacity == MAX_GROUPS


@every_config
def test_the_ring_is_as_deep_as_fits(config: Sm100Config) -> None:
    """5 to 8 stages: 64 KB and more are on their way to a multiprocessor."""
    assert 5 <= config.stages <= 8
    one_more = replace(config, stages=config.stages + 1)
    assert config.stages == 8 or one_more.group_capacity < MAX_GROUPS
    assert config.stages * config.stage_bytes >= 160 * 1024


@every_config
def test_tensor_memory_holds_two_sets_of_sums_of_most_items(config: Sm100Config) -> None:
    """Scales of 128 weight rows and 256 tokens have 4 columns for 128 rows and 64 values of K."""
    assert config.tensor_columns == 512
    assert config.slot_columns == 4 * 4 * (1 + 2)
    assert config.sum_columns + config.scale_slots * config.slot_columns == 512
    assert config.scale_slots <= config.stages, "a place is free before its slot is full again"
    assert config.sum_columns >= min(2 * config.tile_tokens, 416)


@every_config
def test_the_memory_map_is_what_the_kernel_takes(config: Sm100Config) -> None:
    """kernels/sm100/shared.cuh: parts of a stage, and Control laid out by ctypes as by C++."""
    x_rows = config.tile_tokens // config.cluster
    token_atoms = -(-config.tile_tokens // 128)
    assert config.stage_bytes == (x_rows + 128) * 128 + (token_atoms + 1) * 128 * 16
    assert config.stage_bytes % 1024 == 0 and x_rows % 8 == 0, "where the swizzle begins anew"
    assert x_rows % config.box_rows == 0 and config.box_rows * 128 % 1024 == 0
    assert x_rows // config.box_rows <= 4, "copies of tokens a stage"
    assert config.staging_bytes == 8 * 16 * 32 * 4, "8 warps, 16 tokens, 32 columns of float32"
    warps = 8 + 1 + config.producers + (0 if config.bulk_scales else 2)
    assert config.threads == 32 * warps
    i32, i64, u64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64

    class Scratch(ctypes.Structure):
        _fields_ = (("of_warps", i32 * 4 * warps), ("found_group", i32 * 2), ("run", i64 * 6))

    class Control(ctypes.Structure):
        _fields_ = (("barriers", u64 * (2 * 8 + 4)), ("tensor", i32), ("scratch", Scratch))

    assert config.control_bytes == -(-ctypes.sizeof(Control) // 16) * 16
    ring = config.stages * config.stage_bytes + config.staging_bytes + config.control_bytes
    assert config.shared_bytes == ring + 3 * ctypes.sizeof(i32) * config.group_capacity


def test_tile_and_depth_need_no_other_cubin() -> None:
    """Pairs and single CTAs with three kinds of operands, loads in single CTAs only."""
    texts = {config.render() for config in REACHABLE}
    assert len(texts) == 5 * len(CAPACITIES)
    assert texts <= {config.render() for config in all_configs()}
    for config in REACHABLE:
        assert replace(config, stages=1, tile_tokens=16, programmatic=False).render() in texts


@pytest.mark.parametrize(
    ("shapes", "tile", "phases"),
    [
        pytest.param(C0, 256, 2, id="C0"),
        pytest.param(C1, 256, 4, id="C1"),
        pytest.param(C2, 128, 1, id="C2"),
        pytest.param(C3, 128, 1, id="C3"),
    ],
)
def test_the_public_cases(shapes: tuple[GroupShape, ...], tile: int, phases: int) -> None:
    (config,) = choose_configs(shapes, "swapped", SMS)
    assert config == swapped(2, tile)
    items = sum(-(-s.m // tile) * -(-s.n // 256) for s in shapes)
    assert -(-items // (SMS // 2)) == phases


@pytest.mark.parametrize(
    ("m", "tile"), [(1, 16), (16, 16), (17, 32), (64, 64), (128, 128), (130, 192), (256, 256)]
)
def test_the_smallest_tile_that_holds_a_group(m: int, tile: int) -> None:
    assert choose_swapped([GroupShape(m, 8192, 4096)] * 9, SMS).tile_tokens == tile


def test_tiles_of_larger_groups_begin_where_blocked_scales_do() -> None:
    for m in (257, 320, 500, 5000):
        assert choose_swapped([GroupShape(m, 8192, 4096)], SMS).tile_tokens in (128, 256)


def test_single_ctas_where_a_pair_would_be_half_idle() -> None:
    for n, cluster in ((128, 1), (120, 1), (256, 2), (384, 1), (4096, 2), (4096 + 128, 2)):
        shapes = [GroupShape(8, n, 4096)] * 148
        assert choose_swapped(shapes, SMS).cluster == cluster, n


@pytest.mark.parametrize(("share", "tile"), [(8, 128), (64, 128), (65, 256), (300, 256)])
def test_sizes_of_the_device_may_be_twice_an_even_share(share: int, tile: int) -> None:
    shapes = uniform_shapes((share,) * 64, 4096, 4096)
    assert choose_swapped(shapes, SMS, most_rows=64 * share).tile_tokens == tile


@pytest.mark.parametrize("rows", [1, 8, 40, 100, 256])
def test_no_group_has_more_than_all_rows(rows: int) -> None:
    shapes = uniform_shapes((rows // 8,) * 8, 4096, 4096)
    config = choose_swapped(shapes, SMS, most_rows=rows)
    assert config.tile_tokens >= rows or config.tile_tokens % 128 == 0


def test_what_the_host_knows_of_sizes() -> None:
    shapes = uniform_shapes((5, 7), 64, 64)
    assert most_rows(Problem(shapes, "nvfp4", "fp16", form="list")) is None
    assert most_rows(Problem(shapes, "nvfp4", "fp16", form="packed")) == 12
    assert most_rows(Problem(shapes, "nvfp4", "fp16", form="masked")) == 7


def test_groups_without_outputs_decide_nothing() -> None:
    idle = [GroupShape(0, 640, 16), GroupShape(128, 0, 16)]
    assert choose_swapped([*idle, *C0], SMS) == choose_swapped(C0, SMS)
    assert choose_swapped(idle[:1], SMS).swapped, "there is an answer even if all are idle"


def test_the_page_has_the_sizes() -> None:
    """docs/kernels/sm100.md, "Weights on the M side"."""
    page = (Path(__file__).parents[2] / "docs/kernels/sm100.md").read_text()
    for name, of in {
        "stage, bytes": lambda config: f"{config.stage_bytes:,}",
        "stages": lambda config: str(config.stages),
        "shared memory": lambda config: f"{config.shared_bytes:,}",
        "columns of sums": lambda config: str(config.sum_columns),
        "places for scales": lambda config: str(config.scale_slots),
    }.items():
        assert f"| {name} | " + " | ".join(map(of, PLANNED)) + " |\n" in page, name


def test_one_line_says_what_it_is() -> None:
    assert swapped(2, 256).outline == (
        "sm100 256x256x256 swapped, pairs, 5 stages, 2 sets of sums, phases, programmatic"
    )
    assert "128x64x256 swapped, single CTAs" in str(swapped(1, 64))
