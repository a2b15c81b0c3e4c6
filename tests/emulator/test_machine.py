"""Warps, divergence, barriers, deadlocks, the watchdog: what runs when, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import BarrierError, Deadlock, Device, IllegalOperation, NoProgress
from tests.emulator.conftest import OUT, Lanes, entry, every_order, launch

THREAD = np.arange(32, dtype=np.uint32)


def test_lanes_of_both_sides_of_a_branch_reconverge(lanes: Lanes) -> None:
    body = """
        and.b32 %r2, %r0, 1;
        setp.eq.s32 %p1, %r2, 0;
        @%p1 bra even;
        add.s32 %r1, %r0, 100;
        bra.uni join;
    even:
        add.s32 %r1, %r0, 200;
    join:
        add.s32 %r1, %r1, 1;
    """
    assert (lanes(body) == np.where(THREAD % 2, 101, 201) + THREAD).all()


def test_loop_with_a_different_trip_count_in_every_lane(lanes: Lanes) -> None:
    body = """
        mov.u32 %r1, 0;
        mov.u32 %r2, 0;
    loop:
        setp.ge.u32 %p1, %r2, %r0;
        @%p1 bra done;
        add.s32 %r1, %r1, %r2;
        add.s32 %r2, %r2, 1;
        bra loop;
    done:
    """
    assert (lanes(body) == THREAD * (THREAD - 1) // 2).all()


def test_lanes_that_return_early_write_nothing_more() -> None:
    dev = Device()
    out = dev.empty(32, np.uint32)
    body = OUT + "setp.lt.u32 %p1, %r0, 5; @%p1 ret; st.global.u32 [%rd1], %r0;"
    dev.load_ptx(entry(body)).kernel("k").launch(1, 32, [out])
    assert (out.written().reshape(32, 4).all(axis=1) == (THREAD >= 5)).all()
    assert (out.to_numpy()[5:] == THREAD[5:]).all()


def test_guarded_instruction_changes_only_its_lanes(lanes: Lanes) -> None:
    body = (
        "mov.u32 %r1, 7; setp.lt.u32 %p1, %r0, 9; @%p1 mov.u32 %r1, 1; @!%p1 add.s32 %r1, %r1, 1;"
    )
    assert (lanes(body) == np.where(THREAD < 9, 1, 8)).all()


def test_branch_table(lanes: Lanes) -> None:
    body = """
        and.b32 %r2, %r0, 3;
        table: .branchtargets a, b, a, c;
        brx.idx %r2, table;
    a:  mov.u32 %r1, 10; bra done;
    b:  mov.u32 %r1, 11; bra done;
    c:  mov.u32 %r1, 12;
    done:
    """
    assert (lanes(body) == np.array([10, 11, 10, 12])[THREAD % 4]).all()


def test_branch_table_index_out_of_range() -> None:
    body = "mov.u32 %r2, 2; t: .branchtargets a, b; brx.idx %r2, t; a: b:"
    with pytest.raises(IllegalOperation, match="index 2 into a table of 2"):
        launch(entry(body, params=""))


def test_a_lane_that_spins_does_not_keep_the_others_from_freeing_it(lanes: Lanes) -> None:
    """Lane 0 waits in a loop for a value that lane 1 stores after the branch: sm_70 progress."""
    body = """
        mov.u64 %rd5, cell;
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra others;
    spin:
        ld.volatile.shared.u32 %r1, [%rd5];
        setp.eq.u32 %p2, %r1, 0;
        @%p2 bra spin;
        bra done;
    others:
        mov.u32 %r1, 5;
        st.volatile.shared.u32 [%rd5], %r1;
    done:
    """
    zeroed = "mov.u64 %rd4, cell; mov.u32 %r9, 0; st.shared.u32 [%rd4], %r9;"
    assert (lanes(zeroed + body, before=".shared .u32 cell;") == 5).all()


@every_order
@pytest.mark.parametrize("seed", range(3))
def test_barrier_makes_stores_of_other_warps_visible(lanes: Lanes, order: str, seed: int) -> None:
    body = """
        mov.u64 %rd5, cells;
        add.s64 %rd6, %rd5, 508;
        mul.wide.u32 %rd7, %r0, 4;
        add.s64 %rd5, %rd5, %rd7;
        sub.s64 %rd6, %rd6, %rd7;
        st.shared.u32 [%rd5], %r0;
        bar.sync 0;
        ld.shared.u32 %r1, [%rd6];
    """
    found = lanes(body, threads=128, before=".shared .u32 cells[128];", order=order, seed=seed)
    assert (found == 127 - np.arange(128)).all()


def test_a_missing_barrier_is_an_uninitialised_read_under_some_order(lanes: Lanes) -> None:
    from nibblas.emulator import UninitialisedRead

    body = """
        mov.u64 %rd5, cells;
        mul.wide.u32 %rd7, %r0, 4;
        add.s64 %rd6, %rd5, 508;
        add.s64 %rd5, %rd5, %rd7;
        sub.s64 %rd6, %rd6, %rd7;
        st.shared.u32 [%rd5], %r0;
        ld.shared.u32 %r1, [%rd6];
    """
    with pytest.raises(UninitialisedRead, match="never written"):
        lanes(body, threads=128, before=".shared .u32 cells[128];")


@every_order
def test_named_barrier_between_a_producer_and_a_consumer(lanes: Lanes, order: str) -> None:
    body = """
        mov.u64 %rd5, cell;
        mov.u32 %r1, 3;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra producer;
        bar.sync 1, 64;
        ld.shared.u32 %r1, [%rd5];
        bra done;
    producer:
        st.shared.u32 [%rd5], %r1;
        bar.arrive 1, 64;
    done:
    """
    assert (lanes(body, threads=64, before=".shared .u32 cell;", order=order) == 3).all()


def test_warps_that_have_exited_are_not_waited_for(lanes: Lanes) -> None:
    body = """
        setp.ge.u32 %p1, %r0, 32;
        mov.u32 %r1, 1;
        @%p1 st.global.u32 [%rd1], %r1;
        @%p1 exit;
        bar.sync 0;
    """
    assert (lanes(body, threads=128) == 1).all()


def test_deadlock_says_who_waits_for_what() -> None:
    body = """
        mov.u32 %r0, %tid.x;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra first;
        bar.sync 1, 64;
        bra done;
    first:
        bar.sync 2, 64;
    done:
    """
    with pytest.raises(Deadlock) as caught:
        launch(entry(body, params=""), threads=64)
    text = str(caught.value)
    assert "barrier 1: 32 of 64 threads have arrived" in text
    assert "barrier 2: 32 of 64 threads have arrived" in text
    assert "warp 0" in text
    assert "warp 1" in text


def test_barrier_that_half_a_warp_never_reaches_is_a_deadlock() -> None:
    body = """
        mov.u32 %r0, %tid.x;
        setp.lt.u32 %p1, %r0, 16;
        @%p1 bra half;
        bar.sync 0;
        bra done;
    half:
        barrier.sync 1, 64;
    done:
    """
    with pytest.raises(Deadlock, match="for lanes among 0x0000ffff"):
        launch(entry(body, params=""))


def test_two_thread_counts_in_one_phase_are_refused() -> None:
    body = """
        mov.u32 %r0, %tid.x;
        and.b32 %r1, %r0, 32;
        add.s32 %r1, %r1, 64;
        bar.sync 3, %r1;
    """
    with pytest.raises(BarrierError, match="expects 64 threads in this phase"):
        launch(entry(body, params=""), threads=64)


def test_endless_loop_meets_the_watchdog() -> None:
    with pytest.raises(NoProgress, match="max_instructions is 10000"):
        launch(entry("l: bra l;", params=""), max_instructions=10_000)


def test_a_fault_names_kernel_cta_warp_lanes_and_lines() -> None:
    body = """
        .loc 1 17 3
        mov.u32 %r0, %tid.x;
        setp.eq.u32 %p1, %r0, 37;
        @%p1 trap;
    """
    text = entry(body, params="", before='.file 1 "a.cu"')
    with pytest.raises(IllegalOperation) as caught:
        launch(text, threads=64)
    site = caught.value.site
    assert site is not None
    assert (site.kernel, site.cta, site.warp, site.lanes) == ("k", (0, 0, 0), 1, 1 << 5)
    assert site.source == "a.cu:17"
    assert site.ptx_line == text[: text.index("@%p1 trap")].count("\n") + 1
    assert "k CTA (0, 0, 0) warp 1 lanes 5" in str(caught.value)


def test_breakpoint_is_a_fault_where_it_is_executed() -> None:
    body = "mov.u32 %r0, %tid.x; setp.eq.u32 %p1, %r0, {}; @%p1 brkpt;"
    launch(entry(body.format(64), params=""), threads=64)
    with pytest.raises(IllegalOperation, match="executed brkpt"):
        launch(entry(body.format(37), params=""), threads=64)


CLOCKS = "bar.sync 0; mov.u32 %r1, %clock;"


@every_order
def test_same_order_and_seed_same_run(lanes: Lanes, order: str) -> None:
    runs = [lanes(CLOCKS, threads=256, order=order, seed=5).tolist() for _ in range(2)]
    assert runs[0] == runs[1]


def test_seeds_give_different_runs(lanes: Lanes) -> None:
    runs = {tuple(lanes(CLOCKS, threads=256, order="random", seed=s).tolist()) for s in range(4)}
    assert len(runs) == 4


def test_a_starved_warp_runs_last(lanes: Lanes) -> None:
    clocks = lanes("mov.u32 %r1, %clock;", threads=128, order="adversarial-starve", seed=2)
    assert clocks.reshape(4, 32)[:, 0].argmax() == 2
