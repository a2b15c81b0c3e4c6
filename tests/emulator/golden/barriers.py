"""mbarrier: counts, phases, transactions; and through a cluster."""

from __future__ import annotations

import numpy as np

from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw

_NOTHING = np.zeros(4, np.uint32)


def phases() -> Case:
    """One thread takes a barrier through arrivals, transactions and drops, and looks after each."""
    steps = [
        "mbarrier.init.shared.b64 [bar], 3;",
        "mbarrier.arrive.shared.b64 %rd1, [bar];",
        "mbarrier.arrive.shared.b64 %rd1, [bar], 2;",
        "mbarrier.arrive.noComplete.shared.b64 %rd1, [bar], 2;",
        "mbarrier.arrive.shared.b64 _, [bar];",
        "mbarrier.arrive.expect_tx.shared.b64 %rd1, [bar], 64;",
        "mbarrier.arrive.shared.b64 _, [bar], 2;",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 40;",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 24;",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16;",
        "mbarrier.arrive.shared.b64 _, [bar], 3;",
        "mbarrier.arrive_drop.shared.b64 %rd1, [bar];",
        "mbarrier.arrive.shared.b64 _, [bar], 2;",
        "mbarrier.arrive.shared.b64 %rd1, [bar], 2;",
        "mbarrier.arrive_drop.expect_tx.shared.b64 %rd1, [bar], 8;",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 8;",
        "mbarrier.arrive.shared.b64 %rd1, [bar];",
        "mbarrier.arrive.shared.b64 %rd1, [bar];",
        "mbarrier.inval.shared.b64 [bar]; mbarrier.init.shared.b64 [bar], 1;",
        "mbarrier.arrive.release.cta.shared::cta.b64 %rd1, [bar];",
    ]
    lines = ["setp.ne.u32 %p1, %r0, 0;", "@%p1 ret;", "mov.u64 %rd1, 0;"]
    for i, step in enumerate(steps):
        lines.append(step)
        for parity in (0, 1):
            form = ("test_wait.parity", "test_wait.parity.acquire.cta")[i % 2]
            space = ("shared", "shared::cta")[i % 2]
            lines.append(f"mbarrier.{form}.{space}.b64 %p{2 + parity}, [bar], {parity};")
            lines.append(f"selp.b32 %r{2 + parity}, 1, 0, %p{2 + parity};")
        lines.append("mov.b32 %r4, 0; mov.b32 %r5, 0;")
        if "%rd1" in step and "init" not in step:
            lines.append("mbarrier.pending_count.b64 %r4, %rd1;")
            lines.append("mbarrier.test_wait.shared.b64 %p4, [bar], %rd1; selp.b32 %r5, 1, 0, %p4;")
        lines.append(f"st.global.v4.b32 [%rd20+{16 * i}], {{%r2, %r3, %r4, %r5}};")
    text = module("    " + "\n    ".join(lines), shared=".shared .b64 bar;")
    return Case("mbarrier", text, (_NOTHING,), 16 * len(steps), row_names=tuple(steps))


