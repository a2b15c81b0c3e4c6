"""The Hopper backend's host side on the recording driver: launches, parameters, nothing else."""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.backends.sm90 import Sm90Backend
from nibblas.backends.sm90_params import params_of
from nibblas.plan import sm90, sm90_prepare
from nibblas.plan.problem import Activations, GroupShape, Problem, even_rows, uniform_shapes
from nibblas.plan.select import Plan
from nibblas.plan.sm90 import PARAMS_HEADER_BYTES, Sm90Config
from nibblas.plan.sm90_prepare import Sm90PrepareConfig
from nibblas.runtime.driver import ImageKind, LaunchSpec, use_driver
from nibblas.runtime.recording import RecordingDriver
from nibblas.runtime.tensormap import TensorMaps, TensorMapSpec
from tests.backends import sm100_records
from tests.backends.sm100_records import Product, at, off_alignment, values

PREPARE, MULTIPLY = "nibblas_sm90_prepare_tokens", "nibblas_sm90_grouped_mm"
PORTABLE = "nibblas_portable_grouped_mm"
SMS = 132

Shape = Callable[[Activations], Sm90Config]


class PtxRecorder(RecordingDriver):
    """Takes PTX, which is made in a third of a cubin's time."""

    image_kind: ImageKind = "ptx"

    def constant(self, module: int, name: str) -> bytes:
        found = re.search(rf"{name} = (\d+);", self.cubins[module].decode())
        assert found is not None
        return int(found[1]).to_bytes(8, "little")


@pytest.fixture(scope="module")
def h200(nvrtc: str) -> Iterator[RecordingDriver]:
    """A Hopper that records; the kernels that it loads are compiled here, once."""
    with use_driver(PtxRecorder(compute_capability=(9, 0), sms=SMS)) as recorder:
        yield recorder


def operands(*, nvfp4: bool = False, **keywords: Any) -> Operands:
    """NVFP4 or fp16 tokens; 4 groups, N = 384, K = 512 unless given."""
    product = sm100_records.operands(**keywords)
    if nvfp4:
        return product
    x = torch.zeros(product.m, product.k, dtype=torch.float16)
    return replace(product, x=x, x_scales=None, x_scale_layout="linear", x_scale_start="torch")


def problem_of(products: Sequence[Operands], form: Any = None, device: str = "cuda") -> Problem:
    shapes: list[GroupShape] = []
    for product in products:
        rows = even_rows(product.m, product.groups)
        shapes += uniform_shapes(rows, product.n, product.k)
    kind: Activations = "fp16" if products[0].x_scales is None else "nvfp4"
    return Problem(
        tuple(shapes),
        kind,
        "fp16",
        device=device,
        form=form or products[0].form,
        rows_known=False,
        w_scale_layout=products[0].w_scale_layout,
    )


def plan_of(*products: Operands, form: Any = None) -> Plan:
    return Sm90Backend().plan(problem_of(products, form))


def launched(driver: RecordingDriver, *products: Operands, form: Any = None) -> list[LaunchSpec]:
    """The launches of a call whose kernels are loaded."""
    backend, plan = Sm90Backend(), plan_of(*products, form=form)
    backend.run(products, plan)
    driver.clear()
    backend.run(products, plan)
    assert driver.count("launch") == len(driver.events), "a warm call does nothing but launch"
    return driver.launches


def maps_in(parameters: bytes) -> list[int]:
    """Addresses of the maps in the parameter."""
    return [
        int.from_bytes(parameters[i : i + 8], "little")
        for i in range(PARAMS_HEADER_BYTES, len(parameters), 128)
    ]


# Launches


def kernels_of(launches: Sequence[LaunchSpec]) -> list[str]:
    return [launch.kernel for launch in launches]


def test_16_bit_tokens_are_read_in_place_by_one_launch(h200: RecordingDriver) -> None:
    product = operands(groups=4, rows=300)
    h200.queue = 0x77
    (multiply,) = launched(h200, product)
    check_multiply(multiply, plan_of(product).config.config)
    found = values(Product.from_buffer_copy(multiply.parameters))
    assert (found["x"]["bytes"], found["x"]["row_bytes"]) == (at(product.x), 2 * 512)


