"""The datacenter Blackwell kernel by the launch code that ships, emulated by the rules of PTX.

Every configuration field with every value of every other one; the sweep of ``nibblas check`` under
all orders; the competition's tests; NaN in the padding. Reads of what nothing has written, of
operands before their fences, and of anything outside the operands are errors here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import nibblas
from nibblas import NVFP4Array, env
from nibblas.backends.sm100 import Sm100Backend
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.check.exact import CHECKS
from nibblas.check.problems import draw
from nibblas.check.targets import Target
from nibblas.check.verdict import judge, truth_of
from nibblas.competition import BENCHMARKS, TESTS, Case, custom_kernel, generate_input
from nibblas.emulator import ORDERS, emulating
from nibblas.emulator.driver import Emulation
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.cost import Estimate
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import PRESETS
from nibblas.plan.sm100_config import Sm100Config
from tests.api.problems import assert_right, offs_of, random_array

pytestmark = pytest.mark.usefixtures("nvrtc")

KERNEL = "nibblas_sm100_grouped_mm"
SWAPPED = "nibblas_sm100_swapped"
EMULATED = Target("emulated")

each_preset = pytest.mark.parametrize("preset", PRESETS)
each_kernel = pytest.mark.parametrize("preset", ["fused_persistent", "swapped"])


def emulated_as(number: int, **more: Any) -> Any:
    """Another order, seed and number of multiprocessors for every number."""
    keywords = {
        "order": tuple(ORDERS)[number % len(ORDERS)],
        "seed": number,
        "num_sms": (8, 1, 4, 2, 3)[number // len(ORDERS) % 5],
        "unwritten_shared": "error",
    }
    return emulating("sm_100", **{**keywords, **more})


def assert_ran_here(emulation: Emulation, preset: str = "fused_persistent") -> None:
    kernel = SWAPPED if preset == "swapped" else KERNEL
    assert {report.kernel for report in emulation.reports} == {kernel}


# The sweep


def w4a4_problems(seed: int, count: int) -> list[int]:
    """Numbers of problems that are NVFP4 by NVFP4 and have rows."""
    numbers = []
    for number in itertools.count():
        spec = draw(seed, number)
        if spec.precision == "w4a4" and any(spec.rows):
            numbers.append(number)
        if len(numbers) == count:
            return numbers
    raise AssertionError


@each_preset
@pytest.mark.parametrize("number", w4a4_problems(11, 8))
def test_sweep(preset: str, number: int) -> None:
    with env.sm100_preset(preset), emulated_as(number) as emulation:
        verdict = judge(truth_of(draw(11, number)), EMULATED)
    assert verdict.refused is None
    assert verdict.passed, verdict.violations
    assert_ran_here(emulation, preset)


def exact_problems() -> Iterator[Any]:
    """Of each bit-exact check, problems of all sizes, in number what a test can wait for."""
    for name, check in CHECKS.items():
        chosen = [i for i, spec in enumerate(check.specs) if spec.precision == "w4a4"]
        step = max(1, len(chosen) // 4)
        for index in chosen[::step]:
            if 0 < sum(check.specs[index].rows) <= 600:
                yield pytest.param(name, index, id=f"{name}-{index}")


@each_kernel
@pytest.mark.parametrize(("check", "index"), list(exact_problems()))
def test_bit_exact(check: str, index: int, preset: str) -> None:
    with env.sm100_preset(preset), emulated_as(index) as emulation:
        verdict = judge(CHECKS[check].problem(index), EMULATED)
    assert verdict.refused is None
    assert verdict.passed, verdict.violations
    assert_ran_here(emulation, preset)


# Every pair of values of any two fields of the configuration

FIELDS: dict[str, tuple[Any, ...]] = {
    "tile_n": (128, 256),
    "cluster": (1, 2, 4),
    "producers": (1, 2),
    "accumulators": (1, 2),
    "multicast_scales": (False, True),
    "prefetches": (False, True),
    "bulk_scales": (True, False),
    "order": ("runs", "interleaved", "token_tiles"),
    "stages": (2, 3, 4, 5, 6),
    "form": ("packed", "masked", "list"),
}


def fits(values: dict[str, Any]) -> bool:
    """Whether shared and tensor memory hold it, and the fields go together."""
    config = config_of(values)
    if values["multicast_scales"] and (values["cluster"] == 1 or not values["bulk_scales"]):
        return False
    return config.tensor_columns <= 512 and config.group_capacity >= 8


def config_of(values: dict[str, Any]) -> Sm100Config:
    fields = {name: value for name, value in values.items() if name != "form"}
    capacity = 16 if values["form"] == "list" else 1
    return Sm100Config(**fields, tensor_copies=True, capacity=capacity)


def pairwise() -> list[dict[str, Any]]:
    """Combinations that together hold every pair of values which some combination can hold."""
    every = [dict(zip(FIELDS, v, strict=True)) for v in itertools.product(*FIELDS.values())]
    every = [values for values in every if fits(values)]
    pairs = {id(v): set(itertools.combinations(v.items(), 2)) for v in every}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(every, key=lambda values: len(pairs[id(values)] & missing))
        chosen.append(best)
        missing -= pairs[id(best)]
    return chosen


def name_of(values: dict[str, Any]) -> str:
    return "-".join(str(value) for value in values.values())


@pytest.mark.parametrize("values", pairwise(), ids=name_of)
def test_pairs_of_options(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(values)

    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        choice = Sm100Choice("fused_persistent", (config,))
        return Plan(self.name, choice, Estimate(0.0, "forced", {}))

    monkeypatch.setattr(Sm100Backend, "plan", plan)
    number = sum(map(ord, name_of(values)))
    layout = "blocked" if values["bulk_scales"] else "linear"
    nibblas.ops.forget_plans()
    try:
        with emulated_as(number) as emulation:
            run_form(values["form"], layout, number)
    finally:
        nibblas.ops.forget_plans()
    assert_ran_here(emulation)


def run_form(form: str, layout: str, seed: int) -> None:
    """Empty, one-row and ragged groups, N off every tile, K off every stage."""
    k = 608 if layout == "blocked" else 560
    if form == "list":
        run_list(layout, seed, k)
        return
    ends = [0, 1, 131, 131]
    w = random_array((4, 328, k), seed, layout=layout, global_shape=(4, 2))
    if form == "masked":
        run_masked(w, seed, k)
        return
    x = tokens_of(ends, k, seed + 1, layout=layout, rule="torch", spare=2)
    out = torch.full((ends[-1] + 2, 328), float("nan"))
    nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
    assert_right(out, x, w, offs_of(ends))
    assert bool(out[ends[-1] :].isnan().all())


def run_masked(w: NVFP4Array, seed: int, k: int) -> None:
    x = random_array((4, 130, k), seed + 1, layout=w.scale_layout)
    rows = [0, 1, 130, 0]
    out = torch.full((4, 130, 328), float("nan"))
    masked_m = torch.tensor(rows, dtype=torch.int32)
    nibblas.grouped_mm_masked(x, w, masked_m, out=out, backend="emulated")
    for g, m in enumerate(rows):
        assert bool(out[g, m:].isnan().all())
        own = NVFP4Array(
            w.codes[g : g + 1],
            w.scales[g : g + 1],
            global_scale=w.global_scale[g : g + 1],
            scale_layout=w.scale_layout,
        )
        tokens = NVFP4Array(
            x.codes[g], x.scales[g], global_scale=x.global_scale, scale_layout=x.scale_layout
        )
        exact = grouped_mm_reference(tokens, own, offs_of([130]))
        assert bool(within_bound(out[g], exact, error_bound(exact, out.dtype))[:m].all())


def run_list(layout: str, seed: int, k: int) -> None:
    shapes = [(1, 40, k), (130, 328, k - 64), (0, 8, 256), (33, 600, 64)]
    a = [random_array((m, k), seed + m, layout=layout) for m, _, k in shapes]
    b = [random_array((n, k), seed + n, layout=layout) for _, n, k in shapes]
    ys = nibblas.grouped_mm_list(a, b, out_dtype=torch.float32, backend="emulated")
    for x, w, y in zip(a, b, ys, strict=True):
        stacked = NVFP4Array(
            w.codes[None],
            w.scales[None],
            global_scale=w.global_scale,
            scale_layout=w.scale_layout,
        )
        exact = grouped_mm_reference(x, stacked, offs_of([len(y)]))
        assert bool(within_bound(y, exact, error_bound(exact, y.dtype)).all())


# The competition


@each_preset
@pytest.mark.parametrize("number", range(len(TESTS)))
def test_competition(preset: str, number: int) -> None:
    assert_bits_equal(TESTS[number], preset, number)


@each_preset
@pytest.mark.parametrize("number", range(len(BENCHMARKS)))
def test_benchmarks_cut(preset: str, number: int) -> None:
    """C0 to C3 with all their tokens, N and K cut; the presets choose as for the whole ones."""
    whole = BENCHMARKS[number]
    groups = 3 if whole.g > 3 else whole.g
    case = replace(whole, g=groups, m=whole.m[:groups], n=(256,) * groups, k=(1024,) * groups)
    assert_bits_equal(case, preset, number)


def assert_bits_equal(case: Case, preset: str, number: int) -> None:
    """float32 sums of the public inputs are exact: so is every output."""
    arguments = case.generator_arguments()
    expected = custom_kernel(generate_input(**arguments), backend="reference")
    data = generate_input(**arguments)
    with env.sm100_preset(preset), emulated_as(number, num_sms=8) as emulation:
        found = custom_kernel(data, backend="emulated")
    assert_ran_here(emulation, preset)
    for one, right in zip(found, expected, strict=True):
        assert torch.equal(one, right)


# Padding, strides, addresses


def tokens_of(
    ends: list[int], k: int, seed: int, *, layout: str, rule: str, spare: int = 0
) -> NVFP4Array:
    """NVFP4 tokens with a global scale per group, and rows that belong to none."""
    shape, per_group = (ends[-1] + spare, k), (len(ends),)
    if layout == "linear":
        return random_array(shape, seed, global_shape=per_group)
    return random_array(shape, seed, global_shape=per_group, ends=ends, rule=rule)


def run_packed(
    x: NVFP4Array, w: NVFP4Array, ends: list[int], number: int, preset: str
) -> torch.Tensor:
    """The product, which is right and of that preset's kernel."""
    with env.sm100_preset(preset), emulated_as(number) as emulation:
        y = nibblas.grouped_mm(x, w, offs_of(ends), out_dtype=torch.float32, backend="emulated")
    assert_ran_here(emulation, preset)
    assert_right(y, x, w, offs_of(ends))
    return y


