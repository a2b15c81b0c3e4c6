"""Conversion from and to torchao's NVFP4Tensor, judged by torchao's own dequantisation."""

from __future__ import annotations

import pytest
import torch

from nibblas.formats import scale_layout as sl
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.quantize import quantize
from nibblas.formats.torchao import from_torchao, to_torchao
from tests.formats.weights import random_codes, random_scales, same_bytes

nvfp4_tensor = pytest.importorskip(
    "torchao.prototype.mx_formats.nvfp4_tensor", reason="torchao with NVFP4Tensor"
)
TWO_ROUNDINGS = 2.0**-23
"""torchao rounds scale * global and then the product; this library rounds once."""

SHAPES = [(40, 80), (130, 64), (3, 128, 80), (1, 40, 48)]


def random_array(shape, layout, *, global_scale=None):
    scales = random_scales(*shape)
    return NVFP4Array(
        random_codes(*shape),
        scales if layout == "linear" else sl.to_blocked(scales),
        global_scale=global_scale,
        scale_layout=layout,
    )


@pytest.mark.parametrize("layout", ["linear", "blocked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_torchao_decodes_what_we_decode(shape, layout):
    scale = torch.tensor(0.0123) if len(shape) == 2 else torch.linspace(0.01, 0.03, shape[0])
    array = random_array(shape, layout, global_scale=scale)
    tensor = to_torchao(array, orig_dtype=torch.float32)
    assert tensor.shape == shape
    assert tensor.qdata.data_ptr() == array.codes.data_ptr()
    assert tensor.scale.data_ptr() == array.scales.data_ptr()
    torch.testing.assert_close(
        tensor.dequantize(torch.float32), array.dequantize(), rtol=TWO_ROUNDINGS, atol=0.0
    )


@pytest.mark.parametrize("layout", ["linear", "blocked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back_gives_the_same_bytes(shape, layout):
    scale = torch.tensor(0.5) if len(shape) == 2 else torch.linspace(1, 2, shape[0])
    array = random_array(shape, layout, global_scale=scale)
    back = from_torchao(to_torchao(array))
    assert back.shape == array.shape
    assert back.scale_layout == layout
    assert back.codes.data_ptr() == array.codes.data_ptr()
    assert same_bytes(back.scales, array.scales)
    assert torch.equal(back.global_scale, array.global_scale)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("shape", [(40, 80), (256, 64), (2, 128, 48)])
@pytest.mark.parametrize("two_level", [False, True])
def test_what_torchao_quantised_is_decoded_as_torchao_does(shape, swizzled, two_level):
    torch.manual_seed(0)
    values = torch.randn(shape)
    scale = None
    if two_level:
        amax = (
            values.abs().amax(dim=(-2, -1), keepdim=True) if len(shape) == 3 else values.abs().max()
        )
        scale = nvfp4_tensor.per_tensor_amax_to_scale(amax)
    tensor = nvfp4_tensor.NVFP4Tensor.to_nvfp4(
        values, per_tensor_scale=scale, is_swizzled_scales=swizzled
    )
    array = from_torchao(tensor)
    assert array.scale_layout == ("blocked" if swizzled else "linear")
    torch.testing.assert_close(
        array.dequantize(), tensor.dequantize(torch.float32), rtol=TWO_ROUNDINGS, atol=0.0
    )


def test_the_type_that_torchao_presents_is_the_callers():
    array = random_array((40, 80), "linear")
    assert to_torchao(array).dtype == torch.bfloat16
    assert to_torchao(array, torch.float16).dtype == torch.float16


def test_a_transposed_tensor_is_refused():
    tensor = to_torchao(random_array((40, 80), "linear"))
    with pytest.raises(ValueError, match=r"tensor: got a transposed .*want .*transpose\(-2, -1\)"):
        from_torchao(tensor.t())


def test_what_torchao_cannot_hold_is_refused():
    segments = quantize(torch.randn(2, 8, 32), segments=2)
    with pytest.raises(ValueError, match=r"array\.global_scale: got shape \(2, 2\)"):
        to_torchao(segments)
    stack = random_array((2, 40, 64), "blocked")
    with pytest.raises(ValueError, match=r"array: .*want linear scales, or rows a multiple of 128"):
        to_torchao(stack)
    offs = torch.tensor([4, 8], dtype=torch.int32)
    packed = quantize(torch.randn(8, 32), scale_layout="blocked", offs=offs)
    with pytest.raises(ValueError, match=r"array\.group_start: got 'torch'"):
        to_torchao(packed)


def test_other_objects_are_refused_by_name():
    with pytest.raises(TypeError, match="array: got Tensor"):
        to_torchao(torch.zeros(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tensor: got Tensor; want a torchao NVFP4Tensor"):
        from_torchao(torch.zeros(2, 2))
