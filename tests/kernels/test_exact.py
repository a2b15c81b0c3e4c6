"""Where fp32 arithmetic is exact, the kernels must be: one rounding, that of the output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.conftest import Run
from tests.kernels.products import NAN_SCALE, TYPES, Numbers, Product, Spec, build, check, draw

VALID_SCALES = np.arange(0x7F, dtype=np.uint8)
ONE_SCALE, CODE_OF_1_5 = 0x38, 3

each_precision = pytest.mark.parametrize("tokens", ["bf16", "fp16", "nvfp4"])


def assert_rounded_once(product: Product, spec: Spec) -> None:
    """The output is the exact value, rounded to the output's type."""
    want = torch.from_numpy(product.exact).to(TYPES[spec.out]).double().numpy()
    np.testing.assert_array_equal(product.operands.out.double().numpy(), want)


def one_hot_tokens(spec: Spec, value: float) -> tuple[np.ndarray, np.ndarray | None]:
    """Row m of x holds one value, at k = m."""
    if spec.tokens == "nvfp4":
        scales = np.full((spec.k, spec.k // 16), ONE_SCALE, dtype=np.uint8)
        return np.eye(spec.k, dtype=np.uint8) * CODE_OF_1_5, scales
    return np.eye(spec.k) * value, None


@pytest.mark.parametrize("k", [16, 112, 144, 528])
@each_precision
def test_one_hot_in_every_k(run: Run, level: str, tokens: str, k: int) -> None:
    spec = Spec(rows=(k,), n=21, k=k, tokens=tokens)
    x, x_scales = one_hot_tokens(spec, 1.5)
    product = build(spec, replace(draw(replace(spec, rows=(0,))), x=x, x_scales=x_scales))
    run(product.operands, level)
    assert_rounded_once(product, spec)


@pytest.mark.parametrize("tokens", ["bf16", "fp16"])
def test_every_code_with_every_valid_scale_w4a16(run: Run, level: str, tokens: str) -> None:
    """Weight row n has scale n and all 16 codes in a block; token m picks code m."""
    n = len(VALID_SCALES)
    spec = Spec(rows=(16,), n=n, k=16, tokens=tokens)
    codes = np.tile(np.arange(16, dtype=np.uint8), (1, n, 1))
    numbers = Numbers(codes, VALID_SCALES.reshape(1, n, 1), np.eye(16) * 1.5, None)
    product = build(spec, numbers)
    run(product.operands, level)
    assert_rounded_once(product, spec)


@pytest.mark.parametrize("code", range(16))
def test_every_code_with_every_pair_of_valid_scales_w4a4(run: Run, level: str, code: int) -> None:
    """Token m has scale m and ``code`` at k = 1; weight row n has scale n and a code of its own."""
    n = len(VALID_SCALES)
    spec = Spec(rows=(n,), n=n, k=16, tokens="nvfp4")
    w_codes = np.zeros((1, n, 16), dtype=np.uint8)
    w_codes[0, :, 1] = np.arange(n) % 16
    x_codes = np.zeros((n, 16), dtype=np.uint8)
    x_codes[:, 1] = code
    scales = VALID_SCALES[:, None]
    product = build(spec, Numbers(w_codes, scales[None], x_codes, scales))
    run(product.operands, level)
    assert_rounded_once(product, spec)


def test_every_pair_of_codes_in_every_place_of_a_block(run: Run, level: str) -> None:
    """Weight row (c, k) has code c at k; token row (c, k) likewise: a place meets only itself."""
    places = np.repeat(np.arange(16), 16)
    codes = np.zeros((256, 16), dtype=np.uint8)
    codes[np.arange(256), places] = np.tile(np.arange(16), 16)
    scales = np.full((256, 1), ONE_SCALE, dtype=np.uint8)
    spec = Spec(rows=(256,), n=256, k=16, tokens="nvfp4")
    product = build(spec, Numbers(codes[None], scales[None], codes, scales))
    run(product.operands, level)
    assert_rounded_once(product, spec)


@each_precision
def test_largest_block_sums(run: Run, level: str, tokens: str) -> None:
    """Codes 6 and -6 everywhere: the largest integers that a block's dot product can take."""
    signs = np.array([0x7, 0xF], dtype=np.uint8)
    spec = Spec(rows=(2,), n=2, k=256, tokens=tokens)
    codes = np.repeat(signs[:, None], spec.k, axis=1)
    scales = np.full((2, spec.k // 16), ONE_SCALE, dtype=np.uint8)
    x, x_scales = (codes, scales) if tokens == "nvfp4" else (np.array([[6.0], [-6.0]]), None)
    x = np.broadcast_to(x, (2, spec.k))
    product = build(spec, Numbers(codes[None], scales[None], np.ascontiguousarray(x), x_scales))
    run(product.operands, level)
    assert_rounded_once(product, spec)
    assert product.exact[0, 0] == 36 * spec.k


@pytest.mark.parametrize("out", ["fp32", "bf16", "fp16"])
@each_precision
def test_representable_partial_sums(run: Run, level: str, tokens: str, out: str) -> None:
    """Small integers times powers of two: no order of summation can round."""
    spec = Spec(rows=(1, 0, 7, 13), n=37, k=1168, tokens=tokens, out=out)
    rng = np.random.default_rng(5)
    drawn = draw(spec)
    small = np.array([0x30, 0x38, 0x40], dtype=np.uint8)  # 0.5, 1 and 2
    x_scales = None if drawn.x_scales is None else rng.choice(small, drawn.x_scales.shape)
    x = drawn.x if tokens == "nvfp4" else rng.integers(-8, 9, drawn.x.shape) / 4
    numbers = Numbers(drawn.w_codes, rng.choice(small, drawn.w_scales.shape), x, x_scales)
    product = build(spec, numbers)
    run(product.operands, level)
    assert_rounded_once(product, spec)


@each_precision
def test_nan_scale_of_a_weight_row_touches_its_column_only(
    run: Run, level: str, tokens: str
) -> None:
    spec = Spec(rows=(3, 0, 5), n=20, k=176, tokens=tokens)
    numbers = draw(spec)
    numbers.w_scales[2, 11, 10] = NAN_SCALE
    product = build(spec, numbers)
    run(product.operands, level)
    got = np.isnan(product.operands.out.numpy())
    want = np.zeros_like(got)
    want[3:, 11] = True
    np.testing.assert_array_equal(got, want)


def test_nan_scale_of_a_token_touches_its_row_only(run: Run, level: str) -> None:
    spec = Spec(rows=(3, 0, 5), n=20, k=176, tokens="nvfp4")
    numbers = draw(spec)
    assert numbers.x_scales is not None
    numbers.x_scales[4, 0] = 0xFF
    product = build(spec, numbers)
    run(product.operands, level)
    got = np.isnan(product.operands.out.numpy())
    assert got[4].all()
    assert not np.delete(got, 4, axis=0).any()


@pytest.mark.parametrize("out", ["fp32", "bf16", "fp16"])
def test_nan_and_infinity_in_tokens_stay_in_their_rows(run: Run, level: str, out: str) -> None:
    spec = Spec(rows=(6,), n=20, k=48, tokens="bf16", out=out)
    numbers = draw(spec)
    numbers.x[1, 3], numbers.x[4, 20] = np.nan, np.inf
    product = build(spec, numbers)
    run(product.operands, level)
    got = product.operands.out.float().numpy()
    assert np.isnan(got[1]).all()
    zero = np.isin(numbers.w_codes[0, :, 20], (0, 8))
    assert np.isnan(got[4, zero]).all()
    assert np.isinf(got[4, ~zero]).all()
    assert np.isfinite(np.delete(got, (1, 4), axis=0)).all()


@pytest.mark.parametrize(("out", "largest"), [("fp16", 65504.0), ("bf16", 3.3895e38)])
def test_overflow_gives_infinity_of_the_right_sign(
    run: Run, level: str, out: str, largest: float
) -> None:
    spec = Spec(rows=(2,), n=8, k=16, tokens="bf16", out=out)
    numbers = draw(spec)
    numbers.w_codes[:], numbers.w_scales[:] = 0x2, ONE_SCALE
    numbers.x[:] = 0
    numbers.x[:, 0] = (largest * 1.01, -largest * 1.01)
    product = build(spec, numbers)
    run(product.operands, level)
    assert (product.operands.out[0] == np.inf).all()
    assert (product.operands.out[1] == -np.inf).all()


@pytest.mark.parametrize("m", [1, 2, 3, 19])
def test_tokens_of_any_magnitude_are_within_the_bound(run: Run, level: str, m: int) -> None:
    """Every other token spans all of bfloat16 below 2^100, subnormals included."""
    spec = Spec(rows=(m,), n=40, k=272, tokens="bf16")
    numbers = draw(spec)
    exponents = np.random.default_rng(m).integers(-130, 100, numbers.x.shape)
    exponents[1::2] = 0
    x = torch.from_numpy(numbers.x * np.exp2(exponents)).bfloat16().double().numpy()
    product = build(spec, replace(numbers, x=x))
    run(product.operands, level)
    check(product, spec)


@pytest.mark.parametrize("m", [1, 3])
def test_subnormal_tokens_beside_a_zero_weight(run: Run, level: str, m: int) -> None:
    """A large value that a zero code cancels must not hide a subnormal one."""
    spec = Spec(rows=(m,), n=16, k=16, tokens="bf16")
    numbers = draw(spec)
    numbers.w_codes[:], numbers.w_scales[:] = 0, ONE_SCALE
    numbers.w_codes[:, :, 5] = CODE_OF_1_5
    numbers.x[:] = 0
    numbers.x[:, 2], numbers.x[:, 5] = 2.0**90, 2.0**-133
    product = build(spec, numbers)
    run(product.operands, level)
    assert_rounded_once(product, spec)
    assert product.exact[0, 0] == 1.5 * 2.0**-133


@each_precision
def test_more_prepared_tokens_than_one_wave_holds(run: Run, level: str, tokens: str) -> None:
    """In fp32 these tokens take 75 MB: three waves of at most 32 MiB, in two rooms."""
    spec = Spec(rows=(2100, 30, 1400, 1054), n=8, k=4096, tokens=tokens)
    product = build(spec)
    run(product.operands, level, 3)
    check(product, spec)
