"""Three kernels as Triton's tutorials have them, written anew: vector add, softmax, matmul.

    python lab/emulator/third_party/triton_kernels.py OUT_FOLDER

compiles each for sm_80 and sm_90 with no GPU and writes its PTX with the launch that it wants, as
OUT_FOLDER/NAME-sm_XX.ptx and .json. Needs triton (3.9 was used), nothing of nibblas.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[n] = x[n] + y[n]; a program takes BLOCK elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + y, mask=inside)


@triton.jit
def softmax(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    """Rows of x to rows of out; a program takes a row of at most BLOCK columns."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < columns, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride + at, e / tl.sum(e, axis=0), mask=at < columns)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c[m, n] = a[m, k] @ b[k, n] in fp16 with fp32 sums, row-major, any sizes."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        at = start + inner
        a = tl.load(
            a_ptr + row[:, None] * k + at[None, :],
            mask=(row[:, None] < m) & (at[None, :] < k),
            other=0.0,
        )
        b = tl.load(
            b_ptr + at[:, None] * n + column[None, :],
            mask=(at[:, None] < k) & (column[None, :] < n),
            other=0.0,
        )
        total += tl.dot(a, b)
    c = c_ptr + row[:, None] * n + column[None, :]
    tl.store(c, total.to(tl.float16), mask=(row[:, None] < m) & (column[None, :] < n))


@triton.jit
def matmul_tma(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same through tensor descriptors that the kernel makes itself; b is [n, k]."""
    a_map = tl.make_tensor_descriptor(a_ptr, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_map = tl.make_tensor_descriptor(b_ptr, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_map = tl.make_tensor_descriptor(c_ptr, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = a_map.load([row, start])
        b = b_map.load([column, start])
        total = tl.dot(a, b.T, total)
    c_map.store([row, column], total.to(tl.float16))


POINTERS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32"}
HALVES = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "m": "i32", "n": "i32", "k": "i32"}
TILES = {"BM": 64, "BN": 64, "BK": 32}

#: name -> kernel, types of its arguments, constants, which arguments are multiples of 16, options.
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int], tuple[str, ...], dict[str, int]]] = {
    "add": (add, {**POINTERS, "n": "i32"}, {"BLOCK": 512}, tuple(POINTERS), {}),
    "softmax": (
        softmax,
        {"x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "columns": "i32"},
        {"BLOCK": 1024},
        ("x_ptr", "out_ptr", "stride"),
        {},
    ),
    "matmul": (matmul, HALVES, TILES, tuple(HALVES), {"num_stages": 3}),
    "matmul_tails": (matmul, HALVES, TILES, ("a_ptr", "b_ptr", "c_ptr"), {"num_stages": 3}),
    "matmul_tma": (matmul_tma, HALVES, TILES, tuple(HALVES), {"num_stages": 3}),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kernel, types, constants, aligned, options) in KERNELS.items():
        for capability in (80, 90):
            if name == "matmul_tma" and capability < 90:
                continue
            signature = {**types, **dict.fromkeys(constants, "constexpr")}
            arguments = list(signature)
            divisible = {(arguments.index(n),): [["tt.divisibility", 16]] for n in aligned}
            source = ASTSource(
                fn=kernel, signature=signature, constexprs=constants, attrs=divisible
            )
            target = GPUTarget("cuda", capability, 32)
            made = triton.compile(source, target=target, options=options)
            about = {
                "entry": made.metadata.name,
                "threads": 32 * made.metadata.num_warps,
                "shared_bytes": made.metadata.shared,
                "scratch_bytes": getattr(made.metadata, "global_scratch_size", 0),
                "scratch_align": getattr(made.metadata, "global_scratch_align", 1),
                "constants": constants,
            }
            stem = folder / f"{name}-sm_{capability}"
            stem.with_suffix(".ptx").write_text(made.asm["ptx"])
            stem.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
            print(stem.name, len(made.asm["ptx"]), about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
