"""NVFP4 weights to bfloat16 in one pass over memory, in Triton: what decoding costs a rival.

This file can be read without Triton, its kernel is there only with it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

_BYTES_PER_PROGRAM = 2048

if find_spec("triton") is not None:
    triton, tl = import_module("triton"), import_module("triton.language")

    @triton.jit  # type: ignore[untyped-decorator]
    def _decode(codes, scales, values, num_bytes, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]
        """A byte is two values, low nibble first; 8 bytes share a scale.

        The magnitude bits of E2M1 at bit 9 of a half are its value times 2**-14, those of E4M3 at
        bit 7 its value times 2**-8, subnormals included (biases 1, 7, 15). Scales have no sign.
        """
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < num_bytes
        pair = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
        scale = tl.load(scales + at // 8, mask=inside, other=0).to(tl.int32)
        scale_value = (scale << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        factor = scale_value * 4194304.0  # 2**(14 + 8)
        low = ((pair & 0x7) << 9) | ((pair & 0x8) << 12)
        high = ((pair & 0x70) << 5) | ((pair & 0x80) << 8)
        low_value = low.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * factor
        high_value = high.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * factor
        both = tl.interleave(low_value, high_value).to(tl.bfloat16)
        to = tl.program_id(0).to(tl.int64) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
        tl.store(values + to, both, mask=to < 2 * num_bytes)


def decode_bf16(codes: Tensor, scales: Tensor) -> Tensor:
    """``code * scale``, exact, bfloat16 ``(..., K)``; needs Triton.

    Args:
        codes: uint8 ``(..., K/2)``, contiguous.
        scales: E4M3 ``(..., K/16)``, uint8 or float8_e4m3fn, contiguous.
    """
    values = torch.empty(
        (*codes.shape[:-1], 2 * codes.shape[-1]), dtype=torch.bfloat16, device=codes.device
    )
    programs = -(-codes.numel() // _BYTES_PER_PROGRAM)
    _decode[(programs,)](
        codes, scales.view(torch.uint8), values, codes.numel(), BLOCK=_BYTES_PER_PROGRAM
    )
    return values
