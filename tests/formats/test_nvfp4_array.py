"""NVFP4Array: what it accepts, what it refuses, what it decodes to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nibblas import NVFP4Array
from nibblas.formats import scale_layout
from tests import oracle

CODES = torch.arange(4 * 16, dtype=torch.uint8).view(4, 16) * 4
SCALES = torch.arange(0x20, 0x28, dtype=torch.uint8).view(4, 2)
STACK = (CODES.expand(3, 4, 16), SCALES.expand(3, 4, 2))


def test_takes_both_storage_types_without_copying():
    a = NVFP4Array(CODES, SCALES)
    b = NVFP4Array(CODES.view(torch.float4_e2m1fn_x2), SCALES.view(torch.float8_e4m3fn))
    assert a.codes.dtype == b.codes.dtype == torch.uint8
    assert a.scales.dtype == b.scales.dtype == torch.float8_e4m3fn
    assert a.codes.data_ptr() == b.codes.data_ptr() == CODES.data_ptr()
    assert a.scales.data_ptr() == b.scales.data_ptr() == SCALES.data_ptr()
    assert a.shape == (4, 32) and a.k == 32 and a.rows == 4 and a.groups is None


def test_takes_blocked_scales_as_matrix_and_flat():
    blocked = scale_layout.to_blocked(SCALES)
    for scales in (blocked, blocked.flatten()):
        array = NVFP4Array(CODES, scales, scale_layout="blocked")
        assert torch.equal(array.linear_scales().view(torch.uint8), SCALES)
    stacked = scale_layout.to_blocked(STACK[1])
    for scales in (stacked, stacked.flatten(1)):
        array = NVFP4Array(STACK[0], scales, scale_layout="blocked")
        assert array.scales.shape == (3, 128, 4) and array.groups == 3


def test_encode_direction_divides():
    decode = NVFP4Array(CODES, SCALES, global_scale=0.25)
    encode = NVFP4Array(CODES, SCALES, global_encode_scale=4.0)
    assert torch.equal(decode.dequantize(), encode.dequantize())


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (3, 2), (3, 4)])
def test_dequantize_applies_global_scale_per_group_and_segment(shape):
    scale = torch.rand(shape) + 0.5
    array = NVFP4Array(*STACK, global_scale=scale)
    values = np.stack([oracle.matrix_values(array, g) for g in range(3)])
    if len(shape) < 2:
        full = np.broadcast_to(scale.numpy().reshape(*shape, *[1] * (3 - len(shape))), values.shape)
    else:
        full = np.repeat(scale.numpy(), 4 // shape[1], axis=1)[:, :, None]
    want = (values.astype(np.float32) * full.astype(np.float32)).astype(np.float32)
    np.testing.assert_array_equal(array.dequantize().numpy(), want)


def test_dequantize_with_a_global_scale_per_row_group():
    array = NVFP4Array(CODES, SCALES, global_scale=torch.tensor([2.0, 0.5]))
    offs = torch.tensor([1, 3], dtype=torch.int32)
    rows = torch.tensor([2.0, 0.5, 0.5, 0.5])[:, None]
    want = NVFP4Array(CODES, SCALES).dequantize() * rows
    assert torch.equal(array.dequantize(offs=offs), want)
    with pytest.raises(ValueError, match=r"^offs: got None"):
        array.dequantize()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dequantize_is_exact_in_every_type_without_a_global_scale(dtype):
    codes = torch.arange(256, dtype=torch.uint8).repeat(127, 1).view(127, 256)
    scales = torch.arange(127, dtype=torch.uint8)[:, None].expand(127, 32).contiguous()
    array = NVFP4Array(codes, scales)
    np.testing.assert_array_equal(
        array.dequantize(dtype).double().numpy(), oracle.matrix_values(array)
    )


def test_group_is_a_view_with_its_own_scale():
    array = NVFP4Array(*STACK, global_scale=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    one = array.group(1)
    assert one.codes.data_ptr() == array.codes[1].data_ptr()
    assert torch.equal(one.dequantize(), array.dequantize()[1])


def test_repr_is_one_line_and_says_the_layout():
    text = repr(NVFP4Array(CODES, SCALES))
    assert "\n" not in text and "(4, 32)" in text and "linear" in text


BAD = {
    "codes a list": ({"codes": [1]}, TypeError, "codes: got list"),
    "codes of int8": ({"codes": CODES.view(torch.int8)}, TypeError, "codes: got torch.int8"),
    "codes of rank 1": ({"codes": CODES[0]}, ValueError, r"codes: got shape \(16,\)"),
    "codes with K % 16": ({"codes": CODES[:, :12]}, ValueError, r"codes: got shape \(4, 12\)"),
    "codes of no column": ({"codes": CODES[:, :0]}, ValueError, r"codes: got shape \(4, 0\)"),
    "codes transposed": (
        {"codes": torch.zeros(16, 4).byte().T},
        ValueError,
        r"codes: got strides \(1, 4\)",
    ),
    "scales a number": ({"scales": 1.0}, TypeError, "scales: got float"),
    "scales of float32": ({"scales": SCALES.float()}, TypeError, "scales: got torch.float32"),
    "scales too few": ({"scales": SCALES[:3]}, ValueError, r"scales: got shape \(3, 2\)"),
    "scales of another block": (
        {"scales": torch.zeros(4, 1).byte()},
        ValueError,
        "scales: .* one scale per 16",
    ),
    "scales with gaps": (
        {"scales": torch.zeros(4, 4).byte()[:, ::2]},
        ValueError,
        "scales: got strides",
    ),
    "scales elsewhere": (
        {"scales": torch.zeros(4, 2, device="meta").byte()},
        ValueError,
        "scales: got device meta",
    ),
    "blocked scales too few": (
        {"scale_layout": "blocked"},
        ValueError,
        r"scales: got shape \(4, 2\); want \(128, 4\)",
    ),
    "layout unknown": ({"scale_layout": "tiled"}, ValueError, "scale_layout: got 'tiled'"),
    "start rule unknown": ({"group_start": "vllm"}, ValueError, "group_start: got 'vllm'"),
    "start rule of linear": ({"group_start": "torch"}, ValueError, "group_start: got 'torch' with"),
    "global scale text": ({"global_scale": "1"}, TypeError, "global_scale: got"),
    "global scale of float64": (
        {"global_scale": torch.ones(()).double()},
        TypeError,
        "global_scale: got torch.float64",
    ),
    "global scale of a shape": (
        {"global_scale": torch.ones(2, 2)},
        ValueError,
        r"global_scale: got shape \(2, 2\)",
    ),
    "segments that do not divide": (
        {"global_scale": torch.ones(1, 3)},
        ValueError,
        r"global_scale: got shape \(1, 3\)",
    ),
    "both directions": (
        {"global_scale": 1.0, "global_encode_scale": 1.0},
        ValueError,
        "global_encode_scale: got both",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    changes, error, message = BAD[name]
    arguments = {"codes": CODES, "scales": SCALES} | changes
    codes, scales = arguments.pop("codes"), arguments.pop("scales")
    with pytest.raises(error, match=rf"^{message}"):
        NVFP4Array(codes, scales, **arguments)
