"""Clusters: barrier, remote memory and barriers, CTAs that leave too early; register pools."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    BarrierError,
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    OutOfBounds,
    UnfinishedWork,
    UnsupportedInstruction,
)
from tests.emulator.conftest import entry, every_order

BEGIN = """
    .shared .align 16 .b32 box[64];
    .shared .align 8 .b64 full;
    mov.u32 %r0, %tid.x;
    mov.u32 %r20, %cluster_ctarank;
    mov.u32 %r21, %ctaid.x;
    mov.u32 %r19, %cluster_nctarank;
    ld.param.u64 %rd0, [out];
    mad.lo.u32 %r22, %r21, 64, %r0;
    mul.wide.u32 %rd1, %r22, 4;
    add.s64 %rd1, %rd0, %rd1;
    mov.u32 %r10, box;
    mad.lo.u32 %r12, %r0, 4, %r10;
    mov.u32 %r11, full;
    setp.eq.u32 %p0, %r0, 0;
    add.u32 %r23, %r20, 1;
    rem.u32 %r23, %r23, %r19;
"""
ARRIVE = "    barrier.cluster.arrive.release.aligned;\n"
WAIT = "    barrier.cluster.wait.acquire.aligned;\n"
SYNC = ARRIVE + WAIT
STORE = "    st.global.u32 [%rd1], %r1;\n"
INIT = """
    @%p0 mbarrier.init.shared::cta.b64 [%r11], {count};
    fence.mbarrier_init.release.cluster;
"""
LOCAL_WAIT = """
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r11], 0;
    @!%p1 bra wait;
"""


def run(body: str, *, cluster: int = 4, grid: int = 8, order: str = "round_robin", **device):
    """Results [CTA, thread]."""
    dev = Device("sm_90", order=order, **device)
    out = dev.empty((grid, 64), np.uint32, name="out")
    kernel = dev.load_ptx(entry(BEGIN + body)).kernel("k")
    kernel.launch(grid, 64, [out], cluster=(cluster, 1, 1))
    return out.to_numpy()


THREADS = np.arange(64)
CTAS = np.arange(8)[:, None]


@every_order
@pytest.mark.parametrize("space", ["shared::cluster", "generic"])
def test_remote_loads_see_the_next_cta(order: str, space: str) -> None:
    body = "mad.lo.u32 %r4, %r21, 1000, %r0; st.shared.u32 [%r12], %r4;" + SYNC
    if space == "generic":
        body += "cvt.u64.u32 %rd3, %r12; cvta.shared.u64 %rd3, %rd3;"
        body += "mapa.u64 %rd3, %rd3, %r23; ld.u32 %r1, [%rd3];"
    else:
        body += "mapa.shared::cluster.u32 %r13, %r12, %r23;"
        body += "ld.shared::cluster.u32 %r1, [%r13];"
    found = run(body + STORE + SYNC, order=order)
    assert (found == (CTAS // 4 * 4 + (CTAS + 1) % 4) * 1000 + THREADS).all()


@every_order
def test_remote_stores_reach_the_next_cta(order: str) -> None:
    body = SYNC + "mapa.shared::cluster.u32 %r13, %r12, %r23; mad.lo.u32 %r4, %r20, 100, %r0;"
    body += "st.shared::cluster.u32 [%r13], %r4;" + SYNC + "ld.shared.u32 %r1, [%r12];" + STORE
    assert (run(body, order=order) == (CTAS + 3) % 4 * 100 + THREADS).all()


def test_rank_of_an_address() -> None:
    body = "mapa.shared::cluster.u32 %r13, %r12, %r23;"
    body += "getctarank.shared::cluster.u32 %r1, %r13;" + STORE
    assert (run(body) == (CTAS + 1) % 4).all()


@every_order
def test_special_registers(order: str) -> None:
    body = """
        mov.u32 %r1, %clusterid.x;
        mov.u32 %r2, %cluster_ctaid.x;
        mad.lo.u32 %r1, %r1, 10, %r2;
        mov.u32 %r2, %nclusterid.x;
        mad.lo.u32 %r1, %r1, 10, %r2;
        mad.lo.u32 %r1, %r1, 10, %r19;
    """
    assert (run(body + STORE, order=order) == CTAS // 4 * 1000 + CTAS % 4 * 100 + 24).all()


@every_order
def test_remote_arrivals_count(order: str) -> None:
    """All 64 threads of every CTA arrive at the next one's barrier; both forms of address."""
    body = INIT.format(count=64) + SYNC + "mapa.shared::cluster.u32 %r13, %r11, %r23;"
    body += "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13];"
    body += LOCAL_WAIT + "mov.u32 %r1, 9;" + STORE + SYNC
    assert (run(body, order=order) == 9).all()


