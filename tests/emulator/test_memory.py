"""Bounds, alignment, initialisation and address spaces."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device, IllegalOperation, Misaligned, OutOfBounds, UninitialisedRead
from tests.emulator.conftest import OUT, Lanes, entry, launch

THREAD = np.arange(32, dtype=np.uint32)
COPY = "ld.global.u32 %r1, [%rd1+{offset}]; st.global.u32 [%rd1+{offset}], %r1;"


def run(body: str, array: np.ndarray, *, threads: int = 32) -> np.ndarray:
    dev = Device()
    buffer = dev.from_numpy(array, name="array")
    dev.load_ptx(entry(OUT + body)).kernel("k").launch(1, threads, [buffer])
    return buffer.to_numpy()


def test_the_last_element_is_in_and_the_next_is_out() -> None:
    run(COPY.format(offset=0), np.zeros(32, np.uint32))
    with pytest.raises(OutOfBounds) as caught:
        run(COPY.format(offset=4), np.zeros(32, np.uint32))
    assert "128 bytes into array, which has 128" in str(caught.value)
    assert caught.value.lanes == 1 << 31


def test_before_the_first_element() -> None:
    with pytest.raises(OutOfBounds, match="4 bytes before array"):
        run(COPY.format(offset=-4), np.zeros(32, np.uint32))


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "v2.u32", "v4.u32"])
def test_no_width_reaches_below_an_allocation(kind: str) -> None:
    registers = "{%r1, %r2, %r3, %r4}" if "v4" in kind else "{%r1, %r2}" if "v2" in kind else "%r1"
    with pytest.raises(OutOfBounds):
        run(f"ld.global.{kind} {registers}, [%rd0+-16];", np.zeros(32, np.uint32))


def test_null_pointer() -> None:
    with pytest.raises(OutOfBounds, match="the null pointer"):
        launch(entry("mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1+8];", params=""))


def test_a_freed_buffer_is_out_of_bounds() -> None:
    dev = Device()
    buffer = dev.from_numpy(np.zeros(32, np.uint32))
    kernel = dev.load_ptx(entry(OUT + COPY.format(offset=0))).kernel("k")
    kernel.launch(1, 32, [buffer])
    dev.free(buffer)
    with pytest.raises(OutOfBounds):
        kernel.launch(1, 32, [buffer])


def test_misaligned_access_names_its_lane() -> None:
    body = "setp.eq.u32 %p1, %r0, 3; @%p1 add.s64 %rd1, %rd1, 2;" + COPY.format(offset=0)
    with pytest.raises(Misaligned, match="is no multiple of 4") as caught:
        run(body, np.zeros(64, np.uint32))
    assert caught.value.lanes == 1 << 3


def test_reading_what_nothing_wrote() -> None:
    dev = Device()
    buffer = dev.empty(32, np.uint32, name="fresh")
    kernel = dev.load_ptx(entry(OUT + "ld.global.u32 %r1, [%rd1];")).kernel("k")
    with pytest.raises(UninitialisedRead, match="offset 0 of fresh: 4 of them were never written"):
        kernel.launch(1, 32, [buffer])


def test_a_partly_written_word_is_uninitialised(lanes: Lanes) -> None:
    body = "mov.u64 %rd5, cell; st.shared.u8 [%rd5], %r0; ld.shared.u32 %r1, [%rd5];"
    with pytest.raises(UninitialisedRead, match="3 of them"):
        lanes(body, before=".shared .u32 cell;")


def test_vector_of_four(lanes: Lanes) -> None:
    body = """
        mul.wide.u32 %rd5, %r0, 16;
        mov.u64 %rd6, cells;
        add.s64 %rd6, %rd6, %rd5;
        add.s32 %r2, %r0, 1;
        add.s32 %r3, %r0, 2;
        add.s32 %r4, %r0, 3;
        st.shared.v4.u32 [%rd6], {%r0, %r2, %r3, %r4};
        ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%rd6];
        ld.shared.u32 %r9, [%rd6+8];
        add.s32 %r1, %r8, %r9;
    """
    assert (lanes(body, before=".shared .align 16 .b8 cells[512];") == 2 * THREAD + 5).all()


def test_signed_bytes_extend_and_stores_cut(lanes: Lanes) -> None:
    body = """
        mov.u64 %rd5, cell;
        mov.u32 %r2, 0x1FE;
        st.shared.u8 [%rd5], %r2;
        ld.shared.s8 %r1, [%rd5];
    """
    assert (lanes(body, before=".shared .b8 cell;") == 0xFFFFFFFE).all()


def test_generic_addresses_reach_every_space(lanes: Lanes) -> None:
    body = """
        .local .align 4 .b8 mine[4];
        mov.u64 %rd5, mine;
        cvta.local.u64 %rd6, %rd5;
        st.u32 [%rd6], %r0;
        ld.local.u32 %r2, [%rd5];
        mov.u64 %rd7, ours;
        cvta.shared.u64 %rd8, %rd7;
        mul.wide.u32 %rd9, %r0, 4;
        add.s64 %rd8, %rd8, %rd9;
        st.u32 [%rd8], %r2;
        cvta.to.shared.u64 %rd10, %rd8;
        ld.shared.u32 %r3, [%rd10];
        st.u32 [%rd1], %r3;
        ld.global.u32 %r1, [%rd1];
    """
    assert (lanes(body, before=".shared .u32 ours[32];") == THREAD).all()


def test_generic_access_to_shared_memory_stays_in_the_own_cta() -> None:
    """Two CTAs use one instruction in turn; neither may see the other's memory."""
    dev = Device(order="random", seed=3)
    out = dev.empty(8 * 32, np.uint32)
    body = """
        ld.param.u64 %rd0, [out];
        mov.u32 %r0, %tid.x;
        mov.u32 %r2, %ctaid.x;
        mad.lo.s32 %r3, %r2, 32, %r0;
        mul.wide.u32 %rd1, %r3, 4;
        add.s64 %rd1, %rd0, %rd1;
        mul.wide.u32 %rd2, %r0, 4;
        mov.u64 %rd3, cells;
        cvta.shared.u64 %rd3, %rd3;
        add.s64 %rd3, %rd3, %rd2;
        st.u32 [%rd3], %r3;
        bar.sync 0;
        ld.u32 %r4, [%rd3];
        st.global.u32 [%rd1], %r4;
    """
    text = entry(body, before=".shared .u32 cells[32];")
    dev.load_ptx(text).kernel("k").launch(8, 32, [out])
    assert (out.to_numpy() == np.arange(256)).all()


