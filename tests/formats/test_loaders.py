"""Checkpoint tensors to ``NVFP4Array``: what is kept, and what is refused by which name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nibblas.formats.loaders import from_compressed_tensors, from_modelopt
from tests.formats.weights import random_codes, random_scales, same_bytes

G, N, K = 3, 8, 64
LOADERS = {
    "modelopt": (from_modelopt, ("weight", "weight_scale", "weight_scale_2")),
    "compressed-tensors": (
        from_compressed_tensors,
        ("weight_packed", "weight_scale", "weight_global_scale"),
    ),
}
each_loader = pytest.mark.parametrize("loader", LOADERS)


def projection(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (N, K/2), scales (N, K/16) and a global scale, a power of two."""
    scale = torch.tensor(2.0 ** (seed % 7 - 3))
    return random_codes(N, K, seed=seed), random_scales(N, K, seed=seed), scale


def decode_scales(loader: str, stored: torch.Tensor) -> torch.Tensor:
    return stored if loader == "modelopt" else 1 / stored


@each_loader
def test_a_stack_is_used_in_place(loader):
    load, _ = LOADERS[loader]
    codes, scales = random_codes(G, N, K), random_scales(G, N, K)
    stored = torch.tensor([0.5, 2.0, 8.0])
    array = load(codes, scales, stored)
    assert array.shape == (G, N, K)
    assert array.codes.data_ptr() == codes.data_ptr()
    assert array.scales.data_ptr() == scales.data_ptr()
    assert torch.equal(array.global_scale, decode_scales(loader, stored))


@each_loader
def test_one_weight_is_a_matrix(loader):
    load, _ = LOADERS[loader]
    codes, scales, stored = projection(1)
    array = load(codes, scales, stored.reshape(1))
    assert array.shape == (N, K)
    assert array.codes.data_ptr() == codes.data_ptr()
    assert array.global_scale == decode_scales(loader, stored)


def test_the_two_directions_are_reciprocal():
    codes, scales, _ = projection(2)
    multiplied = from_modelopt(codes, scales, 0.125)
    divided = from_compressed_tensors(codes, scales, 8.0)
    assert torch.equal(multiplied.dequantize(), divided.dequantize())
    assert multiplied.global_scale == 0.125


@each_loader
@pytest.mark.parametrize("shape", [(G,), (G, 1), (G, 2), (G, 4)])
def test_a_stack_keeps_global_scales_per_group_and_segment(loader, shape):
    load, _ = LOADERS[loader]
    stored = torch.exp2(torch.arange(torch.Size(shape).numel(), dtype=torch.float32)).view(shape)
    array = load(random_codes(G, N, K), random_scales(G, N, K), stored)
    assert torch.equal(array.global_scale, decode_scales(loader, stored))


@each_loader
def test_a_view_of_a_fused_stack_is_used_in_place(loader):
    load, _ = LOADERS[loader]
    codes, scales = random_codes(G, 2 * N, K), random_scales(G, 2 * N, K)
    array = load(codes[:, N:], scales[:, N:], 1.0)
    assert array.codes.data_ptr() == codes[:, N:].data_ptr()
    assert torch.equal(array.dequantize(), load(codes, scales, 1.0).dequantize()[:, N:])


@each_loader
def test_a_sequence_over_experts_becomes_a_stack(loader):
    load, _ = LOADERS[loader]
    experts = [projection(seed) for seed in range(G)]
    array = load(*(list(argument) for argument in zip(*experts, strict=True)))
    assert array.global_scale.shape == (G,)
    for g, expert in enumerate(experts):
        assert torch.equal(array.group(g).dequantize(), load(*expert).dequantize())


@each_loader
def test_gate_and_up_are_joined_in_the_given_order_with_their_own_global_scales(loader):
    load, _ = LOADERS[loader]
    gates, ups = [projection(seed) for seed in (0, 1)], [projection(seed) for seed in (4, 5)]
    arguments = [[(gate[i], up[i]) for gate, up in zip(gates, ups, strict=True)] for i in range(3)]
    array = load(*arguments)
    assert array.shape == (2, 2 * N, K)
    assert array.global_scale.shape == (2, 2)
    for g in range(2):
        decoded = array.group(g).dequantize()
        assert torch.equal(decoded[:N], load(*gates[g]).dequantize())
        assert torch.equal(decoded[N:], load(*ups[g]).dequantize())


@each_loader
def test_numbers_serve_as_global_scales(loader):
    load, _ = LOADERS[loader]
    experts = [projection(seed) for seed in range(2)]
    codes, scales = [e[0] for e in experts], [e[1] for e in experts]
    array = load([tuple(codes)], [tuple(scales)], [(0.5, 4)])
    assert torch.equal(array.global_scale, decode_scales(loader, torch.tensor([[0.5, 4.0]])))


def test_packed_torch_float4_is_taken_as_its_bytes():
    codes, scales, stored = projection(3)
    array = from_modelopt(codes.view(torch.float4_e2m1fn_x2), scales, stored)
    assert same_bytes(array.codes, codes)


def poisoned(byte: int) -> torch.Tensor:
    scales = random_scales(N, K).view(torch.uint8).clone()
    scales[5, 2] = byte
    return scales.view(torch.float8_e4m3fn)


