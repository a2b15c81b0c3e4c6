"""The datacenter Blackwell backend's host side on the recording driver: launches, nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nibblas.plan.problem import GroupShape, Problem, uniform_shapes
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver
from tests.backends.sm100_records import (
    BACKEND,
    at,
    launched,
    off_alignment,
    operands,
    plan_of,
    problem_of,
    unpack,
)

SMS = 148


def test_a_packed_product_is_one_launch(b200: RecordingDriver) -> None:
    b200.queue = 0x77
    product = operands(groups=4, rows=300, n=1024, k=1024)
    (launch,) = launched(b200, product)
    # At most 2 + 4 tiles of tokens, and 1024 columns in clusters of two tiles of 128.
    assert launch.grid == (2 * 6 * 4, 1, 1)
    assert (launch.cluster, launch.block) == ((2, 1, 1), (192, 1, 1))
    assert (launch.queue, launch.device, launch.programmatic) == (0x77, 0, False)
    assert launch.kernel == "nibblas_sm100_grouped_mm"
    stages = unpack(launch.parameters)[0].stages
    control = 288
    assert launch.shared_bytes == stages * 256 * (128 + 16) + control + 2 * 4 * 1024
    assert len(launch.parameters) == 64 + 576


def test_a_masked_product_is_one_launch(b200: RecordingDriver) -> None:
    (launch,) = launched(b200, operands(groups=3, max_m=130, n=384))
    assert launch.grid == (3 * 2 * 3, 1, 1), "two tiles of each group's rows, three of columns"


@pytest.mark.parametrize(
    ("sms", "k", "grid"),
    [
        (148, 512, 148),  # alone
        (148, 1024, 148),  # in twos
        (147, 1024, 146),
        (150, 4096, 148),  # in fours
        (2, 4096, 4),  # one cluster at the least
    ],
)
def test_the_grid_is_whole_clusters_and_no_more_than_are_resident(
    b200: RecordingDriver, sms: int, k: int, grid: int
) -> None:
    b200.attributes["sms"] = sms
    (launch,) = launched(b200, operands(n=16384, k=k, bare=True))
    assert launch.grid == (grid, 1, 1)
    assert grid % launch.cluster[0] == 0


def test_the_device_says_how_many_clusters_fit(
    b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than a division says: clusters do not straddle the groups of multiprocessors."""
    monkeypatch.setattr(b200, "resident_clusters", lambda spec: 34)
    (launch,) = launched(b200, operands(n=16384, k=4096, bare=True))
    assert launch.cluster == (4, 1, 1)
    assert launch.grid == (4 * 34, 1, 1)


def test_two_ctas_share_a_multiprocessor_in_the_shallow_variant(b200: RecordingDriver) -> None:
    product = operands(n=128 * 128, k=512, bare=True)
    (launch,) = launched(b200, product, "wide_deep")
    assert unpack(launch.parameters)[0].stages == 3
    assert launch.grid == (2 * SMS, 1, 1)
    assert 2 * (launch.shared_bytes + 1024) <= 228 * 1024


@pytest.mark.parametrize(("count", "launches"), [(2, [2]), (16, [16]), (56, [56]), (57, [56, 1])])
def test_a_list_shares_launches_by_56(
    b200: RecordingDriver, count: int, launches: list[int]
) -> None:
    products = [operands(groups=1, rows=1 + i, n=64, one_group=True) for i in range(count)]
    found = [unpack(launch.parameters) for launch in launched(b200, products)]
    assert [header.products for header, _ in found] == launches
    entries = [entry for _, its_entries in found for entry in its_entries]
    assert [entry.product.rows for entry in entries] == [1 + i for i in range(count)]


def test_a_list_of_mixed_sizes_is_one_launch(b200: RecordingDriver) -> None:
    products = [
        operands(groups=1, rows=200, n=640, k=512, one_group=True),
        operands(groups=1, rows=5, n=8, k=96, x_layout="linear", one_group=True),
        operands(groups=1, rows=128, n=129, k=256, w_layout="linear", one_group=True),
    ]
    (launch,) = launched(b200, products)
    header, entries = unpack(launch.parameters)
    assert (header.products, header.column_units) == (3, 5)
    # Running totals: tiles of tokens 2, 1, 1; with 5, 1, 2 tiles of columns.
    assert [entry.tile_end for entry in entries] == [2, 3, 4]
    assert [entry.item_end for entry in entries] == [10, 11, 13]
    assert launch.grid == (13, 1, 1)
    assert launch.block == (192 + 64, 1, 1), "two warps gather the scales of all"
    assert [entry.product.k for entry in entries] == [512, 96, 256]
    layouts = [(e.product.x_scales.layout, e.product.w_scales.layout) for e in entries]
    assert layouts == [(1, 1), (0, 1), (1, 0)]


