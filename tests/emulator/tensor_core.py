"""One tcgen05.mma in a kernel: tensor memory and shared memory given as images, tensor memory back.

Every thread stores its lane of the image with tcgen05.st, a bulk copy brings the operands, thread 0
of CTA 0 issues the instruction, everybody waits for its commit and reads its lane back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nibblas.emulator import Device

LANES = 128
_CHUNK = 32
"""Columns that one tcgen05.st or ld moves."""


@dataclass(frozen=True)
class Mma:
    """An instruction and what it is given.

    Attributes:
        name: with qualifiers and operands: "tcgen05.mma....  [%d], %a, %b, %idesc, ..."; registers:
            %d, %at, %sfa, %sfb (addresses), %a, %b (descriptors), %idesc, %enable, %w0 to %w7.
        group: CTAs. tensor: uint32 [group, 128, columns]. shared: uint8 [group, bytes].
        d, at, sfa, sfb: offsets into ``tensor``: lane << 16 | column.
        a, b: descriptors whose start address is an offset into ``shared``.
        times: how often it is issued. stored: columns of ``tensor`` that are written; 0: all.
    """

    name: str
    group: int
    tensor: np.ndarray
    shared: np.ndarray
    idesc: int
    d: int = 0
    at: int = 0
    sfa: int = 0
    sfb: int = 0
    a: int = 0
    b: int = 0
    enable: bool = False
    words: tuple[int, ...] = (0,) * 8
    times: int = 1
    stored: int = 0

    def but(self, **changes: Any) -> Mma:
        return replace(self, **changes)


def moves(what: str, columns: int) -> str:
    """tcgen05.st or ld of all columns; global memory, a column's lanes in a row, from %rd2 on."""
    registers = [f"%x{i}" for i in range(_CHUNK)]
    names = "{" + ", ".join(registers) + "}"
    places = [f"[%rd2+{4 * LANES * i}]" for i in range(_CHUNK)]
    if what == "st":
        body = [f"ld.global.b32 {r}, {at};" for r, at in zip(registers, places, strict=True)]
        body += [f"tcgen05.st.sync.aligned.32x32b.x{_CHUNK}.b32 [%r9], {names};"]
        body += ["tcgen05.wait::st.sync.aligned;"]
    else:
        body = [f"tcgen05.ld.sync.aligned.32x32b.x{_CHUNK}.b32 {names}, [%r9];"]
        body += ["tcgen05.wait::ld.sync.aligned;"]
        body += [f"st.global.b32 {at}, {r};" for r, at in zip(registers, places, strict=True)]
    head = ["mov.u32 %r9, %r8;", f"mov.u32 %r13, {columns // _CHUNK};", f"{what}_columns:"]
    tail = [f"add.u32 %r9, %r9, {_CHUNK};", f"add.s64 %rd2, %rd2, {4 * LANES * _CHUNK};"]
    tail += ["sub.u32 %r13, %r13, 1;", "setp.ne.u32 %p5, %r13, 0;", f"@%p5 bra {what}_columns;"]
    return "\n".join([*head, *body, *tail])


def text(mma: Mma) -> str:
    group, columns = mma.group, mma.tensor.shape[2]
    size = mma.shared.shape[1]
    pair = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" if group == 2 else ""
    commit = (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%r3], 3;"
        if group == 2
        else "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];"
    )
    cluster = f".reqnctapercluster {group}, 1, 1" if group == 2 else ""
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 tensor, .param .u64 operands, .param .u64 out,
    .param .u64 a, .param .u64 b, .param .u32 idesc, .param .u32 d, .param .u32 at,
    .param .u32 sfa, .param .u32 sfb, .param .u32 enable,
    {", ".join(f".param .u32 w{i}" for i in range(8))}) {cluster}
{{
    .reg .b32 %r<32>, %x<{_CHUNK}>, %d, %at, %sfa, %sfb, %idesc, %w<8>;
    .reg .b64 %rd<32>, %a, %b;
    .reg .pred %p<8>, %enable;
    .shared .align 1024 .b8 box[{size}];
    .shared .align 8 .b64 loaded, done;
    .shared .b32 base;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, loaded;
    mov.u32 %r3, done;
    mov.u32 %r4, box;
    mov.u32 %r5, base;
    setp.eq.u32 %p0, %r0, 0;
    setp.lt.u32 %p1, %r0, 32;
    @!%p0 bra ready;
    mbarrier.init.shared.b64 [%r2], 1;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
ready:
    bar.sync 0;
    @%p1 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r5], {columns};
    @!%p0 bra copied;
    ld.param.u64 %rd0, [operands];
    mul.wide.u32 %rd1, %r1, {size};
    add.s64 %rd0, %rd0, %rd1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], {size}, [%r2];
