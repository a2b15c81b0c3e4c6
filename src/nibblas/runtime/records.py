"""Numbers that stand for names in the records which native kernels take: CPU and GPU alike."""

from __future__ import annotations

import torch
from torch import Tensor

#: Element types; uint8 holds two E2M1 codes. NibblasType of abi.h, ElementType of params.cuh.
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.uint8: 3}
#: NibblasScaleLayout of abi.h, ScaleLayout of params.cuh.
SCALE_LAYOUTS = {"linear": 0, "blocked": 1}
#: GroupStart of common/scale_layout.h.
SCALE_STARTS = {"torch": 0, "flashinfer": 1, "stacked": 2}


def address(tensor: Tensor | None) -> int:
    """The tensor's own address; 0 for an absent one."""
    return 0 if tensor is None else tensor.data_ptr()