def test_one_unaligned_product_makes_a_whole_list_load(b200: RecordingDriver) -> None:
    products = [operands(groups=1, n=64, one_group=True) for _ in range(2)]
    products[1] = replace(products[1], x=off_alignment(products[1].x))
    (launch,) = launched(b200, products)
    assert launch.block == ((4 + 1 + 4 + 2) * 32, 1, 1)
    assert not any(any(entry.x_map) for entry in unpack(launch.parameters)[1])


def test_wide_deep_takes_a_launch_for_each_kind(b200: RecordingDriver) -> None:
    sizes = [(128, 4096, 2048), (128, 256, 512), (100, 8192, 2048), (7, 640, 256)]
    products = [
        operands(groups=1, rows=m, n=n, k=k, one_group=True, bare=True) for m, n, k in sizes
    ]
    wide, narrow = launched(b200, products, "wide_deep")
    for launch, expected, cluster, units in (
        (wide, (4096, 8192), 4, 8192 // 1024),
        (narrow, (256, 640), 1, 640 // 128),
    ):
        header, entries = unpack(launch.parameters)
        assert [entry.product.n for entry in entries] == list(expected)
        assert (launch.cluster, header.column_units) == ((cluster, 1, 1), units)
    assert wide.grid == (4 * (4 + 8), 1, 1)
    assert narrow.grid == (5 * 2, 1, 1), "interleaved: as many rounds as the widest has tiles"
    assert [unpack(launch.parameters)[0].stages for launch in (wide, narrow)] == [4, 6]


@pytest.mark.parametrize("preset", ["fused_persistent", "wide_deep"])
def test_a_preset_can_be_forced(
    b200: RecordingDriver, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIBBLAS_SM100_PRESET", preset)
    assert BACKEND.plan(problem_of(operands())).config.preset == preset


def test_an_unknown_preset_is_refused_by_its_variable(
    b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIBBLAS_SM100_PRESET", "nonsense")
    with pytest.raises(ValueError, match="^NIBBLAS_SM100_PRESET: got 'nonsense'; want one of "):
        BACKEND.plan(problem_of(operands()))
    assert not b200.events


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"n": 0}])
def test_nothing_to_compute_launches_nothing(b200: RecordingDriver, sizes: dict[str, int]) -> None:
    product = operands(**sizes, bare=True)  # type: ignore[arg-type]
    plan = plan_of(product)
    BACKEND.run([product], plan)
    assert BACKEND.prepare(product, plan) is None
    assert not b200.events


def test_products_without_outputs_are_left_out_of_a_list(b200: RecordingDriver) -> None:
    products = [
        operands(groups=1, rows=rows, n=n, one_group=True, bare=True)
        for rows, n in ((0, 64), (3, 64), (4, 0), (5, 64))
    ]
    (launch,) = launched(b200, products)
    assert [entry.product.rows for entry in unpack(launch.parameters)[1]] == [3, 5]
    assert launched(b200, products[:1] + products[2:3]) == []


def test_the_host_never_reads_offs(b200: RecordingDriver) -> None:
    product = operands()
    assert product.offs is not None
    (first,) = launched(b200, product)
    for hostile in ([-1, -1, -1, -1], [2**31 - 1, 0, -(2**31), 7], [300, 10, 300, 0]):
        product.offs.copy_(torch.tensor(hostile, dtype=torch.int32))
        assert launched(b200, product) == [first]


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"x_layout": "linear", "w_layout": "linear"},
        {"k": 528, "w_layout": "linear"},
        {"max_m": 130},
        {"bare": True},
    ],
    ids=["bulk", "gathered", "loaded", "masked", "bare"],
)
def test_a_prepared_product_launches_as_a_new_one_would(
    b200: RecordingDriver, kind: dict[str, Any]
) -> None:
    first = operands(**kind)
    plan = plan_of(first)
    run_at = BACKEND.prepare(first, plan)
    assert run_at is not None
    others = [operands(**kind) for _ in range(2)]
    b200.clear()
    for queue, product in zip((0x10, 0x20), others, strict=True):
        b200.queue = queue
        assert run_at([tensor.data_ptr() for tensor in product.tensors.values()])
    assert [event.call for event in b200.events] == ["launch"] * 2
    prepared = list(b200.launches)
    for queue, product, launch in zip((0x10, 0x20), others, prepared, strict=True):
        b200.clear()
        b200.queue = queue
        BACKEND.run([product], plan)
        assert b200.launches == [launch]
        (entry,) = unpack(launch.parameters)[1]
        for name, tensor in product.tensors.items():
            field = getattr(entry.product, name)
            assert (field if isinstance(field, int) else field.bytes) == at(tensor), name
        if any(entry.x_map):
            assert (entry.x_map[0], entry.w_map[0]) == (at(product.x), at(product.w))
    assert prepared[0].parameters != prepared[1].parameters


