"""A persistent kernel with every part of a tcgen05 pipeline, right, and with each part missing.

    thread 0    bulk copies   --full-->  thread 32  cp, mma   --tmem_full-->   warps 4-7  ld
                              <-empty--             commits   <--tmem_empty--             out

A tile is D = D0 + sum of A_k B_k^T over STEPS steps, 128 x 16 x 16 in f16: cp brings D0 into one of
two accumulators, the mma follow. Operands have two stages. Whole numbers, so results are exact.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from nibblas.emulator import (
    ORDERS,
    BarrierError,
    DataRace,
    Deadlock,
    Device,
    EmulationError,
    OutOfBounds,
    UnfinishedWork,
)
from tests.emulator.conftest import every_order
from tests.emulator.tensor_kernels import vector

TILES, STEPS, STAGES, BUFFERS = 4, 2, 2, 2
M, N, K = 128, 16, 16
A_BYTES, B_BYTES, D_BYTES = 2 * M * K, 2 * N * K, 4 * M * N
STAGE_BYTES = A_BYTES + B_BYTES
IDESC = 1 << 4 | N >> 3 << 17 | M >> 4 << 24
THREADS = 256

FULL, EMPTY, LOADED, TMEM_FULL, TMEM_EMPTY = (16 * i for i in range(5))
"""Offsets of pairs of barriers; LOADED: D0 has come."""


def wait(barrier: int, parity: int, tag: str, fence: str = "") -> str:
    label = f"w_{tag}"
    return f"""
{label}:
    mbarrier.try_wait.parity.shared.b64 %p7, [bars+{barrier}], {parity & 1};
    @!%p7 bra {label};
    {fence}"""


def copy(to: str, source: int, size: int, barrier: int) -> str:
    return f"""
    mbarrier.arrive.expect_tx.shared.b64 _, [bars+{barrier}], {size};
    add.s64 %rd3, %rd0, {source};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [{to}], [%rd3], {size}, [bars+{barrier}];"""


def producer() -> str:
    lines = []
    for tile in range(TILES):
        buffer, use = tile % BUFFERS, tile // BUFFERS
        if use:
            lines.append(wait(TMEM_FULL + 8 * buffer, use - 1, f"p{tile}"))
        at = tile * (D_BYTES + STEPS * STAGE_BYTES)
        lines.append(copy(f"starts+{buffer * D_BYTES}", at, D_BYTES, LOADED + 8 * buffer))
        for step in range(STEPS):
            count = tile * STEPS + step
            stage, turn = count % STAGES, count // STAGES
            if turn:
                lines.append(wait(EMPTY + 8 * stage, turn - 1, f"p{tile}_{step}"))
            source = at + D_BYTES + step * STAGE_BYTES
            lines.append(copy(f"stages+{stage * STAGE_BYTES}", source, STAGE_BYTES, 8 * stage))
    for stage in range(STAGES):  # no commit may be on its way when the CTA exits
        last = (TILES * STEPS - 1 - stage) // STAGES
        lines.append(wait(EMPTY + 8 * stage, last, f"tail{stage}"))
    return "\n".join(lines)


def describe(to: str, base: str, start: int, rows: int) -> str:
    fixed = rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    return f"""
    mov.u32 %r20, {base};
    add.u32 %r20, %r20, {start};
    shr.u32 %r20, %r20, 4;
    cvt.u64.u32 {to}, %r20;
    or.b64 {to}, {to}, {fixed};"""


def commit(barrier: int) -> str:
    return (
        "\n    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "
        f"[bars+{barrier}];"
    )


AFTER = "tcgen05.fence::after_thread_sync;"
BEFORE = "tcgen05.fence::before_thread_sync;"


def multiplier() -> str:
    lines = []
    for tile in range(TILES):
        buffer, use = tile % BUFFERS, tile // BUFFERS
        if use:
            lines.append(wait(TMEM_EMPTY + 8 * buffer, use - 1, f"m{tile}", AFTER))
        lines.append(wait(LOADED + 8 * buffer, use, f"l{tile}"))
        lines.append(f"    add.u32 %d, %base, {16 * buffer};")
        for half in range(2):
            start = buffer * D_BYTES + half * D_BYTES // 2
            lines.append(describe("%rd10", "starts", start, M))
            lines.append(f"    add.u32 %r21, %d, {8 * half};")
            lines.append("    tcgen05.cp.cta_group::1.128x256b [%r21], %rd10;")
        for step in range(STEPS):
            count = tile * STEPS + step
            stage, turn = count % STAGES, count // STAGES
            lines.append(wait(FULL + 8 * stage, turn, f"m{tile}_{step}"))
            lines.append(describe("%rd11", "stages", stage * STAGE_BYTES, M))
            lines.append(describe("%rd12", "stages", stage * STAGE_BYTES + A_BYTES, N))
            lines.append(
                f"    tcgen05.mma.cta_group::1.kind::f16 [%d], %rd11, %rd12, {IDESC}, %yes;"
            )
            lines.append(commit(EMPTY + 8 * stage))
        lines.append(commit(TMEM_FULL + 8 * buffer))
    return "\n".join(lines)


def epilogue() -> str:
    lines = []
    for tile in range(TILES):
        buffer, use = tile % BUFFERS, tile // BUFFERS
        lines.append(wait(TMEM_FULL + 8 * buffer, use, f"e{tile}", AFTER))
        lines.append(f"""
    add.u32 %d, %here, {16 * buffer};
    tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {vector(0, N)}, [%d];
    tcgen05.wait::ld.sync.aligned;
    {BEFORE}
    mbarrier.arrive.shared.b64 _, [bars+{TMEM_EMPTY + 8 * buffer}];""")
        place = [f"[%rd2+{4 * (tile * M * N + i)}]" for i in range(N)]
        lines += [f"    st.global.u32 {at}, %v{i};" for i, at in enumerate(place)]
    return "\n".join(lines)


def kernel() -> str:
    counts = dict.fromkeys((FULL, EMPTY, LOADED, TMEM_FULL), 1) | {TMEM_EMPTY: 128}
    inits = "\n".join(
        f"    @%one mbarrier.init.shared.b64 [bars+{offset + 8 * i}], {count};"
        for offset, count in counts.items()
        for i in range(2)
    )
    return f"""
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %base, %here, %d, %r<32>, %v<{N}>;
    .reg .b64 %rd<16>;
    .reg .pred %one, %first, %yes, %p<8>;
    .shared .align 8 .b64 bars[10];
    .shared .b32 slot;
    .shared .align 1024 .b8 starts[{BUFFERS * D_BYTES}];
    .shared .align 1024 .b8 stages[{STAGES * STAGE_BYTES}];
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [in];
    ld.param.u64 %rd1, [out];
    setp.eq.u32 %one, %r0, 0;
    setp.lt.u32 %first, %r0, 32;
    setp.eq.u32 %yes, %r0, %r0;
{inits}
    fence.mbarrier_init.release.cluster;
    @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
    bar.sync 0;
    ld.shared.b32 %base, [slot];
    setp.ge.u32 %p0, %r0, 128;
    @%p0 bra epilogue;
    setp.eq.u32 %p0, %r0, 32;
    @%p0 bra multiplier;
    @!%one bra ends;
{producer()}
    bra ends;
