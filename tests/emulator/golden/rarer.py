"""Instructions that the other modules leave out: control flow, hints, proxies, 8-bit wgmma."""

from __future__ import annotations

import numpy as np

from nibblas.runtime.tensormap import TensorMapSpec
from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw
from tests.emulator.golden.lanewise import lane_case

_ROUND = ("rn", "rz", "rm", "rp")

INTEGER = [
    "mad24.hi.sat.s32 {d32}, {a32}, {b32}, {c32};",
    "lop3.or.b32 {d32}|%p1, {a32}, {b32}, {c32}, 0x96, {p};",
    "lop3.and.b32 %r2|{dp}, {a32}, {b32}, {c32}, 0x80, {p};",
    "isspacep.global {dp}, %rd0;",
    "isspacep.shared {dp}, %rd0;",
    "isspacep.local {dp}, %rd0;",
]
FLOAT = [
    *(f"mad.{mode}.f32 {{d32}}, {{a32}}, {{b32}}, {{c32}};" for mode in _ROUND),
    *(f"mad.{mode}.f64 {{d64}}, {{a64}}, {{b64}}, {{c64}};" for mode in _ROUND),
    *(f"sub.{mode}.f64 {{d64}}, {{a64}}, {{b64}};" for mode in _ROUND),
    *(f"rcp.{mode}.f64 {{d64}}, {{a64}};" for mode in _ROUND),
]
HALF = [
    f"setp.{relation}.f16x2 %p1|%p2, {{a32}}, {{b32}}; selp.b32 %r2, 1, 0, %p1; "
    "selp.b32 %r3, 2, 0, %p2; or.b32 {d32}, %r2, %r3;"
    for relation in ("eq", "lt", "geu", "nan")
]


def _words(seed: int, count: int) -> np.ndarray:
    return Draw(seed).integers(0, 1 << 32, count, np.uint32)


_LOAD_WORD = """
    mul.wide.u32 %rd10, %r0, 4;
    add.s64 %rd11, %rd10, %rd0;
    add.s64 %rd21, %rd10, %rd20;
    ld.global.b32 %r1, [%rd11];
"""


def control() -> Case:
    """A call of a function, a branch by table, lanes that leave early."""
    function = """
.func (.param .b32 result) mixed(.param .b32 a, .param .b64 b)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.b32 %r1, [a];
    ld.param.b64 %rd1, [b];
    cvt.u32.u64 %r2, %rd1;
    mad.lo.u32 %r3, %r1, %r2, 7;
    st.param.b32 [result], %r3;
    ret;
}
"""
    body = (
        _LOAD_WORD
        + """
    {
    .param .b32 first;
    .param .b64 second;
    .param .b32 back;
    st.param.b32 [first], %r1;
    st.param.b64 [second], %rd10;
    call (back), mixed, (first, second);
    ld.param.b32 %r2, [back];
    }
    st.global.b32 [%rd21], %r2;
    and.b32 %r3, %r1, 3;
    table: .branchtargets zero, one, two, three;
    brx.idx %r3, table;
zero:
    add.u32 %r4, %r1, 5;
    bra joined;
one:
    not.b32 %r4, %r1;
    bra joined;
two:
    shr.u32 %r4, %r1, 9;
    bra joined;
three:
    mul.lo.u32 %r4, %r1, %r1;
joined:
    st.global.b32 [%rd21+128], %r4;
    setp.gt.u32 %p1, %r0, 20;
    @%p1 exit;
    st.global.b32 [%rd21+256], %r4;
"""
    )
    return Case("control", module(body, prefix=function), (_words(1, 32),), 384)


def unaligned_barriers() -> Case:
    """barrier.sync and barrier.red of two warps; fences and membar in between."""
    body = (
        _LOAD_WORD
        + """
    mov.u32 %r10, cells;
    mad.lo.u32 %r11, %r0, 4, %r10;
    st.shared.b32 [%r11], %r1;
    membar.cta;
    membar.gl;
    fence.sc.gpu;
    fence.acq_rel.cta;
    barrier.sync 1, 64;
    xor.b32 %r12, %r0, 63;
    mad.lo.u32 %r13, %r12, 4, %r10;
    ld.shared.b32 %r2, [%r13];
    st.global.b32 [%rd21], %r2;
    setp.gt.u32 %p1, %r2, 0x60000000;
    barrier.red.popc.u32 %r3, 2, 64, %p1;
    barrier.red.and.pred %p2, 3, 64, %p1;
    barrier.red.or.pred %p3, 4, 64, %p1;
    selp.b32 %r4, 1, 0, %p2;
    selp.b32 %r5, 2, 0, %p3;
    mad.lo.u32 %r3, %r3, 4, %r4;
    add.u32 %r3, %r3, %r5;
    st.global.b32 [%rd21+256], %r3;
"""
    )
    text = module(body, shared=".shared .align 16 .b8 cells[256];")
    return Case("unaligned_barriers", text, (_words(2, 64),), 512, block=64)


