"""``quantize`` and the loaders against the quantisers of torchao and compressed-tensors."""

from __future__ import annotations

import pytest
import torch

from nibblas.formats import e2m1, e4m3
from nibblas.formats.loaders import from_compressed_tensors
from nibblas.formats.quantize import quantize
from tests.formats.weights import same_bytes

MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64)
THREE_ROUNDINGS = 3 * 2.0**-24
"""Relative error of a quotient formed by two roundings against one that takes another path."""


def weight(*shape: int, seed: int = 0) -> torch.Tensor:
    """bfloat16 values whose blocks differ in magnitude by up to 2**5."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(shape[0], shape[1] // 16, generator=generator) * -5
    values = torch.randn(*shape, generator=generator)
    return (values * torch.exp2(exponents).repeat_interleave(16, dim=1)).bfloat16()


def far_from_midpoints(t: torch.Tensor, scales: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Where ``t / (scale * g)`` rounds to the same code whichever way it is computed."""
    step = e4m3.decode(scales, torch.float64) * g.double()
    quotient = (t.double() / step.repeat_interleave(16, dim=1)).abs().unsqueeze(-1)
    return ((quotient / MIDPOINTS - 1).abs() > THREE_ROUNDINGS).all(dim=-1)


def assert_same_codes(ours, theirs, t, scales, g):
    """Equal off the midpoints, which must be nearly everywhere; neighbours on them."""
    clear = far_from_midpoints(t, scales, g)
    assert clear.double().mean() > 0.99
    ours, theirs = e2m1.unpack(ours), e2m1.unpack(theirs)
    assert torch.equal(ours[clear], theirs[clear])
    assert int((ours.int() - theirs.int()).abs().max()) <= 1


@pytest.fixture(scope="module")
def torchao():
    name = "torchao.prototype.mx_formats.nvfp4_tensor"
    return pytest.importorskip(name, reason="torchao with NVFP4Tensor")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_torchao_gives_the_same_scale_bytes_and_codes(torchao, dtype):
    t = weight(64, 512).to(dtype)
    g = torchao.per_tensor_amax_to_scale(t.abs().max())
    scales, codes = torchao.nvfp4_quantize(t, 16, g)
    ours = quantize(t)
    assert ours.global_scale == g
    # torchao raises scales to 2**-6, E4M3's smallest normal number; ours may be subnormal.
    assert float(ours.scales.float().min()) > torchao.E4M3_EPS
    assert same_bytes(ours.scales, scales)
    assert_same_codes(ours.codes, codes, t, ours.scales, g)


def test_where_torchao_raises_the_scale_ours_has_the_smaller_error(torchao):
    t = torch.full((2, 32), 1.0)
    t[:, :16] = 2.0**-17 * torch.linspace(0.1, 1, 16)
    g = torchao.per_tensor_amax_to_scale(t.abs().max())
    tensor = torchao.NVFP4Tensor.to_nvfp4(t, per_tensor_scale=g)
    ours = quantize(t)
    assert same_bytes(ours.scales[:, 1], tensor.scale[:, 1])
    assert bool((ours.scales.float()[:, 0] < tensor.scale.float()[:, 0]).all())
    ours_error = (ours.dequantize() - t).square().sum()
    assert ours_error < (tensor.dequantize() - t).square().sum()


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("compressed_tensors", reason="compressed-tensors")


@pytest.fixture(scope="module")
def scheme(library):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
    )
    return QuantizationScheme(targets=["Linear"], weights=args)


def packed_by_the_library(t, scheme):
    """What the library writes to a checkpoint for weight ``t``."""
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    encode = generate_gparam(t.min(), t.max())
    blocks = t.float().unflatten(1, (-1, 16))
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, encode)
    state = {"weight": t.float(), "weight_scale": scale, "weight_global_scale": encode}
    return NVFP4PackedCompressor.compress(state, scheme)


def test_compressed_tensors_gives_the_same_codes_from_the_same_scales(scheme):
    t = weight(32, 256, seed=1)
    state = packed_by_the_library(t, scheme)
    ours = quantize(t, global_encode_scale=state["weight_global_scale"])
    theirs = state["weight_scale"]
    same_block = ours.scales.view(torch.uint8) == theirs.view(torch.uint8)
    assert same_block.double().mean() > 0.99
    rows = same_block.all(dim=1)
    assert_same_codes(
        ours.codes[rows],
        state["weight_packed"][rows],
        t[rows],
        ours.scales[rows],
        ours.global_scale,
    )


def test_a_compressed_tensors_checkpoint_decodes_to_what_the_library_decodes(scheme):
    """The library divides the scale by the global scale, then multiplies: two roundings.
    Ours are the reciprocal and the product: together at most four halves of an ulp.
    """
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    t = weight(32, 256, seed=2)
    state = packed_by_the_library(t, scheme)
    assert state["weight_packed"].dtype == torch.uint8
    values = unpack_fp4_from_uint8(state["weight_packed"], *t.shape, dtype=torch.float32)
    theirs = dequantize(
        values,
        scale=state["weight_scale"].float(),
        args=scheme.weights,
        global_scale=state["weight_global_scale"],
        dtype=torch.float32,
    )
    ours = from_compressed_tensors(
        state["weight_packed"], state["weight_scale"], state["weight_global_scale"]
    )
    torch.testing.assert_close(ours.dequantize(), theirs, rtol=4 * 2.0**-24, atol=0.0)
    assert float((ours.dequantize() - t.float()).abs().max()) < 0.5


def test_compressed_tensors_unpacks_our_codes_to_our_values(library):
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8

    array = quantize(weight(8, 64, seed=3))
    values = unpack_fp4_from_uint8(array.codes, 8, 64, dtype=torch.float32)
    assert torch.equal(values, e2m1.decode_packed(array.codes))