def test_scope_and_order_stand_either_way() -> None:
    """The manual's examples of clusterlaunchcontrol have the scope first."""
    body = INIT.format(count=64) + SYNC + "mapa.shared::cluster.u32 %r13, %r11, %r23;"
    body += "mbarrier.arrive.cluster.release.shared::cluster.b64 _, [%r13];"
    body += LOCAL_WAIT.replace("acquire.cluster", "cluster.acquire") + "mov.u32 %r1, 9;" + STORE
    assert (run(body + SYNC) == 9).all()


def test_address_with_bit_24_cleared_names_the_even_cta() -> None:
    """Both CTAs of a pair arrive at the even one's barrier."""
    body = INIT.format(count=128) + SYNC + "and.b32 %r13, %r11, 0xFEFFFFFF;"
    body += "mbarrier.arrive.shared::cluster.b64 _, [%r13];"
    body += "and.b32 %r14, %r20, 1; setp.eq.u32 %p2, %r14, 1; @%p2 bra skip;"
    body += LOCAL_WAIT + "skip: mov.u32 %r1, 9;" + STORE + SYNC
    assert (run(body) == 9).all()


def test_arrival_at_the_wrong_cta_is_a_deadlock() -> None:
    body = (
        INIT.format(count=64) + SYNC + "mov.u32 %r23, 2; mapa.shared::cluster.u32 %r13, %r11, %r23;"
    )
    body += "setp.eq.u32 %p3, %r20, 1; @!%p3 mbarrier.arrive.shared::cluster.b64 _, [%r13];"
    body += LOCAL_WAIT + SYNC
    with pytest.raises((Deadlock, BarrierError)):
        run(body)


@every_order
def test_remote_arrival_at_a_cta_that_has_left_is_reported(order: str) -> None:
    """Odd CTAs leave after their own work; even ones arrive at them later."""
    body = INIT.format(count=64) + SYNC + "mapa.shared::cluster.u32 %r13, %r11, %r23;"
    body += "and.b32 %r14, %r20, 1; setp.eq.u32 %p2, %r14, 1; @%p2 ret;"
    body += "mov.u32 %r15, 0;\nspin: add.u32 %r15, %r15, 1; setp.lt.u32 %p3, %r15, 20000;"
    body += "@%p3 bra spin; mbarrier.arrive.shared::cluster.b64 _, [%r13];"
    with pytest.raises((OutOfBounds, UnfinishedWork), match="has exited|arrivals from other CTAs"):
        run(body, order=order)


@every_order
def test_split_arrive_and_wait(order: str) -> None:
    body = ARRIVE + "mov.u32 %r1, 3;" + WAIT + STORE
    assert (run(body, order=order) == 3).all()


@every_order
def test_unaligned_barrier_of_diverged_lanes(order: str) -> None:
    body = """
        setp.lt.u32 %p2, %r0, 13;
        @%p2 bra few;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        bra join;
    few:
        barrier.cluster.arrive.relaxed;
        barrier.cluster.wait;
    join:
        mov.u32 %r1, 4;
    """
    assert (run(body + STORE, order=order) == 4).all()


def test_threads_that_have_exited_are_not_waited_for() -> None:
    body = "mov.u32 %r1, 4;" + STORE + "setp.ge.u32 %p2, %r0, 32; @%p2 ret;" + SYNC
    assert (run(body) == 4).all()


def test_second_arrival_without_a_wait_is_reported() -> None:
    with pytest.raises(BarrierError, match="again"):
        run(ARRIVE + ARRIVE + WAIT)


def test_wait_without_an_arrival_is_reported() -> None:
    with pytest.raises(BarrierError, match="no barrier.cluster.arrive"):
        run(WAIT)


def test_warp_that_never_arrives_is_a_deadlock_that_counts() -> None:
    body = "setp.ge.u32 %p2, %r0, 32; @%p2 bra stuck;" + SYNC + "ret;\nstuck: bar.sync 1, 64;"
    with pytest.raises(Deadlock, match="128 threads of the cluster have not arrived"):
        run(body)


