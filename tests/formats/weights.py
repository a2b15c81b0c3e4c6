"""NVFP4 weights for the loaders' tests, made here and not by the library's quantiser."""

from __future__ import annotations

import torch


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    """uint8 ``(..., K/2)`` of every byte, for a logical shape ``(..., K)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, generator=generator
    )


def random_scales(*shape: int, seed: int = 0) -> torch.Tensor:
    """float8_e4m3fn ``(..., K/16)`` of every valid byte, for a logical shape ``(..., K)``."""
    generator = torch.Generator().manual_seed(seed + 1)
    scales = torch.randint(
        0, 0x7F, (*shape[:-1], shape[-1] // 16), dtype=torch.uint8, generator=generator
    )
    return scales.view(torch.float8_e4m3fn)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
