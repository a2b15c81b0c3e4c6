"""What may not change a bit: instruction level, threads, company in the batch, float modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nibblas.backends.cpu import problem_record
from nibblas.runtime.cpu_library import CpuLibrary
from tests.kernels.conftest import Run
from tests.kernels.products import NAN_SCALE, Numbers, Spec, bits, build, draw

each_precision = pytest.mark.parametrize("tokens", ["bf16", "fp16", "nvfp4"])
GROUPED = Spec(rows=(1, 0, 37, 100, 5), n=61, k=2192, factors=("w_segments", "row_scale"))


@each_precision
@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
def test_levels_agree(run: Run, equal_levels: list[str], tokens: str, out: str) -> None:
    spec = replace(GROUPED, n=62, tokens=tokens, out=out)
    results = []
    for level in equal_levels:
        product = build(spec)
        run(product.operands, level)
        results.append(bits(product))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def wild_numbers(spec: Spec) -> Numbers:
    """All scale bytes, signs and NaN among them, and all finite tokens of up to 2^100."""
    rng = np.random.default_rng(9)
    drawn = draw(spec)
    w_scales = rng.integers(0, 256, drawn.w_scales.shape, dtype=np.uint8)
    w_scales[:, ::2] &= 0x7E
    if drawn.x_scales is not None:
        x_scales = rng.integers(0, 256, drawn.x_scales.shape, dtype=np.uint8)
        x_scales[::2] &= 0x7E
        return Numbers(drawn.w_codes, w_scales, drawn.x, x_scales)
    exponents = rng.integers(-130, 100, drawn.x.shape) if spec.tokens == "bf16" else 0
    dtype = torch.bfloat16 if spec.tokens == "bf16" else torch.float16
    x = torch.from_numpy(drawn.x * np.exp2(exponents)).to(dtype).double().numpy()
    return Numbers(drawn.w_codes, w_scales, x, None)


@each_precision
def test_levels_agree_on_wild_numbers(run: Run, equal_levels: list[str], tokens: str) -> None:
    spec = Spec(rows=(7, 2), n=40, k=144, tokens=tokens)
    numbers = wild_numbers(spec)
    results = []
    for level in equal_levels:
        product = build(spec, numbers)
        run(product.operands, level)
        results.append(bits(product))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@each_precision
def test_threads_do_not_change_a_bit(run: Run, level: str, tokens: str) -> None:
    spec = replace(GROUPED, n=640, k=528, factors=(), tokens=tokens)
    results = []
    for threads in (1, 2, 3, 7, 64):
        product = build(spec)
        run(product.operands, level, threads)
        results.append(bits(product))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@each_precision
def test_a_row_does_not_depend_on_its_batch(run: Run, level: str, tokens: str) -> None:
    """One token, alone and as the last of groups of 8, 16, 17, 64 and 257 rows.

    AMX tiles of 256 tokens of this K do not fit in L2, and so take another order of loops.
    """
    spec = Spec(rows=(257,), n=72, k=2640, tokens=tokens)
    numbers = draw(spec)
    results = []
    for m in (1, 8, 16, 17, 64, 257):
        scales = None if numbers.x_scales is None else numbers.x_scales[257 - m :]
        some = replace(numbers, x=numbers.x[257 - m :], x_scales=scales)
        product = build(replace(spec, rows=(m,)), some)
        run(product.operands, level, batch_invariant=True)
        results.append(bits(product)[-1])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@each_precision
@pytest.mark.parametrize("m", [1, 2, 4, 5, 16, 17])
def test_other_groups_do_not_change_a_bit(run: Run, level: str, tokens: str, m: int) -> None:
    """The first group's rows, with and without a second group, whatever kernel its size gets."""
    spec = Spec(rows=(m, 40), n=24, k=272, tokens=tokens)
    numbers = draw(spec)
    scales = None if numbers.x_scales is None else numbers.x_scales[:m]
    first = Numbers(numbers.w_codes[:1], numbers.w_scales[:1], numbers.x[:m], scales)
    together, alone = build(spec, numbers), build(replace(spec, rows=(m,)), first)
    run(together.operands, level)
    run(alone.operands, level)
    np.testing.assert_array_equal(bits(together)[:m], bits(alone))


@each_precision
def test_layouts_and_forms_do_not_change_a_bit(run: Run, level: str, tokens: str) -> None:
    spec = Spec(rows=(3, 0, 130, 5), n=40, k=176, tokens=tokens)
    results = []
    for layout in ("linear", "torch", "flashinfer"):
        for masked in (False, True):
            form = replace(spec, x_layout=layout, w_layout=layout, masked=masked, gaps=masked)
            product = build(form)
            run(product.operands, level)
            results.append(bits(product))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_columns_do_not_depend_on_other_columns(run: Run, level: str) -> None:
    spec = Spec(rows=(5,), n=40, k=176, tokens="nvfp4")
    numbers = draw(spec)
    product = build(spec, numbers)
    run(product.operands, level)
    numbers.w_scales[:, :17] = NAN_SCALE
    poisoned = build(spec, numbers)
    run(poisoned.operands, level)
    np.testing.assert_array_equal(bits(product)[:, 17:], bits(poisoned)[:, 17:])


def test_flush_to_zero_of_the_caller_changes_nothing(run: Run, level: str) -> None:
    """Sums below 2^-126, which flush-to-zero and denormals-are-zero would lose."""
    spec = Spec(rows=(2,), n=16, k=16, tokens="bf16")
    numbers = draw(spec)
    tiny = replace(numbers, x=numbers.x * 2.0**-130)
    tiny = replace(tiny, x=torch.from_numpy(tiny.x).bfloat16().double().numpy())
    expected, flushed = build(spec, tiny), build(spec, tiny)
    run(expected.operands, level)
    assert (expected.operands.out != 0).any()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        run(flushed.operands, level)
        still_on = (torch.tensor([2.0**-130]) * 1.0).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(bits(expected), bits(flushed))
    assert still_on, "the caller's mode was not restored"


def test_own_threads_give_the_same_bits(library: CpuLibrary, run: Run, level: str) -> None:
    spec = replace(GROUPED, n=640, k=528, factors=())
    pool, own = build(spec), build(spec)
    run(pool.operands, level, 2)
    alone = replace(library, parallel_region=0)
    alone.grouped_mm([problem_record(own.operands)], level, 3)
    np.testing.assert_array_equal(bits(pool), bits(own))