def test_rank_beyond_the_cluster_is_reported() -> None:
    with pytest.raises(IllegalOperation, match="CTA 4 of a cluster of 4"):
        run("mov.u32 %r23, 4; mapa.shared::cluster.u32 %r13, %r11, %r23;")


def test_own_space_does_not_reach_a_peer() -> None:
    with pytest.raises(OutOfBounds):
        run("mapa.shared::cluster.u32 %r13, %r12, %r23; ld.shared.u32 %r1, [%r13];")


ASYNC_STORE = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
    mapa.shared::cluster.u32 %r13, %r12, %r23;
    mapa.shared::cluster.u32 %r14, %r11, %r23;
    mad.lo.u32 %r4, %r20, 100, %r0;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r13], %r4, [%r14];
"""


@every_order
def test_asynchronous_stores_count_on_the_peers_barrier(order: str) -> None:
    body = INIT.format(count=1) + SYNC + ASYNC_STORE + LOCAL_WAIT
    body += "ld.shared.u32 %r1, [%r12];" + STORE + SYNC
    assert (run(body, order=order) == (CTAS + 3) % 4 * 100 + THREADS).all()


@every_order
def test_asynchronous_stores_never_waited_for(order: str) -> None:
    with pytest.raises(UnfinishedWork, match=r"st\.async"):
        run(INIT.format(count=1) + SYNC + ASYNC_STORE + SYNC, order=order)


@every_order
def test_asynchronous_reduction(order: str) -> None:
    """Four CTAs add into the first one's words."""
    body = (
        INIT.format(count=1)
        + "mov.u32 %r4, 5; st.shared.u32 [%r12], %r4;"
        + SYNC
        + """
        setp.eq.u32 %p4, %r20, 0;
        and.pred %p4, %p4, %p0;
        @%p4 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 1024;
        mov.u32 %r23, 0;
        mapa.shared::cluster.u32 %r13, %r12, %r23;
        mapa.shared::cluster.u32 %r14, %r11, %r23;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32
            [%r13], %r0, [%r14];
        setp.ne.u32 %p5, %r20, 0;
        mov.u32 %r1, 0;
        @%p5 bra rest;
    """
        + LOCAL_WAIT
        + "ld.shared.u32 %r1, [%r12];\nrest:\n"
        + STORE
        + SYNC
    )
    assert (run(body, order=order) == np.where(CTAS % 4 == 0, 5 + 4 * THREADS, 0)).all()


def test_grid_dependencies_are_counted() -> None:
    dev = Device()
    text = entry("griddepcontrol.wait; griddepcontrol.launch_dependents;", params="")
    report = dev.load_ptx(text).kernel("k").launch(1, 64)
    assert report.events["griddepcontrol.wait"] == 2


def registers(body: str, *, threads: int = 384, order: str = "round_robin") -> None:
    text = entry("mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 128;" + body, params="")
    Device("sm_90", order=order).load_ptx(text).kernel("k").launch(1, threads)


GIVE = "@%p0 bra producer; setmaxnreg.inc.sync.aligned.u32 {inc}; ret;\nproducer:\n"


@every_order
def test_registers_move_from_the_producer_to_the_consumers(order: str) -> None:
    """384 threads have 168 each: 128 of them give 128 each, 256 take 64 each."""
    registers(GIVE.format(inc=232) + "setmaxnreg.dec.sync.aligned.u32 40;", order=order)


@every_order
def test_registers_that_nobody_gives_are_a_deadlock(order: str) -> None:
    with pytest.raises(Deadlock, match="setmaxnreg.inc to 240 from 168"):
        registers(GIVE.format(inc=240) + "setmaxnreg.dec.sync.aligned.u32 40;", order=order)