@pytest.mark.parametrize(
    ("k", "preset"),
    [
        *((k, "fused_persistent") for k in (16, 32, 48, 208, 288, 304)),
        *((k, "swapped") for k in (16, 48, 304)),
    ],
)
@pytest.mark.parametrize("x_layout", ["linear", "blocked"])
@pytest.mark.parametrize("w_layout", ["linear", "blocked"])
def test_padding_that_is_nan(k: int, x_layout: str, w_layout: str, preset: str) -> None:
    """K % 64 = 16, 32 and 48: the scales of blocks and rows that do not exist are NaN."""
    ends = [3, 3, 20]
    w = random_array((3, 72, k), k, layout=w_layout)
    x = tokens_of(ends, k, k + 1, layout=x_layout, rule="torch")
    assert bool(run_packed(x, w, ends, k, preset).isfinite().all())


@each_kernel
@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_where_the_scales_of_a_group_begin(rule: str, preset: str) -> None:
    ends = [100, 100, 230, 231]
    w = random_array((4, 64, 256), 1, layout="blocked")
    run_packed(tokens_of(ends, 256, 2, layout="blocked", rule=rule), w, ends, 3, preset)


@each_kernel
def test_operands_at_odd_addresses(preset: str) -> None:
    """What TMA cannot read is loaded: codes and scales at any address, rows of any length."""
    ends = [2, 6]
    w, x = random_array((2, 24, 272), 13), random_array((6, 272), 14)
    run_packed(at_odd_addresses(x), at_odd_addresses(w), ends, 4, preset)


