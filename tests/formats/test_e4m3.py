"""E4M3 against ml_dtypes and PyTorch's own cast, on every byte and every boundary."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nibblas.formats import e4m3

ALL_BYTES = torch.arange(256, dtype=torch.uint8)
NAN_BYTES = (0x7F, 0xFF)
FINITE_POSITIVE = ALL_BYTES.numpy()[:0x7F].view(ml_dtypes.float8_e4m3fn)
OVERFLOW_TIE = 464.0
"""Midway between 448 and the 480 that the format does not have."""


def encoded_bytes(values: torch.Tensor) -> np.ndarray:
    return e4m3.encode(values).view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("stored", [torch.uint8, torch.float8_e4m3fn])
def test_decode_all_256_bytes(dtype, stored):
    decoded = e4m3.decode(ALL_BYTES.view(stored), dtype)
    expected = ALL_BYTES.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert decoded.dtype == dtype
    assert np.array_equal(np.isnan(expected), np.isin(ALL_BYTES.numpy(), NAN_BYTES))
    assert np.array_equal(decoded.double().numpy(), expected, equal_nan=True)
    assert np.array_equal(torch.signbit(decoded).numpy()[[0x00, 0x80]], [False, True])


def test_values_and_constants_are_those_of_the_format():
    assert np.array_equal(e4m3.VALUES, e4m3.decode(ALL_BYTES).numpy(), equal_nan=True)
    assert e4m3.VALUES[0x7E] == e4m3.MAX == float(FINITE_POSITIVE.max())
    assert e4m3.VALUES[0x01] == e4m3.SMALLEST_SUBNORMAL
    assert math.isnan(e4m3.VALUES[e4m3.NAN_BYTE])


def test_decode_agrees_with_the_cast_of_pytorch():
    scales = ALL_BYTES.view(torch.float8_e4m3fn)
    assert torch.equal(
        e4m3.decode(scales).nan_to_num(-1000.0), scales.to(torch.float32).nan_to_num(-1000.0)
    )


def test_encode_inverts_decode_on_every_finite_byte():
    finite = ALL_BYTES[~torch.isin(ALL_BYTES, torch.tensor(NAN_BYTES))]
    assert torch.equal(e4m3.encode(e4m3.decode(finite)).view(torch.uint8), finite)


@pytest.mark.parametrize("np_dtype", [np.float32, np.float64])
def test_encode_at_every_midpoint_and_its_neighbours_rounds_to_nearest_even(np_dtype):
    values = FINITE_POSITIVE.astype(np_dtype)
    mid = (values[:-1] + values[1:]) / 2
    lower = np.arange(mid.size)
    below = np.nextafter(mid, np_dtype(0))
    above = np.nextafter(mid, np_dtype(1e9))
    assert np.array_equal(encoded_bytes(torch.from_numpy(mid)), lower + lower % 2)
    assert np.array_equal(encoded_bytes(torch.from_numpy(below)), lower)
    assert np.array_equal(encoded_bytes(torch.from_numpy(above)), lower + 1)
    assert np.array_equal(encoded_bytes(torch.from_numpy(-above)), lower + 1 + 0x80)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_encode_of_every_16_bit_number_agrees_with_ml_dtypes(dtype):
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = values[values.abs() <= OVERFLOW_TIE]
    expected = values.float().numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert values.numel() > 30_000
    assert np.array_equal(encoded_bytes(values), expected)


def test_encode_of_random_float32_agrees_with_ml_dtypes():
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(20_000, generator=generator) * 24 - 14
    values = torch.exp2(exponents).clamp(max=OVERFLOW_TIE)
    values *= torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    expected = values.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(encoded_bytes(values), expected)


def test_encode_saturates_where_rounding_would_reach_480():
    values = torch.tensor([448.0, 463.9, 464.0, 464.1, 480.0, 1e9, 3.4e38, math.inf])
    assert encoded_bytes(values).tolist() == [0x7E] * 8
    assert encoded_bytes(-values).tolist() == [0xFE] * 8


def test_encode_around_the_smallest_subnormal():
    tie = e4m3.SMALLEST_SUBNORMAL / 2
    values = torch.tensor([0.0, -0.0, tie, math.nextafter(tie, 1.0) + 2**-33, 1.5 * 2**-9, 1e-40])
    assert encoded_bytes(values).tolist() == [0x00, 0x80, 0x00, 0x01, 0x02, 0x00]


def test_encode_of_nan_of_either_sign_is_0x7f():
    nan = torch.tensor([0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    assert torch.signbit(nan).tolist() == [False, True]
    assert encoded_bytes(nan).tolist() == [0x7F, 0x7F]


def test_shapes_and_types_under_fake_tensors():
    with FakeTensorMode():
        scales = e4m3.encode(torch.empty(4, 3))
        decoded = e4m3.decode(scales, torch.bfloat16)
    assert (scales.shape, scales.dtype) == ((4, 3), torch.float8_e4m3fn)
    assert (decoded.shape, decoded.dtype) == ((4, 3), torch.bfloat16)


def test_wrong_types_are_refused_by_name():
    with pytest.raises(TypeError, match=r"values: got torch\.float8_e4m3fn"):
        e4m3.encode(ALL_BYTES.view(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match=r"scales: got torch\.float32"):
        e4m3.decode(torch.zeros(2))