def test_a_prepared_product_leaves_another_driver_alone(b200: RecordingDriver) -> None:
    product = operands()
    run_at = BACKEND.prepare(product, plan_of(product))
    assert run_at is not None
    addresses = [tensor.data_ptr() for tensor in product.tensors.values()]
    b200.clear()
    with use_driver(RecordingDriver(compute_capability=(10, 0))) as other:
        assert not run_at(addresses)
    assert not other.events and not b200.events
    assert run_at(addresses)


def why_not(capability: tuple[int, int] = (10, 0), **fields: Any) -> list[str]:
    shapes = fields.pop("shapes", uniform_shapes((64, 64), 256, 512))
    given: dict[str, Any] = {"activations": "nvfp4", "out": "bf16", "device": "cuda"} | fields
    with use_driver(RecordingDriver(compute_capability=capability)):
        return BACKEND.why_not(Problem(shapes, **given))


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
@pytest.mark.parametrize("form", ["packed", "masked", "list"])
@pytest.mark.parametrize("out", ["fp16", "bf16", "fp32"])
def test_nvfp4_tokens_on_datacenter_blackwell_are_taken(
    capability: tuple[int, int], form: str, out: str
) -> None:
    assert why_not(capability, form=form, out=out) == []


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (11, 0), (12, 0), (12, 1)])
def test_other_devices_are_refused(capability: tuple[int, int]) -> None:
    found = ".".join(map(str, capability))
    assert why_not(capability) == [
        f"it is for compute capability 10.0 and 10.3, and the device has {found}"
    ]


def test_tensors_elsewhere_are_refused() -> None:
    assert why_not(device="cpu") == ["it computes on NVIDIA GPUs, and the tensors are on cpu"]


@pytest.mark.parametrize("tokens", ["bf16", "fp16"])
def test_16_bit_tokens_are_refused(tokens: str) -> None:
    assert why_not(activations=tokens) == [
        f"tcgen05.mma multiplies NVFP4 by NVFP4, and the tokens are {tokens}"
    ]


def test_more_groups_than_the_table_holds_are_refused_but_in_lists() -> None:
    shapes = uniform_shapes((1,) * 1025, 128, 16)
    assert why_not(shapes=shapes[:1024]) == []
    for form in ("packed", "masked"):
        assert why_not(shapes=shapes, form=form) == [
            "it takes at most 1024 groups, and there are 1025"
        ]
    assert why_not(shapes=shapes, form="list") == []


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        (GroupShape(2**31 - 1024, 8, 16), ""),
        (GroupShape(2**31 - 1023, 8, 16), "rows of all groups"),
        (GroupShape(8, 2**31 - 1024, 16), ""),
        (GroupShape(8, 2**31 - 1023, 16), "rows of weights"),
        (GroupShape(8, 8, 2**31 - 1024), ""),
        (GroupShape(8, 8, 2**31 - 1008), "values along K"),
        (GroupShape(2**24, 2**21, 16), "tiles"),
    ],
)
def test_sizes_beyond_32_bits_are_refused(shape: GroupShape, what: str) -> None:
    reasons = why_not(shapes=(shape,))
    assert len(reasons) == bool(what)
    for reason in reasons:
        assert reason.startswith(f"it counts {what} in 32 bits: at most 2,147,482,624, and ")


def test_rounds_of_a_list_are_as_many_as_its_widest_product_takes() -> None:
    """Interleaved, 2^23 rounds of 2^13 tiles are counted, though few of them have columns."""
    wide, tall = GroupShape(1, 2**30, 16), GroupShape(2**20, 8, 16)
    assert why_not(shapes=(wide,), form="list") == why_not(shapes=(tall,), form="list") == []
    (reason,) = why_not(shapes=(wide, tall), form="list")
    assert reason.startswith("it counts tiles in 32 bits")


def test_groups_of_few_rows_count_as_tiles() -> None:
    """1,024 groups may have a tile more than their rows fill."""
    rows = 128 * 1024
    shapes = uniform_shapes((rows // 1024,) * 1024, 128 * 2**20, 16)
    (reason,) = why_not(shapes=shapes, rows_known=False)
    assert reason.startswith("it counts tiles in 32 bits")
