"""Input data for the public problem: the public generator's numbers, and data of our own.

``generate_input`` reproduces what reference.py of gpu-mode/reference-kernels,
problems/nvidia/nvfp4_group_gemm (commit ae67948) draws: codes of magnitude 0 to 1.5, scales 1
and 2. Accumulation of such data in float32 is exact, so any right kernel matches bit for bit, and
many wrong ones match too. ``generate_full_range`` makes data that proves more.

The public generator seeds torch's global generators and draws from them. Here explicit
``torch.Generator`` objects with the same seed give the same numbers and leave the caller's
random state alone: one for the kernel's device, one for the CPU (the linear scales are drawn
there); for ``device="cpu"`` both are one generator, as the global one would be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nibblas.competition.cases import check_group_sizes
from nibblas.competition.task import TaskData
from nibblas.formats.e4m3 import NAN_BYTE
from nibblas.formats.scale_layout import (
    BLOCK,
    blocked_offset,
    competition_view,
    padded_k_blocks,
    padded_rows,
)

_SMALL_CODES = 0b1011_1011
"""Keeps each nibble's sign and two low magnitude bits: 0, 0.5, 1 and 1.5, negative zero too."""
_LARGEST_SCALE_BYTE = NAN_BYTE - 1
_SCALE_BYTE_NOISE = 8
"""One binade: E4M3 has 8 bytes per power of two."""