def at_odd_addresses(array: NVFP4Array) -> NVFP4Array:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        data = tensor.view(torch.uint8)
        return torch.empty(data.numel() + 1, dtype=torch.uint8)[1:].view(data.shape).copy_(data)

    return NVFP4Array(moved(array.codes), moved(array.scales), global_scale=array.global_scale)


@each_kernel
def test_a_row_has_the_same_bits_in_groups_of_any_size(preset: str) -> None:
    w, x = random_array((1, 40, 512), 7), random_array((300, 512), 8)
    rows = []
    for m in (1, 8, 129, 300):
        part = NVFP4Array(x.codes[:m], x.scales[:m], global_scale=x.global_scale)
        rows.append(run_packed(part, w, [m], m, preset))
    assert all(torch.equal(y, rows[-1][: len(y)]) for y in rows)


def test_every_order_and_preset_gives_the_same_bits() -> None:
    ends = [130, 130, 131]
    w = random_array((3, 160, 1024), 3, layout="blocked")
    x = tokens_of(ends, 1024, 4, layout="blocked", rule="torch")
    results = []
    for preset, order in itertools.product(PRESETS, ORDERS):
        with env.sm100_preset(preset), emulating("sm_100", order=order, seed=5, num_sms=4):
            results.append(
                nibblas.grouped_mm(x, w, offs_of(ends), out_dtype=torch.float32, backend="emulated")
            )
    assert_right(results[0], x, w, offs_of(ends))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_tokens_of_16_bits_go_to_the_portable_kernel() -> None:
    w = random_array((2, 24, 64), 1)
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    with emulating("sm_100") as emulation:
        nibblas.grouped_mm(x, w, offs_of([2, 6]), backend="emulated")
    assert [report.kernel for report in emulation.reports] == ["nibblas_portable_grouped_mm"]
