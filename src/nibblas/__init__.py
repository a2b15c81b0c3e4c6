"""nibblas: NVFP4 grouped matrix multiplication for mixture-of-experts models.

One operator with exact numerics, from checkpoint tensors as they are::

    w = nibblas.quantize(weight)            # or nibblas.from_modelopt(...)
    y = nibblas.grouped_mm(x, w, offs)
    print(nibblas.explain(x, w, offs))
"""

from __future__ import annotations

from nibblas.adapters import group_gemm_nvfp4_nt_groupwise, scaled_grouped_mm
from nibblas.api import explain, grouped_mm, grouped_mm_list, grouped_mm_masked
from nibblas.backends.selection import Explanation
from nibblas.errors import NativeLibraryError, UnsupportedProblemError
from nibblas.formats.checkpoint import (
    Experts,
    open_checkpoint,
    read_compressed_tensors_experts,
    read_modelopt_experts,
)
from nibblas.formats.file_quantize import QuantizedFile, quantize_checkpoint
from nibblas.formats.file_verify import FileVerdict, verify_checkpoint
from nibblas.formats.loaders import from_compressed_tensors, from_modelopt
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.quantize import dequantize, quantize
from nibblas.formats.torchao import from_torchao, to_torchao

__version__ = "0.1.0.dev0"

__all__ = [
    "Experts",
    "Explanation",
    "FileVerdict",
    "NVFP4Array",
    "NativeLibraryError",
    "QuantizedFile",
    "UnsupportedProblemError",
    "dequantize",
    "explain",
    "from_compressed_tensors",
    "from_modelopt",
    "from_torchao",
    "group_gemm_nvfp4_nt_groupwise",
    "grouped_mm",
    "grouped_mm_list",
    "grouped_mm_masked",
    "open_checkpoint",
    "quantize",
    "quantize_checkpoint",
    "read_compressed_tensors_experts",
    "read_modelopt_experts",
    "scaled_grouped_mm",
    "to_torchao",
    "verify_checkpoint",
]
