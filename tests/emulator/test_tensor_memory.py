"""Allocation of tensor memory, and loads and stores that come too early, too late or unordered."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    OutOfBounds,
    UnfinishedWork,
    UninitialisedRead,
)
from tests.emulator.conftest import every_order
from tests.emulator.tensor_kernels import (
    fill_cells,
    load_cells,
    run,
    store_registers,
    tensor_kernel,
)

every_rule = pytest.mark.parametrize("rules", ["ptx", "hardware"])
ALLOC = "    @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {};\n"
DEALLOC = "    @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};\n"
RELINQUISH = "    @%first tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
BASE = "    mov.b32 %v0, %base;\n" + store_registers(1)


def bases(columns: int, seeds: int = 40, **device: Any) -> set[int]:
    text = tensor_kernel(BASE, columns=columns)
    return {int(run(text, seed=seed, **device)[0, 0]) for seed in range(seeds)}


def test_an_allocation_does_not_begin_at_column_0_if_it_need_not() -> None:
    assert bases(512, seeds=4) == {0}
    assert bases(256) == {256}
    assert bases(128) == {128, 256, 384}
    assert bases(32) == set(range(32, 512, 32))


def test_devices_hand_out_the_first_columns() -> None:
    for columns in (32, 128, 512):
        assert bases(columns, seeds=4, rules="hardware") == {0}


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_the_number_of_columns_is_a_power_of_two_from_32_to_512(columns: int) -> None:
    with pytest.raises(IllegalOperation, match="want a power of two from 32 to 512"):
        run(tensor_kernel("", columns=columns))


@every_order
def test_several_allocations_have_columns_of_their_own(order: str) -> None:
    body = (
        ALLOC.format(128)
        + "    bar.sync 0;\n    ld.shared.b32 %v0, [slot];\n    bar.sync 0;\n"
        + ALLOC.format(64)
        + "    bar.sync 0;\n    ld.shared.b32 %v1, [slot];\n    mov.b32 %v2, %base;\n"
        + store_registers(3)
        + DEALLOC.format("%v0", 128)
        + DEALLOC.format("%v1", 64)
    )
    found = run(tensor_kernel(body, columns=256), out=(128, 3), order=order, seed=2)[0]
    spans = sorted(zip(found.tolist(), (128, 64, 256), strict=True))
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))


def test_the_number_of_columns_must_not_grow() -> None:
    body = ALLOC.format(64) + "    ld.shared.b32 %v0, [slot];\n" + DEALLOC.format("%v0", 64)
    with pytest.raises(IllegalOperation, match="must not increase"):
        run(tensor_kernel(body, columns=32))


@every_order
@every_rule
def test_alloc_waits_for_columns_that_never_come(order: str, rules: str) -> None:
    with pytest.raises(Deadlock, match=r"256 columns: 0 of 512 .* are free"):
        run(tensor_kernel(ALLOC.format(256)), order=order, rules=rules)


@every_order
def test_alloc_waits_until_columns_come_back(order: str) -> None:
    other = """
    setp.eq.u32 %p0, %warp, 1;
    @%p0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [box], 512;
    @%p0 ld.shared.b32 %v1, [box];
    @%p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %v1, 512;
