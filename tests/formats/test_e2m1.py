"""E2M1 against the format's definition and against ml_dtypes, on every code and every boundary."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nibblas.formats import e2m1

ALL_CODES = torch.arange(16, dtype=torch.uint8)
MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def oracle_encode(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def test_values_are_the_sixteen_of_the_format():
    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert positive + tuple(-v for v in positive) == e2m1.VALUES
    assert math.copysign(1.0, e2m1.VALUES[8]) == -1.0
    assert max(e2m1.VALUES) == e2m1.MAX


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_decode_all_16_codes_with_the_sign_of_zero(dtype):
    decoded = e2m1.decode(ALL_CODES, dtype)
    expected = ALL_CODES.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert decoded.dtype == dtype
    assert decoded.double().numpy().tobytes() == expected.tobytes()


def test_decode_ignores_the_high_nibble():
    assert torch.equal(e2m1.decode(ALL_CODES | 0xA0), e2m1.decode(ALL_CODES))


def test_encode_inverts_decode_on_every_code():
    assert torch.equal(e2m1.encode(e2m1.decode(ALL_CODES)), ALL_CODES)


@pytest.mark.parametrize("np_dtype", [np.float32, np.float64])
def test_encode_at_every_midpoint_and_its_neighbours_rounds_to_nearest_even(np_dtype):
    mid = np.array(MIDPOINTS, dtype=np_dtype)
    for values, expected in (
        (mid, [0, 2, 2, 4, 4, 6, 6]),
        (np.nextafter(mid, np_dtype(0)), [0, 1, 2, 3, 4, 5, 6]),
        (np.nextafter(mid, np_dtype(9)), [1, 2, 3, 4, 5, 6, 7]),
    ):
        assert e2m1.encode(torch.from_numpy(values)).tolist() == expected
        assert e2m1.encode(torch.from_numpy(-values)).tolist() == [c | 8 for c in expected]
        if np_dtype is np.float32:  # ml_dtypes rounds float64 twice, through float32
            assert oracle_encode(values).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_encode_of_every_16_bit_number_agrees_with_ml_dtypes(dtype):
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = values[~values.isnan()]
    expected = oracle_encode(values.float().numpy())
    assert np.array_equal(e2m1.encode(values).numpy(), expected)


def test_encode_of_float32_extremes():
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    values = torch.tensor([math.inf, -math.inf, 3.4e38, -3.4e38, 6.5, -7.0, tiny, -tiny, 0.0, -0.0])
    assert e2m1.encode(values).tolist() == [7, 15, 7, 15, 7, 15, 0, 8, 0, 8]


def test_encode_of_nan_of_either_sign_is_the_positive_maximum():
    nan = torch.tensor([math.nan, -math.nan])
    nan[1] = torch.tensor(-1).to(torch.int32).view(torch.float32)
    assert torch.signbit(nan[1])
    assert e2m1.encode(nan).tolist() == [7, 7]


def test_low_nibble_is_the_even_k():
    assert e2m1.pack(torch.tensor([[0x1, 0xA, 0x7, 0xF]], dtype=torch.uint8)).tolist() == [
        [0xA1, 0xF7]
    ]
    assert e2m1.unpack(torch.tensor([0xA1], dtype=torch.uint8)).tolist() == [0x1, 0xA]


def test_pack_and_unpack_are_inverse_on_all_256_bytes():
    every_byte = torch.arange(256, dtype=torch.uint8).view(2, 16, 8)
    codes = e2m1.unpack(every_byte)
    assert codes.shape == (2, 16, 16)
    assert int(codes.max()) == 15
    assert torch.equal(e2m1.pack(codes), every_byte)


def test_pack_ignores_high_nibbles():
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(e2m1.pack(codes | 0x50), e2m1.pack(codes))


def test_decode_packed_is_decode_of_unpack_on_strided_bytes():
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)[:, ::2]
    expected = e2m1.decode(e2m1.unpack(packed.contiguous()), torch.bfloat16)
    assert torch.equal(e2m1.decode_packed(packed, torch.bfloat16), expected)


def test_shapes_and_types_under_fake_tensors():
    with FakeTensorMode():
        values = torch.empty(3, 32, dtype=torch.bfloat16)
        packed = e2m1.pack(e2m1.encode(values))
        decoded = e2m1.decode_packed(packed, torch.float16)
    assert (packed.shape, packed.dtype) == ((3, 16), torch.uint8)
    assert (decoded.shape, decoded.dtype) == ((3, 32), torch.float16)


def test_wrong_types_and_odd_lengths_are_refused_by_name():
    with pytest.raises(TypeError, match=r"values: got torch\.int64"):
        e2m1.encode(torch.tensor([1]))
    with pytest.raises(TypeError, match="values: got list"):
        e2m1.encode([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"codes: got torch\.float32; want torch\.uint8"):
        e2m1.decode(torch.zeros(2))
    with pytest.raises(TypeError, match=r"packed: got torch\.int8"):
        e2m1.unpack(torch.zeros(2, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"codes: .*an even last dimension"):
        e2m1.pack(torch.zeros(3, dtype=torch.uint8))
