"""cp.async: copies, groups, zero fill, mbarrier tracking, and accesses that came too early."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    Device,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UnfinishedWork,
    UninitialisedRead,
    UnsupportedInstruction,
)
from tests.emulator.conftest import OUT, entry, every_order

PARAMS = ".param .u64 out, .param .u64 data"

#: %r10: this thread's 16 bytes of shared memory; %rd2: its 16 bytes of the data.
PLACES = (
    OUT
    + """
    .shared .align 128 .b8 box[8192];
    ld.param.u64 %rd2, [data];
    mul.wide.u32 %rd3, %r0, 16;
    add.s64 %rd2, %rd2, %rd3;
    mov.u32 %r10, box;
    mad.lo.u32 %r10, %r0, 16, %r10;
"""
)
STORE = "\n    st.global.u32 [%rd1], %r1;"


def run(body: str, data: np.ndarray, *, threads: int = 32, **device) -> np.ndarray:
    dev = Device("sm_90", **device)
    out, source = dev.empty(threads, np.uint32, name="out"), dev.from_numpy(data, name="data")
    kernel = dev.load_ptx(entry(PLACES + body, params=PARAMS)).kernel("k")
    kernel.launch(1, threads, [out, source])
    return out.to_numpy()


DATA = np.arange(4 * 512, dtype=np.uint32) * 7 + 1


@every_order
@pytest.mark.parametrize("operation", ["cg", "ca"])
def test_copy_arrives_after_the_wait(order: str, operation: str) -> None:
    body = f"""
    cp.async.{operation}.shared.global.L2::128B [%r10], [%rd2], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.u32 %r1, [%r10+12];"""
    assert (run(body + STORE, DATA, order=order) == DATA[3:128:4]).all()


@pytest.mark.parametrize("size", [4, 8])
def test_short_copies(size: int) -> None:
    body = f"""
    cp.async.ca.shared::cta.global [%r10], [%rd2], {size};
    cp.async.wait_all;
    ld.shared.u32 %r1, [%r10+{size - 4}];"""
    assert (run(body + STORE, DATA) == DATA[size // 4 - 1 : 128 : 4]).all()


@every_order
def test_only_the_latest_groups_may_be_pending(order: str) -> None:
    """Three groups; each is read as soon as the wait covers it."""
    body = "mov.u32 %r1, 0;\n"
    for i in range(3):
        body += f"""
        cp.async.ca.shared.global [%r10+{2048 * i}], [%rd2+{512 * i}], 4;
        cp.async.commit_group;"""
    for i in range(3):
        body += f"""
        cp.async.wait_group {2 - i};
        ld.shared.u32 %r2, [%r10+{2048 * i}];
        mad.lo.u32 %r1, %r1, 3, %r2;"""
    found = run(body + STORE, DATA, order=order)
    a, b, c = (DATA[128 * i : 128 * i + 128 : 4] for i in range(3))
    assert (found == 9 * a + 3 * b + c).all()


@every_order
def test_bytes_past_the_source_size_become_zero(order: str) -> None:
    body = """
    and.b32 %r3, %r0, 15;
    cp.async.cg.shared.global [%r10], [%rd2], 16, %r3;
    cp.async.wait_all;
    ld.shared.v4.u32 {%r1, %r4, %r5, %r6}, [%r10];
    add.u32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5; add.u32 %r1, %r1, %r6;"""
    found = run(body + STORE, DATA, order=order)
    rows = DATA[:128].view(np.uint8).reshape(32, 16).copy()
    rows[np.arange(16) >= (np.arange(32) & 15)[:, None]] = 0
    assert (found == rows.view(np.uint32).sum(axis=1, dtype=np.uint32)).all()


def test_source_size_of_zero_reads_nothing() -> None:
    body = """
    mov.u64 %rd2, 0;
    cp.async.cg.shared.global [%r10], [%rd2], 16, 0;
    cp.async.wait_all;
    ld.shared.u32 %r1, [%r10+4];"""
    assert (run(body + STORE, DATA) == 0).all()


def test_ignored_source_gives_zeros() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 9;
    cp.async.cg.shared.global [%r10], [%rd2], 16, %p1;
    cp.async.wait_all;
    ld.shared.u32 %r1, [%r10];"""
    assert (run(body + STORE, DATA) == np.where(np.arange(32) < 9, 0, DATA[:128:4])).all()


def test_source_may_end_where_its_allocation_does() -> None:
    """Only src-size bytes are read: 8 of the last lane's 16 exist."""
    body = """
    setp.eq.u32 %p1, %r0, 31;
    selp.u32 %r3, 8, 16, %p1;
    cp.async.cg.shared.global [%r10], [%rd2], 16, %r3;
    cp.async.wait_all;
    ld.shared.u32 %r1, [%r10+4];"""
    assert (run(body + STORE, DATA[:126]) == DATA[1:128:4]).all()