def hints() -> Case:
    """What moves no data by itself, around a copy that does."""
    body = (
        _LOAD_WORD
        + """
    .reg .b64 %policy;
    prefetch.global.L1 [%rd11];
    prefetch.global.L2 [%rd11];
    prefetch.global.L2::evict_last [%rd11];
    prefetchu.L1 [%rd11];
    applypriority.global.L2::evict_normal [%rd0], 128;
    createpolicy.fractional.L2::evict_first.b64 %policy, 0.5;
    createpolicy.range.global.L2::evict_last.b64 %policy, [%rd0], 128, 128;
    nanosleep.u32 20;
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    cp.async.bulk.prefetch.L2.global [%rd0], 128;
    mov.u32 %r10, cells;
    mad.lo.u32 %r11, %r0, 4, %r10;
    cp.async.ca.shared.global [%r11], [%rd11], 4;
    cp.async.wait_all;
    ld.shared.b32 %r2, [%r11];
    add.u32 %r2, %r2, %r1;
    st.global.b32 [%rd21], %r2;
"""
    )
    text = module(body, shared=".shared .align 16 .b8 cells[128];")
    return Case("hints", text, (_words(3, 32),), 128)


def registers_moved() -> Case:
    """setmaxnreg down and up again by a warpgroup."""
    body = (
        _LOAD_WORD
        + """
    setmaxnreg.dec.sync.aligned.u32 64;
    add.u32 %r2, %r1, 3;
    setmaxnreg.inc.sync.aligned.u32 128;
    st.global.b32 [%rd21], %r2;
"""
    )
    text = module(body).replace(")\n{", ")\n    .reqntid 128, 1, 1 .maxnreg 128\n{", 1)
    return Case("registers_moved", text, (_words(4, 128),), 512, block=128)


def peers() -> Case:
    """red.async and a bulk reduction to the other CTA of a cluster; its unaligned barrier."""
    counted = "mbarrier::complete_tx::bytes"
    body = f"""
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r10, bar;
    mov.u32 %r11, cells;
    mul.wide.u32 %rd10, %r1, 1024;
    add.s64 %rd11, %rd10, %rd0;
    add.s64 %rd21, %rd10, %rd20;
    mul.wide.u32 %rd12, %r0, 32;
    add.s64 %rd11, %rd11, %rd12;
    add.s64 %rd21, %rd21, %rd12;
    mad.lo.u32 %r12, %r0, 32, %r11;
    ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd11];
    ld.global.v4.b32 {{%r24, %r25, %r26, %r27}}, [%rd11+16];
    st.shared.v4.b32 [%r12], {{%r20, %r21, %r22, %r23}};
    st.shared.v4.b32 [%r12+16], {{%r24, %r25, %r26, %r27}};
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    xor.b32 %r14, %r1, 1;
    mapa.shared::cluster.u32 %r15, %r11, %r14;
    mapa.shared::cluster.u32 %r16, %r10, %r14;
    mad.lo.u32 %r17, %r0, 4, %r15;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 512;
    red.async.relaxed.cluster.shared::cluster.{counted}.add.u32 [%r17], %r20, [%r16];
    red.async.relaxed.cluster.shared::cluster.{counted}.max.s32 [%r17+128], %r21, [%r16];
    @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.{counted}.add.u32
        [%r15+256], [%r11+512], 128, [%r16];
    @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.{counted}.xor.b32
        [%r15+384], [%r11+640], 128, [%r16];
wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r12];
    ld.shared.v4.b32 {{%r24, %r25, %r26, %r27}}, [%r12+16];
    st.global.v4.b32 [%rd21], {{%r20, %r21, %r22, %r23}};
    st.global.v4.b32 [%rd21+16], {{%r24, %r25, %r26, %r27}};
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    text = module(body, shared=".shared .align 128 .b8 cells[1024]; .shared .b64 bar;")
    return Case("peers", text, (_words(5, 512),), 2048, grid=2, cluster=2)


def changed_map() -> Case:
    """A map copied to shared memory, changed there, published and used; prefetches of both."""
    spec = TensorMapSpec("uint16", (64, 24), (128,), (32, 8), swizzle="64b")
    size = 512
    body = f"""
    mov.u32 %r10, bar;
    mov.u32 %r11, tile;
    mov.u32 %r12, draft;
    setp.eq.u32 %p1, %r0, 0;
    mov.b64 %rd11, map0;
    cvta.param.u64 %rd11, %rd11;
    mul.wide.u32 %rd12, %r0, 4;
    add.s64 %rd12, %rd12, %rd11;
    ld.b32 %r1, [%rd12];
    mad.lo.u32 %r2, %r0, 4, %r12;
    st.shared.b32 [%r2], %r1;
    bar.sync 0;
    add.s64 %rd13, %rd0, 256;
    mov.b64 %rd14, 256;
    @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r12], %rd13;
    @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r12], 1, 9;
    @%p1 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r12], 0, %rd14;
    @%p1 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r12], 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%rd1], [%r12], 128;
    fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
    mov.b32 %r20, 16;
    mov.b32 %r21, 3;
    @%p1 prefetch.tensormap [%rd11];
    @%p1 cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {{%r20, %r21}}];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {size};
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r11], [%rd1, {{%r20, %r21}}], [%r10];
wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    mad.lo.u32 %r3, %r0, 16, %r11;
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];
    mul.wide.u32 %rd15, %r0, 16;
    add.s64 %rd15, %rd15, %rd20;
    st.global.v4.b32 [%rd15], {{%r4, %r5, %r6, %r7}};
