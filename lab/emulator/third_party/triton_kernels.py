"""Kernels as Triton's tutorials have them, written anew: vector add, softmax, matmul, NVFP4 matmul.

    TRITON_DISABLE_LINE_INFO=1 TRITON_DEFAULT_FP_FUSION=1 \\
        python lab/emulator/third_party/triton_kernels.py OUT_FOLDER

compiles each with no GPU for the architectures it is listed for and writes its PTX with the launch
that it wants, as OUT_FOLDER/NAME-sm_XX.ptx and .json. Needs triton (3.9 was used), nothing of
nibblas.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
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


@triton.jit
def matmul_warps(
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """matmul_tma, persistent, with warps that only copy and warps that only multiply."""
    a_map = tl.make_tensor_descriptor(a_ptr, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_map = tl.make_tensor_descriptor(b_ptr, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_map = tl.make_tensor_descriptor(c_ptr, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    columns = n // BN
    tiles = (m // BM) * columns
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        row, column = tile // columns * BM, tile % columns * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, k, BK):
            a = a_map.load([row, start])
            b = b_map.load([column, start])
            total = tl.dot(a, b.T, total)
        c_map.store([row, column], total.to(tl.float16))


@triton.jit
def nvfp4(
    a_ptr,
    b_ptr,
    sfa_ptr,
    sfb_ptr,
    c_ptr,
    m,
    n,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """c[m, n] = a[m, k] @ b[n, k]^T of packed E2M1 with a row-major E4M3 scale per 16 elements."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    column = tl.program_id(1) * BN + tl.arange(0, BN)[:, None]
    byte = tl.arange(0, BK // 2)[None, :]
    block = tl.arange(0, BK // 16)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = tl.load(a_ptr + row * (k // 2) + start // 2 + byte)
        b = tl.load(b_ptr + column * (k // 2) + start // 2 + byte)
        sfa = tl.load(sfa_ptr + row * (k // 16) + start // 16 + block)
        sfb = tl.load(sfb_ptr + column * (k // 16) + start // 16 + block)
        total = tl.dot_scaled(a, sfa, "e2m1", b.T, sfb, "e2m1", total)
    at = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    tl.store(c_ptr + row * n + at, total.to(tl.float16))


@triton.jit
def scale_map(ptr, rows, k, BR: tl.constexpr, BK: tl.constexpr):
    """Of blocked scales: atoms of 128 rows x 4 blocks, 512 bytes as two rows of 256."""
    row_atoms, k_atoms = rows // 128, k // 64
    return tl.make_tensor_descriptor(
        ptr,
        shape=[1, row_atoms, k_atoms, 2, 256],
        strides=[row_atoms * k_atoms * 512, k_atoms * 512, 512, 256, 1],
        block_shape=[1, BR // 128, BK // 64, 2, 256],
    )


@triton.jit
def scale_rows(atoms, BR: tl.constexpr, BK: tl.constexpr):
    """A box of such a map as [BR, BK / 16]."""
    split = atoms.reshape(BR // 128, BK // 64, 32, 4, 4)
    return split.trans(0, 3, 2, 1, 4).reshape(BR, BK // 16)


@triton.jit
def nvfp4_tma(
    a_ptr,
    b_ptr,
    sfa_ptr,
    sfb_ptr,
    c_ptr,
    m,
    n,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WARPS: tl.constexpr,
):
    """nvfp4 by tensor copies, with blocked scales, persistent; WARPS: specialised warps."""
    a_map = tl.make_tensor_descriptor(a_ptr, [m, k // 2], [k // 2, 1], [BM, BK // 2])
    b_map = tl.make_tensor_descriptor(b_ptr, [n, k // 2], [k // 2, 1], [BN, BK // 2])
    sfa_map = scale_map(sfa_ptr, m, k, BM, BK)
    sfb_map = scale_map(sfb_ptr, n, k, BN, BK)
    c_map = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BM, BN])
    columns = n // BN
    tiles = (m // BM) * columns
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=WARPS):
        row, column = tile // columns, tile % columns
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(k // BK):
            a = a_map.load([row * BM, step * (BK // 2)])
            b = b_map.load([column * BN, step * (BK // 2)])
            sfa = sfa_map.load([0, row * (BM // 128), step * (BK // 64), 0, 0])
            sfb = sfb_map.load([0, column * (BN // 128), step * (BK // 64), 0, 0])
            sfa, sfb = scale_rows(sfa, BM, BK), scale_rows(sfb, BN, BK)
            total = tl.dot_scaled(a, sfa, "e2m1", b.T, sfb, "e2m1", total)
        c_map.store([row * BM, column * BN], total.to(tl.float16))


POINTERS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32"}
SIZES = {"m": "i32", "n": "i32", "k": "i32"}
HALVES = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", **SIZES}
CODES = {
    "a_ptr": "*u8",
    "b_ptr": "*u8",
    "sfa_ptr": "*fp8e4nv",
    "sfb_ptr": "*fp8e4nv",
    "c_ptr": "*fp16",
    **SIZES,
}
TILES = {"BM": 64, "BN": 64, "BK": 32}
LARGE = {"BM": 128, "BN": 128, "BK": 64}
SCALED = {"BM": 128, "BN": 128, "BK": 256}
OLDER, ALL, BLACKWELL = (80, 90), (80, 90, 100), (100,)


@dataclass(frozen=True)
class Entry:
    """A kernel to compile.

    Attributes:
        types: of its arguments. aligned: which of them are multiples of 16; None: all.
        targets: compute capabilities.
    """

    kernel: Any
    types: dict[str, str]
    constants: dict[str, int]
    targets: tuple[int, ...]
    aligned: tuple[str, ...] | None = None
    options: dict[str, int] = field(default_factory=lambda: {"num_stages": 3})


KERNELS = {
    "add": Entry(add, {**POINTERS, "n": "i32"}, {"BLOCK": 512}, OLDER, tuple(POINTERS), {}),
    "softmax": Entry(
        softmax,
        {"x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "columns": "i32"},
        {"BLOCK": 1024},
        OLDER,
        ("x_ptr", "out_ptr", "stride"),
        {},
    ),
    "matmul": Entry(matmul, HALVES, TILES, ALL),
    "matmul_tails": Entry(matmul, HALVES, TILES, ALL, ("a_ptr", "b_ptr", "c_ptr")),
    "matmul_tma": Entry(matmul_tma, HALVES, TILES, (90, 100)),
    "matmul_large": Entry(matmul_tma, HALVES, LARGE, BLACKWELL),
    "matmul_warps": Entry(matmul_warps, HALVES, LARGE, BLACKWELL),
    "nvfp4": Entry(nvfp4, CODES, {**SCALED, "BK": 128}, (100, 120)),
    "nvfp4_small": Entry(nvfp4_tma, CODES, {**SCALED, "BK": 128, "WARPS": 0}, (120,)),
    "nvfp4_tma": Entry(nvfp4_tma, CODES, {**SCALED, "WARPS": 0}, BLACKWELL),
    "nvfp4_wide": Entry(nvfp4_tma, CODES, {**SCALED, "BN": 256, "WARPS": 0}, BLACKWELL),
    "nvfp4_warps": Entry(nvfp4_tma, CODES, {**SCALED, "WARPS": 1}, BLACKWELL),
}


def compile_entry(entry: Entry, capability: int) -> Any:
    signature = {**entry.types, **dict.fromkeys(entry.constants, "constexpr")}
    arguments = list(signature)
    aligned = entry.types if entry.aligned is None else entry.aligned
    divisible = {(arguments.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(
        fn=entry.kernel, signature=signature, constexprs=entry.constants, attrs=divisible
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=entry.options)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in KERNELS.items():
        for capability in entry.targets:
            made = compile_entry(entry, capability)
            about = {
                "entry": made.metadata.name,
                "threads": 32 * made.metadata.num_warps,
                "shared_bytes": made.metadata.shared,
                "scratch_bytes": getattr(made.metadata, "global_scratch_size", 0),
                "scratch_align": getattr(made.metadata, "global_scratch_align", 1),
                "constants": entry.constants,
            }
            stem = folder / f"{name}-sm_{capability}"
            stem.with_suffix(".ptx").write_text(made.asm["ptx"])
            stem.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
            print(stem.name, len(made.asm["ptx"]), about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