@pytest.mark.parametrize(
    ("instruction", "error"),
    [
        ("setmaxnreg.dec.sync.aligned.u32 240;", IllegalOperation),
        ("setmaxnreg.inc.sync.aligned.u32 40;", IllegalOperation),
        ("setmaxnreg.dec.sync.aligned.u32 44;", UnsupportedInstruction),
    ],
)
def test_misused_setmaxnreg(instruction: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        registers(instruction)


EARLY = "    mov.u32 %r1, 7;\n" + STORE
WAIT_GRID = "    griddepcontrol.wait;\n"


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("body", [WAIT_GRID + EARLY, EARLY + WAIT_GRID])
def test_writes_before_the_grid_dependency_are_reported(body: str, programmatic: bool) -> None:
    dev = Device()
    out = dev.empty((1, 64), np.uint32)
    kernel = dev.load_ptx(entry(BEGIN + body)).kernel("k")
    if programmatic and body.startswith("    mov"):
        with pytest.raises(DataRace, match="before griddepcontrol.wait"):
            kernel.launch(1, 64, [out], programmatic=True)
    else:
        kernel.launch(1, 64, [out], programmatic=programmatic)
        assert (out.to_numpy() == 7).all()


TO_NEXT = """
    mapa.shared::cluster.u32 %r13, %r11, %r23;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13];
"""


@every_order
def test_leaving_without_a_wait_for_remote_arrivals_is_reported(order: str) -> None:
    """Whether or not they come before the exit: nothing says that they must."""
    with pytest.raises((UnfinishedWork, OutOfBounds), match="CTA"):
        run(INIT.format(count=64) + SYNC + TO_NEXT, order=order)


def test_arrivals_that_come_first_by_chance_are_reported() -> None:
    """Everyone has arrived at everyone before any CTA exits, by way of global memory."""
    body = INIT.format(count=64) + SYNC + TO_NEXT
    body += """
        atom.global.add.u32 %r2, [%rd0], 1;
    look:
        ld.volatile.global.u32 %r2, [%rd0];
        setp.lt.u32 %p4, %r2, 512;
        @%p4 bra look;
    """
    dev = Device("sm_90")
    out = dev.from_numpy(np.zeros(512, np.uint32))
    kernel = dev.load_ptx(entry(BEGIN + body)).kernel("k")
    with pytest.raises(UnfinishedWork, match="arrivals from other CTAs.*\n  mbarrier.arrive, iss"):
        kernel.launch(8, 64, [out], cluster=(4, 1, 1))


@every_order
def test_a_wait_for_the_last_of_several_arrivals_is_enough(order: str) -> None:
    """Each CTA arrives 64 times before the arrivals that the other waits for."""
    body = ".shared .align 8 .b64 other; mov.u32 %r24, other;"
    body += "@%p0 mbarrier.init.shared::cta.b64 [%r24], 64;" + INIT.format(count=64) + SYNC
    body += "mapa.shared::cluster.u32 %r25, %r24, %r23;"
    body += "mbarrier.arrive.shared::cluster.b64 _, [%r25]; bar.sync 0;" + TO_NEXT
    body += LOCAL_WAIT + "mov.u32 %r1, 9;" + STORE
    assert (run(body, order=order) == 9).all()


def test_a_cluster_barrier_orders_what_came_before_it_only() -> None:
    late = INIT.format(count=64) + SYNC + ARRIVE + TO_NEXT + WAIT
    with pytest.raises((UnfinishedWork, OutOfBounds)):
        run(late)
    assert (run(late + SYNC + "mov.u32 %r1, 9;" + STORE) == 9).all()


@every_order
def test_the_odd_cta_arms_the_even_one_s_barrier(order: str) -> None:
    """Bytes expected and completed through an address with bit 24 cleared, then an arrival."""
    body = INIT.format(count=2) + SYNC + "and.b32 %r13, %r11, 0xFEFFFFFF; @!%p0 bra rest;"
    body += "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r13], 64;"
    body += "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r13], 16;"
    body += "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r13], 80;"
    body += "rest: and.b32 %r14, %r20, 1; setp.eq.u32 %p2, %r14, 1; @%p2 bra skip;"
    body += LOCAL_WAIT + "skip: mov.u32 %r1, 9;" + STORE
    assert (run(body, order=order) == 9).all()


@pytest.mark.parametrize(
    "instruction",
    [
        "mbarrier.try_wait.parity.b64 %p1, [%rd3], 0;",
        "mbarrier.test_wait.parity.b64 %p1, [%rd3], 0;",
        "@%p0 mbarrier.init.b64 [%rd3], 1;",
        "@%p0 mbarrier.inval.b64 [%rd3];",
        "cp.async.mbarrier.arrive.b64 [%rd3];",
    ],
)
def test_some_uses_are_for_the_ctas_own_barriers(instruction: str) -> None:
    body = INIT.format(count=64) + SYNC + "cvt.u64.u32 %rd3, %r11; cvta.shared.u64 %rd3, %rd3;"
    with pytest.raises(IllegalOperation, match="want the CTA's own shared memory"):
        run(body + "mapa.u64 %rd3, %rd3, %r23;" + instruction + SYNC)
