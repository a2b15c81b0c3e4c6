"""The formats on a CUDA device: the CPU's bytes, and no synchronisation."""

from __future__ import annotations

import pytest
import torch

from nibblas.formats import e2m1, e4m3
from nibblas.formats import scale_layout as sl
from nibblas.formats.quantize import Method, dequantize, quantize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS: tuple[Method, ...] = ("amax", "four_over_six")
RULES: tuple[sl.GroupStart, ...] = ("torch", "flashinfer")
EVERY_BYTE = torch.arange(256, dtype=torch.uint8)


@pytest.fixture
def no_synchronisation():
    """PyTorch raises where an operation would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def blocks_of_all_magnitudes(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    exponents = torch.rand(*shape[:-1], shape[-1] // 16, generator=generator) * -24
    values = torch.randn(*shape, generator=generator)
    return values * torch.exp2(exponents).repeat_interleave(16, dim=-1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_quantize_gives_the_bytes_of_the_cpu(method, dtype):
    t = blocks_of_all_magnitudes(3, 256, 512).to(dtype)
    on_cpu = quantize(t, method=method, segments=2, scale_layout="blocked")
    on_gpu = quantize(t.cuda(), method=method, segments=2, scale_layout="blocked").to("cpu")
    assert torch.equal(on_gpu.global_scale, on_cpu.global_scale)
    assert torch.equal(on_gpu.scales.view(torch.uint8), on_cpu.scales.view(torch.uint8))
    assert torch.equal(on_gpu.codes, on_cpu.codes)
    assert torch.equal(on_gpu.dequantize(), on_cpu.dequantize())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_and_scales_of_every_16_bit_number_are_those_of_the_cpu(dtype):
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    assert torch.equal(e2m1.encode(values.cuda()).cpu(), e2m1.encode(values))
    on_gpu = e4m3.encode(values.cuda()).cpu().view(torch.uint8)
    assert torch.equal(on_gpu, e4m3.encode(values).view(torch.uint8))


def test_every_byte_decodes_as_on_the_cpu():
    scales = e4m3.decode(EVERY_BYTE.cuda()).cpu()
    assert torch.equal(scales.nan_to_num(-1), e4m3.decode(EVERY_BYTE).nan_to_num(-1))
    assert torch.equal(e2m1.decode_packed(EVERY_BYTE.cuda()).cpu(), e2m1.decode_packed(EVERY_BYTE))


@pytest.mark.usefixtures("no_synchronisation")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", RULES)
def test_packed_tokens_are_quantized_without_a_synchronisation(method, rule):
    t = torch.randn(300, 80, device="cuda", dtype=torch.bfloat16)
    offs = torch.arange(0, 300, 60, device="cuda", dtype=torch.int32)
    array = quantize(t, method=method, scale_layout="blocked", offs=offs, group_start=rule)
    dequantize(array, torch.bfloat16, offs=offs)


@pytest.mark.usefixtures("no_synchronisation")
def test_a_stack_with_segments_is_quantized_without_a_synchronisation():
    t = torch.randn(3, 64, 80, device="cuda")
    dequantize(quantize(t, segments=2, scale_layout="blocked"), torch.float16)


def test_a_bad_block_gets_a_nan_scale():
    t = torch.randn(4, 64, device="cuda")
    t[1, 40] = float("inf")
    t[2, 3] = float("nan")
    bad = quantize(t).scales.view(torch.uint8).eq(e4m3.NAN_BYTE).nonzero().tolist()
    assert bad == [[1, 2], [2, 0]]
