"""What the bytes mean: E2M1 codes, E4M3 scales, their layouts, arrays of them, and checkpoints.

``quantize`` and ``dequantize`` are ``nibblas.quantize`` and ``nibblas.dequantize``: here the first
name is the module's.
"""

from __future__ import annotations

from nibblas.formats import e2m1, e4m3, scale_layout
from nibblas.formats.checkpoint import (
    Experts,
    open_checkpoint,
    read_compressed_tensors_experts,
    read_modelopt_experts,
)
from nibblas.formats.loaders import from_compressed_tensors, from_modelopt
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.torchao import from_torchao, to_torchao

__all__ = [
    "Experts",
    "NVFP4Array",
    "e2m1",
    "e4m3",
    "from_compressed_tensors",
    "from_modelopt",
    "from_torchao",
    "open_checkpoint",
    "read_compressed_tensors_experts",
    "read_modelopt_experts",
    "scale_layout",
    "to_torchao",
]