def test_lanes_may_reach_several_allocations_at_once() -> None:
    dev = Device()
    left, right = (dev.from_numpy(np.full(16, v, np.uint32)) for v in (7, 9))
    out = dev.empty(32, np.uint32)
    body = """
        ld.param.u64 %rd2, [a];
        ld.param.u64 %rd3, [b];
        setp.lt.u32 %p1, %r0, 16;
        selp.b64 %rd4, %rd2, %rd3, %p1;
        ld.global.u32 %r1, [%rd4];
        st.global.u32 [%rd1], %r1;
    """
    text = entry(OUT + body, params=".param .u64 out, .param .u64 a, .param .u64 b")
    dev.load_ptx(text).kernel("k").launch(1, 32, [out, left, right])
    assert (out.to_numpy() == np.where(THREAD < 16, 7, 9)).all()


def test_shared_memory_ends_where_the_launch_said() -> None:
    before = ".extern .shared .align 16 .b8 dynamic[];"
    body = "mov.u64 %rd5, dynamic; mov.u32 %r1, 0; st.shared.u32 [%rd5+{at}], %r1;"
    kernel = Device().load_ptx(entry(body.format(at=60), params="", before=before)).kernel("k")
    assert kernel.launch(1, 32, smem=64).shared_bytes_per_cta == 64
    kernel = Device().load_ptx(entry(body.format(at=64), params="", before=before)).kernel("k")
    with pytest.raises(OutOfBounds, match="outside shared memory of CTA"):
        kernel.launch(1, 32, smem=64)


def test_constants_and_parameters_are_read_only() -> None:
    body = "mov.u64 %rd5, table; mov.u32 %r1, 0; st.global.u32 [%rd5], %r1;"
    with pytest.raises(IllegalOperation, match="table, which is read-only"):
        launch(entry(body, params="", before=".const .u32 table[2] = {1, 2};"))


def test_a_struct_by_value_is_read_at_its_offsets(lanes: Lanes) -> None:
    dev = Device()
    out = dev.empty(32, np.uint32)
    text = entry(
        OUT
        + "ld.param.v2.u32 {%r2, %r3}, [s+8]; add.s32 %r1, %r2, %r3; st.global.u32 [%rd1], %r1;",
        params=".param .u64 out, .param .align 16 .b8 s[32]",
    )
    struct = np.arange(8, dtype=np.uint32).tobytes()
    dev.load_ptx(text).kernel("k").launch(1, 32, [out, struct])
    assert (out.to_numpy() == 2 + 3).all()