@every_order
def test_read_before_the_wait_is_a_race(order: str) -> None:
    body = "cp.async.cg.shared.global [%r10], [%rd2], 16; ld.shared.u32 %r1, [%r10];"
    with pytest.raises(DataRace):
        run(body + STORE, DATA, order=order)


@every_order
def test_a_group_left_pending_is_a_race(order: str) -> None:
    body = """
    cp.async.cg.shared.global [%r10], [%rd2], 16;
    cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.u32 %r1, [%r10];"""
    with pytest.raises(DataRace):
        run(body + STORE, DATA, order=order)


def test_write_into_a_copy_in_flight_is_a_race() -> None:
    body = "cp.async.cg.shared.global [%r10], [%rd2], 16; st.shared.u32 [%r10], %r0;"
    with pytest.raises(DataRace, match="in flight writes"):
        run(body, DATA)


def test_two_copies_into_one_place_are_a_race() -> None:
    body = "cp.async.cg.shared.global [%r10], [%rd2], 16;" * 2
    with pytest.raises(DataRace, match="nothing has waited"):
        run(body, DATA)


@every_order
def test_exit_with_copies_in_flight_is_reported(order: str) -> None:
    with pytest.raises(UnfinishedWork, match=r"cp\.async, which writes shared memory"):
        run("cp.async.cg.shared.global [%r10], [%rd2], 16;", DATA, order=order)


@pytest.mark.parametrize(
    ("instruction", "error", "text"),
    [
        ("cp.async.cg.shared.global [%r10+8], [%rd2], 16;", Misaligned, "multiple of 16"),
        ("cp.async.cg.shared.global [%r10], [%rd2+4], 16;", Misaligned, "multiple of 16"),
        ("cp.async.cg.shared.global [%r10+8192], [%rd2], 16;", OutOfBounds, "outside"),
        ("cp.async.cg.shared.global [%r10], [%rd2+8192], 16;", OutOfBounds, "into data"),
        ("cp.async.cg.shared.global [%r10], [%rd2], 16, 17;", IllegalOperation, "src-size of 17"),
    ],
)
def test_misuse_is_reported(instruction: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(instruction, DATA)


def test_source_that_holds_nothing_is_reported() -> None:
    dev = Device()
    text = entry(PLACES + "cp.async.cg.shared.global [%r10], [%rd2], 16;", params=PARAMS)
    with pytest.raises(UninitialisedRead):
        dev.load_ptx(text).kernel("k").launch(1, 32, [dev.empty(128), dev.empty(512)])


@pytest.mark.parametrize(
    "size", ["cg.shared.global [%r10], [%rd2], 8", "ca.shared.global [%r10], [%rd2], 2"]
)
def test_sizes_that_do_not_exist_are_refused(size: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        run(f"cp.async.{size};", DATA)


TRACKED = """
    .shared .align 8 .b64 full;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r11, full;
    @%p0 mbarrier.init.shared.b64 [%r11], {count};
    bar.sync 0;
    cp.async.cg.shared.global [%r10], [%rd2], 16;
    cp.async.mbarrier.arrive{noinc}.shared.b64 [%r11];
"""
WAIT = """
wait:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r11], 0;
    @!%p1 bra wait;
    xor.b32 %r2, %r0, 33;
    mov.u32 %r10, box;
    mad.lo.u32 %r10, %r2, 16, %r10;
    ld.shared.u32 %r1, [%r10];
"""


@every_order
@pytest.mark.parametrize(("noinc", "count"), [(".noinc", 64), ("", 1)])
def test_barrier_that_tracks_copies(order: str, noinc: str, count: int) -> None:
    """Every thread reads what a thread of the other warp has copied."""
    body = TRACKED.format(noinc=noinc, count=count)
    if not noinc:
        body += "bar.sync 0; @%p0 mbarrier.arrive.shared.b64 _, [%r11];"
    found = run(body + WAIT + STORE, DATA, threads=64, order=order)
    assert (found == DATA[4 * (np.arange(64) ^ 33)]).all()


@every_order
def test_reading_without_waiting_for_the_barrier_is_a_race(order: str) -> None:
    body = TRACKED.format(noinc=".noinc", count=64)
    with pytest.raises(DataRace):
        run(body + "ld.shared.u32 %r1, [%r10];" + STORE, DATA, threads=64, order=order)


@every_order
def test_diverged_lanes_have_groups_of_their_own(order: str) -> None:
    """Odd lanes commit an empty group more, so one pending group covers their copy."""
    body = """
    and.b32 %r3, %r0, 1;
    setp.eq.u32 %p1, %r3, 1;
    cp.async.cg.shared.global [%r10], [%rd2], 16;
    cp.async.commit_group;
    @%p1 cp.async.commit_group;
    @%p1 bra odd;
    cp.async.wait_group 0;
    bra.uni join;
odd:
    cp.async.wait_group 1;
join:
    ld.shared.u32 %r1, [%r10];"""
    assert (run(body + STORE, DATA, order=order) == DATA[:128:4]).all()
