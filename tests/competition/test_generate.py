"""Facts of the public generator, and what the full-range generator promises."""

from __future__ import annotations

import pytest
import torch

from nibblas.competition import (
    EDGE_CASES,
    TESTS,
    Case,
    TaskData,
    generate_full_range,
    generate_input,
)
from nibblas.competition.task import data_tensors
from tests.competition.kernels import bits, scale_at

SMALL = Case("S", 2, (40, 72), (128, 256), (256, 512)).generator_arguments()
RAGGED = Case("R", 2, (3, 130), (40, 129), (80, 112), seed=5).generator_arguments()


def drawn_as_published(m: tuple, n: tuple, k: tuple, g: int, seed: int) -> list[torch.Tensor]:
    """Every draw of the public generator in its order, from the global generator."""
    torch.manual_seed(seed)
    draws = []
    for i in range(g):
        for rows in (m[i], n[i]):
            draws.append(torch.randint(255, (1, rows, k[i] // 2), dtype=torch.uint8) & 0b10111011)
        draws.append(torch.randn((1, m[i], n[i]), dtype=torch.float16))
        for rows in (m[i], n[i]):
            draws.append(torch.randint(1, 3, (1, rows, k[i] // 16), dtype=torch.int8))
        for rows in (m[i], n[i]):
            shape = (1, -(-rows // 128), -(-k[i] // 64), 32, 4, 4)
            draws.append(torch.randint(1, 3, shape, dtype=torch.int8))
    return draws


def padding_mask(view6: torch.Tensor, rows: int, k_blocks: int) -> torch.Tensor:
    """6-D bool: places of the reordered scales that belong to no (row, k block)."""
    line, quarter, atom, inner, k_atom, _ = torch.meshgrid(
        *(torch.arange(size) for size in view6.shape), indexing="ij"
    )
    return (128 * atom + 32 * quarter + line >= rows) | (4 * k_atom + inner >= k_blocks)


def test_numbers_are_those_of_the_published_call_order() -> None:
    data = generate_input(**SMALL)
    draws = iter(drawn_as_published(**SMALL))
    for (a, b, c), (sfa, sfb), (sfa6, sfb6) in zip(*data[:3], strict=True):
        for codes in (a, b):
            assert torch.equal(codes.view(torch.uint8).permute(2, 0, 1), next(draws))
        assert torch.equal(c.permute(2, 0, 1), next(draws))
        for scales in (sfa, sfb):
            assert torch.equal(scales.float().permute(2, 0, 1), next(draws).float())
        for scales, view6 in ((sfa, sfa6), (sfb, sfb6)):
            filler = next(draws).permute(3, 4, 1, 5, 2, 0).float()
            padding = padding_mask(view6, *scales.shape[:2])
            assert torch.equal(view6.float()[padding], filler[padding])


@pytest.mark.parametrize("generate", [generate_input, generate_full_range])
def test_the_callers_random_state_is_left_alone(generate) -> None:
    before = torch.get_rng_state()
    generate(**SMALL)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("generate", [generate_input, generate_full_range])
def test_same_seed_same_bytes_and_another_seed_others(generate) -> None:
    first, again = generate(**SMALL), generate(**SMALL)
    other = generate(**{**SMALL, "seed": 1153})
    for x, y in zip(data_tensors(first), data_tensors(again), strict=True):
        assert torch.equal(bits(x), bits(y))
    assert not torch.equal(first[0][0][0].view(torch.uint8), other[0][0][0].view(torch.uint8))


@pytest.mark.parametrize("generate", [generate_input, generate_full_range])
@pytest.mark.parametrize("sizes", [SMALL, RAGGED], ids=["public", "ragged"])
def test_shapes_strides_types_and_devices(generate, sizes) -> None:
    data: TaskData = generate(**sizes)
    for (a, b, c), (sfa, sfb), (sfa6, sfb6), (m, n, k, batch) in zip(*data, strict=True):
        assert batch == 1
        for codes, rows in ((a, m), (b, n)):
            assert codes.dtype == torch.float4_e2m1fn_x2
            assert codes.shape == (rows, k // 2, 1)
            assert codes.stride() == (k // 2, 1, rows * k // 2)
        assert (c.dtype, c.shape, c.stride()) == (torch.float16, (m, n, 1), (n, 1, m * n))
        for scales, view6, rows in ((sfa, sfa6, m), (sfb, sfb6, n)):
            assert scales.dtype == view6.dtype == torch.float8_e4m3fn
            assert scales.shape == (rows, k // 16, 1)
            assert scales.stride() == (k // 16, 1, rows * k // 16)
            rm, rk = -(-rows // 128), -(-k // 64)
            assert view6.shape == (32, 4, rm, 4, rk, 1)
            assert view6.stride() == (16, 4, rk * 512, 1, 512, rm * rk * 512)
        assert {t.device.type for t in (a, b, c, sfa, sfb, sfa6, sfb6)} == {"cpu"}


@pytest.mark.parametrize("generate", [generate_input, generate_full_range])
@pytest.mark.parametrize("sizes", [SMALL, RAGGED], ids=["public", "ragged"])
def test_reordered_scales_hold_the_linear_ones(generate, sizes) -> None:
    data: TaskData = generate(**sizes)
    for linear_pair, view_pair in zip(data[1], data[2], strict=True):
        for linear, view6 in zip(linear_pair, view_pair, strict=True):
            assert torch.equal(scale_at(view6, *linear.shape[:2]), linear[:, :, 0].float())


def test_public_codes_stay_small_and_negative_zero_occurs() -> None:
    (a, _, _), *_ = generate_input(**TESTS[0].generator_arguments())[0]
    codes = a.view(torch.uint8)
    nibbles = set(torch.cat(((codes & 15).flatten(), (codes >> 4).flatten())).tolist())
    assert nibbles == {0, 1, 2, 3, 8, 9, 10, 11}


def test_public_scales_and_padding_are_one_or_two() -> None:
    data = generate_input(**SMALL)
    for part in data[1:3]:
        for pair in part:
            for scales in pair:
                assert set(scales.float().unique().tolist()) == {1.0, 2.0}


def test_public_sums_are_exact_in_float32() -> None:
    """All products are multiples of 0.25 and at most 9: K of 7168 needs 18 bits."""
    assert 9 * 7168 * 4 < 2**24
    assert 9 * 7168 < 65504


def test_full_range_has_every_code_and_every_valid_scale_on_both_sides() -> None:
    data = generate_full_range(**TESTS[0].generator_arguments())
    for side in (0, 1):
        codes = torch.cat([group[side].view(torch.uint8).flatten() for group in data[0]])
        scales = torch.cat([pair[side].view(torch.uint8).flatten() for pair in data[1]])
        assert len(codes.unique()) == 256
        assert scales.unique().tolist() == list(range(0x7F))


@pytest.mark.parametrize("case", EDGE_CASES, ids=lambda case: case.name)
def test_full_range_pads_with_nan_and_poisons_the_outputs(case) -> None:
    data = generate_full_range(**case.generator_arguments())
    for (_, _, c), pair, views, (m, n, k, _) in zip(*data, strict=True):
        assert c.isnan().all()
        for scales, view6, rows in zip(pair, views, (m, n), strict=True):
            assert not scales.float().isnan().any()
            padding = padding_mask(view6, rows, k // 16)
            assert torch.equal(view6.float().isnan(), padding)


@pytest.mark.parametrize("generate", [generate_input, generate_full_range])
def test_wrong_sizes_are_refused(generate) -> None:
    with pytest.raises(ValueError, match=r"^n: got 1 sizes; want g = 2$"):
        generate((4, 4), (128,), (256, 256), 2, 1111)