CODES, SCALES, GLOBAL = projection(0)
UP = projection(1)
REFUSED: dict[str, tuple[type[Exception], str, tuple[Any, Any, Any]]] = {
    "codes missing": (TypeError, "{0}: got NoneType", (None, SCALES, GLOBAL)),
    "scales missing": (TypeError, "{1}: got NoneType", (CODES, None, GLOBAL)),
    "global missing": (TypeError, "{2}: got NoneType", (CODES, SCALES, None)),
    "codes in bf16": (TypeError, "{0}: got torch.bfloat16", (CODES.bfloat16(), SCALES, GLOBAL)),
    "scales as bytes": (
        TypeError,
        "{1}: got torch.uint8; want torch.float8_e4m3fn",
        (CODES, SCALES.view(torch.uint8), GLOBAL),
    ),
    "global in float64": (TypeError, "{2}: got torch.float64", (CODES, SCALES, GLOBAL.double())),
    "codes 1-D": (ValueError, "{0}: got shape (32,)", (CODES[0], SCALES, GLOBAL)),
    "K off 16": (ValueError, "{0}: got shape (8, 28)", (CODES[:, :28], SCALES, GLOBAL)),
    "scales too few": (
        ValueError,
        "{1}: got shape (8, 3); want (8, 4)",
        (CODES, SCALES[:, :3], GLOBAL),
    ),
    "codes transposed": (
        ValueError,
        "{0}: got strides",
        (random_codes(32, 2 * 64).t()[:8, :32], SCALES, GLOBAL),
    ),
    "scale NaN": (ValueError, "{1}: got byte 0x7F at (5, 2)", (CODES, poisoned(0x7F), GLOBAL)),
    "scale negative": (ValueError, "{1}: got byte 0x80 at (5, 2)", (CODES, poisoned(0x80), GLOBAL)),
    "global zero": (ValueError, "{2}: got 0.0; want finite positive", (CODES, SCALES, 0.0)),
    "global negative": (ValueError, "{2}: got -1.0", (CODES, SCALES, -GLOBAL / GLOBAL)),
    "global infinite": (ValueError, "{2}: got inf", (CODES, SCALES, GLOBAL / 0)),
    "global NaN": (ValueError, "{2}: got nan", (CODES, SCALES, float("nan"))),
    "global per group of one weight": (
        ValueError,
        "{2}: got shape (3,)",
        (CODES, SCALES, torch.ones(3)),
    ),
    "segments that do not divide N": (
        ValueError,
        "{2}: got shape (1, 3)",
        (CODES, SCALES, torch.ones(1, 3)),
    ),
    "no experts": (ValueError, "{0}: got no experts", ([], [], [])),
    "a list of scales is shorter": (
        ValueError,
        "{1}: got 1 experts; want 2, as {0}",
        ([CODES, CODES], [SCALES], [GLOBAL, GLOBAL]),
    ),
    "a tensor of globals beside lists": (
        TypeError,
        "{2}: got Tensor",
        ([CODES], [SCALES], GLOBAL),
    ),
    "a projection short of scales": (
        ValueError,
        "{1}[1]: got 1 projections; want 2, as {0}[1]",
        (
            [(CODES, CODES), (CODES, CODES)],
            [(SCALES, SCALES), (SCALES,)],
            [(GLOBAL, GLOBAL), (GLOBAL, GLOBAL)],
        ),
    ),
    "an expert short of a projection": (
        ValueError,
        "{0}[1][0]: got 1 projections; want 2, as of {0}[0][0]",
        (
            [(CODES, CODES), (CODES,)],
            [(SCALES, SCALES), (SCALES,)],
            [(GLOBAL, GLOBAL), (GLOBAL,)],
        ),
    ),
    "an expert without projections": (ValueError, "{0}[0]: got 0", ([()], [()], [()])),
    "segments of unequal N": (
        ValueError,
        "{0}[0][1]: got shape (4, 32)",
        ([(CODES, CODES[:4])], [(SCALES, SCALES[:4])], [(GLOBAL, GLOBAL)]),
    ),
    "experts of unequal K": (
        ValueError,
        "{0}[1]: got shape (8, 16)",
        ([CODES, CODES[:, :16]], [SCALES, SCALES[:, :2]], [GLOBAL, GLOBAL]),
    ),
    "a missing item": (
        TypeError,
        "{1}[1][0]: got NoneType",
        ([(CODES,), (CODES,)], [(SCALES,), (None,)], [(GLOBAL,), (GLOBAL,)]),
    ),
    "a NaN scale in one of many": (
        ValueError,
        "{1}[1]: got byte 0x7F",
        ([CODES, CODES], [SCALES, poisoned(0x7F)], [GLOBAL, GLOBAL]),
    ),
    "two globals for one projection": (
        ValueError,
        "{2}[0]: got shape (2,); want one number",
        ([CODES], [SCALES], [torch.ones(2)]),
    ),
    "a stack among the items": (
        ValueError,
        "{0}[0]: got shape (1, 8, 32)",
        ([CODES[None]], [SCALES[None]], [GLOBAL]),
    ),
    "a name instead of tensors": (TypeError, "{0}: got str", ("weight", SCALES, GLOBAL)),
}


@each_loader
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_the_arguments_own_name(loader, case):
    load, names = LOADERS[loader]
    error, message, arguments = REFUSED[case]
    with pytest.raises(error) as raised:
        load(*arguments)
    for i, name in enumerate(names):
        message = message.replace(f"{{{i}}}", name)
    assert message in str(raised.value)