copied:
    bar.sync 0;
wait0:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
    @!%p2 bra wait0;
    ld.shared.b32 %r6, [%r5];
    and.b32 %r7, %r0, 96;
    shl.b32 %r8, %r7, 16;
    add.u32 %r8, %r8, %r6;
    mad.lo.u32 %r10, %r1, {LANES * columns}, %r0;
    mul.wide.u32 %rd3, %r10, 4;
    ld.param.u64 %rd2, [tensor];
    add.s64 %rd2, %rd2, %rd3;
    {moves("st", mma.stored or columns)}
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    {pair}
    setp.eq.u32 %p3, %r1, 0;
    and.pred %p4, %p3, %p0;
    @!%p4 bra issued;
    tcgen05.fence::after_thread_sync;
    ld.param.u32 %d, [d];
    add.u32 %d, %d, %r6;
    ld.param.u32 %at, [at];
    add.u32 %at, %at, %r6;
    ld.param.u32 %sfa, [sfa];
    add.u32 %sfa, %sfa, %r6;
    ld.param.u32 %sfb, [sfb];
    add.u32 %sfb, %sfb, %r6;
    shr.u32 %r11, %r4, 4;
    cvt.u64.u32 %rd4, %r11;
    ld.param.u64 %a, [a];
    add.s64 %a, %a, %rd4;
    ld.param.u64 %b, [b];
    add.s64 %b, %b, %rd4;
    ld.param.u32 %idesc, [idesc];
    ld.param.u32 %r12, [enable];
    setp.ne.u32 %enable, %r12, 0;
    {" ".join(f"ld.param.u32 %w{i}, [w{i}];" for i in range(8))}
    {mma.name * mma.times}
    {commit}
issued:
    bar.sync 0;
wait1:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra wait1;
    tcgen05.fence::after_thread_sync;
    ld.param.u64 %rd2, [out];
    add.s64 %rd2, %rd2, %rd3;
    {moves("ld", columns)}
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    {pair}
    tcgen05.fence::after_thread_sync;
    @%p1 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r6, {columns};
    ret;
}}
"""


def run(mma: Mma, *, arch: str = "sm_100", operations: int = 0, **device: Any) -> np.ndarray:
    """Tensor memory afterwards. uint32 [group, 128, columns]

    Args:
        operations: multiplications in all; 0: ``times``.
    """
    dev = Device(arch, **device)
    by_column = np.ascontiguousarray(mma.tensor.transpose(0, 2, 1))
    tensor = dev.from_numpy(by_column)
    shared = dev.from_numpy(np.ascontiguousarray(mma.shared))
    out = dev.empty(by_column.shape, np.uint32)
    arguments: list[Any] = [
        tensor, shared, out, mma.a, mma.b, mma.idesc, mma.d, mma.at, mma.sfa, mma.sfb,
        int(mma.enable), *mma.words,
    ]  # fmt: skip
    kernel = dev.load_ptx(text(mma)).kernel("k")
    report = kernel.launch(mma.group, LANES, arguments, cluster=(mma.group, 1, 1))
    assert report.events["tensor operations"] == (operations or mma.times)
    return np.ascontiguousarray(out.to_numpy().transpose(0, 2, 1))