def cluster() -> Case:
    """Ranks, mapa, remote loads and stores, remote arrivals, st.async, bulk copies to a peer."""
    threads, size, words = 32, 4, 16
    body = f"""
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, %cluster_nctarank;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %clusterid.x;
    mad.lo.u32 %r5, %r3, {threads}, %r0;
    mad.wide.u32 %rd21, %r5, {4 * words}, %rd20;
    st.global.v4.b32 [%rd21], {{%r1, %r2, %r3, %r4}};
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r10, bar;
    mov.u32 %r11, cells;
    mad.lo.u32 %r12, %r0, 4, %r11;
    mad.wide.u32 %rd10, %r5, 4, %rd0;
    ld.global.b32 %r13, [%rd10];
    st.shared.b32 [%r12], %r13;
    st.shared.b32 [%r12+128], -1;
    st.shared.b32 [%r12+256], -1;
    st.shared.b32 [%r12+384], -1;
    @%p1 mbarrier.init.shared.b64 [%r10], 33;
    @%p1 fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;

    add.u32 %r14, %r1, 1;
    and.b32 %r14, %r14, {size - 1};
    mapa.shared::cluster.u32 %r15, %r12, %r14;
    mapa.shared::cluster.u32 %r16, %r10, %r14;
    getctarank.shared::cluster.u32 %r17, %r15;
    ld.shared::cluster.b32 %r18, [%r15];
    st.shared::cluster.b32 [%r15+128], %r13;
    cvt.u64.u32 %rd11, %r12;
    cvta.shared.u64 %rd11, %rd11;
    mapa.u64 %rd12, %rd11, %r14;
    ld.b32 %r19, [%rd12];
    atom.shared::cluster.add.u32 %r20, [%r15], 7;
    st.global.v4.b32 [%rd21+16], {{%r14, %r17, %r18, %r19}};
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r15+256], %r13, [%r16];
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r16];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {4 * threads + 128};
    @!%p1 bra wait;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r11+384], [%rd0], 128, [%r10];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    bar.warp.sync 0xffffffff;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ld.shared.b32 %r23, [%r12];
    ld.shared.b32 %r24, [%r12+128];
    ld.shared.b32 %r25, [%r12+256];
    ld.shared.b32 %r26, [%r12+384];
    st.global.v4.b32 [%rd21+32], {{%r23, %r24, %r25, %r26}};
    mov.u32 %r30, %cluster_ctaid.x;
    mov.u32 %r31, %cluster_nctaid.x;
    mov.u32 %r32, %nclusterid.x;
    mov.u32 %r33, %nctaid.x;
    st.global.v4.b32 [%rd21+48], {{%r30, %r31, %r32, %r33}};
"""
    grid = 2 * size
    data = Draw(8).integers(0, 1 << 32, grid * threads, np.uint32)
    text = module(body, shared=".shared .align 16 .b8 cells[512]; .shared .b64 bar;")
    return Case(
        "cluster", text, (data,), 4 * words * threads * grid, grid=grid, block=threads, cluster=size
    )


def bulk() -> Case:
    """Bulk copies in and out, to a peer, with reductions; a group that is waited for."""
    threads, size = 32, 2
    body = """
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r10, bar;
    mov.u32 %r11, cells;
    setp.eq.u32 %p1, %r0, 0;
    mul.wide.u32 %rd10, %r3, 1024;
    add.s64 %rd10, %rd10, %rd0;
    mul.wide.u32 %rd21, %r3, 4096;
    add.s64 %rd21, %rd21, %rd20;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r14, %r1, 1;
    mapa.shared::cluster.u32 %r15, %r11, %r14;
    mapa.shared::cluster.u32 %r16, %r10, %r14;
    @!%p1 bra wait;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd10], 1024, [%r10];
wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    bar.sync 0;
    @!%p1 bra wait1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 512;
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r15+1024], [%r11+256], 512, [%r16];
wait1:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 1;
    @!%p2 bra wait1;
    bar.sync 0;
    @!%p1 bra done;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd21], [%r11], 1536;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    cp.async.bulk.wait_group 0;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd21], [%r11+64], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%rd21+256], [%r11+64], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.xor.b64 [%rd21+512], [%r11+64], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u64 [%rd21+768], [%r11+64], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.u32 [%rd21+1024], [%r11+64], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    cp.async.bulk.global.shared::cta.bulk_group [%rd21+2048], [%r11+512], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd21+2048], [%r11], 512;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd21+2560], [%r11], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%rd21+2816], [%r11], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
done:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""
    random = Draw(9)
    data = random.integers(0, 1 << 32, 2 * 256, np.uint32)
    data[:] = (data & 0x8FFF_8FFF) | 0x3000_3000  # as floats of every width: finite
    text = module(body, shared=".shared .align 128 .b8 cells[2048]; .shared .b64 bar;")
    return Case("bulk", text, (data,), 2 * 4096, grid=2, block=threads, cluster=size)


def cases() -> list[Case]:
    return [phases(), cluster(), bulk()]
