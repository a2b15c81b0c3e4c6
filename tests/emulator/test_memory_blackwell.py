"""Memory accesses that sm_100 adds: vectors of 32 bytes, st.bulk, stores under a byte mask."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    Device,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UnsupportedInstruction,
)
from tests.emulator.conftest import OUT, entry, every_order


def run(
    body: str, out: np.ndarray, *, arch: str = "sm_100", cluster: int = 1, **device
) -> np.ndarray:
    """``out`` after 32 threads of each CTA of a cluster; %rd0 is its address."""
    dev = Device(arch, **device)
    buffer = dev.from_numpy(out, name="out")
    kernel = dev.load_ptx(entry(OUT + body)).kernel("k")
    kernel.launch(cluster, 32, [buffer], cluster=(cluster, 1, 1))
    return buffer.to_numpy()


WORDS = np.arange(512, dtype=np.uint32) * 7 + 1
ROW = "mul.wide.u32 %rd2, %r0, 32; add.s64 %rd2, %rd0, %rd2;"
EIGHT = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"
FOUR = "{%rd3, %rd4, %rd5, %rd6}"


@pytest.mark.parametrize(
    ("load", "store"),
    [
        (f"ld.global.v8.b32 {EIGHT}", f"st.global.v8.b32 [%rd2+1024], {EIGHT}"),
        (
            f"ld.global.nc.L1::no_allocate.L2::256B.v8.u32 {EIGHT}",
            f"st.global.L1::no_allocate.L2::evict_last.v8.u32 [%rd2+1024], {EIGHT}",
        ),
        (f"ld.v4.b64 {FOUR}", f"st.v4.u64 [%rd2+1024], {FOUR}"),
        (
            f"ld.relaxed.gpu.global.v4.u64 {FOUR}",
            f"st.release.gpu.global.v4.b64 [%rd2+1024], {FOUR}",
        ),
    ],
)
def test_a_vector_of_32_bytes_moves_whole(load: str, store: str) -> None:
    found = run(f"{ROW} {load}, [%rd2]; {store};", WORDS)
    assert (found[256:] == WORDS[:256]).all()


def test_elements_may_be_left_out() -> None:
    body = "ld.global.v8.b32 {_, %r2, _, _, _, _, _, %r8}, [%rd2];"
    body += "add.u32 %r1, %r2, %r8; st.global.u32 [%rd1+1024], %r1;"
    found = run(ROW + body, WORDS)
    rows = WORDS[:256].reshape(32, 8)
    assert (found[256:288] == rows[:, 1] + rows[:, 7]).all()


def test_a_vector_of_32_bytes_is_aligned() -> None:
    with pytest.raises(Misaligned, match="multiple of 32"):
        run(f"{ROW} ld.global.v8.b32 {EIGHT}, [%rd2+16];", WORDS)


@pytest.mark.parametrize(
    ("body", "arch", "text"),
    [
        (f"ld.global.v8.b32 {EIGHT}, [%rd0];", "sm_90", "a vector of 32 bytes needs sm_100"),
        (f"st.global.v4.b64 [%rd0], {FOUR};", "sm_90", "a vector of 32 bytes needs sm_100"),
        (f"ld.shared.v8.b32 {EIGHT}, [%r9];", "sm_100", "are of global memory"),
        (f"st.local.v4.b64 [%rd0], {FOUR};", "sm_100", "are of global memory"),
        (f"ld.global.v8.b64 {EIGHT}, [%rd0];", "sm_100", "more than 32 bytes"),
        (f"ld.global.v8.b32 {FOUR}, [%rd0];", "sm_100", "got 4 elements; the vector has 8"),
    ],
)
def test_vectors_that_there_are_not(body: str, arch: str, text: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=text):
        run(body, WORDS, arch=arch)


#: Bytes 0xff; thread t clears the first 64 of its 80.
BOX = """
    .shared .align 128 .b8 box[2560];
    mov.u32 %r10, box;
    mul.lo.u32 %r2, %r0, 80;
    add.u32 %r12, %r10, %r2;
    mov.u32 %r3, 0;
    mov.u32 %r4, -1;
fill:
    add.u32 %r5, %r12, %r3;
    st.shared.u32 [%r5], %r4;
    add.u32 %r3, %r3, 4;
    setp.lt.u32 %p1, %r3, 80;
    @%p1 bra fill;
    mov.u64 %rd8, 64;
    bar.warp.sync -1;
"""
CLEAR = "    st.bulk.weak.shared::cta [%r12], %rd8, 0;\n"
COPY_OUT = """
    bar.warp.sync -1;
    mov.u32 %r3, 0;
