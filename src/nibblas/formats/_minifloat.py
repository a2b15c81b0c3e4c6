"""Bit code shared by E2M1 and E4M3: sign, exponent, mantissa; subnormals, but no infinity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nibblas.errors import bad_type

FLOAT32_MANTISSA_BITS = 23
FLOAT32_BIAS = 127


@dataclass(frozen=True)
class Minifloat:
    """A format of ``1 + exponent_bits + mantissa_bits`` bits."""

    exponent_bits: int
    mantissa_bits: int
    bias: int

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    def value(self, code: int) -> float:
        """Value of one code, as if no code were a NaN."""
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        exponent = (code & (self.sign_bit - 1)) >> self.mantissa_bits
        significand = mantissa if exponent == 0 else mantissa + (1 << self.mantissa_bits)
        magnitude = significand * 2.0 ** (max(exponent, 1) - self.bias - self.mantissa_bits)
        return -magnitude if code & self.sign_bit else magnitude

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Values of uint8 codes in ``dtype``, as if no code were a NaN.

        The fields of a normal number move into their float32 places. A subnormal borrows the
        exponent of the smallest normal number, which is then subtracted.
        """
        magnitude = (codes & (self.sign_bit - 1)).to(torch.int32)
        subnormal = (magnitude < (1 << self.mantissa_bits)).to(torch.int32)
        normal = magnitude + (subnormal << self.mantissa_bits)
        bits = normal << (FLOAT32_MANTISSA_BITS - self.mantissa_bits)
        bits = bits + ((FLOAT32_BIAS - self.bias) << FLOAT32_MANTISSA_BITS)
        values = bits.view(torch.float32) - subnormal * self.smallest_normal
        return torch.where((codes & self.sign_bit) != 0, -values, values).to(dtype)


def check_encodable(values: Tensor) -> None:
    """Refuses what is not a tensor of float16, bfloat16 or wider."""
    if not isinstance(values, Tensor):
        raise bad_type("values", given=values, wanted="a torch.Tensor")
    if not values.dtype.is_floating_point or values.dtype.itemsize < 2:
        raise bad_type("values", given=str(values.dtype), wanted="float16, bfloat16 or wider")
