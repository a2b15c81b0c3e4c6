"""The portable backend's host side on the recording driver: launches, parameters, nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from nibblas.backends.base import Operands
from nibblas.backends.portable import PortableBackend, config_of
from nibblas.backends.portable_params import params_of
from nibblas.backends.product_params import common_alignment
from nibblas.errors import NativeLibraryError
from nibblas.plan.portable import PARAMS_BYTES, all_configs, choose_config, config_for
from nibblas.plan.problem import Problem, even_rows, uniform_shapes
from nibblas.runtime.compile import compiler_version
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver
from nibblas.runtime.tensormap import TensorMaps

BACKEND = PortableBackend()


@pytest.fixture(scope="module")
def driver() -> Iterator[RecordingDriver]:
    """A Hopper that records; the kernels that it loads are compiled here."""
    try:
        compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))
    recorder = RecordingDriver(compute_capability=(9, 0), sms=132)
    with use_driver(recorder):
        yield recorder


def operands(*, groups: int = 4, rows: int = 10, n: int = 288, k: int = 512) -> Operands:
    return Operands(
        x=torch.zeros(rows, k, dtype=torch.float16),
        x_scales=None,
        x_scale_layout="linear",
        x_scale_start="torch",
        x_global=None,
        w=torch.zeros(groups, n, k // 2, dtype=torch.uint8),
        w_scales=torch.zeros(groups, n, k // 16, dtype=torch.uint8),
        w_scale_layout="linear",
        w_global=torch.ones(groups, 3),
        offs=torch.zeros(groups, dtype=torch.int32),
        max_m=0,
        alpha=torch.ones(groups),
        row_scale=None,
        bias=torch.zeros(n, dtype=torch.bfloat16),
        out=torch.zeros(rows, n),
    )


def problem_of(product: Operands, device: str = "cuda") -> Problem:
    rows = even_rows(product.m, product.groups)
    shapes = uniform_shapes(rows, product.n, product.k)
    return Problem(shapes, "fp16", "fp32", device=device, rows_known=False)


def test_a_warm_call_is_one_launch_and_nothing_else(driver: RecordingDriver) -> None:
    product = operands()
    plan = BACKEND.plan(problem_of(product))
    BACKEND.run([product], plan)
    driver.clear()
    BACKEND.run([product], plan)
    assert [event.call for event in driver.events] == ["launch"]
    (launch,) = driver.launches
    assert launch.grid == (72, 1, 1)  # 4 groups of 18 sets of 16 rows; the device holds more
    assert launch.block == (plan.config.threads, 1, 1)
    assert launch.shared_bytes == plan.config.shared_bytes
    assert launch.queue == driver.queue
    assert len(launch.parameters) == plan.config.params_bytes


def test_the_grid_fills_the_device_and_no_more(driver: RecordingDriver) -> None:
    product = operands(groups=16, n=4096)
    plan = BACKEND.plan(problem_of(product))
    BACKEND.run([product], plan)
    assert driver.launches[-1].grid == (132 * plan.config.ctas_per_sm, 1, 1)


def test_parameters_hold_the_tensors_own_addresses() -> None:
    product = operands()
    config = config_for("fp16", 16, "sm_80", aligned=True)
    parameters = params_of(product, config, TensorMaps(RecordingDriver()))
    assert len(parameters) == PARAMS_BYTES
    words = struct.unpack("=38q", parameters)
    tensors = ("x", "w", "w_scales", "offs", "w_global", "alpha", "bias", "out")
    for name in tensors:
        assert getattr(product, name).data_ptr() in words, name
    assert words[18 + 1 : 18 + 6] == (4, 10, 288, 512, 0)  # groups, rows, n, k, max_m
    assert words[27:30] == (3, 1, 96)  # strides of w_global, columns of a segment


@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_tensor_maps_are_of_the_tensors_where_they_lie(layout: str) -> None:
    product = operands(n=256)
    if layout == "blocked":
        product = replace(product, w_scale_layout=layout)
    driver = RecordingDriver()
    config = config_for("fp16", 16, "sm_90a", aligned=True)
    parameters = params_of(product, config, TensorMaps(driver))
    encoded = [event.arguments for event in driver.events if event.call == "encode_tensor_map"]
    assert [made["address"] for made in encoded] == [
        product.w.data_ptr(),
        product.w_scales.data_ptr(),
    ]
    assert len(parameters) == config.params_bytes == 320 + 2 * 128
    assert struct.unpack_from("=q120xq", parameters, 320) == (
        product.w.data_ptr(),
        product.w_scales.data_ptr(),
    )
    for made, tensor in zip(encoded, (product.w, product.w_scales), strict=True):
        spec = made["spec"]
        sizes = zip(spec.dims[1:], spec.stride_bytes, strict=True)
        last = spec.dims[0] + sum((size - 1) * stride for size, stride in sizes)
        assert last == tensor.numel(), "the map ends where the tensor does"


def test_a_warm_prepared_call_encodes_no_tensor_map(driver: RecordingDriver) -> None:
    product = operands()
    plan = BACKEND.plan(problem_of(product))
    run_at = BACKEND.prepare(product, plan)
    assert run_at is not None
    driver.clear()
    addresses = [tensor.data_ptr() for tensor in product.tensors.values()]
    assert run_at(addresses)
    assert [event.call for event in driver.events] == ["launch"]
    BACKEND.run([product], plan)
    assert driver.launches[0].parameters == driver.launches[1].parameters


def test_no_rows_launch_nothing(driver: RecordingDriver) -> None:
    product = operands(rows=0)
    plan = BACKEND.plan(problem_of(product))
    driver.clear()
    BACKEND.run([product], plan)
    assert not driver.launches


def test_a_list_is_one_launch_each(driver: RecordingDriver) -> None:
    products = [operands(groups=1, n=n) for n in (100, 200)]
    products = [replace(p, offs=None, w_global=None) for p in products]
    plan = BACKEND.plan(problem_of(products[0]))
    driver.clear()
    BACKEND.run(products, plan)
    assert [launch.grid[0] for launch in driver.launches] == [7, 13]  # sets of 16 rows


def test_groups_that_are_one_matrix_have_no_tensor_map(driver: RecordingDriver) -> None:
    product = operands(k=512)
    expanded = replace(product, w=product.w[:1].expand_as(product.w))
    driver.clear()
    BACKEND.run([expanded], BACKEND.plan(problem_of(product)))
    (launch,) = driver.launches
    assert len(launch.parameters) == PARAMS_BYTES, "no room for maps"


@pytest.mark.parametrize("part", ["x", "w", "w_scales"])
def test_unaligned_rows_take_the_variant_for_any_rows(driver: RecordingDriver, part: str) -> None:
    product = operands()
    plan = BACKEND.plan(problem_of(product))
    tensor = getattr(product, part)
    shifted = torch.zeros((*tensor.shape[:-1], tensor.shape[-1] + 1), dtype=tensor.dtype)[..., 1:]
    driver.clear()
    BACKEND.run([product], plan)
    changes: Any = {part: shifted}
    BACKEND.run([replace(product, **changes)], plan)
    aligned, other = driver.launches
    assert aligned.function != other.function


@pytest.mark.parametrize("rows", [10, 4000])
def test_rows_that_are_not_aligned_take_a_prebuilt_configuration(rows: int) -> None:
    product = operands(rows=rows, n=24)
    planned = choose_config(problem_of(product), "sm_90a")
    taken = config_of(product, planned)
    assert planned.aligned
    assert not taken.aligned
    assert {planned, taken} <= set(all_configs())


def test_k_inside_a_stage_is_planned_for_any_rows() -> None:
    assert choose_config(problem_of(operands(k=512)), "sm_90a").aligned
    assert not choose_config(problem_of(operands(k=528)), "sm_90a").aligned


def test_many_tokens_a_group_take_wider_blocks() -> None:
    assert choose_config(problem_of(operands(rows=40)), "sm_90a").tokens == 16
    assert choose_config(problem_of(operands(rows=4000)), "sm_90a").tokens == 64


def test_every_chosen_configuration_is_one_that_is_prebuilt() -> None:
    prebuilt = all_configs()
    assert len(set(prebuilt)) == len(prebuilt)
    for rows, k in ((1, 256), (1, 272), (9999, 256), (9999, 16)):
        assert choose_config(problem_of(operands(rows=rows, k=k)), "sm_120f") in prebuilt


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"])
@pytest.mark.parametrize("tokens", [16, 64])
def test_shared_memory_fits_the_target(target: str, tokens: int) -> None:
    block, multiprocessor = {
        "sm_80": (163, 164),
        "sm_86": (99, 100),
        "sm_89": (99, 100),
        "sm_90a": (227, 228),
        "sm_100f": (227, 228),
        "sm_120f": (99, 100),
    }[target]
    for kind in ("fp16", "bf16", "nvfp4"):
        config = config_for(kind, tokens, target, aligned=True)
        assert config.shared_bytes <= block * 1024
        assert config.ctas_per_sm * (config.shared_bytes + 1024) <= multiprocessor * 1024


def test_refuses_other_devices_and_old_gpus(driver: RecordingDriver) -> None:
    assert BACKEND.why_not(problem_of(operands())) == []
    assert "the tensors are on cpu" in BACKEND.why_not(problem_of(operands(), "cpu"))[0]
    with use_driver(RecordingDriver(compute_capability=(7, 5))):
        assert "capability 7.5" in BACKEND.why_not(problem_of(operands()))[0]


def test_common_alignment() -> None:
    assert common_alignment(0, 32, 48) == 16
    assert common_alignment(16, 8) == 8
    assert common_alignment(16, 12) == 4
    assert common_alignment(16, 2) == 1
    assert common_alignment(16, 7) == 1


def full_operands(*, quantized: bool, blocked: bool, seed: int) -> Operands:
    """Every tensor that a product can have, newly made."""
    torch.manual_seed(seed)
    groups, rows, n, k = 4, 10, 300, 512
    tokens = torch.randint(0, 256, (rows, k // 2)).to(torch.uint8)
    shapes = ((640, k // 16), (groups, 384, k // 16))
    if not blocked:
        shapes = ((rows, k // 16), (groups, n, k // 16))
    x_scales, w_scales = (torch.zeros(shape, dtype=torch.uint8) for shape in shapes)
    return replace(
        operands(groups=groups, rows=rows, n=n, k=k),
        x=tokens if quantized else torch.zeros(rows, k, dtype=torch.float16),
        x_scales=x_scales if quantized else None,
        x_scale_layout="blocked" if blocked and quantized else "linear",
        x_global=torch.ones(groups) if quantized else None,
        w_scales=w_scales,
        w_scale_layout="blocked" if blocked else "linear",
        row_scale=torch.ones(rows),
    )


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("blocked", [False, True])
def test_a_prepared_product_launches_as_a_new_one_would(
    driver: RecordingDriver, quantized: bool, blocked: bool
) -> None:
    first = full_operands(quantized=quantized, blocked=blocked, seed=1)
    problem = replace(problem_of(first), activations="nvfp4" if quantized else "fp16")
    plan = BACKEND.plan(problem)
    run_at = BACKEND.prepare(first, plan)
    assert run_at is not None
    others = [full_operands(quantized=quantized, blocked=blocked, seed=seed) for seed in (2, 3)]
    driver.clear()
    for product in others:
        assert run_at([tensor.data_ptr() for tensor in product.tensors.values()])
    assert [event.call for event in driver.events] == ["launch"] * 2
    prepared = list(driver.launches)
    driver.clear()
    BACKEND.run(others, plan)
    assert prepared == driver.launches
    assert prepared[0].parameters != prepared[1].parameters


def test_a_prepared_product_leaves_another_driver_alone(driver: RecordingDriver) -> None:
    product = operands()
    plan = BACKEND.plan(problem_of(product))
    run_at = BACKEND.prepare(product, plan)
    assert run_at is not None
    addresses = [tensor.data_ptr() for tensor in product.tensors.values()]
    driver.clear()
    with use_driver(RecordingDriver()) as other:
        assert not run_at(addresses)
    assert not other.events and not driver.events
    assert run_at(addresses)


def test_nothing_to_compute_is_not_prepared(driver: RecordingDriver) -> None:
    product = operands(rows=0)
    assert BACKEND.prepare(product, BACKEND.plan(problem_of(product))) is None
