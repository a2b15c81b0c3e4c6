"""Launches of the kernel with weights on the M side, on a recorded B200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nibblas import env
from nibblas.plan.problem import Problem, uniform_shapes
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.recording import RecordingDriver
from tests.backends.sm100_records import (
    BACKEND,
    launched,
    listed,
    off_alignment,
    operands,
    plan_of,
    unpack,
)

C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)


def swapped(driver: RecordingDriver, *products: object, form: str = "packed") -> LaunchSpec:
    given = products[0] if form == "packed" else products
    (launch,) = launched(driver, given, "swapped")  # type: ignore[arg-type]
    return launch


def test_a_packed_product_is_one_launch_of_pairs(b200: RecordingDriver) -> None:
    """At most 300 rows in 4 groups, of which one may have twice its share: tiles of 256."""
    launch = swapped(b200, operands(groups=4, rows=300, n=4096, k=512))
    header, _ = unpack(launch.parameters)
    assert (launch.kernel, launch.cluster) == ("nibblas_sm100_swapped", (2, 1, 1))
    assert launch.block == (320, 1, 1), "8 epilogue warps, one that multiplies, a producer"
    assert (header.tile_tokens, header.box_rows, header.stages) == (256, 32, 5)
    assert (header.scale_slots, header.tensor_columns, header.column_units) == (2, 512, 16)
    # (300 + 4 * 255) // 256 tiles at most, and 16 times 256 weight rows.
    assert launch.grid == (2 * min(5 * 16, 74), 1, 1)


@pytest.mark.parametrize(
    ("rows", "box"), [(7, 8), (20, 8), (60, 8), (100, 16), (190, 24), (256, 32)]
)
def test_boxes_of_few_tokens(b200: RecordingDriver, rows: int, box: int) -> None:
    b200.clear()
    product = operands(groups=1, rows=rows, n=40_000, k=512, one_group=True)
    BACKEND.run(listed(product), plan_of(product, "swapped"))
    x_map, w_map = [e.arguments["spec"] for e in b200.events if e.call == "encode_tensor_map"]
    assert x_map.box == (128, box, 1)
    assert w_map.box == (128, 128, 1)


def test_a_list_of_known_sizes(b200: RecordingDriver) -> None:
    products = [operands(groups=1, rows=m, n=512, k=512, one_group=True) for m in (16, 40, 30)]
    launch = swapped(b200, *products, form="list")
    header, entries = unpack(launch.parameters)
    assert header.tile_tokens == 64
    assert [entry.tile_end for entry in entries] == [1, 2, 3]
    assert [entry.item_end for entry in entries] == [
        (i + 1) * header.column_units for i in range(3)
    ]


def test_codes_that_tma_cannot_read_are_loaded_by_single_ctas(b200: RecordingDriver) -> None:
    product = operands(groups=2, n=4096)
    launch = swapped(b200, replace(product, x=off_alignment(product.x)))
    header, _ = unpack(launch.parameters)
    assert launch.cluster == (1, 1, 1)
    assert launch.block == (32 * (8 + 1 + 4 + 2), 1, 1)
    assert header.tile_tokens == 128


def test_linear_scales_are_gathered_by_two_more_warps(b200: RecordingDriver) -> None:
    launch = swapped(b200, operands(n=4096, x_layout="linear"))
    assert (launch.cluster, launch.block) == ((2, 1, 1), (384, 1, 1))


def test_it_may_begin_before_its_predecessor_has_ended(
    b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = operands()
    assert swapped(b200, product).programmatic
    assert not launched(b200, product, "fused_persistent")[0].programmatic
    monkeypatch.setenv("NIBBLAS_PDL", "0")
    assert not swapped(b200, product).programmatic


def test_a_prepared_product_launches_as_a_new_one_would(b200: RecordingDriver) -> None:
    product = operands()
    plan = plan_of(product, "swapped")
    run_at = BACKEND.prepare(product, plan)
    assert run_at is not None
    b200.clear()
    assert run_at([tensor.data_ptr() for tensor in product.tensors.values()])
    (prepared,) = b200.launches
    assert prepared == launched(b200, product, "swapped")[0]


def test_the_switch_decides_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a call made before would keep its launch."""
    before = env.forced()
    monkeypatch.setenv("NIBBLAS_PDL", "0")
    assert env.forced() != before


def test_without_a_forced_preset_the_fastest_by_the_model(b200: RecordingDriver) -> None:
    problem = Problem(C0, "nvfp4", "fp16", device="cuda", form="list")
    plans = {}
    for preset in PRESETS:
        with env.sm100_preset(preset):
            plans[preset] = BACKEND.plan(problem)
    assert BACKEND.plan(problem) == min(plans.values(), key=lambda plan: plan.estimate.seconds)
    assert BACKEND.plan(problem).config.preset == "swapped"
