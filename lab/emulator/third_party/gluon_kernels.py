"""An NVFP4 product on pairs of SMs in Gluon, Triton's lower-level language.

    TRITON_DISABLE_LINE_INFO=1 TRITON_DEFAULT_FP_FUSION=1 \\
        python lab/emulator/third_party/gluon_kernels.py OUT_FOLDER

compiles it with no GPU, as triton_kernels.py beside it does its kernels. Needs triton (3.9 was
used), nothing of nibblas.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import triton
import triton.experimental.gluon as gluon
import triton.experimental.gluon.language as gl
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_barrier_count,
    tcgen05_mma_scaled,
    tma,
)


@gluon.jit
def scale_map(ptr, rows, k, BR: gl.constexpr, BK: gl.constexpr, LAYOUT: gl.constexpr):
    """Of blocked scales: atoms of 128 rows x 4 blocks, 512 bytes as two rows of 256."""
    row_atoms, atoms = rows // 128, k // 64
    return tma.make_tensor_descriptor(
        ptr,
        [1, row_atoms, atoms, 2, 256],
        [row_atoms * atoms * 512, atoms * 512, 512, 256, 1],
        [1, BR // 128, BK // 64, 2, 256],
        LAYOUT,
    )


@gluon.jit
def scale_rows(atoms, BR: gl.constexpr, BK: gl.constexpr):
    """A box of such a map as [BR, BK / 16]."""
    split = atoms.reshape((BR // 128, BK // 64, 32, 4, 4))
    return split.permute((0, 3, 2, 1, 4)).reshape((BR, BK // 16))


@gluon.jit
def nvfp4_pair(
    a_ptr,
    b_ptr,
    sfa_ptr,
    sfb_ptr,
    c_ptr,
    m,
    n,
    k,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    STAGES: gl.constexpr,
):
    """c[m, n] = a[m, k] @ b[n, k]^T, blocked scales; each CTA has half of the rows of a and b."""
    halved: gl.constexpr = ((1, 0),)
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BM, BK // 2], gl.uint8, cga_layout=halved
    )
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BN, BK // 2], gl.uint8, cga_layout=halved
    )
    c_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BM, BN], gl.float16, cga_layout=halved
    )
    sfa_layout: gl.constexpr = gl.NVMMASharedLayout(0, 8, 5, cga_layout=[[0, 1, 0, 0, 0]])
    sfb_layout: gl.constexpr = gl.NVMMASharedLayout(0, 8, 5, cga_layout=[[0, 0, 0, 0, 0]])
    a_map = tma.make_tensor_descriptor(a_ptr, [m, k // 2], [k // 2, 1], [BM, BK // 2], a_layout)
    b_map = tma.make_tensor_descriptor(b_ptr, [n, k // 2], [k // 2, 1], [BN, BK // 2], b_layout)
    c_map = tma.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BM, BN], c_layout)
    sfa_map = scale_map(sfa_ptr, m, k, BM, BK, sfa_layout)
    sfb_map = scale_map(sfb_ptr, n, k, BN, BK, sfb_layout)

    a_ring = gl.allocate_shared_memory(gl.uint8, [STAGES, BM, BK // 2], a_layout)
    b_ring = gl.allocate_shared_memory(gl.uint8, [STAGES, BN, BK // 2], b_layout)
    sfa_ring = gl.allocate_shared_memory(
        gl.float8e4nv, [STAGES, 1, BM // 128, BK // 64, 2, 256], sfa_layout
    )
    sfb_ring = gl.allocate_shared_memory(
        gl.float8e4nv, [STAGES, 1, BN // 128, BK // 64, 2, 256], sfb_layout
    )
    acc_layout: gl.constexpr = TensorMemoryLayout(
        [BM // 2, BN], col_stride=1, cga_layout=halved, two_ctas=True
    )
    own_rows: gl.constexpr = TensorMemoryScalesLayout(cga_layout=[[1, 0]])
    all_rows: gl.constexpr = TensorMemoryScalesLayout(cga_layout=[[0, 0]])
    acc = allocate_tensor_memory(gl.float32, [BM, BN], acc_layout)
    sfa = allocate_tensor_memory(gl.float8e4nv, [BM, BK // 16], own_rows)
    sfb = allocate_tensor_memory(gl.float8e4nv, [BN, BK // 16], all_rows)

    arrivals: gl.constexpr = tcgen05_mma_barrier_count(
        [a_ring.index(0), b_ring.index(0), sfa_ring.index(0), sfb_ring.index(0)],
        multicast=True,
        two_ctas=True,
    )
    full = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    done = mbarrier.allocate_mbarrier(batch=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=arrivals)
    mbarrier.init(done.index(0), count=1)

    row, column = gl.program_id(0), gl.program_id(1)
    for step in range(k // BK):
        stage, phase = step % STAGES, step // STAGES & 1
        ready = full.index(stage)
        mbarrier.wait(empty.index(stage), phase ^ 1)
        codes: gl.constexpr = a_map.nbytes_per_cta + b_map.nbytes_per_cta
        mbarrier.expect(ready, codes + sfa_map.nbytes_per_cta + sfb_map.nbytes_per_cta)
        at, atom = step * (BK // 2), step * (BK // 64)
        tma.async_load(a_map, [row * BM, at], ready, a_ring.index(stage), multicast=True)
        tma.async_load(b_map, [column * BN, at], ready, b_ring.index(stage), multicast=True)
        a_atoms = [0, row * (BM // 128), atom, 0, 0]
        b_atoms = [0, column * (BN // 128), atom, 0, 0]
        tma.async_load(sfa_map, a_atoms, ready, sfa_ring.index(stage), multicast=True)
        tma.async_load(sfb_map, b_atoms, ready, sfb_ring.index(stage), multicast=True)
        mbarrier.wait(ready, phase)
        tcgen05_copy(scale_rows(sfa_ring.index(stage), BM, BK), sfa)
        tcgen05_copy(scale_rows(sfb_ring.index(stage), BN, BK), sfb)
        tcgen05_mma_scaled(
            a_ring.index(stage),
            b_ring.index(stage).permute((1, 0)),
            acc,
            sfa,
            sfb,
            "e2m1",
            "e2m1",
            use_acc=step > 0,
            multicast=True,
            mbarriers=[empty.index(stage)],
        )
    tcgen05_commit(done.index(0))
    mbarrier.wait(done.index(0), 0)
    out = gl.allocate_shared_memory(gl.float16, [BM, BN], c_layout)
    out.store(acc.load().to(gl.float16))
    fence_async_shared()
    tma.async_store(c_map, [row * BM, column * BN], out)
    tma.store_wait(0)


POINTERS = {"a_ptr": "*u8", "b_ptr": "*u8", "sfa_ptr": "*fp8e4nv", "sfb_ptr": "*fp8e4nv"}
TYPES = {**POINTERS, "c_ptr": "*fp16", "m": "i32", "n": "i32", "k": "i32"}
CONSTANTS = {"BM": 256, "BN": 128, "BK": 256, "STAGES": 2}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    signature = {**TYPES, **dict.fromkeys(CONSTANTS, "constexpr")}
    divisible = {(i,): [["tt.divisibility", 16]] for i in range(len(TYPES))}
    source = GluonASTSource(
        fn=nvfp4_pair, signature=signature, constexprs=CONSTANTS, attrs=divisible
    )
    made = triton.compile(
        source, target=GPUTarget("cuda", 100, 32), options={"num_ctas": 2, "num_warps": 4}
    )
    about = {
        "entry": made.metadata.name,
        "threads": 32 * made.metadata.num_warps,
        "ctas": made.metadata.num_ctas,
        "shared_bytes": made.metadata.shared,
        "scratch_bytes": made.metadata.global_scratch_size,
        "scratch_align": made.metadata.global_scratch_align,
        "constants": CONSTANTS,
    }
    stem = folder / "nvfp4_pair-sm_100"
    stem.with_suffix(".ptx").write_text(made.asm["ptx"])
    stem.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    print(stem.name, len(made.asm["ptx"]), about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