"""
    body = "    nanosleep.u32 100;\n" + DEALLOC.format("%base", 512) + other
    run(tensor_kernel(body, dealloc=False), order=order)


@every_rule
def test_no_allocation_after_the_permit_is_given_up(rules: str) -> None:
    with pytest.raises(IllegalOperation, match=r"after tcgen05\.relinquish_alloc_permit"):
        run(tensor_kernel(RELINQUISH + ALLOC.format(32), columns=32), rules=rules)
    run(tensor_kernel(RELINQUISH, columns=32), rules=rules)


@every_order
@every_rule
def test_columns_that_are_not_given_back_are_reported(order: str, rules: str) -> None:
    with pytest.raises(UnfinishedWork, match=r"columns \d+ to \d+ .* allocated: want .*dealloc"):
        run(tensor_kernel("", columns=64, dealloc=False), order=order, rules=rules)


def test_dealloc_takes_back_whole_allocations_only() -> None:
    with pytest.raises(OutOfBounds, match="dealloc of 32 columns at"):
        run(tensor_kernel(DEALLOC.format("%base", 32), columns=64))
    with pytest.raises(OutOfBounds, match="allocated: none"):
        run(tensor_kernel(DEALLOC.format("%base", 64), columns=64))
    with pytest.raises(OutOfBounds, match="allocated: 64 at"):
        run(tensor_kernel("    add.u32 %r9, %base, 32;\n" + DEALLOC.format("%r9", 64), columns=64))


@pytest.mark.parametrize("rules", ["ptx", "hardware"])
def test_the_destination_of_alloc_may_be_a_generic_address(rules: str) -> None:
    text = tensor_kernel(BASE, columns=64)
    text = text.replace("sync.aligned.shared::cta.b32 [slot]", "sync.aligned.b32 [%rd9]")
    text = text.replace(
        "    fence.proxy",
        "    mov.u32 %r9, slot;\n    cvta.shared.u64 %rd9, %rd8;\n    fence.proxy",
    )
    text = text.replace("cvta.shared", "cvt.u64.u32 %rd8, %r9;\n    cvta.shared")
    found = run(text, rules=rules)
    assert len(np.unique(found)) == 1
    own = text.replace("sync.aligned.b32 [%rd9]", "sync.aligned.shared::cta.b32 [%rd9]")
    if rules == "hardware":  # which takes the low 32 bits
        np.testing.assert_array_equal(run(own, rules=rules), found)
    else:
        with pytest.raises(OutOfBounds, match="outside shared memory"):
            run(own, rules=rules)


def test_the_destination_of_alloc_is_in_shared_memory_of_the_cta() -> None:
    generic = ALLOC.replace(".shared::cta", "").replace("[slot]", "[%out]")
    with pytest.raises(IllegalOperation, match="shared memory of its own CTA"):
        run(tensor_kernel(generic.format(32), columns=32))


def test_cells_outside_the_allocation_are_out_of_bounds() -> None:
    body = """
    add.u32 %at, %here, 64;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%at], {%tid};"""
    for seed in range(3):
        with pytest.raises(OutOfBounds, match=r"columns \d+ to \d+ of .*; allocated: columns"):
            run(tensor_kernel(body, columns=64), seed=seed)


@every_rule
def test_cells_that_nothing_has_written_hold_nothing(rules: str) -> None:
    text = tensor_kernel(load_cells(2) + store_registers(2))
    with pytest.raises(UninitialisedRead, match=r"tcgen05\.ld reads lane 0, column 0 .* 64 cells"):
        run(text, out=(128, 2), rules=rules)
    found = run(text, out=(128, 2), rules=rules, unwritten_shared="nan")
    assert (found == 0xFFFF_FFFF).all()


def test_columns_that_come_back_are_forgotten() -> None:
    again = (
        "    bar.sync 0;\n"
        + DEALLOC.format("%base", 512)
        + ALLOC.format(512)
        + "    bar.sync 0;\n"
        + load_cells(1)
    )
    with pytest.raises(UninitialisedRead):
        run(tensor_kernel(fill_cells(1) + again))


@every_order
@every_rule
def test_what_is_loaded_late_finds_its_columns_gone(order: str, rules: str) -> None:
    """dealloc by one warp before the others have loaded: the barrier between is missing."""
    early = fill_cells(4) + DEALLOC.format("%base", 32) + load_cells(4)
    with pytest.raises((OutOfBounds, DataRace)):
        run(tensor_kernel(early, columns=32, dealloc=False), order=order, rules=rules)


ST = "    tcgen05.st.sync.aligned.32x32b.x1.b32 [%here], {%tid};\n"
LD = "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%here];\n"
WAIT_ST = "    tcgen05.wait::st.sync.aligned;\n"
WAIT_LD = "    tcgen05.wait::ld.sync.aligned;\n"


@every_order
@every_rule
def test_st_must_be_waited_for_before_ld(order: str, rules: str) -> None:
    run(tensor_kernel(ST + WAIT_ST + LD + WAIT_LD), order=order, rules=rules)
    for missing in (ST + LD + WAIT_LD, ST + WAIT_LD + LD + WAIT_LD, ST + ST):
        with pytest.raises(DataRace, match=r"want tcgen05\.wait::st .*tcgen05\.wait instruction"):
            run(tensor_kernel(missing), order=order, rules=rules)


@every_rule
def test_ld_must_be_waited_for_before_st(rules: str) -> None:
    begin = ST + WAIT_ST + LD
    run(tensor_kernel(begin + WAIT_LD + ST + WAIT_ST), rules=rules)
    with pytest.raises(DataRace, match=r"want tcgen05\.wait::ld"):
        run(tensor_kernel(begin + ST), rules=rules)


@every_order
@every_rule
@pytest.mark.parametrize("what", ["ld", "st"])
def test_dealloc_of_cells_that_are_still_moved(what: str, order: str, rules: str) -> None:
    body = ST + (WAIT_ST + LD if what == "ld" else "")
    with pytest.raises(DataRace, match=rf"dealloc of columns .* while tcgen05\.{what}"):
        run(tensor_kernel(body), order=order, rules=rules)


def test_several_ld_of_the_same_cells_may_be_in_flight() -> None:
    run(tensor_kernel(ST + WAIT_ST + LD + LD.replace("%v0", "%v1") + WAIT_LD))


def test_a_register_may_be_used_at_once() -> None:
    body = ST + WAIT_ST + LD + "    add.u32 %v1, %v0, 1;\n" + WAIT_LD + store_registers(1, 1)
    for rules in ("ptx", "hardware"):
        found = run(tensor_kernel(body), rules=rules)
        np.testing.assert_array_equal(found[:, 0], np.arange(128) + 1)


def test_a_register_must_not_be_written_before_the_wait() -> None:
    body = ST + WAIT_ST + LD + "    mov.b32 %v0, 7;\n" + WAIT_LD
    with pytest.raises(DataRace, match=r"%v0 was written while a tcgen05\.ld"):
        run(tensor_kernel(body))


SECOND_GROUP = """
    setp.ge.u32 %p1, %warp, 4;
    and.b32 %r20, %warp, 3;
    shl.b32 %here, %r20, 21;
    add.u32 %here, %here, %base;
