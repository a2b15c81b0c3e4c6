"""mbarrier: phases, counts, transaction bytes, waits, and what is reported of misuse."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import BarrierError, Deadlock, Misaligned
from tests.emulator.conftest import Lanes, entry, every_order, launch

BARRIER = "    .shared .align 8 .b64 bar[4];\n    mov.u32 %r10, bar;\n"
ONE_INITS = """
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r10], {count};
    bar.sync 0;
"""
WAIT = """
wait{n}:
    mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], {parity};
    @!%p7 bra wait{n};
"""


def setup(count: int) -> str:
    return BARRIER + ONE_INITS.format(count=count)


def wait(parity: int, n: int = 0) -> str:
    return WAIT.format(parity=parity, n=n)


def run(body: str, **kwargs) -> None:
    launch(entry("mov.u32 %r0, %tid.x;\n" + body, params=""), **kwargs)


def fails(body: str, **kwargs) -> str:
    """The report of a misused barrier."""
    with pytest.raises(BarrierError) as caught:
        run(body, **kwargs)
    assert caught.value.site is not None
    return str(caught.value)


@every_order
def test_the_last_arrival_completes_the_phase(lanes: Lanes, order: str) -> None:
    body = setup(64) + "mbarrier.arrive.shared::cta.b64 _, [%r10];" + wait(0)
    body += "mov.u32 %r1, 5;"
    assert (lanes(body, threads=64, order=order) == 5).all()


@every_order
def test_two_warps_hand_a_value_to_and_fro(lanes: Lanes, order: str) -> None:
    """Warp 1 reads what warp 0 wrote behind the first phase, eight times in a row."""
    body = (
        setup(32)
        + """
        .shared .align 8 .b64 empty;
        .shared .b32 box;
        mov.u32 %r11, empty;
        @%p0 mbarrier.init.shared.b64 [%r11], 32;
        bar.sync 0;
        mov.u32 %r2, 0;
        mov.u32 %r1, 0;
        setp.lt.u32 %p1, %r0, 32;
    loop:
        and.b32 %r3, %r2, 1;
        xor.b32 %r4, %r3, 1;
        @%p1 bra produce;
    full:
        mbarrier.try_wait.parity.shared.b64 %p2, [%r10], %r3;
        @!%p2 bra full;
        ld.shared.u32 %r5, [box];
        add.u32 %r1, %r1, %r5;
        mbarrier.arrive.shared.b64 _, [%r11];
        bra next;
    produce:
        mbarrier.test_wait.parity.shared.b64 %p2, [%r11], %r4;
        @!%p2 bra produce;
        st.shared.u32 [box], %r2;
        mbarrier.arrive.shared.b64 _, [%r10];
    next:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p3, %r2, 8;
        @%p3 bra loop;
    """
    )
    result = lanes(body, threads=64, order=order)
    assert (result[:32] == 0).all()
    assert (result[32:] == 28).all()


def test_parity_of_the_phase_before_the_first_counts_as_complete(lanes: Lanes) -> None:
    body = setup(1) + "mbarrier.test_wait.parity.shared.b64 %p1, [%r10], 1;"
    body += "selp.u32 %r1, 1, 0, %p1;"
    assert (lanes(body) == 1).all()


def test_state_form_waits_for_its_own_phase(lanes: Lanes) -> None:
    body = setup(32) + "mbarrier.arrive.shared.b64 %rd2, [%r10];\nagain:\n"
    body += "mbarrier.try_wait.shared.b64 %p1, [%r10], %rd2, 1000;\n@!%p1 bra again;"
    body += "mbarrier.test_wait.shared.b64 %p1, [%r10], %rd2; selp.u32 %r1, 1, 0, %p1;"
    assert (lanes(body) == 1).all()


def test_pending_count_is_that_before_the_arrival(lanes: Lanes) -> None:
    body = setup(40) + "mbarrier.arrive.shared.b64 %rd2, [%r10];"
    body += "mbarrier.pending_count.b64 %r1, %rd2;"
    assert sorted(lanes(body)) == list(range(9, 41))


def test_arrivals_with_a_count(lanes: Lanes) -> None:
    body = setup(64) + "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r10], 2;" + wait(0)
    assert (lanes(body + "mov.u32 %r1, 1;") == 1).all()


def test_dropped_arrivals_are_not_expected_again(lanes: Lanes) -> None:
    body = setup(33) + "@%p0 mbarrier.arrive_drop.shared.b64 _, [%r10];"
    body += "mbarrier.arrive.shared.b64 _, [%r10];" + wait(0)
    body += "mbarrier.arrive.shared.b64 _, [%r10];" + wait(1, 1)
    assert (lanes(body + "mov.u32 %r1, 1;") == 1).all()


@every_order
def test_bytes_may_come_before_they_are_expected(lanes: Lanes, order: str) -> None:
    """The phase holds an arrival back until expect and complete agree, in either order."""
    body = (
        setup(1)
        + """
        setp.eq.u32 %p1, %r0, 32;
        @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 512;
        @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;
    """
        + wait(0)
    )
    body += "mov.u32 %r1, 1;"
    assert (lanes(body, threads=64, order=order) == 1).all()


def test_no_complete_must_not_complete() -> None:
    body = setup(1) + "@%p0 mbarrier.arrive.noComplete.shared.b64 %rd1, [%r10], 1;"
    assert "noComplete" in fails(body)


def test_use_before_init_is_reported() -> None:
    text = fails(BARRIER + "mbarrier.arrive.shared.b64 _, [%r10];")
    assert "mbarrier.init has not run" in text


def test_second_init_is_reported() -> None:
    text = fails(setup(1) + "@%p0 mbarrier.init.shared.b64 [%r10], 1;")
    assert "init over mbarrier" in text


def test_init_after_inval_is_right() -> None:
    run(
        setup(1) + "@%p0 mbarrier.inval.shared.b64 [%r10]; @%p0 mbarrier.init.shared.b64 [%r10], 2;"
    )


def test_store_over_a_barrier_is_reported() -> None:
    body = setup(1) + "@%p0 st.shared.u32 [%r10+4], 0; @%p0 mbarrier.arrive.shared.b64 _, [%r10];"
    assert "stored over" in fails(body)


def test_arrivals_beyond_the_count_are_reported() -> None:
    body = setup(2) + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 16;"
    body += "@%p0 mbarrier.arrive.shared.b64 _, [%r10]; @%p0 mbarrier.arrive.shared.b64 _, [%r10];"
    text = fails(body)
    assert "lacks 0 of 2 arrivals and 16 bytes" in text


def test_too_many_bytes_are_reported() -> None:
    body = setup(2) + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 1048575;"
    body += "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 1;"
    assert "transaction count" in fails(body)


def test_state_of_a_phase_long_past_is_reported() -> None:
    body = setup(32) + "mbarrier.arrive.shared.b64 %rd2, [%r10];"
    body += wait(0) + "mbarrier.arrive.shared.b64 _, [%r10];" + wait(1, 1)
    body += "mbarrier.test_wait.shared.b64 %p1, [%r10], %rd2;"
    assert "a state of phase 0" in fails(body)


def test_misaligned_barrier() -> None:
    with pytest.raises(Misaligned):
        run(BARRIER + "mbarrier.init.shared.b64 [%r10+4], 1;")


@every_order
def test_missing_arrival_is_a_deadlock_that_says_so(order: str) -> None:
    body = setup(33) + "mbarrier.arrive.shared.b64 _, [%r10];" + wait(0)
    with pytest.raises(Deadlock) as caught:
        run(body, order=order)
    text = str(caught.value)
    assert "phase 0 (parity 0) lacks 1 of 33 arrivals and 0 bytes" in text
    assert "mbarrier.try_wait" in text


@every_order
def test_missing_bytes_are_a_deadlock_that_says_so(order: str) -> None:
    body = setup(1) + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 4096;" + wait(0)
    with pytest.raises(Deadlock, match="lacks 0 of 1 arrivals and 4096 bytes"):
        run(body, order=order)


def test_bytes_that_nobody_expects_are_a_deadlock_that_says_so() -> None:
    body = setup(1) + "@%p0 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r10], 64;"
    body += "@%p0 mbarrier.arrive.shared.b64 _, [%r10];" + wait(0)
    with pytest.raises(Deadlock, match="an expect_tx for 64 bytes that have come"):
        run(body)


def test_wrong_parity_is_a_deadlock_that_says_so() -> None:
    body = setup(32) + "mbarrier.arrive.shared.b64 _, [%r10];" + wait(0) + wait(1, 1)
    with pytest.raises(Deadlock, match="for the phase of parity 1; phase 1 \\(parity 1\\) lacks"):
        run(body)


def test_loop_around_test_wait_ends_as_a_deadlock() -> None:
    body = setup(1) + "again: mbarrier.test_wait.parity.shared.b64 %p1, [%r10], 0;\n"
    with pytest.raises(Deadlock, match="lacks 1 of 1 arrivals"):
        run(body + "@!%p1 bra again;")


@every_order
def test_lanes_may_wait_for_barriers_of_their_own(lanes: Lanes, order: str) -> None:
    """Even lanes wait for one barrier, odd lanes for another that completes later."""
    body = (
        BARRIER
        + """
        and.b32 %r2, %r0, 1;
        shl.b32 %r3, %r2, 3;
        setp.lt.u32 %p0, %r0, 2;
        add.u32 %r10, %r10, %r3;
        @%p0 mbarrier.init.shared.b64 [%r10], 32;
        bar.sync 0;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra waits;
        mbarrier.arrive.shared.b64 _, [%r10];
        mbarrier.arrive.shared.b64 _, [%r10];
    waits:
    """
        + wait(0)
        + "mov.u32 %r1, 3;"
    )
    assert (lanes(body, threads=64, order=order) == 3).all()


@every_order
@pytest.mark.parametrize("instruction", ["try_wait", "test_wait"])
def test_lanes_that_wait_for_different_barriers_in_vain_are_a_deadlock(
    order: str, instruction: str
) -> None:
    body = (
        BARRIER
        + """
        and.b32 %r2, %r0, 3;
        mad.lo.u32 %r10, %r2, 8, %r10;
        setp.lt.u32 %p0, %r0, 4;
        @%p0 mbarrier.init.shared.b64 [%r10], 8;
        bar.sync 0;
        setp.ne.u32 %p1, %r0, 6;
        @%p1 mbarrier.arrive.shared.b64 _, [%r10];
    """
        + wait(0).replace("try_wait", instruction)
    )
    with pytest.raises(Deadlock, match="0x410 .* lacks 1 of 8 arrivals") as caught:
        run(body, order=order)
    assert "lanes 2,6,10,14,18,22,26,30 " in str(caught.value)


def test_arrival_of_no_lane_changes_nothing(lanes: Lanes) -> None:
    body = setup(1) + "setp.gt.u32 %p2, %r0, 99; @%p2 mbarrier.arrive.shared.b64 _, [%r10];"
    body += "mbarrier.test_wait.parity.shared.b64 %p1, [%r10], 0; selp.u32 %r1, 1, 0, %p1;"
    assert (lanes(body) == np.zeros(32)).all()


@every_order
def test_lanes_may_end_a_wait_of_other_lanes_of_their_warp(lanes: Lanes, order: str) -> None:
    """Those that arrive go on as they were, not as those that they have woken."""
    body = """
    .shared .align 8 .b64 own;
    mov.u32 %r1, 1;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [own], 16;
    bar.sync 0;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 bra arrive;
poll:
    mbarrier.try_wait.parity.shared.b64 %p2, [own], 0;
    @!%p2 bra poll;
    add.u32 %r1, %r1, 10;
    bra over;
arrive:
    mbarrier.arrive.shared.b64 _, [own];
    add.u32 %r1, %r1, 100;
over:
"""
    expected = np.where(np.arange(32) < 16, 101, 11)
    np.testing.assert_array_equal(lanes(body, order=order), expected)
