"""Bulk copies: both directions, to a peer, multicast, reductions, groups, and their misuse."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    BarrierError,
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UnfinishedWork,
)
from tests.emulator.conftest import OUT, entry, every_order

PARAMS = ".param .u64 out, .param .u64 data"

#: %p0: thread 0; %r10: a box in shared memory; %r11: an mbarrier for one arrival; %rd2: the data.
BEGIN = (
    OUT
    + """
    .shared .align 128 .b8 box[4096];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd2, [data];
    mov.u32 %r10, box;
    mov.u32 %r11, full;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r11], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
)
LOAD = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r10], [%rd2], 256, [%r11];
"""
WAIT = """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], 0;
    @!%p1 bra wait;
"""
READ = """
    mad.lo.u32 %r2, %r0, 4, %r10;
    ld.shared.u32 %r1, [%r2];
    st.global.u32 [%rd1], %r1;
"""
DATA = np.arange(64, dtype=np.uint32) * 3 + 1


def run(
    body: str,
    data: np.ndarray = DATA,
    *,
    threads: int = 64,
    grid: int = 1,
    cluster: int = 1,
    out: np.ndarray | None = None,
    **device,
) -> np.ndarray:
    dev = Device("sm_90", **device)
    target = dev.empty(grid * threads, np.uint32, name="out")
    if out is not None:
        target = dev.from_numpy(out, name="out")
    kernel = dev.load_ptx(entry(BEGIN + body, params=PARAMS)).kernel("k")
    source = dev.from_numpy(data, name="data")
    kernel.launch(grid, threads, [target, source], cluster=(cluster, 1, 1))
    return target.to_numpy()


@every_order
def test_load_is_there_after_the_barrier(order: str) -> None:
    assert (run(LOAD + WAIT + READ, order=order) == DATA).all()


@every_order
def test_load_to_shared_cta(order: str) -> None:
    body = LOAD.replace("shared::cluster.global", "shared::cta.global")
    assert (run(body + WAIT + READ, order=order) == DATA).all()


@every_order
def test_reading_without_the_wait_is_a_race(order: str) -> None:
    with pytest.raises((DataRace, UnfinishedWork)) as caught:
        run(LOAD + "bar.sync 0;" + READ, order=order)
    assert "cp.async.bulk" in str(caught.value) or "in flight" in str(caught.value)


@every_order
def test_expecting_too_many_bytes_is_a_deadlock(order: str) -> None:
    with pytest.raises(Deadlock, match="0 of 1 arrivals and 16 bytes"):
        run(LOAD.replace("[%r11], 256;\n", "[%r11], 272;\n", 1) + WAIT + READ, order=order)


@every_order
def test_expecting_nothing_is_noticed(order: str) -> None:
    body = LOAD.replace(
        "arrive.expect_tx.shared::cta.b64 _, [%r11], 256", "arrive.shared.b64 _, [%r11]"
    )
    with pytest.raises((DataRace, UnfinishedWork, Deadlock)):
        run(body + WAIT + READ, order=order)


@every_order
def test_load_and_no_wait_at_all_is_unfinished(order: str) -> None:
    with pytest.raises(UnfinishedWork, match=r"cp\.async\.bulk, which writes shared memory"):
        run(LOAD, order=order)


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("[%rd2], 256, [%r11]", "[%rd2], 264, [%r11]", IllegalOperation, "264 bytes"),
        ("[%rd2], 256, [%r11]", "[%rd2+4], 240, [%r11]", Misaligned, "multiple of 16"),
        ("[%rd2], 256, [%r11]", "[%rd2], 272, [%r11]", OutOfBounds, "into data"),
        ("[%r10], [%rd2]", "[%r10+8192], [%rd2]", OutOfBounds, "outside shared memory"),
        ("256, [%r11]", "256, [%r11+8]", OutOfBounds, "outside shared memory"),
        ("256, [%r11]", "256, [%r10]", BarrierError, "mbarrier.init has not run"),
        ("@%p0 cp", "cp", DataRace, "nothing has waited"),
    ],
)
def test_misused_load(old: str, new: str, error: type[Exception], text: str) -> None:
    assert LOAD.count(old) == 1
    with pytest.raises(error, match=text):
        run(LOAD.replace(old, new) + WAIT + READ)


FILL = """
    mul.lo.u32 %r4, %r0, 5;
    mad.lo.u32 %r2, %r0, 4, %r10;
    st.shared.u32 [%r2], %r4;
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
STORE = """
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r10], 256;
    @%p0 cp.async.bulk.commit_group;
"""
READ_WAIT = "@%p0 cp.async.bulk.wait_group.read 0;\n"