def generate_input(
    m: Sequence[int],
    n: Sequence[int],
    k: Sequence[int],
    g: int,
    seed: int,
    *,
    device: torch.device | str = "cpu",
) -> TaskData:
    """The data that the public generator makes from the same sizes and seed on ``device``.

    Args:
        m, n, k: sizes of the g groups; every k a multiple of 16.
        device: where a, b, c and the reordered scales lie; numbers depend on the kind of device,
            as torch's generators do. The linear scales lie on the CPU always.

    Raises:
        ValueError: m, n or k does not hold g valid sizes.
    """
    check_group_sizes(m, n, k, g)
    device = torch.device(device)
    on_host = torch.Generator("cpu").manual_seed(seed)
    on_device = on_host if device.type == "cpu" else torch.Generator(device).manual_seed(seed)
    data: TaskData = ([], [], [], [])
    for rows_a, rows_b, values in zip(m, n, k, strict=True):
        a = _small_codes(rows_a, values, on_device)
        b = _small_codes(rows_b, values, on_device)
        c = _noise(rows_a, rows_b, on_device)
        sfa = _one_or_two((1, rows_a, values // BLOCK), on_host).permute(1, 2, 0)
        sfb = _one_or_two((1, rows_b, values // BLOCK), on_host).permute(1, 2, 0)
        data[0].append((a, b, c))
        data[1].append((sfa, sfb))
        data[2].append((_reordered_in_noise(sfa, on_device), _reordered_in_noise(sfb, on_device)))
        data[3].append((rows_a, rows_b, values, 1))
    return data


def generate_full_range(
    m: Sequence[int],
    n: Sequence[int],
    k: Sequence[int],
    g: int,
    seed: int,
    *,
    device: torch.device | str = "cpu",
) -> TaskData:
    """Contract-shaped data with all 16 codes, every valid scale byte, and NaN where none may read.

    Padding of the reordered scales is the NaN byte 0x7F, every c is NaN. The scale bytes of A and
    B are drawn around mirrored centres in each block of k (a + b near 126, one binade of noise),
    so that bytes from 0x00 to 0x7E occur on both sides and the sums still fit float16: with
    independent scales nearly all of them overflow. Sums are not exact in float32: judge by the
    error bound, not by equality. Numbers are the same on every device.

    Raises:
        ValueError: m, n or k does not hold g valid sizes.
    """
    check_group_sizes(m, n, k, g)
    generator = torch.Generator("cpu").manual_seed(seed)
    data: TaskData = ([], [], [], [])
    for rows_a, rows_b, values in zip(m, n, k, strict=True):
        a, b = _any_codes(rows_a, values, generator), _any_codes(rows_b, values, generator)
        centres = _spread_centres(values // BLOCK, generator)
        sfa = _scales_around(centres, rows_a, generator)
        sfb = _scales_around(_LARGEST_SCALE_BYTE - centres, rows_b, generator)
        c = torch.full((1, rows_a, rows_b), float("nan"), dtype=torch.float16, device=device)
        data[0].append((a.to(device), b.to(device), c.permute(1, 2, 0)))
        data[1].append((sfa, sfb))
        data[2].append((_reordered_in_nan(sfa, device), _reordered_in_nan(sfb, device)))
        data[3].append((rows_a, rows_b, values, 1))
    return data


def _small_codes(rows: int, k: int, generator: torch.Generator) -> Tensor:
    """[rows, k/2, 1] float4_e2m1fn_x2: bytes 0 to 254, masked to small magnitudes."""
    drawn = torch.randint(
        255, (1, rows, k // 2), dtype=torch.uint8, device=generator.device, generator=generator
    )
    return (drawn & _SMALL_CODES).permute(1, 2, 0).view(torch.float4_e2m1fn_x2)


def _any_codes(rows: int, k: int, generator: torch.Generator) -> Tensor:
    """[rows, k/2, 1] float4_e2m1fn_x2 of all 256 byte values."""
    drawn = torch.randint(256, (1, rows, k // 2), dtype=torch.uint8, generator=generator)
    return drawn.permute(1, 2, 0).view(torch.float4_e2m1fn_x2)


def _noise(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns, 1] float16 from the standard normal distribution."""
    shape = (1, rows, columns)
    drawn = torch.randn(shape, dtype=torch.float16, device=generator.device, generator=generator)
    return drawn.permute(1, 2, 0)


def _one_or_two(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    drawn = torch.randint(
        1, 3, shape, dtype=torch.int8, device=generator.device, generator=generator
    )
    return drawn.to(torch.float8_e4m3fn)


def _spread_centres(k_blocks: int, generator: torch.Generator) -> Tensor:
    """(k_blocks,) int64 scale bytes, evenly spread over 0 to 126 in random order."""
    spread = torch.linspace(0, _LARGEST_SCALE_BYTE, k_blocks).round().to(torch.int64)
    return spread[torch.randperm(k_blocks, generator=generator)]


def _scales_around(centres: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """[rows, k_blocks, 1] float8_e4m3fn: the centre of each block plus noise, clamped to 0..126."""
    noise = torch.randint(
        -_SCALE_BYTE_NOISE, _SCALE_BYTE_NOISE + 1, (1, rows, len(centres)), generator=generator
    )
    scale_bytes = (centres + noise).clamp_(0, _LARGEST_SCALE_BYTE).to(torch.uint8)
    return scale_bytes.view(torch.float8_e4m3fn).permute(1, 2, 0)


def _reordered_in_noise(scales: Tensor, generator: torch.Generator) -> Tensor:
    """The 6-D blocked form of [rows, k_blocks, 1] scales; padding holds random 1.0 and 2.0."""
    return _written_into(_one_or_two(_padded_shape(scales), generator), scales)


def _reordered_in_nan(scales: Tensor, device: torch.device | str) -> Tensor:
    """The 6-D blocked form of [rows, k_blocks, 1] scales; padding holds NaN bytes."""
    padding = torch.full(_padded_shape(scales), NAN_BYTE, dtype=torch.uint8, device=device)
    return _written_into(padding.view(torch.float8_e4m3fn), scales)


def _padded_shape(scales: Tensor) -> tuple[int, int, int]:
    rows, k_blocks, _ = scales.shape
    return (1, padded_rows(rows), padded_k_blocks(k_blocks))


def _written_into(blocked: Tensor, scales: Tensor) -> Tensor:
    """``scales`` written to their places in a (1, padded_rows, padded_k_blocks) buffer."""
    rows, k_blocks, _ = scales.shape
    device = blocked.device
    row = torch.arange(rows, device=device)[:, None]
    k_block = torch.arange(k_blocks, device=device)[None, :]
    offsets = blocked_offset(row, k_block, k_blocks)
    flat = blocked.view(torch.uint8).view(-1)
    flat[offsets] = scales[:, :, 0].to(device).view(torch.uint8)
    return competition_view(blocked)
