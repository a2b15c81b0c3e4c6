"""E4M3 ("fn"): the 8-bit block scales of NVFP4. Sign, four exponent bits (bias 7), three mantissa.

Finite up to 448, subnormals down to 2**-9, no infinity; 0x7F and 0xFF are NaN. NVFP4 scales are
0x00..0x7F; bytes with the sign bit decode as negative values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nibblas.errors import bad_type
from nibblas.formats._minifloat import (
    FLOAT32_BIAS,
    FLOAT32_MANTISSA_BITS,
    Minifloat,
    check_encodable,
)

MAX = 448.0
"""Largest finite magnitude, byte 0x7E."""
SMALLEST_SUBNORMAL = 2.0**-9
"""Smallest positive value, byte 0x01."""
NAN_BYTE = 0x7F
"""The NaN that ``encode`` writes; 0xFF is NaN too."""

_FORMAT = Minifloat(exponent_bits=4, mantissa_bits=3, bias=7)
_MAGNITUDE_BITS = 0x7F

VALUES: tuple[float, ...] = tuple(
    math.nan if byte & _MAGNITUDE_BITS == NAN_BYTE else _FORMAT.value(byte) for byte in range(256)
)
"""The value of each of the 256 bytes."""


def decode(scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``scales`` (uint8 bytes or float8_e4m3fn); exact in float16, bfloat16, wider."""
    if not isinstance(scales, Tensor):
        raise bad_type("scales", given=scales, wanted="a torch.Tensor")
    if scales.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise bad_type("scales", given=str(scales.dtype), wanted="torch.uint8 or float8_e4m3fn")
    encoded = scales.view(torch.uint8)
    values = _FORMAT.decode(encoded, dtype)
    return torch.where((encoded & _MAGNITUDE_BITS) == NAN_BYTE, math.nan, values)


def encode(values: Tensor) -> Tensor:
    """float8_e4m3fn of floating point ``values`` (float16, bfloat16 or wider).

    As PTX ``cvt.rn.satfinite.e4m3x2``: round to nearest, ties to the even byte; magnitudes above
    448, infinities too, become +-448; NaN of either sign becomes 0x7F. ``Tensor.to`` is not used:
    what it does beyond 448 has changed between PyTorch releases.

    Example:
        >>> encode(torch.tensor([1.0, 1e4, 2.0**-10])).view(torch.uint8).tolist()
        [56, 126, 0]
    """
    check_encodable(values)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    nan = torch.isnan(values)
    magnitude = torch.where(nan, 0.0, values.abs()).clamp(max=MAX)
    # With e the exponent, at least that of the smallest normal number, magnitude * 2**(3 - e) is
    # at most 16 and rounds to the significand; 16 carries into the exponent field by addition.
    exponent = torch.frexp(magnitude.clamp(min=_FORMAT.smallest_normal)).exponent - 1
    unit_bits = (_FORMAT.mantissa_bits - exponent + FLOAT32_BIAS) << FLOAT32_MANTISSA_BITS
    significand = torch.round(magnitude * unit_bits.view(torch.float32)).to(torch.int32)
    encoded = significand + ((exponent + _FORMAT.bias - 1) << _FORMAT.mantissa_bits)
    encoded = encoded + torch.signbit(values).to(torch.int32) * _FORMAT.sign_bit
    return torch.where(nan, NAN_BYTE, encoded).to(torch.uint8).view(torch.float8_e4m3fn)
