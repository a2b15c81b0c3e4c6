"""PTX of the Hopper GEMM example of CuTe DSL, compiled with no GPU.

    CUTE_DSL_ARCH=sm_90a CUTE_DSL_KEEP=ptx CUTE_DSL_DUMP_DIR=OUT_FOLDER \\
        python lab/emulator/third_party/cute_gemm.py dense_gemm.py M N K [CLUSTER_M CLUSTER_N]

``dense_gemm.py`` is examples/python/CuTeDSL/cute/hopper/kernel/dense_gemm of NVIDIA/cutlass, run as
it is. Needs nvidia-cutlass-dsl (4.8.1 was used), nothing of nibblas.
"""

from __future__ import annotations

import importlib.util
import sys

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor


def main(path: str, m: int, n: int, k: int, *cluster: int) -> None:
    cluster = cluster or (1, 1)
    spec = importlib.util.spec_from_file_location("dense_gemm", path)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    gemm = example.HopperWgmmaGemmKernel(cutlass.Float32, (64, 64), cluster)
    a, b, c = (
        make_fake_compact_tensor(
            cutlass.Float16, (rows, columns, 1), stride_order=(1, 0, 2), assumed_align=16
        )
        for rows, columns in ((m, k), (n, k), (m, n))
    )
    cute.compile(gemm, a, b, c, cuda.CUstream(0))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
