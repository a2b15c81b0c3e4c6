"""E2M1: the 4-bit codes of NVFP4. Sign, two exponent bits (bias 1), one mantissa bit.

Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; codes 8..15 the same, negative. No infinity, no NaN.
Two codes share a byte along K, **even k in the low nibble**: the order of PTX ``e2m1x2``,
``torch.float4_e2m1fn_x2``, ModelOpt and compressed-tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats._minifloat import Minifloat, check_encodable

MAX = 6.0
"""Largest magnitude."""

_FORMAT = Minifloat(exponent_bits=2, mantissa_bits=1, bias=1)
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoint c lies between the magnitudes of codes c and c + 1."""

VALUES: tuple[float, ...] = tuple(_FORMAT.value(code) for code in range(16))
"""The value of each of the 16 codes; ``VALUES[8]`` is negative zero."""


def unpack(packed: Tensor) -> Tensor:
    """One code per byte, uint8 ``(..., K)``, from two per byte, uint8 ``(..., K/2)``."""
    _check_codes("packed", packed)
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """Two codes per byte, uint8 ``(..., K/2)``, from one per byte, uint8 ``(..., K)``, K even.

    The high nibbles of ``codes`` are ignored.
    """
    _check_codes("codes", codes)
    if codes.ndim == 0 or codes.shape[-1] % 2:
        raise bad_value(
            "codes", given=f"shape {tuple(codes.shape)}", wanted="an even last dimension"
        )
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def decode(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``codes`` (uint8, one per byte, high nibble ignored); always exact."""
    _check_codes("codes", codes)
    table = _FORMAT.decode(torch.arange(16, dtype=torch.uint8, device=codes.device), dtype)
    return table.index_select(0, (codes & 0xF).flatten().int()).view(codes.shape)


def decode_packed(packed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values ``(..., K)`` of codes packed two per byte, uint8 ``(..., K/2)``."""
    _check_codes("packed", packed)
    every_byte = torch.arange(256, dtype=torch.uint8, device=packed.device)
    pairs = _FORMAT.decode(unpack(every_byte), dtype).view(256, 2)
    values = pairs.index_select(0, packed.flatten().int())
    return values.view(*packed.shape, 2).flatten(-2)


def encode(values: Tensor) -> Tensor:
    """Codes, one per byte (uint8), of floating point ``values`` (float16, bfloat16 or wider).

    As PTX ``cvt.rn.satfinite.e2m1x2``: round to nearest, ties to the even code; magnitudes above
    6, infinities too, become +-6; NaN of either sign becomes +6, the positive maximum.

    Example:
        >>> encode(torch.tensor([0.25, 0.75, -5.0, float("inf")])).tolist()
        [0, 2, 14, 7]
    """
    check_encodable(values)
    magnitude = values.abs()
    codes = torch.full_like(magnitude, 7, dtype=torch.uint8)
    for lower_code, midpoint in enumerate(_MIDPOINTS):
        ties_down = lower_code % 2 == 0
        below = magnitude <= midpoint if ties_down else magnitude < midpoint
        codes -= below.to(torch.uint8)
    negative = torch.signbit(values) & ~torch.isnan(values)
    return codes | (negative.to(torch.uint8) << 3)


def _check_codes(argument: str, codes: Tensor) -> None:
    if not isinstance(codes, Tensor):
        raise bad_type(argument, given=codes, wanted="a torch.Tensor")
    if codes.dtype != torch.uint8:
        raise bad_type(argument, given=str(codes.dtype), wanted="torch.uint8")
