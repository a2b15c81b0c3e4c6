"""tcgen05.commit and fences: what may follow an mma, and when; every missing step is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nibblas.emulator import (
    BarrierError,
    DataRace,
    Deadlock,
    IllegalOperation,
    OutOfBounds,
    Report,
    UnfinishedWork,
    UninitialisedRead,
)
from tests.emulator.conftest import every_order
from tests.emulator.tensor_kernels import (
    commit,
    fill_cells,
    load_cells,
    run,
    store_registers,
    tensor_kernel,
    vector,
    wait,
)

every_rule = pytest.mark.parametrize("rules", ["ptx", "hardware"])

M, N, K = 128, 16, 16
A_BYTES, B_BYTES = 2 * M * K, 2 * N * K
BOX = 8192
IDESC = 1 << 4 | N >> 3 << 17 | M >> 4 << 24
HALF_IDESC = 1 << 4 | 8 >> 3 << 17 | M >> 4 << 24
PAIR_IDESC = 1 << 4 | N >> 3 << 17 | 256 >> 4 << 24


def k_major(matrix: np.ndarray) -> np.ndarray:
    """float [rows, 16] as bytes: core matrices of 8 rows and 16 bytes, all rows first."""
    rows = len(matrix)
    pieces = matrix.astype(np.float16).reshape(rows // 8, 8, 2, 8).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(pieces).view(np.uint8).ravel()


def operands(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes of ``box``, A, B)."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (N, K))
    image = np.zeros(BOX, np.uint8)
    image[:A_BYTES], image[A_BYTES : A_BYTES + B_BYTES] = k_major(a), k_major(b)
    return image, a, b


def descriptors() -> str:
    """%rd10, %rd11: A and B; %p6: accumulate, off."""
    lines = []
    for to, start, rows in (("%rd10", 0, M), ("%rd11", A_BYTES, N)):
        fixed = rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
        lines += [
            f"    mov.u32 %r20, box;\n    add.u32 %r20, %r20, {start};\n    shr.u32 %r20, %r20, 4;",
            f"    cvt.u64.u32 {to}, %r20;\n    or.b64 {to}, {to}, {fixed};",
        ]
    return "\n".join(
        [*lines, "    setp.ne.u32 %p6, %tid, %tid;\n    setp.eq.u32 %p5, %tid, %tid;\n"]
    )


def mma(d: str = "%base", *, add: bool = False, idesc: int = IDESC, guard: str = "@%one") -> str:
    return (
        f"    {guard} tcgen05.mma.cta_group::1.kind::f16 [{d}], %rd10, %rd11, {idesc}, "
        f"{'%p5' if add else '%p6'};\n"
    )


def kernel(body: str, **how: Any) -> str:
    return tensor_kernel(descriptors() + body, columns=64, box=BOX, **how)


READ = load_cells(N) + store_registers(N)


def product(text: str, scale: int = 1, **device: Any) -> None:
    """Runs it; the result must be A B^T, times a scale."""
    image, a, b = operands()
    found = run(text, image, out=(128, N), **device).view(np.float32)
    np.testing.assert_array_equal(found, scale * (a @ b.T))


@every_order
@every_rule
def test_commit_wait_and_fence_make_the_result_readable(order: str, rules: str) -> None:
    for seed in range(4):
        product(kernel(mma() + commit() + wait() + READ), order=order, rules=rules, seed=seed)


@every_order
@every_rule
@pytest.mark.parametrize("missing", ["commit", "wait", "both"])
def test_a_result_that_nothing_waited_for_is_reported(missing: str, order: str, rules: str) -> None:
    arrive = "    @%one mbarrier.arrive.shared.b64 _, [bar];\n"  # instead of the commit
    body = mma() + {"commit": arrive + wait(), "wait": commit(), "both": ""}[missing]
    with pytest.raises(DataRace, match=r"want tcgen05\.commit.*mbarrier based completion"):
        product(kernel(body + "    bar.sync 0;\n" + READ), order=order, rules=rules)


@every_order
def test_the_reader_needs_a_fence_by_the_text_only(order: str) -> None:
    text = kernel(mma() + commit() + wait(fence=False) + READ)
    with pytest.raises(DataRace, match=r"is over, but no tcgen05\.fence::after_thread_sync"):
        product(text, order=order)
    product(text, order=order, rules="hardware")


@every_order
@every_rule
def test_a_commit_before_the_last_mma_does_not_track_it(order: str, rules: str) -> None:
    early = mma() + commit() + mma(add=True) + wait() + READ
    with pytest.raises(DataRace, match="nothing has waited for it"):
        product(kernel(early), order=order, rules=rules)


@every_order
@every_rule
def test_a_commit_tracks_operations_of_its_own_thread_only(order: str, rules: str) -> None:
    body = "    setp.eq.u32 %p0, %tid, 1;\n" + mma() + commit(guard="@%p0 ") + wait() + READ
    with pytest.raises(DataRace, match="nothing has waited for it"):
        product(kernel(body), order=order, rules=rules)


@every_order
@every_rule
def test_a_second_commit_tracks_what_the_first_one_did(order: str, rules: str) -> None:
    product(
        kernel(mma() + commit(0) + commit(1) + wait(1) + READ + wait(0)), order=order, rules=rules
    )


@every_order
@every_rule
def test_mma_on_one_accumulator_run_in_order(order: str, rules: str) -> None:
    for seed in range(4):
        body = mma() + 3 * mma(add=True) + commit() + wait() + READ
        product(kernel(body), 4, order=order, rules=rules, seed=seed)


@every_order
def test_mma_of_two_shapes_on_one_accumulator_are_not_ordered_by_the_text(order: str) -> None:
    text = kernel(mma() + mma(add=True, idesc=HALF_IDESC) + commit() + wait() + READ)
    with pytest.raises(DataRace, match=r"accumulator or shape differ.*Pipelined tcgen05"):
        product(text, order=order)
    image, a, b = operands()
    expected = (a @ b.T) * np.where(np.arange(N) < 8, 2, 1)
    found = run(text, image, out=(128, N), order=order, rules="hardware").view(np.float32)
    np.testing.assert_array_equal(found, expected)


EPILOGUE = f"""
    tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {vector(0, N)}, [%here];
    tcgen05.wait::ld.sync.aligned;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