"""


def handed_on(before: str, after: str, access: str = LD + WAIT_LD) -> str:
    """Warps 0-3 store, warps 4-7 then touch the same cells."""
    body = (
        SECOND_GROUP
        + "    @%p1 bra second;\n"
        + ST
        + WAIT_ST
        + before
        + "second:\n    bar.sync 1;\n    @!%p1 bra done;\n"
        + after
        + access
        + "done:\n"
    )
    return tensor_kernel(body)


def launch_two_groups(text: str, **device: Any) -> None:
    dev = Device("sm_100", **device)
    source, out = dev.from_numpy(np.zeros(4096, np.uint8)), dev.empty(256, np.uint32)
    dev.load_ptx(text).kernel("k").launch(1, 256, [source, out])


BEFORE = "    tcgen05.fence::before_thread_sync;\n"
AFTER = "    tcgen05.fence::after_thread_sync;\n"


@every_order
@pytest.mark.parametrize("access", [LD + WAIT_LD, ST + WAIT_ST])
def test_cells_pass_from_warp_to_warp_with_both_fences(order: str, access: str) -> None:
    launch_two_groups(handed_on(BEFORE, AFTER, access), order=order)
    launch_two_groups(handed_on("", "", access), order=order, rules="hardware")


@every_order
@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("", AFTER, "executed no tcgen05.fence::before_thread_sync"),
        (BEFORE, "", "no tcgen05.fence::after_thread_sync"),
        (AFTER, BEFORE, "executed no tcgen05.fence::before_thread_sync"),
        ("    @%one" + BEFORE, AFTER, "executed no tcgen05.fence::before_thread_sync"),
        (BEFORE, "    setp.eq.u32 %p2, %tid, 128;\n    @%p2" + AFTER, "no tcgen05.fence::after"),
    ],
)
def test_each_thread_needs_its_fence(before: str, after: str, missing: str, order: str) -> None:
    with pytest.raises(DataRace, match=missing + r".*Specialized Inter-thread Synchronization"):
        launch_two_groups(handed_on(before, after), order=order)


def test_reads_need_no_fences_between_them() -> None:
    launch_two_groups(handed_on(BEFORE + LD + WAIT_LD, AFTER))


PAIR_ALLOC = "    @%first tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 64;\n"


@every_order
def test_both_ctas_of_a_pair_get_the_same_columns(order: str) -> None:
    text = tensor_kernel(BASE, columns=64, group=2)
    for seed in range(4):
        found = run(text, out=(256, 1), cluster=2, order=order, seed=seed)
        assert len(np.unique(found)) == 1


@every_order
def test_a_pair_allocates_together(order: str) -> None:
    alone = "    @%even bra allocates;\n    bra ends;\nallocates:\n" + PAIR_ALLOC + "ends:\n"
    with pytest.raises(Deadlock, match=r"has not executed tcgen05\.alloc"):
        run(tensor_kernel(alone, columns=64, group=2), out=(256, 1), cluster=2, order=order)


@every_order
def test_a_pair_deallocates_together(order: str) -> None:
    """The PTX ISA's example of a hang: one CTA deallocates before the barrier, one after it."""
    body = """
    @%even bra after;
    @%first tcgen05.dealloc.cta_group::2.sync.aligned.b32 %base, 64;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    bra ends;
after:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%first tcgen05.dealloc.cta_group::2.sync.aligned.b32 %base, 64;
ends:
"""
    text = tensor_kernel(body, columns=64, group=2, dealloc=False)
    with pytest.raises(Deadlock, match=r"has not executed tcgen05\.dealloc"):
        run(text, out=(256, 1), cluster=2, order=order)


@every_order
def test_a_pair_may_exit_once_both_have_deallocated(order: str) -> None:
    run(tensor_kernel("", columns=64, group=2), out=(256, 1), cluster=2, order=order)


def test_the_ctas_of_a_pair_must_ask_for_the_same() -> None:
    text = tensor_kernel("", columns=64, group=2, dealloc=False)
    text = text.replace("[slot], 64;", "[slot], %r0;").replace(
        "fence.proxy.async.shared::cta;", "add.u32 %r0, %rank, 1;\n    shl.b32 %r0, %r0, 5;"
    )
    with pytest.raises(IllegalOperation, match=r"different tcgen05\.alloc\.cta_group::2: 32"):
        run(text, cluster=2)


def test_a_pair_needs_two_ctas() -> None:
    with pytest.raises(IllegalOperation, match="has no peer"):
        run(tensor_kernel("", columns=64, group=2))


def test_one_kernel_uses_one_cta_group() -> None:
    body = PAIR_ALLOC
    with pytest.raises(IllegalOperation, match="all tcgen05 instructions of a kernel must specify"):
        run(tensor_kernel(body, columns=64), cluster=2)


def test_the_rules_are_one_of_two() -> None:
    with pytest.raises(ValueError, match="rules"):
        Device("sm_100", rules="none")  # type: ignore[arg-type]