@every_order
def test_store(order: str) -> None:
    assert (run(FILL + STORE + READ_WAIT, order=order) == 5 * np.arange(64)).all()


@every_order
def test_shared_memory_may_be_used_again_after_the_read_wait(order: str) -> None:
    body = FILL + STORE + READ_WAIT + "bar.sync 0; mov.u32 %r4, 0; st.shared.u32 [%r2], %r4;"
    assert (run(body, order=order) == 5 * np.arange(64)).all()


@every_order
def test_shared_memory_used_again_without_the_read_wait_is_a_race(order: str) -> None:
    body = FILL + STORE + "bar.sync 0; mov.u32 %r4, 0; st.shared.u32 [%r2], %r4;"
    with pytest.raises(DataRace, match="in flight reads"):
        run(body, order=order)


@every_order
def test_exit_without_the_read_wait_is_reported(order: str) -> None:
    with pytest.raises(UnfinishedWork, match="which reads shared memory"):
        run(FILL + STORE, order=order)


@every_order
def test_store_never_committed_is_reported(order: str) -> None:
    body = FILL + STORE.replace("@%p0 cp.async.bulk.commit_group;", "") + READ_WAIT
    with pytest.raises(UnfinishedWork):
        run(body, order=order)


@every_order
@pytest.mark.parametrize("wait", ["cp.async.bulk.wait_group.read 0;", ""])
def test_result_of_a_store_read_without_its_wait_is_a_race(order: str, wait: str) -> None:
    body = FILL + STORE + wait + "bar.sync 0; ld.global.u32 %r1, [%rd1];" + READ_WAIT
    with pytest.raises(DataRace):
        run(body, out=np.zeros(64, np.uint32), order=order)


@every_order
def test_result_of_a_store_may_be_read_after_the_full_wait(order: str) -> None:
    body = (
        FILL
        + STORE
        + """
        @%p0 cp.async.bulk.wait_group 0;
        bar.sync 0;
        ld.global.u32 %r1, [%rd1];
        add.u32 %r1, %r1, 1;
        st.global.u32 [%rd1], %r1;
    """
    )
    assert (run(body, order=order) == 5 * np.arange(64) + 1).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("add.u32", "u4"), ("min.s32", "i4"), ("max.u32", "u4"), ("and.b32", "u4"), ("xor.b32", "u4"),
     ("add.f32", "f4"), ("inc.u32", "u4"), ("dec.u32", "u4")],
)  # fmt: skip
def test_reduction(kind: str, dtype: str) -> None:
    old = np.arange(64, dtype=np.uint32) * 1_000_003
    new = 5 * np.arange(64, dtype=np.uint32)
    body = FILL + STORE.replace("cp.async.bulk.global", "cp.reduce.async.bulk.global").replace(
        "bulk_group [", f"bulk_group.{kind} ["
    )
    found = run(body + READ_WAIT, out=old)
    a, b = old.view(dtype), new.view(dtype)
    with np.errstate(all="ignore"):
        want = {
            "add": lambda: a + b,
            "min": lambda: np.minimum(a, b),
            "max": lambda: np.maximum(a, b),
            "and": lambda: a & b,
            "xor": lambda: a ^ b,
            "inc": lambda: np.where(a >= b, 0, a + 1),
            "dec": lambda: np.where((a == 0) | (a > b), b, a - 1),
        }[kind[:3]]()
    assert (found.view(dtype) == want).all()


