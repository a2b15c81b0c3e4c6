"""Runs the Hopper GEMM example of CuTe DSL, as PTX, on the emulator, in every order.

    python lab/emulator/third_party/run_gemm.py FILE.ptx M N K [TILE_M TILE_N CLUSTER_M CLUSTER_N]

The kernel takes tensor maps of a [m, k], b [n, k] and c [m, n], fp16, as by-value parameters, and
one byte that it does not read. The boxes are those that CuTe's host code asks for: 64 values along
the contiguous dimension with the 128-byte swizzle for a and b, 32 with the 64-byte one for c.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from nibblas.emulator import ORDERS, Device


def main(path: str, *numbers: str) -> None:
    m, n, k, tile_m, tile_n, cluster_m, cluster_n = [
        *map(int, numbers),
        *(64, 64, 1, 1)[len(numbers) - 3 :],
    ]
    random = np.random.default_rng(1)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((n, k)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    text = Path(path).read_text()
    for order in ORDERS:
        dev = Device("sm_90", order=order, seed=1)
        c = dev.empty((m, n), np.float16, name="c")
        maps = []
        for buffer, rows, columns, box in (
            (dev.from_numpy(a, name="a"), m, k, tile_m // cluster_n),
            (dev.from_numpy(b, name="b"), n, k, tile_n // cluster_m),
            (c, m, n, 64),
        ):
            inner = 32 if buffer is c else 64
            maps.append(
                dev.tensor_map(
                    buffer,
                    dtype="float16",
                    dims=(columns, rows),
                    strides=(2 * columns,),
                    box=(inner, box),
                    swizzle="64b" if inner == 32 else "128b",
                )
            )
        module = dev.load_ptx(text)
        (name,) = module.kernel_names
        kernel = module.kernel(name)
        block = kernel.program.function.directives["reqntid"]
        params = kernel.program.function.params
        given = [*maps, *(bytes(param.num_bytes) for param in params[3:])]
        begin = time.perf_counter()
        report = kernel.launch(
            (m // tile_m, n // tile_n, 1),
            block,
            given,
            cluster=(cluster_m, cluster_n, 1),
            smem=dev.limits.shared_bytes - kernel.program.shared_bytes,
        )
        error = np.abs(c.to_numpy().astype(np.float64) - exact)
        right = bool((error <= 2.0**-11 * np.abs(exact) + 2.0**-20 * bound + 2.0**-24).all())
        seconds = time.perf_counter() - begin
        count = report.total_instructions
        print(f"{order}: {'right' if right else 'WRONG'}, {count} instructions, {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
