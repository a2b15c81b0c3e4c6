"""What the datacenter Blackwell kernel is given: its parameter by field, and its tensor maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from nibblas.backends.base import Operands
from nibblas.runtime.recording import RecordingDriver
from nibblas.runtime.tensormap import TensorMapSpec
from tests.backends.sm100_records import (
    BACKEND,
    at,
    launched,
    listed,
    off_alignment,
    operands,
    plan_of,
    unpack,
    values,
    zeros,
)


def encoded(
    b200: RecordingDriver,
    products: Operands | Sequence[Operands],
    preset: str = "fused_persistent",
) -> list[Any]:
    """(spec, address) of every tensor map that a first call encodes."""
    b200.clear()
    BACKEND.run(listed(products), plan_of(products, preset))
    return [
        (event.arguments["spec"], event.arguments["address"])
        for event in b200.events
        if event.call == "encode_tensor_map"
    ]


@pytest.mark.parametrize("layout", ["blocked", "linear"])
def test_parameters_of_a_packed_product_by_field(b200: RecordingDriver, layout: str) -> None:
    product = operands(groups=4, rows=300, n=384, k=512, x_layout=layout, w_layout=layout)
    (launch,) = launched(b200, product)
    header, (entry,) = unpack(launch.parameters)
    assert values(header) == {
        "products": 1,
        "column_units": 3,
        "stages": 6,
        "tensor_columns": 512,
        "group_capacity": 1024,
        "tile_tokens": 128,
        "box_rows": 128,
        "scale_slots": 6,
    }
    blocked = layout == "blocked"
    assert product.x_scales is not None
    x_scale_row, w_scale_rows = 32, 384  # 512 / 16 bytes; blocked rows are padded to 128
    assert values(entry.product) == {
        "x": {"bytes": at(product.x), "group_bytes": 0, "row_bytes": 256, "vector": 16},
        "x_scales": {
            "bytes": at(product.x_scales),
            "group_bytes": len(product.x_scales),  # the rows that there are
            "row_bytes": x_scale_row,
            "vector": 16,
            "layout": int(blocked),
            "start_rule": 0,
        },
        "w": {
            "bytes": at(product.w),
            "group_bytes": 384 * 256,
            "row_bytes": 256,
            "vector": 16,
        },
        "w_scales": {
            "bytes": at(product.w_scales),
            "group_bytes": w_scale_rows * 32,
            "row_bytes": 32,
            "vector": 16,
            "layout": int(blocked),
            "start_rule": 0,
        },
        "offs": at(product.offs),
        "groups": 4,
        "rows": 300,
        "n": 384,
        "k": 512,
        "max_m": 0,
        "x_global": at(product.x_global),
        "x_global_stride": 1,
        "w_global": at(product.w_global),
        "w_global_group_stride": 3,
        "w_global_segment_stride": 1,
        "segment_columns": 128,
        "alpha": at(product.alpha),
        "row_scale": at(product.row_scale),
        "bias": at(product.bias),
        "bias_group_stride": 384,
        "out": at(product.out),
        "out_row_stride": 384,
        "out_column_stride": 1,
        "bias_type": 0,
        "out_type": 1,
    }


def test_parameters_of_a_masked_product(b200: RecordingDriver) -> None:
    product = operands(groups=3, max_m=130)
    (launch,) = launched(b200, product)
    (entry,) = unpack(launch.parameters)[1]
    assert (entry.product.max_m, entry.product.rows, entry.product.groups) == (130, 390, 3)
    assert entry.product.offs == at(product.offs)
    assert entry.product.x_scales.start_rule == 2


def test_what_is_absent_is_null(b200: RecordingDriver) -> None:
    (launch,) = launched(b200, operands(groups=1, one_group=True, bare=True))
    (entry,) = unpack(launch.parameters)[1]
    for name in ("offs", "x_global", "w_global", "alpha", "row_scale", "bias"):
        assert getattr(entry.product, name) == 0, name
    assert entry.product.segment_columns == 384


@pytest.mark.parametrize(
    ("rule", "number"), [("torch", 0), ("flashinfer", 1)], ids=["torch", "flashinfer"]
)
def test_where_the_groups_scales_start(b200: RecordingDriver, rule: str, number: int) -> None:
    (launch,) = launched(b200, operands(x_scale_start=rule))
    (entry,) = unpack(launch.parameters)[1]
    assert entry.product.x_scales.start_rule == number


def test_outputs_of_any_strides_and_type(b200: RecordingDriver) -> None:
    for dtype, number in ((torch.bfloat16, 0), (torch.float16, 1), (torch.float32, 2)):
        out = torch.zeros(2 * 384, 300, dtype=dtype).t()[:, ::2]
        (launch,) = launched(b200, operands(out=out))
        (entry,) = unpack(launch.parameters)[1]
        assert (entry.product.out_row_stride, entry.product.out_column_stride) == (1, 600)
        assert (entry.product.out, entry.product.out_type) == (at(out), number)


def test_maps_of_a_packed_product(b200: RecordingDriver) -> None:
    product = operands(groups=4, rows=300, n=1024, k=1024)
    maps = encoded(b200, product)
    assert maps == [
        (codes_map(dims=(512, 300, 1), strides=(512, 300 * 512), rows=64), at(product.x)),
        (codes_map(dims=(512, 1024, 4), strides=(512, 1024 * 512), rows=128), at(product.w)),
    ]
    (entry,) = unpack(b200.launches[-1].parameters)[1]
    assert (entry.x_map[0], entry.w_map[0]) == (at(product.x), at(product.w))
    assert bytes(entry.x_map)[8:] == b200.encode_tensor_map(*maps[0])[8:]
    assert bytes(entry.w_map)[8:] == b200.encode_tensor_map(*maps[1])[8:]


def codes_map(*, dims: tuple[int, ...], strides: tuple[int, ...], rows: int) -> TensorMapSpec:
    """Boxes of rows of 128 bytes, 256 codes, swizzled as tcgen05.mma reads them."""
    return TensorMapSpec(
        "uint8",
        dims=dims,
        stride_bytes=strides,
        box=(128, rows, 1),
        swizzle="128b",
        l2_promotion="l2_256b",
    )


@pytest.mark.parametrize(("k", "box_rows"), [(512, 128), (1024, 64), (4096, 32)])
def test_ctas_of_a_cluster_share_out_the_tokens(
    b200: RecordingDriver, k: int, box_rows: int
) -> None:
    (x_map, _), (w_map, _) = encoded(b200, operands(n=512, k=k))
    assert (x_map.box, w_map.box) == ((128, box_rows, 1), (128, 128, 1))


def test_the_wide_variant_takes_256_weight_rows(b200: RecordingDriver) -> None:
    product = operands(groups=1, n=4096, k=2048, bare=True)
    (x_map, _), (w_map, _) = encoded(b200, product, "wide_deep")
    assert (x_map.box, w_map.box) == ((128, 32, 1), (128, 256, 1))


def test_maps_of_a_masked_product(b200: RecordingDriver) -> None:
    (x_map, _), (w_map, _) = encoded(b200, operands(groups=3, max_m=130))
    assert (x_map.dims, w_map.dims) == ((256, 390, 1), (256, 384, 3))


def test_maps_of_a_list_are_each_products_own(b200: RecordingDriver) -> None:
    products = [
        operands(groups=1, rows=rows, n=n, k=k, one_group=True)
        for rows, n, k in ((200, 640, 512), (5, 8, 96))
    ]
    maps = encoded(b200, products)
    assert [spec.dims for spec, _ in maps] == [
        (256, 200, 1),
        (256, 640, 1),
        (48, 5, 1),
        (48, 8, 1),
    ]
    tensors = [tensor for product in products for tensor in (product.x, product.w)]
    assert [address for _, address in maps] == list(map(at, tensors))


def test_the_stride_of_a_single_row_means_nothing(b200: RecordingDriver) -> None:
    x = torch.zeros(1024, dtype=torch.uint8).as_strided((1, 256), (7, 1))
    w = torch.zeros(1024, dtype=torch.uint8).as_strided((1, 1, 256), (3, 5, 1))
    product = operands(groups=1, rows=1, n=1, bare=True, x=x, w=w)
    for spec in maps_of_one_row(b200, product):
        assert (spec.dims, spec.stride_bytes) == ((256, 1, 1), (256, 256))


@pytest.mark.parametrize(("k", "stride"), [(16, 16), (48, 32), (528, 272)])
def test_a_single_row_of_8_mod_16_bytes_has_a_map(
    b200: RecordingDriver, k: int, stride: int
) -> None:
    for spec in maps_of_one_row(b200, operands(groups=1, rows=1, n=1, k=k, bare=True)):
        assert (spec.dims, spec.stride_bytes) == ((k // 2, 1, 1), (stride, stride))


def maps_of_one_row(b200: RecordingDriver, product: Operands) -> list[TensorMapSpec]:
    """The maps of x and w, which may be one and the same but for the address."""
    specs = [spec for spec, _ in encoded(b200, product)]
    (entry,) = unpack(b200.launches[-1].parameters)[1]
    assert (entry.x_map[0], entry.w_map[0]) == (at(product.x), at(product.w))
    assert 1 <= len(specs) <= 2
    return specs


@pytest.mark.parametrize("k", [16, 48, 528])
def test_rows_of_8_mod_16_bytes_are_loaded(b200: RecordingDriver, k: int) -> None:
    product = operands(k=k)
    assert encoded(b200, product) == []
    (launch,) = launched(b200, product)
    assert launch.block == ((4 + 1 + 4 + 2) * 32, 1, 1) and launch.cluster == (1, 1, 1)
    (entry,) = unpack(launch.parameters)[1]
    assert not any(entry.x_map) and not any(entry.w_map)
    assert (entry.product.x.row_bytes, entry.product.x.vector) == (k // 2, 8)


def test_padded_rows_of_any_length_are_copied(b200: RecordingDriver) -> None:
    """The map ends where K does, so that what lies between rows never arrives."""
    x, w = zeros(300, 32)[:, :24], zeros(4, 384, 32)[..., :24]
    (x_map, _), (w_map, _) = encoded(b200, operands(k=48, x=x, w=w))
    assert (x_map.dims, x_map.stride_bytes[0]) == ((24, 300, 1), 32)
    assert (w_map.dims, w_map.stride_bytes) == ((24, 384, 4), (32, 384 * 32))


@pytest.mark.parametrize("name", ["x", "w"])
def test_codes_off_their_alignment_are_loaded(b200: RecordingDriver, name: str) -> None:
    product = operands(k=1024)
    changes: Any = {name: off_alignment(getattr(product, name), by=4)}
    product = replace(product, **changes)
    (launch,) = launched(b200, product)
    assert launch.block == ((4 + 1 + 4 + 2) * 32, 1, 1)
    (entry,) = unpack(launch.parameters)[1]
    rows = getattr(entry.product, name)
    assert (rows.bytes, rows.vector) == (at(getattr(product, name)), 4)


def test_groups_that_are_one_matrix_are_loaded(b200: RecordingDriver) -> None:
    """A tensor map has no stride of 0."""
    product = operands(k=1024)
    (launch,) = launched(b200, replace(product, w=product.w[:1].expand_as(product.w)))
    assert launch.block == ((4 + 1 + 4 + 2) * 32, 1, 1)


@pytest.mark.parametrize("name", ["x_scales", "w_scales"])
def test_blocked_scales_off_their_alignment_are_gathered(b200: RecordingDriver, name: str) -> None:
    product = operands()
    changes: Any = {name: off_alignment(getattr(product, name))}
    (launch,) = launched(b200, replace(product, **changes))
    assert launch.block == ((4 + 1 + 1 + 2) * 32, 1, 1)
    (entry,) = unpack(launch.parameters)[1]
    assert any(entry.x_map) and any(entry.w_map), "codes still come through TMA"
    assert getattr(entry.product, name).vector == 1


def test_the_stride_of_one_groups_scales_means_nothing(b200: RecordingDriver) -> None:
    for groups, warps in ((1, 6), (2, 8)):
        scales = torch.zeros(groups * 12296, dtype=torch.uint8)
        strided = scales.as_strided((groups, 384, 32), (12296, 32, 1))  # 12,296 is 8 mod 16
        (launch,) = launched(b200, operands(groups=groups, w_scales=strided))
        assert launch.block == (32 * warps, 1, 1)


def test_maps_end_where_the_tensor_does_and_few_are_kept(b200: RecordingDriver) -> None:
    """Another M at every call: a map of its own rows, of which a bounded number is kept."""
    plan = plan_of(operands())
    w = zeros(2, 128, 64)
    BACKEND.run([operands(groups=2, rows=1, n=128, k=128, w=w, bare=True)], plan)
    b200.clear()
    for rows in range(2, 402):
        product = operands(groups=2, rows=rows, n=128, k=128, w=w, bare=True)
        BACKEND.run([product], plan)
        spec, address = (b200.events[-2].arguments[name] for name in ("spec", "address"))
        assert (spec.dims, address) == ((64, rows, 1), at(product.x))
    assert b200.count("launch") == 400
    made = b200.count("encode_tensor_map")
    assert made == len(b200.events) - 400, "maps and launches, nothing else"
    # The weights' map may have to be made anew once others have taken its place.
    assert 400 <= made <= 400 + 2
    b200.clear()
    BACKEND.run([operands(groups=2, rows=3, n=128, k=128, w=w, bare=True)], plan)
    assert b200.count("encode_tensor_map") >= 1, "not all of 400 are kept"
