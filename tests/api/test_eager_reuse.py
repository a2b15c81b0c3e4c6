"""What is kept of a warm call is never used for another one: every fact changed, every fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import nibblas
from nibblas import ops
from tests.api.problems import (
    assert_right,
    offs_of,
    quantized_small,
    random_array,
    random_tokens,
    small,
)
from tests.api.targets import TARGETS, Target

pytestmark = pytest.mark.usefixtures("nothing_prepared")


def halves(x, w, offs):
    return (x.half(), w, offs), {}


def more_rows(x, w, offs):
    return (random_tokens(9, 64, 5, torch.bfloat16), w, offs_of([2, 9])), {}


def strided_rows(x, w, offs):
    wide = torch.full((5, 100), torch.nan).bfloat16()
    wide[:, :64] = x
    return (wide[:, :64], w, offs), {}


def rows_off_by_one_element(x, w, offs):
    flat = torch.zeros(5 * 64 + 1).bfloat16()
    flat[1:] = x.flatten()
    return (flat[1:].view(5, 64), w, offs), {}


def other_weights(x, w, offs):
    return (x, random_array((2, 32, 64), 77), offs), {}


def weights_with_gaps(x, w, offs):
    every_other = random_array((4, 32, 64), 78)
    return (x, nibblas.NVFP4Array(every_other.codes[::2], every_other.scales[::2]), offs), {}


def blocked_weights(x, w, offs):
    return (x, random_array((2, 32, 64), 79, layout="blocked"), offs), {}


def global_scale_per_group(x, w, offs):
    return (x, random_array((2, 32, 64), 80, global_shape=(2,)), offs), {}


def transposed_out(x, w, offs):
    return (x, w, offs), {"out": torch.empty(32, 5).t()}


def half_out(x, w, offs):
    return (x, w, offs), {"out": torch.empty(5, 32).half()}


def no_out(x, w, offs):
    return (x, w, offs), {"out": None, "out_dtype": torch.float32}


def with_bias(x, w, offs):
    return (x, w, offs), {"bias": torch.rand(2, 32)}


def with_alpha(x, w, offs):
    return (x, w, offs), {"alpha": torch.rand(2)}


def with_row_scale(x, w, offs):
    return (x, w, offs), {"row_scale": torch.rand(5)}


CHANGES = [
    halves,
    more_rows,
    strided_rows,
    rows_off_by_one_element,
    other_weights,
    weights_with_gaps,
    blocked_weights,
    global_scale_per_group,
    transposed_out,
    half_out,
    no_out,
    with_bias,
    with_alpha,
    with_row_scale,
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_another_call_is_reused(change: Callable[..., Any], target: Target):
    problem, out = small(), torch.empty(5, 32)
    for _ in range(2):
        target.grouped_mm(*problem, out=out)
    arguments, options = change(*problem)
    options = {"out": torch.full((arguments[0].shape[0], 32), torch.nan), **options}
    factors = {name: options[name] for name in ("alpha", "row_scale", "bias") if name in options}
    for _ in range(2):
        assert_right(target.grouped_mm(*arguments, **options), *arguments, **factors)
    assert_right(target.grouped_mm(*problem, out=out), *problem)


def overlapping_out(x, w, offs):
    return (x, w, offs), {"out": x.view(torch.float32)[:, :32]}, "x: got a memory range|out: got"


def decreasing_offs(x, w, offs):
    return (x, w, offs_of([4, 3])), {}, "offs: got 3 at group 1 after 4"


def negative_offs(x, w, offs):
    return (x, w, offs_of([-1, 3])), {}, "offs: got -1 at group 0"


def offs_past_the_rows(x, w, offs):
    return (x, w, offs_of([3, 6])), {}, "offs: got 6 at group 1"


def long_offs(x, w, offs):
    return (x, w, offs.long()), {}, "offs: got torch.int64"


def strided_offs(x, w, offs):
    return (x, w, offs_of([3, 0, 5, 0])[::2]), {}, "offs: got strides"


def out_of_another_shape(x, w, offs):
    return (x, w, offs), {"out": torch.empty(5, 31)}, "out: got shape"


def expanded_out(x, w, offs):
    return (x, w, offs), {"out": torch.empty(1, 32).expand(5, 32)}, "out: got strides"


def out_that_requires_grad(x, w, offs):
    return (x, w, offs), {"out": torch.empty(5, 32, requires_grad=True)}, "out: got a tensor that"


def x_that_requires_grad(x, w, offs):
    return (x.requires_grad_(), w, offs), {}, "x: got a tensor that requires grad"


def a_list(x, w, offs):
    return (x, w, [3, 5]), {}, "offs: got list"


def unknown_backend(x, w, offs):
    return (x, w, offs), {"backend": "nobody"}, "backend: got 'nobody'"


def unhashable_backend(x, w, offs):
    return (x, w, offs), {"backend": ["cpu"]}, "backend: got list"


def wrong_precision(x, w, offs):
    return (x, w, offs), {"precision": "w4a4"}, "precision: got 'w4a4'"


def another_out_dtype(x, w, offs):
    return (x, w, offs), {"out_dtype": torch.float16}, "out: got torch.float32"


def unknown_validate(x, w, offs):
    return (x, w, offs), {"validate": "often"}, "validate: got 'often'"


def strict_with_a_nan_scale(x, w, offs):
    w.scales.view(torch.uint8)[1, 2, 3] = 0x7F
    return (x, w, offs), {"validate": "strict"}, "w.scales: got byte 0x7F"


FAULTS = [
    overlapping_out,
    decreasing_offs,
    negative_offs,
    offs_past_the_rows,
    long_offs,
    strided_offs,
    out_of_another_shape,
    expanded_out,
    out_that_requires_grad,
    x_that_requires_grad,
    a_list,
    unknown_backend,
    unhashable_backend,
    wrong_precision,
    another_out_dtype,
    unknown_validate,
    strict_with_a_nan_scale,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_after_a_warm_call_is_refused_as_before_one(fault: Callable[..., Any]):
    messages = []
    for warm in (False, True):
        ops.forget_plans()
        problem = small()
        out = torch.full((5, 32), torch.nan)
        if warm:
            for _ in range(2):
                nibblas.grouped_mm(*problem, out=out)
            out.fill_(torch.nan)
        arguments, options, message = fault(*problem)
        with pytest.raises((TypeError, ValueError), match=f"^({message})") as error:
            nibblas.grouped_mm(*arguments, **{"out": out, **options})
        assert out.isnan().all(), "nothing is written"
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_scale_buffers_that_end_early_are_refused_on_the_second_call():
    x, w, _ = quantized_small()
    tight = nibblas.NVFP4Array(x.codes, x.scales[:128], scale_layout="blocked", group_start="torch")
    fits, too_long = offs_of([5, 5]), offs_of([3, 5])
    for _ in range(2):
        nibblas.grouped_mm(tight, w, fits)
    with pytest.raises(ValueError, match=r"^x.scales: got 128 rows; want at least 256"):
        nibblas.grouped_mm(tight, w, too_long)


@pytest.mark.parametrize("name", ["bias", "alpha", "row_scale"])
def test_a_factor_that_has_come_to_require_grad(name: str, long_ways):
    x, w, offs = small()
    factor = torch.rand({"bias": 32, "alpha": 2, "row_scale": 5}[name])
    options: Any = {name: factor}
    out = torch.empty(5, 32)
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs, out=out, **options)
    factor.requires_grad_()
    with pytest.raises(ValueError, match=f"^{name}: got a tensor that requires grad"):
        nibblas.grouped_mm(x, w, offs, out=out, **options)
    before = len(long_ways)
    with torch.no_grad():
        nibblas.grouped_mm(x, w, offs, out=out, **options)
    assert len(long_ways) == before, "without grad mode it is a plain tensor"


def test_a_global_scale_that_has_come_to_require_grad():
    x, _, offs = small()
    scale = torch.rand(2)
    w = random_array((2, 32, 64), 1)
    w = nibblas.NVFP4Array(w.codes, w.scales, global_scale=scale)
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    scale.requires_grad_()
    with pytest.raises(ValueError, match="^w.global_scale: got a tensor that requires grad"):
        nibblas.grouped_mm(x, w, offs)


def test_gradients_flow_after_warm_calls():
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    leaf = x.clone().requires_grad_()
    nibblas.grouped_mm(leaf, w, offs).float().sum().backward()
    assert leaf.grad is not None and bool(leaf.grad.any())


def test_writing_out_on_the_short_way_is_seen_by_autograd():
    x, w, offs = small()
    factor, out = torch.randn(5, 32, requires_grad=True), torch.randn(5, 32)
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs, out=out)
    loss = (factor * out).sum()
    nibblas.grouped_mm(x, w, offs, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
