"""Kernels that use tensor memory: allocation before, deallocation after, and what lies between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nibblas.emulator import Device

LANES = 128
COLUMNS = 512


def tensor_kernel(
    body: str,
    *,
    columns: int = COLUMNS,
    box: int = 1024,
    group: int = 1,
    barriers: int = 4,
    before: str = "",
    dealloc: bool = True,
    cluster_end: bool = False,
) -> str:
    """An entry ``k(in, out)`` of 128 threads.

    Registers: %tid, %warp, %rank; %base, the first column; %here, the warp's first lane of it;
    %in, %out; %r<64>, %rd<32>, %p<8>, %v<512> free. Predicates: %first, of warp 0; %one, of thread
    0; %even, of the pair's even CTA. Shared: ``bar`` of ``barriers`` mbarriers of count 1, ``box``
    bytes, all bytes of ``in`` copied there.

    Args:
        before: goes in front of the allocation. cluster_end: all wait for the cluster at the end.
    """
    inits = "\n".join(
        f"    @%one mbarrier.init.shared.b64 [bar+{8 * i}], 1;" for i in range(barriers)
    )
    wait = "barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;"
    free = f"@%first tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %base, {columns};"
    return f"""
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %tid, %warp, %rank, %base, %here, %at, %r<64>, %v<512>;
    .reg .b64 %in, %out, %rd<32>;
    .reg .b16 %h<4>;
    .reg .pred %first, %one, %even, %full, %p<8>;
    .shared .align 8 .b32 slot;
    .shared .align 8 .b64 bar[{barriers}];
    .shared .align 1024 .b8 box[{box}];
    mov.u32 %tid, %tid.x;
    shr.u32 %warp, %tid, 5;
    mov.u32 %rank, %cluster_ctarank;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    setp.eq.u32 %first, %warp, 0;
    setp.eq.u32 %one, %tid, 0;
    and.b32 %r0, %rank, 1;
    setp.eq.u32 %even, %r0, 0;
{inits}
    mov.u32 %r1, box;
    mul.lo.u32 %r2, %tid, 4;
fill:
    setp.ge.u32 %full, %r2, {box};
    @%full bra filled;
    mul.wide.u32 %rd0, %rank, {box};
    cvt.u64.u32 %rd1, %r2;
    add.s64 %rd0, %rd0, %rd1;
    add.s64 %rd0, %rd0, %in;
    ld.global.u32 %r3, [%rd0];
    add.u32 %r4, %r1, %r2;
    st.shared.u32 [%r4], %r3;
    add.u32 %r2, %r2, 512;
    bra fill;
filled:
    fence.proxy.async.shared::cta;
{before}
    @%first tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [slot], {columns};
    bar.sync 0;
    {wait}
    ld.shared.u32 %base, [slot];
    shl.b32 %here, %warp, 21;
    add.u32 %here, %here, %base;
{body}
    bar.sync 0;
    {wait if cluster_end else ""}
    {free if dealloc else ""}
    ret;
}}
"""


def wait(barrier: int = 0, parity: int = 0, *, fence: bool = True, label: str = "w") -> str:
    """Waits for a phase of ``bar[barrier]``."""
    after = "tcgen05.fence::after_thread_sync;" if fence else ""
    return f"""
{label}_{barrier}_{parity}:
    mbarrier.try_wait.parity.shared.b64 %p7, [bar+{8 * barrier}], {parity};
    @!%p7 bra {label}_{barrier}_{parity};
    {after}"""


def commit(barrier: int = 0, *, group: int = 1, guard: str = "@%one ") -> str:
    return (
        f"    {guard}tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64 "
        f"[bar+{8 * barrier}];"
    )


def vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"%v{first + i}" for i in range(count)) + "}"


def fill_cells(columns: int = COLUMNS) -> str:
    """Every cell of the warp's lanes: 512 lane + column, 128 columns at a time."""
    lines = ["    shl.b32 %r10, %tid, 9;"]
    for start in range(0, columns, 128):
        count = min(128, columns - start)
        lines += [f"    add.u32 %v{i}, %r10, {start + i};" for i in range(count)]
        lines += [
            f"    add.u32 %r11, %here, {start};",
            f"    tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r11], {vector(0, count)};",
            "    tcgen05.wait::st.sync.aligned;",
        ]
    return "\n".join(lines)


def store_registers(count: int, first: int = 0) -> str:
    """``out``: uint32 [128 threads, count]."""
    lines = [
        f"    mad.lo.u32 %r12, %rank, {LANES}, %tid;",
        f"    mul.wide.u32 %rd2, %r12, {4 * count};",
        "    add.s64 %rd2, %rd2, %out;",
    ]
    lines += [f"    st.global.u32 [%rd2+{4 * i}], %v{first + i};" for i in range(count)]
    return "\n".join(lines)


def load_cells(columns: int, *, at: str = "%here") -> str:
    """%v0... of each thread: its lane's first columns."""
    return f"""
    tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {vector(0, columns)}, [{at}];
    tcgen05.wait::ld.sync.aligned;"""


def run(
    text: str,
    data: Any = (),
    *,
    out: Sequence[int] = (LANES, 1),
    cluster: int = 1,
    arch: str = "sm_100",
    **device: Any,
) -> np.ndarray:
    """Launches ``k`` with one cluster; what it leaves in ``out``, uint32."""
    dev = Device(arch, **device)
    source = np.zeros(65536 * cluster, np.uint8)
    given = np.ascontiguousarray(data).view(np.uint8).ravel() if len(data) else source
    result = dev.empty(tuple(out), np.uint32)
    kernel = dev.load_ptx(text).kernel("k")
    kernel.launch(cluster, LANES, [dev.from_numpy(given), result], cluster=(cluster, 1, 1))
    return result.to_numpy()