multiplier:
{multiplier()}
    bra ends;
epilogue:
    and.b32 %r1, %r0, 127;
    shr.u32 %r2, %r1, 5;
    shl.b32 %here, %r2, 21;
    add.u32 %here, %here, %base;
    mul.wide.u32 %rd2, %r1, {4 * N};
    add.s64 %rd2, %rd2, %rd1;
{epilogue()}
ends:
    bar.sync 0;
    @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 32;
    ret;
}}
"""


def pieces(matrix: np.ndarray) -> np.ndarray:
    """K-major core matrices of 8 rows and 16 bytes, all rows first."""
    per_piece = 16 // matrix.itemsize
    rows, k = matrix.shape
    ordered = matrix.reshape(rows // 8, 8, k // per_piece, per_piece).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(ordered).view(np.uint8).ravel()


def problem() -> tuple[np.ndarray, np.ndarray]:
    """(input bytes, results float32 [tiles, 128, 16])."""
    rng = np.random.default_rng(0)
    images, results = [], []
    for _ in range(TILES):
        d = rng.integers(-9, 10, (M, N)).astype(np.float32)
        images += [pieces(d[:, :8]), pieces(d[:, 8:])]
        for _ in range(STEPS):
            a, b = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (N, K))
            images += [pieces(a.astype(np.float16)), pieces(b.astype(np.float16))]
            d = d + (a @ b.T).astype(np.float32)
        results.append(d)
    return np.concatenate(images), np.stack(results)


IMAGE, EXPECTED = problem()
KERNEL = kernel()


def run(text: str, **device: Any) -> None:
    dev = Device("sm_100", **device)
    out = dev.empty(EXPECTED.shape, np.float32)
    dev.load_ptx(text).kernel("k").launch(1, THREADS, [dev.from_numpy(IMAGE), out])
    np.testing.assert_array_equal(out.to_numpy(), EXPECTED)


every_rule = pytest.mark.parametrize("rules", ["ptx", "hardware"])


@every_order
@every_rule
def test_the_pipeline_is_right_and_never_accused(order: str, rules: str) -> None:
    for seed in range(50 if order == "random" else 5):
        run(KERNEL, order=order, rules=rules, seed=seed)


def without(pattern: str, *, nth: int = -1, instead: str = "") -> str:
    """The kernel with all matches of a pattern replaced, or one of them."""
    found = list(re.finditer(pattern, KERNEL))
    assert found, pattern
    chosen = found if nth < 0 else [found[nth]]
    text = KERNEL
    for match in reversed(chosen):
        text = text[: match.start()] + match.expand(instead) + text[match.end() :]
    return text


def wait_of(tag: str) -> str:
    return rf"\n(w_{tag}):\n.*\n.*bra w_{tag};"


PLAIN = r"mbarrier.arrive.shared.b64 _, [bars+\1];"
COMMIT = r"tcgen05\.commit\S* \[bars\+({})\];"
FAULTS: dict[str, tuple[str, type[EmulationError] | tuple[type[EmulationError], ...]]] = {
    "tmem_full is a plain arrival": (
        without(COMMIT.format(f"{TMEM_FULL}|{TMEM_FULL + 8}"), instead=PLAIN),
        DataRace,
    ),
    "empty is a plain arrival": (without(COMMIT.format("16|24"), instead=PLAIN), DataRace),
    "no wait for empty": (without(wait_of(r"p\d_\d")), (DataRace, BarrierError)),
    "no wait for full": (without(wait_of(r"m\d_\d")), (DataRace, EmulationError)),
    "no wait for tmem_empty": (without(wait_of(r"m\d")), DataRace),
    "no wait for tmem_full": (without(wait_of(r"e\d")), (DataRace, EmulationError)),
    "no wait for the start": (without(wait_of(r"l\d")), (DataRace, EmulationError)),
    "no wait::ld": (without(r"tcgen05\.wait::ld\S*"), DataRace),
    "tmem_empty arrives before wait::ld": (
        without(r"(tcgen05\.wait::ld\S*)\n(.*)\n(.*arrive.*)", instead=r"\2\n\3\n    \1"),
        DataRace,
    ),
    "no commit of the last tile": (
        without(COMMIT.format(TMEM_FULL), nth=1),
        Deadlock,
    ),
    "tmem_full commits before the last mma": (
        without(
            rf"(tcgen05\.mma.*\n)(\n.*commit.*\n)(\n    {COMMIT.format('48|56')})",
            instead=r"\3\n    \1\2",
        ),
        DataRace,
    ),
    "a commit too many": (
        without(rf"({COMMIT.format(TMEM_FULL)})", nth=0, instead=r"\1\n    \1"),
        (DataRace, Deadlock, BarrierError, UnfinishedWork, AssertionError),  # type: ignore[dict-item]
    ),
    "the wrong parity of tmem_full": (
        without(r"(w_e0:\n.*), 0;", instead=r"\1, 1;"),
        (DataRace, EmulationError),
    ),
    "dealloc before the epilogue": (
        without(r"ends:\n    bar\.sync 0;", instead="ends:"),
        (DataRace, OutOfBounds),
    ),
    "no dealloc": (without(r"@%first tcgen05\.dealloc.*"), UnfinishedWork),
    "the accumulators overlap": (
        without(r"add\.u32 %d, %base, 16;", instead="add.u32 %d, %base, 8;"),
        (DataRace, EmulationError),
    ),
}


@pytest.mark.parametrize(
    ("order", "rules"),
    [(order, "ptx") for order in sorted(ORDERS)]
    + [("random", "hardware"), ("adversarial-at-once", "hardware")],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_noticed(fault: str, order: str, rules: str) -> None:
    text, errors = FAULTS[fault]
    with pytest.raises(errors):
        run(text, order=order, rules=rules, seed=1)


def test_an_exit_while_a_commit_is_on_its_way_is_noticed() -> None:
    """By the text commits may come in any order: a wait for the last is none for the others."""
    text = without(wait_of(r"tail\d"))
    with pytest.raises(UnfinishedWork, match=r"tcgen05\.commit"):
        run(text, order="adversarial-delay")
    run(text, order="adversarial-delay", rules="hardware")


MISSING_FENCES = {
    "the multiplier's": without(rf"(w_m\d:\n.*\n.*\n    ){re.escape(AFTER)}", instead=r"\1"),
    "the epilogue's first": without(rf"(w_e\d:\n.*\n.*\n    ){re.escape(AFTER)}", instead=r"\1"),
    "the epilogue's second": without(re.escape(BEFORE)),
}


@every_order
@pytest.mark.parametrize("fence", MISSING_FENCES)
def test_a_missing_fence_is_noticed_by_the_text_and_harmless_on_devices(
    fence: str, order: str
) -> None:
    with pytest.raises(DataRace, match="fence::"):
        run(MISSING_FENCES[fence], order=order)
    run(MISSING_FENCES[fence], order=order, rules="hardware")
