"""The packed operator against the independent oracle, on every backend."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import nibblas
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from tests import oracle
from tests.api.problems import offs_of, random_array, random_tokens
from tests.api.targets import TARGETS

ENDS = [0, 3, 3, 20, 21, 21]


def check_against_oracle(y, x, w, ends, **epilogue):
    exact = grouped_mm_reference(x, w, offs_of(ends), **epilogue)
    independent = oracle.grouped_mm(x, w, ends, **epilogue)
    used = slice(0, ends[-1])
    np.testing.assert_allclose(exact.value[used].numpy(), independent, rtol=1e-12, atol=1e-12)
    ok = within_bound(y, exact, error_bound(exact, y.dtype))[used]
    assert bool(ok.all()), f"{int((~ok).sum())} outputs beyond the bound"


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("activations", [torch.float16, torch.bfloat16, "nvfp4"])
def test_every_precision_and_output_type(target, activations, out_dtype):
    w = random_array((6, 40, 80), 1)
    if activations == "nvfp4":
        x = random_array((23, 80), 2, global_shape=(6,))
    else:
        x = random_tokens(23, 80, 2, activations)
    y = target.grouped_mm(x, w, offs_of(ENDS), out_dtype=out_dtype)
    assert y.shape == (23, 40) and y.dtype == out_dtype
    check_against_oracle(y, x, w, ENDS)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("rule", [None, "torch", "flashinfer"])
@pytest.mark.parametrize("w_layout", ["linear", "blocked"])
@pytest.mark.parametrize("k", [16, 32, 48, 64, 208])
def test_scale_layouts_with_nan_in_every_padding_byte(target, w_layout, rule, k):
    w = random_array((6, 33, k), 3, layout=w_layout)
    layout = "blocked" if rule else "linear"
    x = random_array((23, k), 4, layout=layout, ends=ENDS, rule=rule)
    y = target.grouped_mm(x, w, offs_of(ENDS), out_dtype=torch.float32)
    assert not y[: ENDS[-1]].isnan().any()
    check_against_oracle(y, x, w, ENDS)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("global_shape", [(), (6,), (6, 1), (6, 2), (6, 4)])
@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
def test_global_scales_and_epilogue(target, global_shape, present):
    w = random_array((6, 36, 64), 5, global_shape=global_shape)
    x = random_tokens(23, 64, 6, torch.bfloat16)
    generator = torch.Generator().manual_seed(7)
    factors = (
        torch.randn(6, generator=generator),
        torch.randn(23, generator=generator),
        torch.randn(6, 36, generator=generator) * 10,
    )
    names = ("alpha", "row_scale", "bias")
    epilogue = {n: f for n, f, p in zip(names, factors, present, strict=True) if p}
    y = target.grouped_mm(x, w, offs_of(ENDS), out_dtype=torch.float32, **epilogue)
    check_against_oracle(y, x, w, ENDS, **epilogue)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(36,), (6, 36)])
def test_bias_of_every_type_and_rank(target, dtype, shape):
    w = random_array((6, 36, 64), 8)
    x = random_tokens(23, 64, 9, torch.float16)
    bias = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    y = target.grouped_mm(x, w, offs_of(ENDS), bias=bias, out_dtype=torch.float32)
    check_against_oracle(y, x, w, ENDS, bias=bias)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("ends", [[0], [0, 0, 0], [1], [1, 1, 2], [5, 5, 5], [0, 4, 5]])
def test_empty_and_one_row_groups(target, ends):
    w = random_array((len(ends), 17, 32), 10)
    x = random_tokens(5, 32, 11, torch.bfloat16)
    y = target.grouped_mm(x, w, offs_of(ends))
    check_against_oracle(y, x, w, ends)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_no_rows_at_all(target):
    w = random_array((2, 17, 32), 10)
    y = target.grouped_mm(torch.empty(0, 32).half(), w, offs_of([0, 0]))
    assert y.shape == (0, 17)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("order", ["row", "column", "both apart"])
def test_out_is_written_through_its_strides_and_nowhere_else(target, order):
    w = random_array((6, 19, 48), 12)
    x = random_tokens(23, 48, 13, torch.float16)
    nan = {"fill_value": float("nan"), "dtype": torch.float16, "device": target.device}
    if order == "row":
        buffer = torch.full((27, 31), **nan)
        out = buffer[2:25, 5:24]
    elif order == "column":
        buffer = torch.full((24, 30), **nan)
        out = buffer[3:22, 2:25].T
    else:
        buffer = torch.full((50, 60), **nan)
        out = buffer[2:48:2, 1:58:3]
    operands = target.put([x, w, offs_of(ENDS)])
    returned = nibblas.grouped_mm(*operands, out=out, backend=target.backend)
    assert returned is out
    check_against_oracle(out.cpu(), x, w, ENDS)
    assert out[ENDS[-1] :].isnan().all()
    assert int((~buffer.isnan()).sum()) == ENDS[-1] * 19


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_strided_tokens_and_weights_are_used_in_place(target):
    big, tokens, offs = (
        random_array((12, 40, 192), 14),
        random_tokens(46, 128, 15, torch.bfloat16),
        offs_of(ENDS),
    )

    def sliced(big, tokens):
        w = nibblas.NVFP4Array(
            big.codes[::2, 3:36, 16:48], big.scales[::2, 3:36, 2:6], global_scale=big.global_scale
        )
        return tokens[::2, 32:96], w

    x, w = sliced(*target.put([big, tokens]))
    y = nibblas.grouped_mm(x, w, target.put(offs), out_dtype=torch.float32, backend=target.backend)
    check_against_oracle(y.cpu(), *sliced(tokens=tokens, big=big), ENDS)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_rows_at_odd_addresses(target):
    """No row is aligned to anything: tokens at odd elements, codes and scales at odd bytes."""
    array, tokens = random_array((2, 9, 96), 20), random_tokens(5, 97, 21, torch.float16)

    def shifted(t):
        buffer = torch.zeros((*t.shape[:-1], t.shape[-1] + 3), dtype=t.dtype, device=t.device)
        buffer[..., 1:-2] = t
        return buffer[..., 1:-2]

    moved = target.put([array, tokens])
    for quantized in (False, True):
        w = nibblas.NVFP4Array(
            shifted(moved[0].codes), shifted(moved[0].scales.view(torch.uint8)),
            global_scale=moved[0].global_scale,
        )  # fmt: skip
        cpu_x = moved_x = None
        if quantized:
            cpu_x = random_array((5, 96), 22)
            on_device = target.put(cpu_x)
            moved_x = nibblas.NVFP4Array(
                shifted(on_device.codes), shifted(on_device.scales.view(torch.uint8)),
                global_scale=on_device.global_scale,
            )  # fmt: skip
        else:
            cpu_x, moved_x = tokens[:, 1:], moved[1][:, 1:]
        y = nibblas.grouped_mm(
            moved_x, w, target.put(offs_of([2, 5])), out_dtype=torch.float32,
            backend=target.backend,
        )  # fmt: skip
        check_against_oracle(y.cpu(), cpu_x, array, [2, 5])


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("operand", ["x", "w"])
def test_nan_scale_in_use_touches_exactly_its_row_or_column(target, operand):
    w = random_array((2, 21, 64), 16)
    x = random_array((7, 64), 17)
    broken = (x if operand == "x" else w).scales.view(torch.uint8)
    broken[(4, 1) if operand == "x" else (1, 5, 2)] = 0x7F
    y = target.grouped_mm(x, w, offs_of([3, 7]))
    expected = torch.zeros(7, 21, dtype=torch.bool)
    if operand == "x":
        expected[4] = True
    else:
        expected[3:, 5] = True
    assert torch.equal(y.isnan(), expected)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("activations", [torch.float16, torch.bfloat16, "nvfp4"])
def test_a_row_has_the_same_bits_in_groups_of_any_size(target, activations):
    w = random_array((1, 37, 208), 18)
    if activations == "nvfp4":
        x = random_array((257, 208), 19)
        rows = lambda m: nibblas.NVFP4Array(x.codes[:m], x.scales[:m], global_scale=x.global_scale)  # noqa: E731
    else:
        tokens = random_tokens(257, 208, 19, activations)
        rows = lambda m: tokens[:m]  # noqa: E731
    first = target.grouped_mm(
        rows(1), w, offs_of([1]), out_dtype=torch.float32, batch_invariant=True
    )
    for m in (8, 16, 17, 64, 257):
        y = target.grouped_mm(rows(m), w, offs_of([m]), out_dtype=torch.float32)
        assert torch.equal(y[:1], first), f"M = {m}"


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_float16_overflow_is_infinity(target):
    w = nibblas.NVFP4Array(
        torch.full((1, 1, 32), 0x77, dtype=torch.uint8), torch.full((1, 1, 4), 0x7E).byte()
    )
    x = torch.full((1, 64), 1000.0).half()
    assert target.grouped_mm(x, w, offs_of([1])).item() == float("inf")
    assert target.grouped_mm(-x, w, offs_of([1])).item() == float("-inf")