def test_nvfp4_tokens_are_prepared_by_a_launch_before(h200: RecordingDriver) -> None:
    product = operands(groups=4, rows=300, nvfp4=True)
    h200.queue = 0x77
    prepare, multiply = launched(h200, product)
    choice = plan_of(product).config
    check_multiply(multiply, choice.config)
    config = choice.prepare
    assert (prepare.kernel, prepare.queue, prepare.device) == (PREPARE, 0x77, 0)
    assert (prepare.block, prepare.shared_bytes) == ((config.threads, 1, 1), 0)
    assert len(prepare.parameters) == config.params_bytes
    assert not prepare.programmatic
    # A warp takes 256 values of a row.
    assert prepare.grid == (-(-300 * 2 * 32 // config.threads), 1, 1)


def check_multiply(launch: LaunchSpec, config: Sm90Config) -> None:
    """Of 300 rows in 4 groups, N = 384, on queue 0x77."""
    assert (launch.kernel, launch.queue, launch.device) == (MULTIPLY, 0x77, 0)
    assert launch.block == (config.threads, 1, 1)
    assert launch.shared_bytes == config.shared_bytes <= 227 * 1024
    assert len(launch.parameters) == config.params_bytes
    assert launch.cluster == (1, 1, 1)
    assert launch.programmatic
    # Tiles of the least width and the rests of four groups; six units.
    most = (300 // config.widths[0] + 4) * 6
    assert launch.grid == (min(most, SMS), 1, 1)


def test_the_grid_is_no_more_than_are_resident(h200: RecordingDriver) -> None:
    product = operands(groups=8, rows=4096, n=4096, bare=True)
    assert launched(h200, product)[-1].grid == (SMS, 1, 1)


@pytest.mark.parametrize(("n", "units"), [(32, 1), (64, 1), (96, 2), (160, 3)])
def test_a_grid_has_no_more_ctas_than_steps(h200: RecordingDriver, n: int, units: int) -> None:
    """A row each in two groups: two tiles; the last unit may have rows beyond N."""
    (multiply,) = launched(h200, operands(groups=2, rows=2, n=n, bare=True))
    assert multiply.grid == (2 * units, 1, 1)


@pytest.mark.parametrize("nvfp4", [False, True])
def test_a_masked_product(h200: RecordingDriver, nvfp4: bool) -> None:
    *_, multiply = launches = launched(h200, operands(groups=3, max_m=130, nvfp4=nvfp4))
    assert kernels_of(launches) == ([PREPARE, MULTIPLY] if nvfp4 else [MULTIPLY])
    record = Product.from_buffer_copy(multiply.parameters)
    assert (record.max_m, record.groups, record.rows) == (130, 3, 390)


def test_a_list_is_a_launch_each_but_for_empty_ones(h200: RecordingDriver) -> None:
    products = [operands(groups=1, rows=m, n=64, one_group=True, bare=True) for m in (3, 0, 40)]
    launches = launched(h200, *products, form="list")
    assert kernels_of(launches) == [MULTIPLY] * 2
    rows = [Product.from_buffer_copy(launch.parameters).rows for launch in launches]
    assert rows == [3, 40]
    assert plan_of(*products, form="list").estimate.seconds > plan_of(products[0]).estimate.seconds


def test_no_rows_launch_nothing(h200: RecordingDriver) -> None:
    product = operands(rows=0)
    assert launched(h200, product) == []
    assert Sm90Backend().prepare(product, plan_of(product)) is None


# Parameters


each_shape = pytest.mark.parametrize(
    "shape", [Sm90Config.few, Sm90Config.some, Sm90Config.one_wave, Sm90Config]
)


@each_shape
@pytest.mark.parametrize("layout", ["blocked", "linear"])
def test_parameters_are_of_the_tensors_where_they_lie(layout: str, shape: Shape) -> None:
    product, config = operands(w_layout=layout), shape("fp16")
    parameters = params_of(product, config, TensorMaps(RecordingDriver()))
    assert len(parameters) == config.params_bytes
    tokens = [at(product.x)] * len(config.widths)
    assert maps_in(parameters) == [*tokens, at(product.w), at(product.w_scales)]
    record = Product.from_buffer_copy(parameters)
    assert ctypes.sizeof(Product) <= PARAMS_HEADER_BYTES
    found = values(record)
    for name in ("offs", "x_global", "w_global", "alpha", "row_scale", "bias", "out"):
        assert found[name] == at(getattr(product, name)), name
    assert (found["groups"], found["rows"], found["n"], found["k"]) == (4, 300, 384, 512)
    assert (found["segment_columns"], found["w_global_group_stride"]) == (128, 3)
    assert found["w_scales"]["layout"] == (layout == "blocked")


@pytest.mark.parametrize("layout", ["blocked", "linear"])
@pytest.mark.parametrize("n", [32, 96, 384])
def test_tensor_maps_end_where_the_tensors_do(layout: str, n: int) -> None:
    product, config = operands(w_layout=layout, n=n, bare=True), Sm90Config("fp16")
    *tokens, codes, scales = made = maps_made(product, config)
    assert [spec.box for spec in tokens] == [(64, rows, 2) for rows in config.widths]
    assert {(spec.dims, spec.stride_bytes) for spec in tokens} == {((64, 300, 8), (1024, 128))}
    assert {spec.swizzle for spec in tokens} == {"128b"}
    assert codes.box == (64, 64, 1) and codes.swizzle == scales.swizzle == "none"
    assert scales.box == ((256, 4, 1, 1) if layout == "blocked" else (16, 64, 1))
    assert codes.dims == (256, n, 4) and codes.stride_bytes == (256, n * 256)
    atoms = -(-n // 128)
    if layout == "blocked":
        assert scales.dims == (256, 16, atoms, 4)
        assert scales.stride_bytes == (256, 4096, atoms * 4096)
    else:
        assert scales.dims == (32, n, 4) and scales.stride_bytes == (32, n * 32)
    operands_of = [product.x] * len(tokens) + [product.w, product.w_scales]
    for spec, tensor in zip(made, operands_of, strict=True):
        assert last_byte(spec) == tensor.numel() * tensor.element_size()


@each_shape
def test_a_box_of_tokens_is_what_a_cta_expects(shape: Shape) -> None:
    """A whole tile, of which a stage's memory has the widest."""
    config = shape("fp16")
    *tokens, _, _ = maps_made(operands(), config)
    sizes = [2 * math.prod(spec.box) for spec in tokens]
    assert sizes == [width * sm90.STAGE_K * 2 for width in config.widths]
    assert max(sizes) <= config.stage_bytes
    assert max(side for spec in tokens for side in spec.box) <= 256


def maps_made(product: Operands, config: Sm90Config) -> list[TensorMapSpec]:
    recorder = RecordingDriver()
    params_of(product, config, TensorMaps(recorder))
    return [e.arguments["spec"] for e in recorder.events if e.call == "encode_tensor_map"]


def last_byte(spec: TensorMapSpec) -> int:
    """Bytes from a map's first to its last."""
    element = 2 if spec.data_type == "float16" else 1
    steps = zip(spec.dims[1:], spec.stride_bytes, strict=True)
    return spec.dims[0] * element + sum((size - 1) * stride for size, stride in steps)


def test_a_slice_of_larger_weights_is_mapped_where_it_lies() -> None:
    large = torch.zeros(9, 384, 512, dtype=torch.uint8)
    product = replace(operands(bare=True), w=large[2:6, :, 256:])
    parameters = params_of(product, Sm90Config("fp16"), TensorMaps(RecordingDriver()))
    assert maps_in(parameters)[-2] == at(large) + 2 * 384 * 512 + 256
    spec = maps_made(product, Sm90Config("fp16"))[-2]
    assert spec.stride_bytes == (512, 384 * 512)


def test_a_slice_of_larger_tokens_is_mapped_where_it_lies(h200: RecordingDriver) -> None:
    large = torch.zeros(400, 1024, dtype=torch.float16)
    product = replace(operands(), x=large[50:350, 8:520])
    (multiply,) = launched(h200, product)
    assert maps_in(multiply.parameters)[0] == at(large) + 50 * 2048 + 16
    spec = maps_made(product, Sm90Config("fp16"))[0]
    assert (spec.dims, spec.stride_bytes) == ((64, 300, 8), (2048, 128))


# Tokens


def unaligned(product: Operands) -> Operands:
    """Tokens that TMA cannot copy."""
    wide = torch.zeros(product.m, product.x.shape[1] + 1, dtype=product.x.dtype)
    return replace(product, x=wide[:, 1:])


@pytest.mark.parametrize("nvfp4", [False, True])
@pytest.mark.parametrize("k", [512, 576])
def test_what_the_first_launch_makes_is_what_the_second_reads(
    h200: RecordingDriver, nvfp4: bool, k: int
) -> None:
    product = operands(nvfp4=nvfp4, k=k)
    product = product if nvfp4 else unaligned(product)
    prepare, multiply = launched(h200, product)
    (prepared,) = struct.unpack_from("=q", prepare.parameters, Sm90PrepareConfig.prepared_word * 8)
    assert set(maps_in(multiply.parameters)[:-2]) == {prepared}
    given = values(Product.from_buffer_copy(prepare.parameters))
    assert given["x"]["bytes"] == at(product.x)
    assert given["offs"] == at(product.offs)
    if nvfp4:
        assert given["x_scales"]["bytes"] == at(product.x_scales)
    main = values(Product.from_buffer_copy(multiply.parameters))
    assert (main["x"]["bytes"], main["x"]["row_bytes"]) == (prepared, 2 * k)
    assert main["k"] == k
    assert main["x_scales"]["bytes"] == 0
    assert main["x_global"] == at(product.x_global), "the factor of the tokens stays"


def test_prepared_tokens_are_new_in_every_call(h200: RecordingDriver) -> None:
    made: list[Tensor] = []

    def new_tokens(rows: int, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        made.append(torch.empty(rows, k, dtype=dtype, device=device))
        return made[-1]

    product, backend = operands(k=576, nvfp4=True), Sm90Backend(new_tokens)
    plan = backend.plan(problem_of([product]))
    backend.run([product], plan)
    run_at = backend.prepare(product, plan)
    assert run_at is not None
    addresses = [tensor.data_ptr() for tensor in product.tensors.values()]
    h200.clear()
    assert run_at(addresses) and run_at(addresses)
    given = [spec.parameters[-8:] for spec in h200.launches if spec.kernel == PREPARE]
    assert given == [at(tokens).to_bytes(8, "little") for tokens in made[-2:]]
    assert {(t.dtype, tuple(t.shape)) for t in made} == {(torch.float16, (300, 576))}
    assert f"{300 * 576 * 2:,} bytes" in " ".join(plan.notes)


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("nvfp4", [False, True])
def test_tokens_may_lie_anywhere(h200: RecordingDriver, nvfp4: bool, rows: int) -> None:
    product = operands(groups=1, rows=rows, one_group=True, nvfp4=nvfp4)
    assert kernels_of(launched(h200, unaligned(product))) == [PREPARE, MULTIPLY]


@pytest.mark.parametrize(("columns", "in_place"), [(512, True), (520, True), (516, False)])
def test_rows_of_tokens_that_begin_at_multiples_of_16_bytes_are_read_in_place(
    h200: RecordingDriver, columns: int, in_place: bool
) -> None:
    x = torch.zeros(300, columns, dtype=torch.bfloat16)[:, :512]
    kernels = kernels_of(launched(h200, replace(operands(), x=x)))
    assert kernels == ([MULTIPLY] if in_place else [PREPARE, MULTIPLY])


def test_rows_that_are_one_and_the_same_are_prepared(h200: RecordingDriver) -> None:
    """A stride of 0 is none for TMA."""
    product = operands()
    kernels = kernels_of(launched(h200, replace(product, x=product.x[:1].expand_as(product.x))))
    assert kernels == [PREPARE, MULTIPLY]


# Prepared calls


@pytest.mark.parametrize("tokens", ["in place", "unaligned", "nvfp4"])
@pytest.mark.parametrize("layout", ["blocked", "linear"])
def test_a_prepared_product_launches_as_a_new_one_would(
    h200: RecordingDriver, tokens: str, layout: str
) -> None:
    """One memory for prepared tokens stands in for an allocator's."""
    memory = torch.zeros(300, 512, dtype=torch.float16)
    backend = Sm90Backend(lambda *_: memory)
    keywords: Any = {"nvfp4": tokens == "nvfp4", "w_layout": layout, "x_layout": layout}
    first, *others = [operands(**keywords) for _ in range(3)]
    if tokens == "unaligned":
        first, *others = map(unaligned, (first, *others))
    plan = backend.plan(problem_of([first]))
    run_at = backend.prepare(first, plan)
    assert run_at is not None
    h200.clear()
    for product in others:
        assert run_at([tensor.data_ptr() for tensor in product.tensors.values()])
    prepared = list(h200.launches)
    assert len(prepared) == len(h200.events), "no map is encoded"
    assert kernels_of(prepared) == ([MULTIPLY] if tokens == "in place" else [PREPARE, MULTIPLY]) * 2
    h200.clear()
    backend.run(others, plan)
    assert prepared == h200.launches
    assert prepared[0].parameters != prepared[-1].parameters


@pytest.mark.parametrize("nvfp4", [False, True])
def test_a_prepared_product_leaves_another_driver_alone(h200: RecordingDriver, nvfp4: bool) -> None:
    product = operands(nvfp4=nvfp4)
    run_at = Sm90Backend().prepare(product, plan_of(product))
    assert run_at is not None
    h200.clear()
    with use_driver(RecordingDriver()) as other:
        assert not run_at([tensor.data_ptr() for tensor in product.tensors.values()])
    assert not other.events and not h200.events


# What TMA cannot copy


@pytest.mark.parametrize("part", ["w", "w_scales"])
def test_weights_off_alignment_go_to_the_portable_kernel(h200: RecordingDriver, part: str) -> None:
    product = operands(bare=True)
    changes: Any = {part: off_alignment(getattr(product, part))}
    shifted = replace(product, **changes)
    (launch,) = launched(h200, shifted)
    assert launch.kernel == PORTABLE
    assert Sm90Backend().prepare(shifted, plan_of(shifted)) is not None


def test_groups_that_are_one_matrix_go_to_the_portable_kernel(h200: RecordingDriver) -> None:
    product = operands(bare=True)
    (launch,) = launched(h200, replace(product, w=product.w[:1].expand_as(product.w)))
    assert launch.kernel == PORTABLE


@pytest.mark.parametrize("layout", ["blocked", "linear"])
def test_blocked_scales_of_a_narrow_k_are_mapped(h200: RecordingDriver, layout: str) -> None:
    """A row of K = 64 has 4 scales, which is no stride for TMA; an atom has 512."""
    product = operands(k=64, w_layout=layout, bare=True)
    kernels = kernels_of(launched(h200, product))
    assert kernels == ([MULTIPLY] if layout == "blocked" else [PORTABLE])


# Choice


def test_refusals(h200: RecordingDriver) -> None:
    backend = Sm90Backend()

    def why_not(device: str = "cuda", **keywords: Any) -> list[str]:
        return backend.why_not(problem_of([operands(bare=True, **keywords)], device=device))

    assert why_not() == []
    assert "tensors are on cpu" in why_not("cpu")[0]
    assert "copies K by 64" in why_not(k=96)[0]
    assert "32 weight rows together" in why_not(n=48)[0]
    assert "linear scales of 256 values" in why_not(k=192, w_layout="linear")[0]
    assert why_not(k=192, w_layout="blocked") == []
    assert "at most 1024 groups" in why_not(groups=1025, n=32, k=64, rows=1)[0]
    with use_driver(RecordingDriver(compute_capability=(10, 0))):
        assert "for compute capability 9.0" in why_not()[0]


def test_too_many_rows_are_refused(h200: RecordingDriver) -> None:
    problem = Problem(uniform_shapes((2**31,), 64, 256), "fp16", "fp16", device="cuda")
    assert "rows of all groups in 32 bits" in Sm90Backend().why_not(problem)[0]


def test_the_average_group_chooses_the_configuration(h200: RecordingDriver) -> None:
    """And the number of steps: in two rounds or fewer tiles are large, in one they are small."""
    groups = 2
    for tokens, n, shape in (
        (sm90.FEW_TOKENS, 25600, Sm90Config.few),
        (sm90.FEW_TOKENS + 1, 25600, Sm90Config.some),
        (sm90.SOME_TOKENS, 25600, Sm90Config.some),
        (sm90.SOME_TOKENS, 12800, Sm90Config),
        (sm90.SOME_TOKENS + 1, 25600, Sm90Config),
    ):
        product = operands(groups=groups, rows=groups * tokens, n=n, k=64, bare=True)
        assert plan_of(product).config.config == shape("fp16")
    small = operands(groups=groups, rows=groups * (sm90.FEW_TOKENS + 1), bare=True)
    assert plan_of(small).config.config == Sm90Config.one_wave("fp16")


@each_shape
@pytest.mark.parametrize("kind", ["fp16", "bf16", "nvfp4"])
def test_cuts_are_ways_that_a_kernel_can_take(kind: Activations, shape: Shape) -> None:
    """A lane of a warp looks at one of eight; a tile fits into the widest loop."""
    config = shape(kind)
    assert len(config.cuts) == len(set(config.cuts)) <= 8
    assert max(config.cuts)[0] <= config.max_tokens
    assert {units for _, units in config.cuts} == {1, config.multiply_groups}
    assert list(config.widths) == sorted(set(config.widths))
    assert all(width % 8 == 0 for width in config.widths) and config.max_tokens <= 256
    assert config.shared_bytes <= 227 * 1024


def test_configurations_are_those_that_are_prebuilt(h200: RecordingDriver) -> None:
    for rows, n in ((1, 384), (200, 384), (200, 12800), (5000, 12800)):
        for nvfp4 in (False, True):
            choice = plan_of(operands(rows=rows, n=n, k=64, nvfp4=nvfp4, bare=True)).config
            assert choice.config in sm90.all_configs()
            assert choice.prepare in sm90_prepare.all_configs()
    assert len(set(sm90.all_configs())) == len(sm90.all_configs())
