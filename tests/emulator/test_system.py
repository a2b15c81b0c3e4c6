"""Address spaces, hints, special registers."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device
from tests.emulator.conftest import HEADER, Lanes

SPACES = {
    "shared": "mov.u64 %rd5, cell; cvta.shared.u64 %rd5, %rd5;",
    "local": "mov.u64 %rd5, mine; cvta.local.u64 %rd5, %rd5;",
    "const": "mov.u64 %rd5, table; cvta.const.u64 %rd5, %rd5;",
    "global": "cvta.global.u64 %rd5, %rd0;",
    "param": "mov.u64 %rd5, out; cvta.param.u64 %rd5, %rd5;",
}


@pytest.mark.parametrize("space", SPACES)
def test_isspacep_knows_every_window(lanes: Lanes, space: str) -> None:
    body = f".shared .u32 cell; .local .u32 mine; mov.u32 %r1, 0; {SPACES[space]}\n"
    for bit, asked in enumerate(SPACES):
        body += f"isspacep.{asked} %p1, %rd5; selp.u32 %r2, {1 << bit}, 0, %p1;"
        body += "or.b32 %r1, %r1, %r2;"
    found = lanes(body, before=".const .u32 table[4] = {1, 2, 3, 4};")
    assert set(found.tolist()) == {1 << list(SPACES).index(space)}


@pytest.mark.parametrize("space", ["shared", "local", "global", "const"])
def test_cvta_there_and_back(lanes: Lanes, space: str) -> None:
    body = f"""
        .shared .u32 cell; .local .u32 mine; {SPACES[space]}
        cvta.to.{space}.u64 %rd6, %rd5; cvta.{space}.u64 %rd7, %rd6;
        setp.eq.u64 %p1, %rd7, %rd5; selp.u32 %r1, 1, 0, %p1;"""
    assert set(lanes(body, before=".const .u32 table[1] = {1};").tolist()) == {1}


def test_generic_access_reaches_shared_and_local(lanes: Lanes) -> None:
    body = f"""
        .shared .align 4 .b8 cell[128]; .local .u32 mine;
        {SPACES["local"]} st.u32 [%rd5], %r0; ld.local.u32 %r2, [mine];
        {SPACES["shared"]} mad.wide.u32 %rd5, %r0, 4, %rd5; st.u32 [%rd5], %r2;
        ld.volatile.u32 %r1, [%rd5];"""
    assert lanes(body).tolist() == list(range(32))


@pytest.mark.parametrize(
    "hint",
    [
        "prefetch.global.L2 [%rd0];",
        "prefetch.L1 [%rd0+64];",
        "prefetchu.L1 [%rd0];",
        "prefetch.global.L2::evict_last [%rd0];",
        "applypriority.global.L2::evict_normal [%rd0], 128;",
        "createpolicy.fractional.L2::evict_first.b64 %rd5, 0f3f800000;",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd5, 0f3f000000;",
        "nanosleep.u32 100;",
        "st.global.wt.u32 [%rd1], 1;",
        "st.global.L1::no_allocate.u32 [%rd1], 1;",
        "st.release.gpu.global.u32 [%rd1], 1; ld.acquire.gpu.global.u32 %r2, [%rd1];",
        "st.relaxed.sys.global.u32 [%rd1], 1; ld.relaxed.cluster.global.u32 %r2, [%rd1];",
        "st.volatile.global.u32 [%rd1], 1; ld.volatile.global.u32 %r2, [%rd1];",
        "st.global.u32 [%rd1], 1; ld.global.nc.L1::no_allocate.L2::128B.u32 %r2, [%rd1];",
        "st.global.u32 [%rd1], 1; ld.global.L1::evict_last.u32 %r2, [%rd1];",
        "st.global.u32 [%rd1], 1; ld.global.cg.u32 %r2, [%rd1];",
        "createpolicy.fractional.L2::evict_first.b64 %rd5, 0f3f800000;"
        "st.global.L2::cache_hint.u32 [%rd1], 1, %rd5;"
        "ld.global.L2::cache_hint.u32 %r2, [%rd1], %rd5;",
    ],
)
def test_hints_change_nothing(lanes: Lanes, hint: str) -> None:
    assert lanes(hint + "mov.u32 %r1, %r0;").tolist() == list(range(32))


def test_special_registers() -> None:
    names = [
        *("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y"),
        *("%nctaid.x", "%nctaid.y", "%laneid", "%warpid", "%nsmid", "%dynamic_smem_size"),
        *("%cluster_ctarank", "%cluster_nctarank", "%clusterid.x", "%nclusterid.x"),
        *("%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"),
    ]
    moves = "".join(
        f"mov.u32 %r2, {name}; st.global.u32 [%rd1+{4 * i}], %r2;" for i, name in enumerate(names)
    )
    text = f"""{HEADER}
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<8>; .reg .b64 %rd<4>;
    mov.u32 %r0, %ctaid.y; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %tid.z; mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
    mad.lo.u32 %r0, %r0, 40, %r1;
    ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, {4 * len(names)}, %rd0;
    {moves}
    ret;
}}"""
    dev = Device("sm_90", num_sms=3)
    out = dev.empty((4, 40, len(names)), np.uint32)
    dev.load_ptx(text).kernel("k").launch((2, 2, 1), (5, 4, 2), [out], smem=96)
    values = out.to_numpy()
    for cta in range(4):
        for thread in range(40):
            row = dict(zip(names, values[cta, thread].tolist(), strict=True))
            lane = thread % 32
            assert [row[f"%tid.{axis}"] for axis in "xyz"] == [
                thread % 5,
                thread // 5 % 4,
                thread // 20,
            ]
            assert [row[f"%ntid.{axis}"] for axis in "xyz"] == [5, 4, 2]
            assert (row["%ctaid.x"], row["%ctaid.y"]) == (cta % 2, cta // 2)
            assert (row["%nctaid.x"], row["%nctaid.y"], row["%nsmid"]) == (2, 2, 3)
            assert (row["%laneid"], row["%warpid"]) == (lane, thread // 32)
            assert row["%dynamic_smem_size"] == 96
            assert (row["%cluster_ctarank"], row["%cluster_nctarank"]) == (0, 1)
            assert row["%lanemask_eq"] == 1 << lane
            assert row["%lanemask_lt"] == (1 << lane) - 1
            assert row["%lanemask_le"] == (2 << lane) - 1
            assert row["%lanemask_gt"] == 0xFFFFFFFF - ((2 << lane) - 1)
            assert row["%lanemask_ge"] == 0xFFFFFFFF - ((1 << lane) - 1)


def test_sleeping_lets_the_other_warp_write(lanes: Lanes) -> None:
    body = """
        .shared .u32 flag;
        setp.ge.u32 %p1, %r0, 32;
        setp.eq.u32 %p2, %r0, 0;
        @%p2 st.shared.u32 [flag], 0;
        bar.sync 0;
        @%p1 bra W;
    L:  nanosleep.u32 20;
        ld.volatile.shared.u32 %r1, [flag];
        setp.eq.u32 %p3, %r1, 0;
        @%p3 bra L;
        bra E;
    W:  mov.u32 %r1, 5; setp.eq.u32 %p2, %r0, 32;
        @%p2 st.volatile.shared.u32 [flag], 5;
    E:
    """
    assert set(lanes(body, threads=64).tolist()) == {5}