def _bf16(bits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_reduction_of_halves_rounds_to_nearest_even(kind: str) -> None:
    rng = np.random.default_rng(1)
    old: np.ndarray
    new: np.ndarray
    if kind == "f16":
        old, new = (rng.standard_normal(128).astype(np.float16) for _ in range(2))
        want = (old.astype(np.float64) + new).astype(np.float16).view(np.uint16)
    else:
        old, new = (
            (rng.standard_normal(128).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for _ in range(2)
        )
        exact = sum(
            (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (old, new)
        )
        grid = _bf16(np.arange(1 << 16))
        grid = np.where(np.isfinite(grid), grid, 1e300)
        order = np.argsort(grid)
        at = np.clip(np.searchsorted(grid[order], exact), 1, len(grid) - 1)
        low, high = order[at - 1], order[at]
        nearer_low = exact - grid[low] < grid[high] - exact
        tie = exact - grid[low] == grid[high] - exact
        want = np.where(nearer_low | (tie & (low % 2 == 0)), low, high).astype(np.uint16)
    body = LOAD + WAIT + "fence.proxy.async.shared::cta; bar.sync 0;"
    body += STORE.replace("cp.async.bulk.global", "cp.reduce.async.bulk.global").replace(
        "bulk_group [", f"bulk_group.add.noftz.{kind} ["
    )
    found = run(body + READ_WAIT, new.view(np.uint32), out=old.view(np.uint32))
    assert (found.view(np.uint16) == want).all()


CLUSTER = """
    mov.u32 %r20, %cluster_ctarank;
    mov.u32 %r21, %ctaid.x;
    mad.lo.u32 %r22, %r21, 64, %r0;
    mul.wide.u32 %rd1, %r22, 4;
    add.s64 %rd1, %rd0, %rd1;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""
MULTICAST = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
    setp.eq.u32 %p2, %r20, 1;
    and.pred %p2, %p2, %p0;
    mov.u16 %h1, {mask};
    @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r10], [%rd2], 256, [%r11], %h1;
"""


@every_order
def test_multicast_reaches_every_cta_of_the_mask(order: str) -> None:
    body = CLUSTER + MULTICAST.format(mask=15) + WAIT + READ
    found = run(body, grid=8, cluster=4, order=order)
    assert (found.reshape(8, 64) == DATA).all()


@every_order
def test_multicast_with_a_cta_too_few_is_a_deadlock(order: str) -> None:
    with pytest.raises(Deadlock, match="256 bytes"):
        run(CLUSTER + MULTICAST.format(mask=7) + WAIT + READ, grid=4, cluster=4, order=order)


def test_multicast_to_a_cta_that_is_not_there_is_reported() -> None:
    with pytest.raises(IllegalOperation, match="multicast mask"):
        run(CLUSTER + MULTICAST.format(mask=31) + WAIT + READ, grid=4, cluster=4)


@every_order
def test_leaving_while_a_multicast_is_under_way_is_noticed(order: str) -> None:
    """Every other CTA leaves at once: the multicast reaches memory that nobody waits for."""
    leave = "setp.ne.u32 %p3, %r20, 1; @%p3 ret;"
    with pytest.raises((UnfinishedWork, OutOfBounds), match=r"which has exited|nothing has waited"):
        run(CLUSTER + leave + MULTICAST.format(mask=15) + WAIT, grid=4, cluster=4, order=order)
    body = CLUSTER + MULTICAST.format(mask=15) + leave + WAIT
    with pytest.raises(UnfinishedWork, match="nothing has waited"):
        run(body, grid=4, cluster=4, order=order)


TO_PEER = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
    add.u32 %r4, %r0, %r20;
    mad.lo.u32 %r2, %r0, 4, %r10;
    st.shared.u32 [%r2], %r4;
    fence.proxy.async;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    xor.b32 %r23, %r20, 1;
    add.u32 %r24, %r10, 1024;
    mapa.shared::cluster.u32 %r24, %r24, %r23;
    mapa.shared::cluster.u32 %r25, %r11, %r23;
    @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r24], [%r10], 256, [%r25];
"""
END = """
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""


@every_order
def test_copy_to_a_peer(order: str) -> None:
    body = CLUSTER + TO_PEER + WAIT + "add.u32 %r10, %r10, 1024;" + READ + END
    found = run(body, grid=2, cluster=2, order=order).reshape(2, 64)
    assert (found == np.arange(64) + np.array([[1], [0]])).all()


def test_copy_to_a_peer_with_a_barrier_elsewhere_is_reported() -> None:
    body = CLUSTER + TO_PEER.replace("256, [%r25]", "256, [%r11]") + WAIT + END
    with pytest.raises(BarrierError, match="want both in one,"):
        run(body, grid=2, cluster=2)


@every_order
def test_leaving_before_the_peer_has_the_bytes_is_noticed(order: str) -> None:
    """No cluster barrier at the end: a CTA may exit while its memory is still read."""
    body = CLUSTER + TO_PEER.replace("[%r10], 256, [%r25]", "[%r10], 256, [%r25]")
    with pytest.raises(UnfinishedWork):
        run(body, grid=2, cluster=2, order=order)