copy:
    add.u32 %r5, %r12, %r3;
    ld.shared.u32 %r6, [%r5];
    add.u32 %r5, %r2, %r3;
    cvt.u64.u32 %rd5, %r5;
    add.s64 %rd5, %rd0, %rd5;
    st.global.u32 [%rd5], %r6;
    add.u32 %r3, %r3, 4;
    setp.lt.u32 %p1, %r3, 80;
    @%p1 bra copy;
"""


@pytest.mark.parametrize(
    "clear",
    [
        CLEAR,
        "st.bulk.shared::cta [%r12], %rd8, 0;",
        "cvt.u64.u32 %rd9, %r12; cvta.shared.u64 %rd9, %rd9; st.bulk [%rd9], %rd8, 0;",
    ],
)
def test_st_bulk_writes_zeros(clear: str) -> None:
    found = run(BOX + clear + COPY_OUT, np.zeros(640, np.uint32)).reshape(32, 20)
    assert (found[:, :16] == 0).all()
    assert (found[:, 16:] == 0xFFFF_FFFF).all()


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("[%r12]", "[%r12+4]", Misaligned, "multiple of 8"),
        ("[%r12]", "[%r12+65536]", OutOfBounds, "outside shared memory"),
        ("%rd8, 0", "60, 0", IllegalOperation, "st.bulk of 60 bytes; want a multiple of 8"),
        ("%rd8, 0", "0, 0", IllegalOperation, "st.bulk of 0 bytes"),
        ("%rd8, 0", "16777224, 0", IllegalOperation, "at most 16777216"),
        ("%rd8, 0", "%rd8, 1", UnsupportedInstruction, "a value other than 0"),
    ],
)
def test_misused_st_bulk(old: str, new: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(BOX + CLEAR.replace(old, new), np.zeros(4, np.uint32))


def test_st_bulk_is_for_the_ctas_own_memory() -> None:
    body = (
        BOX
        + """
        mov.u32 %r20, %cluster_ctarank; xor.b32 %r20, %r20, 1;
        cvt.u64.u32 %rd9, %r12; cvta.shared.u64 %rd9, %rd9; mapa.u64 %rd9, %rd9, %r20;
        barrier.cluster.arrive; barrier.cluster.wait;
        st.bulk [%rd9], %rd8, 0;
    """
    )
    with pytest.raises(IllegalOperation, match="want the CTA's own"):
        run(body, np.zeros(4, np.uint32), cluster=2)
    with pytest.raises(IllegalOperation, match="want the CTA's own"):
        run(BOX + "st.bulk [%rd0], %rd8, 0;", np.zeros(64, np.uint32))


def test_st_bulk_is_of_sm_100() -> None:
    with pytest.raises(UnsupportedInstruction, match="st.bulk needs sm_100"):
        run(BOX + CLEAR, np.zeros(4, np.uint32), arch="sm_90")


BULK_STORE = """
    setp.eq.u32 %p0, %r0, 0;
    @%p0 cp.async.bulk.global.shared::cta.bulk_group{policy}.cp_mask
        [%rd0], [%r10], 64{more}, {mask};
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("fenced", [True, False])
def test_st_bulk_goes_through_the_generic_proxy(fenced: bool) -> None:
    """A bulk copy reads what it wrote: a proxy fence must come between."""
    body = BOX + CLEAR + ("fence.proxy.async;" if fenced else "") + "bar.sync 0;"
    body += BULK_STORE.format(policy="", more="", mask=-1)
    if fenced:
        assert (run(body, WORDS)[:16] == 0).all()
    else:
        with pytest.raises(DataRace, match=r"must execute fence\.proxy\.async"):
            run(body, WORDS)


@every_order
@pytest.mark.parametrize("mask", [0, 1, 0x8421, 0xFFFF])
@pytest.mark.parametrize("policy", [False, True])
def test_bytes_outside_the_mask_are_left_alone(mask: int, policy: bool, order: str) -> None:
    body = BOX + f"fence.proxy.async; bar.sync 0; mov.b16 %h1, {mask}; mov.u64 %rd7, 0;"
    more = (".L2::cache_hint", ", %rd7") if policy else ("", "")
    body += BULK_STORE.format(policy=more[0], more=more[1], mask="%h1")
    found = run(body, WORDS, order=order).view(np.uint8)
    chosen = np.array([mask >> i % 16 & 1 for i in range(64)], bool)
    want = WORDS.view(np.uint8).copy()
    want[:64][chosen] = 0xFF
    assert (found == want).all()


def test_byte_masks_are_of_sm_100() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"\.cp_mask needs sm_100"):
        run(BOX + BULK_STORE.format(policy="", more="", mask=1), WORDS, arch="sm_90")
