"""The reference, the rounding to float16 and the two rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nibblas.competition import (
    TESTS,
    Case,
    TaskData,
    check,
    generate_full_range,
    generate_input,
    reference,
)
from nibblas.competition.checker import compare, expected
from nibblas.formats.reference import round_once

SMALL = Case("S", 2, (5, 3), (8, 16), (64, 48), seed=3).generator_arguments()


def filled(code: int, scale_byte: int, k: int = 64) -> TaskData:
    """One 1x1 group in which every code and every scale is the same."""
    data = generate_input((1,), (1,), (k,), 1, 0)
    for codes in data[0][0][:2]:
        codes.view(torch.uint8).fill_(code | code << 4)
    for scales in data[1][0]:
        scales.view(torch.uint8).fill_(scale_byte)
    return data


def with_element(outputs: list[Tensor], value: float, group: int = 1) -> list[Tensor]:
    changed = [output.clone() for output in outputs]
    changed[group][-1, -1, 0] = value
    return changed


@pytest.mark.parametrize("code", range(16))
def test_reference_knows_all_codes(code: int) -> None:
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6) * 2
    assert reference(filled(code, 0x38))[0].item() == values[code] ** 2 * 64


def test_reference_knows_all_valid_scales() -> None:
    one = 0b0010
    for scale_byte in range(0x7F):
        exponent, mantissa = scale_byte >> 3, scale_byte & 7
        value = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9
        want = torch.tensor(16 * value**2).half()
        assert torch.equal(reference(filled(one, scale_byte, 16))[0].view(()), want)


def test_reference_reads_low_nibble_as_even_k_and_the_scale_of_its_block() -> None:
    data = filled(0, 0x38)
    a, b, _ = data[0][0]
    a.view(torch.uint8)[0, 17, 0] = 0x0_2  # k = 34: 1.0
    b.view(torch.uint8)[0, 17, 0] = 0x7_4  # k = 34: 2.0, k = 35: 6.0
    data[1][0][0].view(torch.uint8)[0, 2, 0] = 0x40  # block of k = 32..47: 2.0
    assert reference(data)[0].item() == 4.0


def test_reference_changes_nothing() -> None:
    data, again = generate_input(**SMALL), generate_input(**SMALL)
    reference(data)
    for (_, _, c), (_, _, before) in zip(data[0], again[0], strict=True):
        assert torch.equal(c, before)


def test_float16_rounding_happens_once() -> None:
    generator = np.random.default_rng(0)
    random = generator.standard_normal(20000) * 2.0 ** generator.integers(-30, 18, 20000)
    midway = 1 + 2.0**-11
    edges = [0.0, -0.0, midway, midway + 2.0**-40, midway - 2.0**-40, 2.0**-25, 2.0**-25 * 1.0001]
    edges += [65519.9999999, 65520.0, -65520.0, 1e300, np.inf, -np.inf, 5e-324, 2.0**-14 - 2.0**-40]
    values = np.concatenate([random, edges])
    got = round_once(torch.from_numpy(values), torch.float16).numpy()
    with np.errstate(over="ignore", under="ignore"):
        want = values.astype(np.float16)
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))
    nan = torch.tensor([float("nan")], dtype=torch.float64)
    assert round_once(nan, torch.float16).isnan().all()


def test_the_right_output_is_bit_exact() -> None:
    data = generate_input(**TESTS[0].generator_arguments())
    verdict = check(data, reference(data))
    assert (verdict.passed, verdict.bit_exact, verdict.largest_error) == (True, True, 0.0)
    assert str(verdict) == "passed, bit-exact, largest error 0 of the allowed"


@pytest.mark.parametrize(
    ("relative", "passed"), [(0.9e-3, True), (-0.9e-3, True), (2.1e-3, False), (-2.1e-3, False)]
)
def test_public_tolerance(relative: float, passed: bool) -> None:
    data = generate_input(**SMALL)
    outputs = [want.float() for want in reference(data)]
    wrong = with_element(outputs, float(outputs[1][-1, -1, 0]) * (1 + relative))
    assert abs(outputs[1][-1, -1, 0]) > 1
    verdict = check(data, wrong)
    assert (verdict.passed, verdict.bit_exact) == (passed, False)


def test_a_last_bit_is_within_tolerance_but_not_bit_exact() -> None:
    data = generate_input(**SMALL)
    outputs = reference(data)
    outputs[0].view(torch.int16)[0, 0, 0] += 1
    verdict = check(data, outputs)
    assert (verdict.passed, verdict.bit_exact) == (True, False)


def test_float32_outputs_pass_but_are_not_bit_exact() -> None:
    data = generate_input(**SMALL)
    verdict = check(data, [want.float() for want in reference(data)])
    assert (verdict.passed, verdict.bit_exact) == (True, False)


@pytest.mark.parametrize("rule", ["public", "bound"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_out_of_place_fail(rule, value: float) -> None:
    data = generate_full_range(**SMALL)
    verdict = check(data, with_element(reference(data), value), rule=rule)
    assert not verdict.passed
    assert verdict.messages[0].startswith("group 1: 1 of 48 elements: [2, 15] got")


@pytest.mark.parametrize("rule", ["public", "bound"])
def test_a_nan_scale_wants_nan_and_an_overflow_wants_infinity(rule) -> None:
    nan_scale, overflow = filled(2, 0x7F), filled(7, 0x7E)
    assert reference(nan_scale)[0].isnan().all()
    assert reference(overflow)[0].item() == float("inf")
    for data in (nan_scale, overflow):
        assert check(data, reference(data), rule=rule).bit_exact
        assert not check(data, [torch.zeros(1, 1, 1, dtype=torch.float16)], rule=rule).passed
    negative = [torch.full((1, 1, 1), float("-inf"), dtype=torch.float16)]
    assert not check(overflow, negative, rule=rule).passed


def test_bound_covers_float32_sums_in_both_directions_and_no_wrong_block() -> None:
    data = generate_full_range(**TESTS[1].generator_arguments())
    want = expected(data, "bound")
    for exact, allowed in zip(want.centre, want.allowed, strict=True):
        assert (allowed > 0).all()
        assert (allowed < 0.05 * exact.abs().mean()).all()
    right = [exact.float().half()[:, :, None] for exact in want.centre]
    assert compare(want, right).passed
    half_allowed = [
        (e + 0.4 * a)[:, :, None] for e, a in zip(want.centre, want.allowed, strict=True)
    ]
    assert compare(want, half_allowed).passed
    beyond = [(e + 1.1 * a)[:, :, None] for e, a in zip(want.centre, want.allowed, strict=True)]
    verdict = compare(want, beyond)
    assert not verdict.passed
    assert verdict.largest_error == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: outputs[:1], "outputs: got 1; want a list of 2 tensors"),
        (lambda outputs: [], "outputs: got 0; want a list of 2 tensors"),
        (lambda outputs: None, "outputs: got NoneType; want a list of 2 tensors"),
        (lambda outputs: outputs[::-1], "group 0: got shape (3, 16, 1); want (5, 8, 1)"),
        (lambda outputs: [outputs[0], outputs[1][:, :, 0]], "group 1: got shape (3, 16)"),
        (lambda outputs: [outputs[0], None], "group 1: got shape NoneType"),
    ],
)
def test_wrong_lists_and_shapes_fail_with_a_message(change, message: str) -> None:
    data = generate_input(**SMALL)
    verdict = check(data, change(reference(data)))
    assert not verdict.passed
    assert not verdict.bit_exact
    assert message in str(verdict)


def test_no_groups_and_empty_groups_pass() -> None:
    assert check(([], [], [], []), []).bit_exact
    data = generate_full_range((0,), (128,), (64,), 1, 1)
    assert check(data, reference(data), rule="bound").bit_exact