"""
    shared = (
        f".shared .align 128 .b8 tile[{size}]; .shared .align 128 .b8 draft[128]; .shared .b64 bar;"
    )
    inputs = (_words(6, 1024), np.zeros(32, np.uint32))
    text = module(body, maps=1, inputs=2, shared=shared)
    return Case("changed_map", text, inputs, size, maps=((spec, 0),))


def doubles() -> Case:
    """mma.sync of float64, m8n8k4, twice; operands near 1, so that sums round."""
    random = Draw(7)
    bits = random.integers(0, 1 << 52, (32, 4), np.uint64)
    exponents = random.integers(1017, 1030, (32, 4), np.uint64)
    signs = random.integers(0, 2, (32, 4), np.uint64)
    numbers = signs << np.uint64(63) | exponents << np.uint64(52) | bits
    body = """
    .reg .f64 %e<8>;
    mul.wide.u32 %rd10, %r0, 32;
    add.s64 %rd10, %rd10, %rd0;
    ld.global.v2.f64 {%e0, %e1}, [%rd10];
    ld.global.v2.f64 {%e2, %e3}, [%rd10+16];
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e4, %e5}, {%e0}, {%e1}, {%e2, %e3};
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e4, %e5}, {%e3}, {%e0}, {%e4, %e5};
    mul.wide.u32 %rd21, %r0, 16;
    add.s64 %rd21, %rd21, %rd20;
    st.global.v2.f64 [%rd21], {%e4, %e5};
"""
    return Case("doubles", module(body), (numbers,), 512)


def integers() -> Case:
    """wgmma of 8-bit integers, m64n8k32, every pair of signs, sums that wrap and that stop."""
    forms = [f"{a}.{b}" for a in ("s8", "u8") for b in ("s8", "u8")]
    forms += [f"satfinite.{form}" for form in forms]
    body = """
    mov.u32 %r10, a_tile;
    mov.u32 %r11, b_tile;
    mul.wide.u32 %rd10, %r0, 16;
    add.s64 %rd11, %rd10, %rd0;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd11];
    mad.lo.u32 %r3, %r0, 16, %r10;
    st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};
    setp.lt.u32 %p1, %r0, 16;
    mad.lo.u32 %r3, %r0, 16, %r11;
    @%p1 st.shared.v4.b32 [%r3], {%r7, %r4, %r6, %r5};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r20, %r10, 4;
    and.b32 %r20, %r20, 0x3fff;
    cvt.u64.u32 %rd30, %r20;
    shr.u32 %r20, %r11, 4;
    and.b32 %r20, %r20, 0x3fff;
    cvt.u64.u32 %rd31, %r20;
"""
    high_a, high_b = (8 << 32 | lead >> 4 << 16 for lead in (1024, 128))
    body += f"    or.b64 %rd30, %rd30, {high_a:#x};\n    or.b64 %rd31, %rd31, {high_b:#x};\n"
    body += "    add.s64 %rd12, %rd10, %rd1;\n    add.s64 %rd21, %rd10, %rd20;\n"
    body += "    setp.eq.u32 %p3, 0, 0;\n"
    for i, form in enumerate(forms):
        stops, types = ".satfinite" if "sat" in form else "", form.replace("satfinite.", "")
        body += f"""
    ld.global.v4.b32 {{%r30, %r31, %r32, %r33}}, [%rd12];
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k32{stops}.s32.{types}
        {{%r30, %r31, %r32, %r33}}, %rd30, %rd31, %p3;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.v4.b32 [%rd21+{2048 * i}], {{%r30, %r31, %r32, %r33}};
"""
    shared = ".shared .align 1024 .b8 a_tile[2048]; .shared .align 1024 .b8 b_tile[256];"
    sums = _words(9, 512)
    sums[::2] = sums[::2] & 0x8000_FFFF | 0x7FFF_0000 * (1 - (sums[::2] >> 31))
    text = module(body, inputs=2, shared=shared)
    names = tuple(forms)
    return Case("integers", text, (_words(8, 512), sums), 2048 * 8, block=128, row_names=names)


def cases() -> list[Case]:
    return [
        lane_case("rarer_integer", "int", INTEGER),
        lane_case("rarer_float", "float", FLOAT),
        lane_case("rarer_half", "half", HALF),
        control(),
        unaligned_barriers(),
        hints(),
        registers_moved(),
        doubles(),
        integers(),
        changed_map(),
        peers(),
    ]
