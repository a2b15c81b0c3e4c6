"""The datacenter Blackwell kernel's configurations: how they are chosen, and what they occupy."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nibblas.plan import sm100, sm100_config
from nibblas.plan.problem import GroupShape, uniform_shapes
from nibblas.plan.sm100 import (
    PRESETS,
    adapted,
    all_configs,
    choose_configs,
    choose_fused,
    choose_wide_deep,
    is_wide,
    preset_named,
)
from nibblas.plan.sm100_config import CAPACITIES, Sm100Config

SMS = 148
C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)
C1 = uniform_shapes((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048)
C2 = uniform_shapes((192, 320), 3072, 4096)
C3 = uniform_shapes((128, 384), 4096, 1536)

KINDS = ((True, True), (False, True), (False, False))
"""(bulk_scales, tensor_copies): loads of codes need gathered scales."""

FUSED = [
    replace(choose_fused([GroupShape(128, 512, k)]), stages=stages)
    for k, stages in itertools.product((512, 1024, 4096), (4, 5, 6))
]
WIDE = choose_wide_deep([GroupShape(128, 4096, 4096)], SMS)
DEEP = choose_wide_deep([GroupShape(128, 128, 4096)], SMS)
SHALLOW = choose_wide_deep([GroupShape(2**20, 128, 4096)], SMS)


def reachable() -> Iterator[Sm100Config]:
    """Every configuration that a launch can have."""
    for config, (bulk, tensor), capacity in itertools.product(
        [*FUSED, WIDE, DEEP, SHALLOW], KINDS, CAPACITIES
    ):
        yield adapted(config, products=capacity, bulk_scales=bulk, tensor_copies=tensor)


REACHABLE = list(dict.fromkeys(reachable()))


every_config = pytest.mark.parametrize(
    "config", [config for config in REACHABLE if config.capacity == 1], ids=str
)


def test_what_is_tested_here_is_every_kind() -> None:
    assert [config.cluster for config in FUSED[::3]] == [1, 2, 4]
    assert (WIDE.tile_n, DEEP.stages, SHALLOW.stages) == (256, 6, 3)
    # 9 fused, wide, deep and shallow with two kinds of scales, and one that loads codes.
    assert len(REACHABLE) == (12 * 2 + 1) * len(CAPACITIES)


@pytest.mark.parametrize(
    ("shapes", "cluster", "stages"),
    [
        pytest.param(C0, 4, 6, id="C0"),
        pytest.param(C1, 2, 5, id="C1"),
        pytest.param(C2, 4, 6, id="C2"),
        pytest.param(C3, 2, 6, id="C3"),
    ],
)
def test_fused_persistent_on_the_public_cases(
    shapes: tuple[GroupShape, ...], cluster: int, stages: int
) -> None:
    config = choose_fused(shapes)
    assert (config.cluster, config.stages) == (cluster, stages)
    assert (config.tile_n, config.accumulators, config.order) == (128, 2, "runs")
    assert config.prefetches and config.multicast_scales


@pytest.mark.parametrize(
    ("n", "k", "cluster"),
    [
        (4096, 4096, 4),
        (4096, 4080, 2),
        (4096, 1024, 2),
        (4096, 1008, 1),
        (128 * 6, 4096, 2),  # six tiles: four do not divide them
        (128 * 5, 4096, 1),
        (128 * 3 + 8, 4096, 4),  # the last tile in part
        (8, 4096, 1),
    ],
)
def test_the_cluster_is_for_long_k_and_divides_the_tiles(n: int, k: int, cluster: int) -> None:
    assert choose_fused([GroupShape(128, n, k)]).cluster == cluster
    assert choose_fused([GroupShape(128, n, k)]).multicast_scales == (cluster > 1)


def test_the_shortest_k_and_the_least_divisible_n_decide() -> None:
    assert choose_fused([GroupShape(128, 512, 4096), GroupShape(128, 512, 1024)]).cluster == 2
    assert choose_fused([GroupShape(128, 512, 4096), GroupShape(128, 768, 4096)]).cluster == 2
    assert choose_fused([GroupShape(128, 768, 4096), GroupShape(128, 640, 4096)]).cluster == 1


@pytest.mark.parametrize(("m", "stages"), [(25, 4), (26, 5), (39, 5), (40, 6)], ids=str)
def test_the_depth_follows_the_arithmetic_intensity(m: int, stages: int) -> None:
    n, k = 8192, 4096
    operations_per_byte = 2 * m * n * k / (0.5 * (m * k + n * k) + 2 * m * n)
    assert stages == (6 if operations_per_byte > 150 else 5 if operations_per_byte > 100 else 4)
    assert choose_fused([GroupShape(m, n, k)]).stages == stages
    assert choose_fused([GroupShape(512, n, k), GroupShape(m, n, k)]).stages == stages, "the least"


def test_groups_without_outputs_decide_nothing() -> None:
    idle = [GroupShape(0, 640, 16), GroupShape(128, 0, 16)]
    assert choose_fused([*idle, *C0]) == choose_fused(C0)
    assert choose_fused(idle).cluster == 1, "there is an answer even if all are idle"


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        pytest.param(C0, WIDE, id="C0"),
        pytest.param(C1, WIDE, id="C1"),
        pytest.param(C2, DEEP, id="C2"),
        pytest.param(C3, DEEP, id="C3"),
    ],
)
def test_wide_deep_on_the_public_cases(
    shapes: tuple[GroupShape, ...], expected: Sm100Config
) -> None:
    assert choose_configs(shapes, "wide_deep", SMS) == (expected,)


def test_the_wide_variant_is_as_given() -> None:
    assert (WIDE.tile_n, WIDE.cluster, WIDE.stages, WIDE.producers) == (256, 4, 4, 2)
    assert not WIDE.multicast_scales, "tokens are multicast, their scales are not"
    assert WIDE.order == "token_tiles"


def test_the_narrow_variants_are_as_given() -> None:
    for config, stages in ((DEEP, 6), (SHALLOW, 3)):
        assert (config.tile_n, config.cluster, config.stages) == (128, 1, stages)
        assert (config.producers, config.order) == (2, "interleaved")
    assert (DEEP.ctas_per_sm, SHALLOW.ctas_per_sm) == (1, 2)


@pytest.mark.parametrize(
    ("n", "k", "wide"),
    [
        (4096, 2048, True),
        (4096 - 256, 2048, False),
        (4096, 2048 - 16, False),
        (4096 + 128, 2048, False),
        (4096 + 256, 2048, True),
    ],
)
def test_wide_groups(n: int, k: int, wide: bool) -> None:
    assert is_wide(GroupShape(1, n, k)) == wide


def test_shallow_beyond_two_waves_of_the_deep_variant() -> None:
    two_waves = 2 * SMS
    assert choose_wide_deep([GroupShape(128, 128, 4096)] * two_waves, SMS) == DEEP
    assert choose_wide_deep([GroupShape(128, 128, 4096)] * (two_waves + 1), SMS) == SHALLOW
    assert choose_wide_deep([GroupShape(128 * two_waves + 1, 128, 4096)], SMS) == SHALLOW
    assert choose_wide_deep([GroupShape(1, 128 * two_waves + 8, 2032)], SMS) == SHALLOW


def test_shallow_only_where_its_table_holds_the_groups() -> None:
    most = sm100_config.MAX_GROUPS_OF_TWO
    assert choose_wide_deep([GroupShape(128, 128, 4096)] * most, SMS) == SHALLOW
    assert choose_wide_deep([GroupShape(128, 128, 4096)] * (most + 1), SMS) == DEEP


def test_groups_of_both_kinds_take_a_launch_each_the_wide_one_first() -> None:
    shapes = (*C2, *C0)
    assert choose_configs(shapes, "wide_deep", SMS) == (WIDE, DEEP)
    assert choose_configs(shapes, "fused_persistent", SMS) == (choose_fused(shapes),)


@every_config
def test_shared_memory_is_within_the_multiprocessors(config: Sm100Config) -> None:
    """Of sm_100: 227 KiB for a CTA, 228 for a multiprocessor, 1 of which every CTA reserves."""
    assert config.shared_bytes <= 227 * 1024
    assert config.ctas_per_sm * (config.shared_bytes + 1024) <= 228 * 1024


@every_config
def test_tensor_memory_holds_all_that_is_allocated(config: Sm100Config) -> None:
    columns = config.tensor_columns
    assert columns in (32, 64, 128, 256, 512), "what tcgen05.alloc takes"
    sums = config.accumulators * config.tile_n
    # tcgen05.cp.32x128b writes 4 columns for 128 rows and 64 values of K; a stage has 256.
    scales_of_a_slot = 4 * 4 * (128 + config.tile_n) // 128
    assert config.sum_columns == sums
    assert config.slot_columns == scales_of_a_slot
    assert sums + config.stages * scales_of_a_slot <= columns
    assert config.ctas_per_sm * columns <= 512


@every_config
def test_the_memory_map_is_what_the_structs_take(config: Sm100Config) -> None:
    """Stage and Control of kernels/sm100/shared.cuh, laid out by ctypes as by C++."""
    stage, control = structs_of(config)
    assert config.stage_bytes == ctypes.sizeof(stage)
    assert config.stage_bytes % 1024 == 0, "where the 128-byte swizzle begins anew"
    control_bytes = -(-ctypes.sizeof(control) // 16) * 16  # alignas(16)
    assert config.control_bytes == control_bytes
    table = 2 * ctypes.sizeof(ctypes.c_int32) * config.group_capacity
    assert config.shared_bytes == config.stages * ctypes.sizeof(stage) + control_bytes + table


def structs_of(config: Sm100Config) -> tuple[type[ctypes.Structure], type[ctypes.Structure]]:
    warps = 4 + 1 + config.producers + (0 if config.bulk_scales else 2)
    i32, i64, u64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64

    class Stage(ctypes.Structure):
        _fields_ = (
            ("x", ctypes.c_uint8 * (128 * 128)),  # 256 codes a row
            ("w", ctypes.c_uint8 * (config.tile_n * 128)),
            ("x_scales", ctypes.c_uint8 * (128 * 16)),
            ("w_scales", ctypes.c_uint8 * (config.tile_n * 16)),
        )

    class Scratch(ctypes.Structure):
        _fields_ = (
            ("last_end", i32 * warps),
            ("tokens", i32 * warps),
            ("padded_atoms", i32 * warps),
            ("steps", i32 * warps),
            ("found_group", i32 * 2),
            ("run", i64 * 6),  # two places of two numbers, and two numbers of a group's start
        )

    class Control(ctypes.Structure):
        _fields_ = (
            ("full", u64 * 6),
            ("empty", u64 * 6),
            ("sums_full", u64 * config.accumulators),
            ("sums_empty", u64 * config.accumulators),
            ("tensor", ctypes.c_uint32),
            ("scratch", Scratch),
        )

    assert config.threads == 32 * warps
    assert config.stages <= 6, "as many barriers as Control has"
    return Stage, Control


@every_config
def test_the_table_holds_every_group_that_is_let_through(config: Sm100Config) -> None:
    assert sm100_config.MAX_GROUPS == 1024 and sm100_config.MAX_GROUPS_OF_TWO == 512
    shared_by_two = config.ctas_per_sm == 2
    assert config.group_capacity >= (512 if shared_by_two else 1024)
    assert config.group_capacity <= 1024


def test_parameters_fit_a_launch() -> None:
    """PTX ISA, "Kernel Function Parameters": 32,764 bytes from sm_70 on."""
    for config in REACHABLE:
        assert config.params_bytes <= (4096 if config.capacity == 1 else 32_764)


def test_the_largest_capacity_is_all_that_fits_a_launch() -> None:
    one_more = sm100_config.PARAMS_HEADER_BYTES + (CAPACITIES[-1] + 1) * sm100_config.ENTRY_BYTES
    assert one_more > 32_764


@pytest.mark.parametrize(("products", "capacity"), [(1, 1), (2, 16), (16, 16), (17, 56), (56, 56)])
def test_the_least_capacity_that_holds_the_products(products: int, capacity: int) -> None:
    config = adapted(DEEP, products=products, bulk_scales=True, tensor_copies=True)
    assert config == replace(DEEP, capacity=capacity)


def test_gathered_scales_have_two_warps_more_and_are_not_multicast() -> None:
    for config in (*FUSED, WIDE, DEEP, SHALLOW):
        gathered = adapted(config, products=1, bulk_scales=False, tensor_copies=True)
        assert gathered == replace(config, bulk_scales=False, multicast_scales=False)
        assert gathered.threads == config.threads + 64


def test_loaded_codes_need_no_cluster() -> None:
    """Every CTA loads for itself: one variant, whatever was planned."""
    loading = {
        adapted(config, products=1, bulk_scales=bulk, tensor_copies=False)
        for config in (*FUSED, WIDE, DEEP, SHALLOW)
        for bulk in (True, False)
    }
    (config,) = loading
    assert (config.cluster, config.producers, config.bulk_scales) == (1, 4, False)


def test_the_depth_needs_no_other_cubin() -> None:
    for config in REACHABLE:
        assert replace(config, stages=1).render() == config.render()


def test_every_config_that_can_be_chosen_is_prebuilt() -> None:
    prebuilt = [config.render() for config in all_configs()]
    assert len(set(prebuilt)) == len(prebuilt)
    reachable = {config.render() for config in REACHABLE}
    assert reachable <= set(prebuilt)
    rest = [config for config in all_configs() if config.render() not in reachable]
    assert all(config.swapped for config in rest), "tests/plan/test_sm100_swapped.py"
    rng = random.Random(1)
    for _ in range(300):
        shapes = tuple(
            GroupShape(rng.choice((0, 1, 40, 128, 5000)), n, k)
            for n, k in itertools.product(
                rng.choices((0, 8, 128, 640, 3072, 4096, 4352), k=2),
                rng.choices((16, 48, 1024, 2048, 7168), k=2),
            )
        )
        for preset in PRESETS:
            most = rng.choice((None, 10_000))
            for config in choose_configs(shapes, preset, SMS, most_rows=most):
                bulk, tensor = rng.choice(KINDS)
                used = adapted(
                    config, products=rng.randint(1, 56), bulk_scales=bulk, tensor_copies=tensor
                )
                assert used.render() in prebuilt


def test_presets_by_name() -> None:
    assert PRESETS == ("fused_persistent", "wide_deep", "swapped")
    assert [preset_named(name, "preset") for name in PRESETS] == list(PRESETS)
    assert preset_named(None, "preset") == sm100.DEFAULT_PRESET


@pytest.mark.parametrize("name", ["nonsense", "", "WIDE_DEEP"])
def test_an_unknown_preset_is_refused_with_the_known_ones(name: str) -> None:
    names = "'fused_persistent', 'wide_deep', 'swapped'"
    with pytest.raises(ValueError, match=f"^preset: got {name!r}; want one of {names}$"):
        preset_named(name, "preset")


def test_one_family_target_serves_both_datacenter_blackwells() -> None:
    assert {DEEP.target(capability) for capability in ((10, 0), (10, 3))} == {"sm_100f"}


@pytest.mark.parametrize("capability", [(9, 0), (11, 0), (12, 0)])
def test_other_devices_are_refused_with_the_targets_that_exist(
    capability: tuple[int, int],
) -> None:
    with pytest.raises(ValueError, match=r"^compute_capability: got .*; want one of 10\.0, 10\.3$"):
        DEEP.target(capability)