"""


@every_order
@every_rule
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("", ""),
        ("tcgen05.wait::ld.sync.aligned;", r"want tcgen05\.wait::ld"),
        ("tcgen05.fence::before_thread_sync;", "executed no .*before_thread_sync"),
        ("tcgen05.fence::after_thread_sync;", r"no tcgen05\.fence::after_thread_sync"),
    ],
)
def test_an_accumulator_is_used_again_when_all_have_read_it(
    missing: str, message: str, order: str, rules: str
) -> None:
    again = mma(add=True) + commit() + wait(parity=1) + READ
    text = kernel(mma() + commit() + wait() + EPILOGUE.replace(missing, "") + again)
    if message and (rules == "ptx" or "wait" in missing):
        with pytest.raises(DataRace, match=message):
            product(text, 2, order=order, rules=rules)
    else:
        product(text, 2, order=order, rules=rules)


@every_order
@every_rule
def test_operands_must_not_be_stored_to_before_the_mma_is_waited_for(
    order: str, rules: str
) -> None:
    overwrite = "    mov.u32 %r30, box;\n    @%one st.shared.u32 [%r30], %tid;\n"
    product(kernel(mma() + commit() + wait() + overwrite + READ), order=order, rules=rules)
    with pytest.raises(DataRace, match="asynchronous operation in flight reads"):
        product(kernel(mma() + overwrite + commit() + wait() + READ), order=order, rules=rules)


def test_a_cta_that_exits_with_an_mma_in_flight_is_reported() -> None:
    with pytest.raises(UnfinishedWork, match=r"nothing has waited for .*\n  tcgen05\.mma"):
        product(kernel(mma(), dealloc=False))


@every_order
@every_rule
def test_dealloc_while_an_mma_is_in_flight(order: str, rules: str) -> None:
    with pytest.raises(DataRace, match=r"tcgen05\.dealloc of columns .* while tcgen05\.mma"):
        product(kernel(mma() + commit()), order=order, rules=rules)


def test_a_cta_that_exits_with_a_commit_in_flight_is_reported() -> None:
    """What it tracks has been waited for by way of another barrier."""
    body = mma() + commit(0) + commit(1) + wait(1)
    with pytest.raises(UnfinishedWork, match=r"tcgen05\.commit, which reads shared memory"):
        product(kernel(body), order="adversarial-delay")


def test_the_scales_of_an_mma_in_flight_may_be_overwritten_on_devices_only() -> None:
    """cp -> mma is a pipelined pair, mma -> cp is not; a stands for what a copy brought."""
    st = f"{fill_cells(N)}\n    tcgen05.fence::before_thread_sync;\n    bar.sync 0;\n"
    after = "    tcgen05.fence::after_thread_sync;\n"
    cp = "    @%one tcgen05.cp.cta_group::1.32x128b.warpx4 [%base], %rd12;\n"
    scales = "    mov.b64 %rd12, %rd11;\n"
    body = scales + st + after + cp + mma(add=True) + cp + commit() + wait()
    with pytest.raises(DataRace, match="-> cp is no pipelined pair"):
        run(kernel(body), operands()[0])
    run(kernel(body), operands()[0], rules="hardware")


def by_two_threads(before: str, after: str) -> str:
    """Thread 0 copies into the accumulator, thread 32 adds to it."""
    cp = "    @%one tcgen05.cp.cta_group::1.32x128b.warpx4 [%base], %rd11;\n"
    return kernel(
        "    setp.eq.u32 %p0, %tid, 32;\n"
        + cp
        + before
        + "    bar.sync 0;\n"
        + after
        + mma(add=False, guard="@%p0")
        + commit(guard="@%p0 ")
        + commit(1)
        + wait(0)
        + wait(1)
        + READ
    )


@every_order
def test_a_pipeline_across_threads_needs_both_fences_by_the_text(order: str) -> None:
    before = "    tcgen05.fence::before_thread_sync;\n"
    after = "    tcgen05.fence::after_thread_sync;\n"
    product(by_two_threads(before, after), order=order)
    product(by_two_threads("", ""), order=order, rules="hardware")
    for text in (by_two_threads("", after), by_two_threads(before, "")):
        with pytest.raises(DataRace, match="the two come from different threads"):
            product(text, order=order)


def test_the_order_of_a_pipeline_is_kept_in_flight() -> None:
    """A copy, then an mma over it: whatever completes first, the mma's result stays."""
    cp = "    @%one tcgen05.cp.cta_group::1.32x128b.warpx4 [%base], %rd11;\n"
    text = kernel(cp + mma() + commit() + wait() + READ)
    for order in ("adversarial-delay", "random"):
        for seed in range(10):
            product(text, order=order, seed=seed)


