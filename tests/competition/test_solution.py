"""``custom_kernel`` on the public data, on full-range data, and on data outside the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nibblas.backends.registry import all_backends
from nibblas.competition import (
    EDGE_CASES,
    TESTS,
    Case,
    StopRule,
    TaskData,
    check,
    check_reused_addresses,
    custom_kernel,
    generate_full_range,
    generate_input,
    time_case,
)
from nibblas.competition.task import clone_data, data_tensors, poison_outputs
from nibblas.errors import UnsupportedProblemError
from tests.competition.kernels import bits

SMALL = Case("S", 2, (8, 20), (128, 256), (256, 128))
SCALED_BENCHMARK = Case("B", 8, (5, 11, 8, 4, 4, 15, 6, 10), (256,) * 8, (448,) * 8)


def small_data() -> TaskData:
    return generate_input(**SMALL.generator_arguments())


@pytest.fixture(params=[backend.name for backend in all_backends()])
def backend(request) -> str:
    """Every backend that can take the public problem on this machine."""
    name: str = request.param
    try:
        custom_kernel(small_data(), backend=name)
    except UnsupportedProblemError as error:
        pytest.skip(str(error))
    return name


@pytest.mark.parametrize("case", TESTS, ids=lambda case: case.name)
def test_public_cases_are_bit_exact(case: Case, backend: str) -> None:
    data = generate_input(**case.generator_arguments())
    verdict = check(data, custom_kernel(clone_data(data), backend=backend))
    assert verdict.bit_exact, str(verdict)


@pytest.mark.parametrize("case", [*TESTS, *EDGE_CASES], ids=lambda case: case.name)
def test_full_range_cases_are_within_the_error_bound(case: Case, backend: str) -> None:
    data = generate_full_range(**case.generator_arguments())
    verdict = check(data, custom_kernel(clone_data(data), backend=backend), rule="bound")
    assert verdict.passed, str(verdict)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend: got 'tpu'"):
        custom_kernel(small_data(), backend="tpu")


def test_returns_the_very_output_tensors_in_group_order() -> None:
    data = small_data()
    outputs = custom_kernel(data)
    assert len(outputs) == len(data[0])
    for output, (_, _, c) in zip(outputs, data[0], strict=True):
        assert output is c


def test_inputs_are_left_as_they_are() -> None:
    data = small_data()
    before = clone_data(data)
    custom_kernel(data)
    poison_outputs(data)
    poison_outputs(before)
    for x, y in zip(data_tensors(data), data_tensors(before), strict=True):
        assert torch.equal(bits(x), bits(y))


def test_linear_scales_are_not_needed() -> None:
    data = small_data()
    verdict_data = clone_data(data)
    for pair in data[1]:
        for scales in pair:
            scales.view(torch.uint8).fill_(0x7F)
    assert check(verdict_data, custom_kernel(data)).bit_exact


@pytest.mark.parametrize("transposed", [False, True], ids=["row gaps", "transposed"])
def test_outputs_with_any_strides_are_written_in_place(transposed: bool) -> None:
    data = small_data()
    for index, (a, b, c) in enumerate(data[0]):
        m, n, _ = c.shape
        if transposed:
            strided = torch.zeros((n, m, 1), dtype=torch.float16).transpose(0, 1)
        else:
            strided = torch.zeros((m, n + 24, 1), dtype=torch.float16)[:, :n]
        data[0][index] = (a, b, strided)
    outputs = custom_kernel(data)
    assert all(output is entry[2] for output, entry in zip(outputs, data[0], strict=True))
    assert check(data, outputs).bit_exact


def test_new_contents_at_the_same_addresses() -> None:
    assert check_reused_addresses(SMALL, custom_kernel).bit_exact
    assert check_reused_addresses(SMALL, custom_kernel, content="full_range").passed


def test_strict_timing_of_a_scaled_down_benchmark() -> None:
    stop = StopRule(600.0, min_seconds=0.0, max_repeats=3)
    result = time_case(
        SCALED_BENCHMARK, custom_kernel, inputs=3, strict=True, stop=stop, flush_bytes=1 << 16
    )
    assert result.bit_exact


def test_no_groups_is_an_empty_list() -> None:
    assert custom_kernel(([], [], [], [])) == []


# --- data outside the contract ---

Change = Callable[[Any], Any]


def replace_abc(index: int, **new: Change) -> Change:
    """Data whose group ``index`` has a, b or c replaced."""

    def change(data: Any) -> Any:
        entry = zip("abc", data[0][index], strict=True)
        data[0][index] = tuple(new[name](old) if name in new else old for name, old in entry)
        return data

    return change


def replace_reordered(index: int, make: Change) -> Change:
    """Data whose group ``index`` has the reordered scales of b replaced."""

    def change(data: Any) -> Any:
        sfa, sfb = data[2][index]
        data[2][index] = (sfa, make(sfb))
        return data

    return change


def replace_sizes(index: int, sizes: tuple) -> Change:
    def change(data: Any) -> Any:
        data[3][index] = sizes
        return data

    return change


def not_k_major(codes: torch.Tensor) -> torch.Tensor:
    rows, k_bytes, _ = codes.shape
    return torch.zeros((k_bytes, rows, 1), dtype=torch.uint8).transpose(0, 1)


REFUSED: dict[str, tuple[Change, type[Exception], str]] = {
    "not a tuple": (lambda data: None, TypeError, "data: got NoneType"),
    "three parts": (lambda data: data[:3], ValueError, "data: got 3 parts; want 4"),
    "part is no list": (
        lambda data: (*data[:3], {}),
        TypeError,
        "problem_sizes: got dict",
    ),
    "one group missing": (
        lambda data: (*data[:2], data[2][:1], data[3]),
        ValueError,
        "sfasfb_reordered_tensors: got 1 entries; want 2",
    ),
    "entry too short": (
        lambda data: ([data[0][0], data[0][1][:2]], *data[1:]),
        ValueError,
        r"abc_tensors\[1\]",
    ),
    "l = 2": (replace_sizes(1, (20, 256, 128, 2)), ValueError, r"problem_sizes\[1\]: got l = 2"),
    "l = 0": (replace_sizes(1, (20, 256, 128, 0)), ValueError, r"problem_sizes\[1\]: got l = 0"),
    "k not a multiple of 16": (
        replace_sizes(1, (20, 256, 120, 1)),
        ValueError,
        r"problem_sizes\[1\]: got \(20, 256, 120, 1\)",
    ),
    "negative m": (replace_sizes(1, (-4, 256, 128, 1)), ValueError, r"problem_sizes\[1\]"),
    "sizes are floats": (
        replace_sizes(1, (20.0, 256, 128, 1)),
        TypeError,
        r"problem_sizes\[1\]: got \(20.0",
    ),
    "m does not match": (
        replace_sizes(1, (24, 256, 128, 1)),
        ValueError,
        r"abc_tensors\[1\].a: got shape \(20, 64, 1\); want \(24, 64, 1\)",
    ),
    "n does not match": (
        replace_sizes(1, (20, 128, 128, 1)),
        ValueError,
        r"abc_tensors\[1\].b: got shape",
    ),
    "k does not match": (
        replace_sizes(1, (20, 256, 256, 1)),
        ValueError,
        r"abc_tensors\[1\].a: got shape",
    ),
    "a not K-major": (
        replace_abc(1, a=not_k_major),
        ValueError,
        r"abc_tensors\[1\].a: got strides .*K-major",
    ),
    "b not K-major": (
        replace_abc(1, b=not_k_major),
        ValueError,
        r"abc_tensors\[1\].b: got strides .*K-major",
    ),
    "a of another type": (
        replace_abc(1, a=lambda a: a.view(torch.uint8).to(torch.int32)),
        TypeError,
        r"abc_tensors\[1\].a: got torch.int32",
    ),
    "c of another type": (
        replace_abc(1, c=lambda c: c.float()),
        TypeError,
        r"abc_tensors\[1\].c: got torch.float32; want torch.float16",
    ),
    "c of another shape": (
        replace_abc(1, c=lambda c: c[:, :128]),
        ValueError,
        r"abc_tensors\[1\].c: got shape",
    ),
    "c is no tensor": (
        replace_abc(1, c=lambda c: c.numpy()),
        TypeError,
        r"abc_tensors\[1\].c: got ndarray",
    ),
    "linear scales": (
        replace_reordered(1, lambda sfb: torch.ones(256, 8, 1).to(torch.float8_e4m3fn)),
        ValueError,
        r"sfasfb_reordered_tensors\[1\].sfb: got shape \(256, 8, 1\)",
    ),
    "scales in another byte order": (
        replace_reordered(1, lambda sfb: sfb.contiguous()),
        ValueError,
        r"sfasfb_reordered_tensors\[1\].sfb: got strides",
    ),
    "another device": (
        replace_abc(1, c=lambda c: c.to("meta")),
        ValueError,
        "c of group 1: got device meta; want cpu",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_data_is_refused_before_anything_is_written(name: str) -> None:
    change, error, message = REFUSED[name]
    data = small_data()
    outputs = [c for _, _, c in data[0]]
    before = [c.clone() for c in outputs]
    with pytest.raises(error, match=f"^{message}"):
        custom_kernel(change(data))
    for output, old in zip(outputs, before, strict=True):
        assert torch.equal(output, old)
