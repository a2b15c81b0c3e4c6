"""``quantize`` against its definition written in numpy and ml_dtypes, and its edges."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from nibblas.formats import e2m1, e4m3
from nibblas.formats import scale_layout as sl
from nibblas.formats.quantize import Method, dequantize, quantize

F32 = np.float32
METHODS: tuple[Method, ...] = ("amax", "four_over_six")


def random_blocks(*shape: int, seed: int = 0, spread: float = 6.0) -> torch.Tensor:
    """Normal values whose blocks differ in magnitude by factors up to 2**spread."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator)
    exponents = (torch.rand(*shape[:-1], shape[-1] // 16, generator=generator) - 1) * spread
    return values * torch.exp2(exponents).repeat_interleave(16, dim=-1)


def oracle_global(t: np.ndarray, largest_scale: float) -> np.float32:
    amax = F32(np.abs(t).max(initial=0.0))
    scale: np.float32 = F32(1.0) if amax == 0 else amax / F32(largest_scale * 6.0)
    return scale


def oracle_blocks(t: np.ndarray, g: np.float32, top: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes (rows, K) and scale bytes (rows, K/16), every float32 operation rounded once."""
    blocks = t.astype(F32).reshape(t.shape[0], -1, 16)
    amax = np.abs(blocks).max(axis=2)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        wanted = np.minimum(amax / F32(top) / g, F32(448.0))
        scales = wanted.astype(ml_dtypes.float8_e4m3fn)
        lost = (scales == 0) & (amax > 0)
        scales[lost] = ml_dtypes.float8_e4m3fn(2.0**-9)
        step = scales.astype(F32) * g
        quotient = blocks / step[..., None]
        codes = quotient.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    codes[step == 0] = 0
    return codes.reshape(t.shape), scales.view(np.uint8)


def block_errors(t: np.ndarray, codes: np.ndarray, scales: np.ndarray, g: float) -> np.ndarray:
    """Squared error of each block in float64."""
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64).reshape(t.shape[0], -1, 16)
    decoded = values * scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)[..., None] * g
    error: np.ndarray = t.astype(np.float64).reshape(decoded.shape) - decoded
    squared: np.ndarray = np.square(error).sum(axis=2)
    return squared


def parts(array) -> tuple[np.ndarray, np.ndarray]:
    """Codes, one per byte, and linear scale bytes."""
    return e2m1.unpack(array.codes).numpy(), array.linear_scales().view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 6.0, 24.0])
def test_quantize_is_its_definition_bit_for_bit(dtype, spread):
    t = random_blocks(48, 320, seed=1, spread=spread).to(dtype)
    values = t.float().numpy()
    g = oracle_global(values, 448.0)
    codes, scales = oracle_blocks(values, g, 6.0)
    array = quantize(t)
    assert array.global_scale.item() == float(g)
    assert np.array_equal(parts(array)[1], scales)
    assert np.array_equal(parts(array)[0], codes)


def test_ties_are_decided_by_the_order_of_the_operations():
    """Blocks whose scale lies within two ulps of an E4M3 midpoint, where the order shows."""
    g = F32(1 / 300)
    finite = np.arange(8, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F32)
    amax = (finite[:-1] + finite[1:]) / F32(2) * F32(6) * g
    ulps = np.stack([np.nextafter(amax, F32(0)), amax, np.nextafter(amax, F32(1e9))], axis=1)
    t = np.repeat(ulps.reshape(-1, 1), 16, axis=1) * np.linspace(0, 1, 16, dtype=F32)
    t[:, -1] = ulps.reshape(-1)
    codes, scales = oracle_blocks(t, g, 6.0)
    other_order = (ulps.reshape(-1) / (F32(6) * g)).astype(ml_dtypes.float8_e4m3fn)
    assert (other_order.view(np.uint8) != scales[:, 0]).any()
    array = quantize(torch.from_numpy(t), global_scale=float(g))
    assert np.array_equal(parts(array)[1], scales)
    assert np.array_equal(parts(array)[0], codes)


def test_codes_at_midpoints_are_of_the_quotient_by_one_rounded_step():
    g = F32(1 / 300)
    scale = F32(13)
    step = scale * g
    mid = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=F32) * step
    values = np.concatenate([np.nextafter(mid, F32(0)), mid, np.nextafter(mid, F32(9))])
    t = np.zeros((len(values), 16), dtype=F32)
    t[:, 0], t[:, 1] = F32(6) * step, values
    codes, scales = oracle_blocks(t, g, 6.0)
    other_order = (values / scale / g).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert (scales.view(ml_dtypes.float8_e4m3fn).astype(F32) == scale).all()
    assert (other_order != codes[:, 1]).any()
    array = quantize(torch.from_numpy(t), global_scale=float(g))
    assert np.array_equal(parts(array)[0], codes)


def test_four_over_six_takes_the_block_with_the_smaller_error_and_divides_by_256():
    t = random_blocks(64, 256, seed=2)
    values = t.numpy()
    g = oracle_global(values, 256.0)
    by_six, by_four = oracle_blocks(values, g, 6.0), oracle_blocks(values, g, 4.0)
    error_six = block_errors(values, *by_six, float(g))
    error_four = block_errors(values, *by_four, float(g))
    take_four = error_four < error_six
    clear = np.abs(error_four - error_six) > 1e-5 * (error_four + error_six)
    assert 0.1 < take_four.mean() < 0.9
    assert clear.mean() > 0.99

    array = quantize(t, method="four_over_six")
    codes, scales = parts(array)
    expected = np.where(take_four, by_four[1], by_six[1])
    assert array.global_scale.item() == float(g)
    assert np.array_equal(scales[clear], expected[clear])
    chosen = np.where(take_four.repeat(16, axis=1), by_four[0], by_six[0])
    assert np.array_equal(codes[clear.repeat(16, axis=1)], chosen[clear.repeat(16, axis=1)])


def test_four_over_six_represents_10_20_30_40_exactly():
    """The paper's example: 10, 20, 30, 40 are 1, 2, 3, 4 times 10; with 40 at 6 they are not."""
    t = torch.tensor([10.0, 20.0, 30.0, 40.0]).repeat(1, 4)
    assert torch.equal(quantize(t, method="four_over_six", global_scale=1.0).dequantize(), t)
    assert not torch.equal(quantize(t, global_scale=1.0).dequantize(), t)


def test_four_over_six_prefers_six_on_a_tie():
    array = quantize(torch.full((1, 16), 6.0), method="four_over_six", global_scale=1.0)
    assert array.scales.view(torch.uint8).item() == 0x38
    assert e2m1.unpack(array.codes).unique().tolist() == [7]


@pytest.mark.parametrize("scale", [1e-20, 1e25])
def test_four_over_six_chooses_alike_at_any_magnitude(scale):
    t = random_blocks(8, 128, seed=3)
    power = 2.0 ** round(math.log2(scale))
    expected = quantize(t, method="four_over_six")
    scaled = quantize(t * power, method="four_over_six")
    assert torch.equal(scaled.codes, expected.codes)
    assert torch.equal(scaled.scales.view(torch.uint8), expected.scales.view(torch.uint8))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 20), st.sampled_from(METHODS))
def test_error_of_every_element_is_at_most_one_step(seed, spread, method):
    """Half the widest gap of E2M1 is one step. A scale that was rounded down by half a unit cuts
    the largest magnitudes off, by 6/16 of a step, or 6 * 2**-10 * global where it is subnormal.
    """
    t = random_blocks(4, 64, seed=seed, spread=spread)
    array = quantize(t, method=method)
    g = array.global_scale.double()
    step = (e4m3.decode(array.scales, torch.float64) * g).clamp(min=6 * 2**-10 * g)
    error = (dequantize(array, torch.float64) - t.double()).abs()
    assert bool((error <= step.repeat_interleave(16, dim=1) * (1 + 2**-20)).all())


def test_quantizing_again_with_the_same_global_scale_changes_nothing():
    """In every block some code is 6, so the block scale is found again."""
    array = quantize(random_blocks(32, 256, seed=4))
    again = quantize(array.dequantize(), global_scale=array.global_scale)
    assert torch.equal(again.codes, array.codes)
    assert torch.equal(again.scales.view(torch.uint8), array.scales.view(torch.uint8))


def test_all_zeros_get_global_scale_one_and_zero_bytes():
    array = quantize(-torch.zeros(3, 32))
    assert array.global_scale.item() == 1.0
    assert not array.codes.any()
    assert not array.scales.view(torch.uint8).any()


def test_a_zero_block_among_others_gets_scale_zero():
    t = random_blocks(2, 48)
    t[:, 16:32] = 0.0
    array = quantize(t)
    assert array.scales.view(torch.uint8)[:, 1].tolist() == [0, 0]
    assert not array.codes[:, 8:16].any()
    assert bool((array.scales.view(torch.uint8)[:, [0, 2]] > 0).all())


def test_a_block_too_small_for_its_scale_gets_the_smallest_scale_not_zero():
    """With global scale 1 the block's scale would be 2**-11, which rounds to 0."""
    t = torch.zeros(1, 16)
    t[0, :4] = torch.tensor([6.0, 4.0, -3.0, 1.0]) * 2.0**-11
    array = quantize(t, global_scale=1.0)
    assert array.scales.view(torch.uint8).item() == 0x01
    assert array.dequantize()[0, :4].tolist() == [1.5 * 2**-9, 2**-9, -(2**-9), 0.0]
    assert bool(((array.dequantize() - t).abs() <= t.abs()).all())


def test_a_given_global_scale_that_is_too_small_saturates():
    array = quantize(torch.full((1, 16), 1e6), global_scale=1.0)
    assert array.scales.view(torch.uint8).item() == 0x7E
    assert array.dequantize()[0, 0].item() == 448.0 * 6.0


@pytest.mark.parametrize("amax", [2.0**-149, 1e-40, 1e-30])
def test_tiny_tensors_keep_every_product_of_scales_a_normal_number(amax):
    array = quantize(torch.full((1, 16), amax))
    step = array.scales.float() * array.global_scale
    assert bool((step >= torch.finfo(torch.float32).tiny).all())
    assert abs(array.dequantize()[0, 0].item() - amax) <= amax


def test_the_largest_float32_does_not_overflow():
    t = torch.full((1, 16), torch.finfo(torch.float32).max)
    for method in METHODS:
        error = quantize(t, method=method).dequantize() / t - 1
        assert float(error.abs().max()) < 0.05


def test_both_directions_of_a_given_global_scale_mean_the_same():
    t = random_blocks(4, 64)
    decode = quantize(t, global_scale=torch.tensor(2.0**-9))
    encode = quantize(t, global_encode_scale=torch.tensor(2.0**9))
    assert torch.equal(decode.codes, encode.codes)
    assert decode.global_scale == encode.global_scale == 2.0**-9


def test_a_stack_gets_one_global_scale_per_group():
    t = random_blocks(3, 8, 64, seed=5) * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    array = quantize(t)
    assert array.global_scale.shape == (3,)
    for g in range(3):
        alone = quantize(t[g])
        assert array.global_scale[g] == alone.global_scale
        assert torch.equal(array.codes[g], alone.codes)


@pytest.mark.parametrize("method", METHODS)
def test_segments_get_a_global_scale_each(method):
    gate, up = random_blocks(2, 8, 64, seed=6), random_blocks(2, 8, 64, seed=7) * 10
    fused = quantize(torch.cat([gate, up], dim=1), segments=2, method=method)
    assert fused.global_scale.shape == (2, 2)
    for s, half in enumerate((gate, up)):
        alone = quantize(half, method=method)
        assert torch.equal(fused.global_scale[:, s], alone.global_scale)
        assert torch.equal(fused.codes[:, 8 * s : 8 * s + 8], alone.codes)
    matrix = quantize(torch.cat([gate[0], up[0]]), segments=2, method=method)
    assert matrix.global_scale.shape == (1, 2)
    assert torch.equal(matrix.codes, fused.codes[0])


@pytest.mark.parametrize("shape", [(130, 80), (2, 130, 80)])
def test_blocked_scales_are_the_linear_ones_in_their_places(shape):
    t = random_blocks(*shape)
    linear, blocked = quantize(t), quantize(t, scale_layout="blocked")
    expected = sl.to_blocked(linear.scales.view(torch.uint8))
    assert torch.equal(blocked.scales.view(torch.uint8), expected)
    assert torch.equal(blocked.dequantize(), linear.dequantize())


@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_packed_tokens_place_each_groups_scales_by_the_rule(rule):
    t = random_blocks(300, 80)
    offs = torch.tensor([0, 130, 130, 290], dtype=torch.int32)
    array = quantize(t, scale_layout="blocked", offs=offs, group_start=rule)
    assert array.group_start == rule
    assert array.scales.shape == (sl.packed_rows_bound(300, 4), 8)
    linear = quantize(t[:290])
    placed = sl.to_blocked_by_group(linear.scales, offs, rule=rule)
    assert torch.equal(array.scales.view(torch.uint8)[: placed.shape[0]], placed.view(torch.uint8))
    assert torch.equal(dequantize(array, offs=offs)[:290], linear.dequantize())


def test_packed_tokens_start_by_pytorchs_rule_unless_told_otherwise():
    offs = torch.tensor([5, 9], dtype=torch.int32)
    array = quantize(random_blocks(9, 32), scale_layout="blocked", offs=offs)
    assert array.group_start == "torch"


def test_rows_past_the_last_group_become_zero_and_do_not_count():
    t = random_blocks(20, 32)
    t[15:] = math.nan
    offs = torch.tensor([7, 15], dtype=torch.int32)
    array = quantize(t, offs=offs)
    assert array.global_scale == quantize(t[:15]).global_scale
    assert not array.codes[15:].any()
    assert not array.dequantize(offs=offs)[15:].any()


def test_a_global_scale_per_group_of_rows_needs_offs():
    t = random_blocks(10, 32)
    offs = torch.tensor([4, 10], dtype=torch.int32)
    scale = torch.tensor([0.01, 0.02])
    array = quantize(t, global_scale=scale, offs=offs)
    assert torch.equal(array.codes[:4], quantize(t[:4], global_scale=0.01).codes)
    assert torch.equal(array.codes[4:], quantize(t[4:], global_scale=0.02).codes)
    with pytest.raises(ValueError, match="offs: got None"):
        quantize(t, global_scale=scale)


def test_rounding_some_rows_at_a_time_changes_nothing(monkeypatch):
    t = random_blocks(2, 37, 64)
    whole = quantize(t, segments=1)
    monkeypatch.setattr("nibblas.formats.quantize._VALUES_AT_A_TIME", {"cpu": 5 * 64})
    in_parts = quantize(t, segments=1)
    assert torch.equal(in_parts.codes, whole.codes)
    assert torch.equal(in_parts.scales.view(torch.uint8), whole.scales.view(torch.uint8))


def test_strided_input_is_read_where_it_lies():
    t = random_blocks(64, 32).t().contiguous().t()
    assert t.stride(-1) != 1
    assert torch.equal(quantize(t).codes, quantize(t.contiguous()).codes)


@pytest.mark.parametrize("layout", ["linear", "blocked"])
@pytest.mark.parametrize("shape", [(0, 32), (3, 0, 32)])
def test_no_rows_make_an_empty_array(shape, layout):
    array = quantize(torch.empty(shape), scale_layout=layout)
    assert array.shape == shape
    assert bool((array.global_scale == 1.0).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_on_the_cpu_are_refused_with_their_place(bad):
    t = random_blocks(3, 64)
    t[1, 40] = bad
    with pytest.raises(ValueError, match=r"t: got NaN or infinity in t\[1, 32:48\]"):
        quantize(t)
    with pytest.raises(ValueError, match="t: got NaN or infinity"):
        quantize(torch.full((1, 16), 1e300, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_where_contents_are_not_looked_at_a_bad_block_gets_a_nan_scale(bad, method, monkeypatch):
    t = random_blocks(3, 64)
    expected = quantize(t, method=method)
    peak = int(t.abs().argmax())
    column = next(k for k in (40, 8) if k // 16 != peak % 64 // 16)
    t[1, column] = bad
    monkeypatch.setattr("nibblas.formats.quantize._readable", lambda t: False)
    array = quantize(t, method=method)
    scales, wanted = array.scales.view(torch.uint8), expected.scales.view(torch.uint8).clone()
    wanted[1, column // 16] = e4m3.NAN_BYTE
    assert array.global_scale == expected.global_scale
    assert torch.equal(scales, wanted)
    assert int(array.dequantize().isnan().sum()) == 16


def test_no_value_is_read_on_the_host():
    """A fake tensor raises when a value is asked for, as a synchronisation would."""
    with FakeTensorMode():
        t = torch.empty(300, 80, dtype=torch.bfloat16)
        offs = torch.empty(3, dtype=torch.int32)
        array = quantize(t, method="four_over_six", scale_layout="blocked", offs=offs)
        decoded = dequantize(array, torch.bfloat16, offs=offs)
        stack = quantize(torch.empty(2, 8, 32), segments=2)
    assert array.codes.shape == (300, 40)
    assert array.scales.shape == (640, 8)
    assert (decoded.shape, decoded.dtype) == ((300, 80), torch.bfloat16)
    assert stack.global_scale.shape == (2, 2)


def test_one_graph_without_breaks_gives_the_same_bytes():
    def packed(t, offs):
        array = quantize(t, method="four_over_six", scale_layout="blocked", offs=offs)
        return array.codes, array.scales.view(torch.uint8), array.global_scale

    t, offs = random_blocks(40, 64), torch.tensor([10, 30], dtype=torch.int32)
    traced = torch.compile(packed, backend="eager", fullgraph=True)(t, offs)
    assert all(map(torch.equal, traced, packed(t, offs)))


T = torch.ones(4, 32)
ENDS = torch.tensor([4], dtype=torch.int32)
REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "t not a tensor": (TypeError, "t: got list", {"t": [1.0]}),
    "integers": (TypeError, "t: got torch.int32", {"t": T.int()}),
    "float8": (TypeError, "t: got torch.float8_e4m3fn", {"t": T.to(torch.float8_e4m3fn)}),
    "one dimension": (ValueError, "t: got shape (32,)", {"t": T[0]}),
    "K off 16": (ValueError, "K a positive multiple of 16", {"t": T[:, :24]}),
    "K zero": (ValueError, "K a positive multiple of 16", {"t": T[:, :0]}),
    "method": (ValueError, "method: got 'mse'", {"method": "mse"}),
    "layout": (ValueError, "scale_layout: got 'rows'", {"scale_layout": "rows"}),
    "segments": (ValueError, "segments: got 3", {"segments": 3}),
    "both globals": (
        ValueError,
        "global_encode_scale: got both",
        {"global_scale": 1.0, "global_encode_scale": 1.0},
    ),
    "global of zero": (ValueError, "global_scale: got 0.0", {"global_scale": 0.0}),
    "global NaN": (ValueError, "global_scale: got nan", {"global_scale": math.nan}),
    "encode of inf": (ValueError, "global_encode_scale:", {"global_encode_scale": math.inf}),
    "global in float64": (
        TypeError,
        "global_scale: got torch.float64",
        {"global_scale": torch.ones((), dtype=torch.float64)},
    ),
    "segments that disagree": (
        ValueError,
        "global_scale: got shape ()",
        {"segments": 2, "global_scale": 1.0},
    ),
    "offs with a stack": (ValueError, "offs: got offs with a 3-D t", {"t": T[None], "offs": ENDS}),
    "offs in int64": (TypeError, "offs: got torch.int64", {"offs": ENDS.long()}),
    "offs a list": (TypeError, "offs: got list", {"offs": [4]}),
    "offs past the rows": (ValueError, "offs: got [5]", {"offs": ENDS + 1}),
    "offs that fall": (ValueError, "offs: got [3, 2]", {"offs": torch.tensor([3, 2]).int()}),
    "start without offs": (
        ValueError,
        "group_start: got 'torch'",
        {"group_start": "torch", "scale_layout": "blocked"},
    ),
    "start of linear scales": (
        ValueError,
        "group_start: got 'torch'",
        {"group_start": "torch", "offs": ENDS},
    ),
    "unknown start": (ValueError, "group_start: got 'cute'", {"group_start": "cute", "offs": ENDS}),
    "one global per group, other groups": (
        ValueError,
        "global_scale: got shape (2,)",
        {"global_scale": torch.ones(2), "offs": ENDS},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_by_name(case):
    error, message, arguments = REFUSED[case]
    with pytest.raises(error) as raised:
        quantize(**{"t": T, **arguments})
    assert message in str(raised.value)


def test_dequantize_refuses_what_is_not_an_array():
    with pytest.raises(TypeError, match="array: got Tensor"):
        dequantize(T)  # type: ignore[arg-type]