# --- more than one CTA


def pair_mma(*, mask: int = 3, guard: str = "@%p0") -> str:
    return f"""
    and.pred %p0, %one, %even;
    {guard} tcgen05.mma.cta_group::2.kind::f16 [%base], %rd10, %rd11, {PAIR_IDESC}, %p6;
    mov.b16 %h0, {mask};
    {guard} tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
        [bar], %h0;
"""


def pair_product(text: str, **device: Any) -> None:
    """M = 256: each CTA has its rows of A and half of B's rows in its shared memory."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (2, M, K)), rng.integers(-4, 5, (2, N // 2, K))
    image = np.zeros((2, BOX), np.uint8)
    for rank in range(2):
        image[rank, :A_BYTES] = k_major(a[rank])
        image[rank, A_BYTES : A_BYTES + B_BYTES // 2] = k_major(b[rank])
    found = run(text, image, out=(256, N), cluster=2, **device).view(np.float32)
    np.testing.assert_array_equal(found, a.reshape(256, K) @ b.reshape(N, K).T)


def pair_kernel(body: str, **how: Any) -> str:
    text = descriptors().replace(f"{N * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46}", "B_BITS")
    half = f"{N // 2 * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46}"
    how = {"group": 2, "cluster_end": True, **how}
    return tensor_kernel(text.replace("B_BITS", half) + body, columns=64, box=BOX, **how)


@every_order
@every_rule
def test_one_commit_signals_both_ctas_of_a_pair(order: str, rules: str) -> None:
    for seed in range(3):
        text = pair_kernel(pair_mma() + wait() + READ)
        pair_product(text, order=order, rules=rules, seed=seed)


@every_order
@pytest.mark.parametrize("mask", [1, 2])
def test_a_mask_that_leaves_a_cta_out_is_a_deadlock(mask: int, order: str) -> None:
    text = pair_kernel(pair_mma(mask=mask) + wait() + READ)
    with pytest.raises(Deadlock, match="lacks 1 of 1 arrivals"):
        pair_product(text, order=order)


@pytest.mark.parametrize("mask", [0, 4, 7])
def test_a_mask_names_ctas_of_the_cluster(mask: int) -> None:
    with pytest.raises(IllegalOperation, match=f"multicast mask of {mask:#x} in a cluster of 2"):
        pair_product(pair_kernel(pair_mma(mask=mask) + wait() + READ))


@every_order
def test_the_peer_may_read_only_what_was_committed_to_it(order: str) -> None:
    """The leader alone is signalled; the peer reads after a cluster barrier that comes too soon."""
    alone = pair_mma(mask=1) + "    @!%even bra go;\n" + wait(label="lead") + "go:\n" + READ
    with pytest.raises((DataRace, UninitialisedRead)):
        pair_product(pair_kernel(alone), order=order)


@every_order
def test_the_peer_must_be_there(order: str) -> None:
    gone = """
    @%even bra leader;
    exit;
