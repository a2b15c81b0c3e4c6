"""A compiled TMA + wgmma kernel: right in every order, and its faults are named."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from nibblas.emulator import (
    BarrierError,
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    Report,
    UnfinishedWork,
    UninitialisedRead,
)
from nibblas.emulator.compile import cuda_ptx
from tests.emulator.conftest import every_order
from tests.emulator.pipeline import shared_bytes, source

pytestmark = pytest.mark.usefixtures("nvrtc")


@cache
def compiled(text: str) -> str:
    return cuda_ptx(text)


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def gemm(
    m: int, n: int, k: int, *, text: str | None = None, **device
) -> tuple[Report, np.ndarray, np.ndarray]:
    """(report, result, A B^T) of small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (n, k))
    dev = Device("sm_90", **device)
    c = dev.empty((m, n), np.uint16, name="c")
    operands = [dev.from_numpy(bf16(x), name=name) for x, name in ((a, "a"), (b, "b"))]
    maps = [
        dev.tensor_map(operand, dtype="bfloat16", box=[64, 128], swizzle="128b")
        for operand in operands
    ]
    maps.append(dev.tensor_map(c, dtype="bfloat16", box=[128, 128]))
    kernel = dev.load_ptx(compiled(text or source())).kernel("gemm")
    grid = (-(-n // 128), -(-m // 128), 1)
    report = kernel.launch(grid, 384, [*maps, k], smem=shared_bytes())
    assert c.written().all()
    return report, (c.to_numpy().astype(np.uint32) << 16).view(np.float32), a @ b.T


def rounded(exact: np.ndarray) -> np.ndarray:
    """To bf16, nearest even."""
    bits = exact.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@every_order
def test_one_tile(order: str) -> None:
    report, found, want = gemm(128, 128, 512, order=order)
    assert (found == rounded(want)).all()
    assert report.events["tensor operations"] == 2 * 32


@pytest.mark.parametrize("seed", range(3))
def test_several_tiles_with_tails(seed: int) -> None:
    _, found, want = gemm(136, 200, 192, order="random", seed=seed)
    assert (found == rounded(want)).all()


WAIT_WGMMA = 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'
FENCE_WGMMA = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
FENCE_PROXY = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
WAIT_READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
FULL = "full + 8 * s, step / kStages & 1"
PARITY = "step / kStages & 1"
FREE = "arrive(empty + 8 * s);"
INIT = 'asm volatile("mbarrier.init.shared::cta.b64 [%0], 256;" ::"r"({barrier} + 8 * s));'

#: Name: (text, what stands there instead, what is raised).
FAULTS: dict[str, tuple[str, str, tuple[type[Exception], ...]]] = {
    "expect_tx of half a step": (
        '"r"(kStepBytes) : "memory"',
        '"r"(kStepBytes / 2) : "memory"',
        (DataRace, Deadlock),
    ),
    "expect_tx of two steps": (
        '"r"(kStepBytes) : "memory"',
        '"r"(kStepBytes * 2) : "memory"',
        (Deadlock,),
    ),
    "no wait for the loads": (f"wait({FULL});", "", (DataRace, UninitialisedRead)),
    "wrong parity of the consumers": (
        f"wait({FULL});",
        f"wait({FULL} ^ 1);",
        (DataRace, Deadlock, UninitialisedRead),
    ),
    "wrong parity of the producer": (f"{PARITY} ^ 1);", f"{PARITY});", (Deadlock,)),
    "producer does not wait": (
        f"wait(empty + 8 * s, {PARITY} ^ 1);",
        "",
        (BarrierError, DataRace),
    ),
    "one thread too few arrives": ("b64 [%0], 256;", "b64 [%0], 257;", (Deadlock,)),
    "one warpgroup frees a stage": ("b64 [%0], 256;", "b64 [%0], 128;", (DataRace,)),
    "a stage is freed before the wait": (
        f"{WAIT_WGMMA}\n    {FREE}",
        f"{FREE}\n    {WAIT_WGMMA}",
        (DataRace,),
    ),
    "no wait for wgmma": (WAIT_WGMMA, "", (DataRace,)),
    "no wgmma fence": (FENCE_WGMMA, "", (DataRace,)),
    "no proxy fence": (FENCE_PROXY, "", (DataRace,)),
    "no wait for the store's reads": (WAIT_READ, "", (UnfinishedWork,)),
    "a barrier initialised twice": (
        INIT.format(barrier="empty"),
        INIT.format(barrier="full"),
        (BarrierError,),
    ),
    "too many registers asked for": ("aligned.u32 232", "aligned.u32 240", (Deadlock,)),
    "box of the next stage": ("base + s * kStepBytes, a", "base + kStepBytes, a", (DataRace,)),
    "swizzle of another span": ("<< 32 | u64(1) << 62", "<< 32 | u64(2) << 62", (AssertionError,)),
    "coordinate off by one": ("a, step * 64, row", "a, step * 64 + 1, row", (IllegalOperation,)),
    "coordinate off by eight": ("a, step * 64, row", "a, step * 64 + 8, row", (AssertionError,)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_noticed(name: str) -> None:
    """Under at least one order; the report names the source line."""
    old, new, errors = FAULTS[name]
    text = source()
    assert text.count(old) == 1
    broken = text.replace(old, new)
    assert any(_report(broken, order, errors) for order in ("adversarial-delay", "random"))


def _report(text: str, order: str, errors: tuple[type[Exception], ...]) -> str:
    """What is raised, with the source line; "" for a right result."""
    try:
        _, found, want = gemm(128, 128, 320, text=text, order=order)
    except errors as error:
        place = re.search(r"kernel\.cu:\d+[^\n]*", str(error))
        assert place is not None
        return place[0]
    if (found == rounded(want)).all():
        return ""
    assert AssertionError in errors
    return "a wrong result"