leader:
    mov.u32 %r30, 0;
spin:
    nanosleep.u32 10;
    add.u32 %r30, %r30, 1;
    setp.lt.u32 %p1, %r30, 64;
    @%p1 bra spin;
"""
    text = tensor_kernel(descriptors() + gone + pair_mma(), columns=64, box=BOX, group=2)
    with pytest.raises((IllegalOperation, UnfinishedWork, Deadlock)):
        pair_product(text, order=order)


@every_order
def test_a_commit_may_name_the_barrier_of_the_even_cta_by_its_cluster_address(order: str) -> None:
    """mapa, or bit 24 of the address cleared."""
    remote = """
    mov.u32 %r30, bar;
    and.b32 %r30, %r30, 0xFEFFFFFF;
    and.pred %p0, %one, !%even;
"""
    body = "    not.pred %p1, %even;\n    and.pred %p0, %one, %p1;\n" + remote.replace(
        "    and.pred %p0, %one, !%even;\n", ""
    )
    body += """
    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];
    @!%even bra over;
"""
    text = tensor_kernel(body + wait() + "over:\n", columns=32, cluster_end=True)
    run(text, out=(256, 1), cluster=2, order=order)


@every_order
def test_a_commit_to_a_cta_that_has_exited_is_reported(order: str) -> None:
    body = """
    mov.u32 %r30, bar;
    and.b32 %r30, %r30, 0xFEFFFFFF;
    not.pred %p1, %even;
    and.pred %p0, %one, %p1;
    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];
"""
    with pytest.raises((UnfinishedWork, OutOfBounds)):
        run(tensor_kernel(body, columns=32), out=(256, 1), cluster=2, order=order)


def test_a_commit_needs_a_barrier() -> None:
    with pytest.raises(BarrierError, match="no mbarrier at"):
        product(kernel(mma() + commit(barrier=2), barriers=2))


def test_a_report_counts_the_operations() -> None:
    from nibblas.emulator import Device  # the kernel's report, which run() does not give

    dev = Device("sm_100")
    out = dev.empty((128, N), np.uint32)
    loaded = dev.load_ptx(kernel(mma() + mma(add=True) + commit() + wait() + READ)).kernel("k")
    report: Report = loaded.launch(1, 128, [dev.from_numpy(operands()[0]), out])
    assert report.events["tensor operations"] == 2
    assert report.bytes_by_path["tcgen05.ld"] == 4 * 128 * N
