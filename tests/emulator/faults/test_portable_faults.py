"""Faults planted in the portable kernel's own text: each is noticed.

EVERY_FAULT=1 runs the unbroken kernel under 50 schedules; else 12.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import nibblas
from nibblas.emulator import EmulatedDriver, EmulationError, backend, emulating
from nibblas.runtime import source
from tests.api.problems import assert_right, offs_of, random_array, random_tokens
from tests.emulator.backend.stale import written_late
from tests.emulator.faults.extent import EVERY_FAULT

pytestmark = pytest.mark.usefixtures("nvrtc")


@dataclass(frozen=True)
class Fault:
    """A replacement in a file of kernels/portable, where ``old`` must stand once."""

    name: str
    file: str
    old: str
    new: str


_RING = "ring.cuh"
_SEARCHING_WARP = 8  # of the configuration for any rows
FAULTS = [
    Fault("parity never flips", _RING, "    round_ ^= 1;\n", ""),
    Fault("full is not waited for", _RING, "{ wait(full(), round_); }", "{}"),
    Fault("empty is not waited for", _RING, "{ wait(empty(), round_ ^ 1); }", "{}"),
    Fault("empty: wrong parity", _RING, "wait(empty(), round_ ^ 1)", "wait(empty(), round_)"),
    Fault(
        "empty: a warp's arrival is not expected",
        _RING,
        "kEmptyArrivals = kWarpLanes * kMultiplyWarps",
        "kEmptyArrivals = kWarpLanes * (kMultiplyWarps - 1)",
    ),
    Fault(
        "full: an arrival too many is expected",
        _RING,
        "kFullArrivals = kWeightArrivals",
        "kFullArrivals = 1 + kWeightArrivals",
    ),
    Fault(
        "full: the token warps are not expected",
        _RING,
        "kWeightArrivals + kWarpLanes * Config::kTokenWarps;",
        "kWeightArrivals;",
    ),
    Fault(
        "one slot too many",
        _RING,
        "if (++slot_ < Config::kStages)",
        "if (++slot_ <= Config::kStages)",
    ),
]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped kernels that the next products are compiled from, on a new device."""
    folder = Path(shutil.copytree(source.KERNELS, tmp_path / "kernels"))
    monkeypatch.setattr(source, "KERNELS", folder)
    driver = EmulatedDriver("sm_90")
    monkeypatch.setattr(backend, "driver_of", lambda arch: driver)
    return folder / "portable"


def product(order: str, seed: int) -> None:
    """Six stages of K through a ring of four; raises where the kernel is wrong."""
    w, x = random_array((1, 24, 1536), 1), random_tokens(3, 1536, 2, torch.float16)
    with emulating(order=order, seed=seed, max_instructions=3_000_000):
        y = nibblas.grouped_mm(x, w, offs_of([3]), backend="emulated")
    assert_right(y, x, w, offs_of([3]))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_in_the_portable_kernel_is_noticed(fault: Fault, kernels: Path) -> None:
    file = kernels / fault.file
    text = file.read_text()
    assert text.count(fault.old) == 1, f"{fault.old!r} is {text.count(fault.old)} times in it"
    file.write_text(text.replace(fault.old, fault.new))
    for order, seed in (
        *(("adversarial-delay", 0), ("round_robin", 0), ("adversarial-at-once", 0)),
        *(("random", 0), ("random", 1), ("random", 2), ("adversarial-starve", 0)),
        *(("adversarial-starve", warp) for warp in range(1, 12)),
    ):
        try:
            product(order, seed)
        except (EmulationError, AssertionError):
            return
    pytest.fail("noticed under no order")


@pytest.mark.parametrize("planted", [False, True])
def test_a_run_kept_though_offs_has_changed_is_noticed(planted: bool, kernels: Path) -> None:
    file, old = kernels / "grouped_mm.cu", "if (search.holds()) return search.run();"
    text = file.read_text()
    assert text.count(old) == 1
    if planted:
        file.write_text(text.replace(old, "return search.run();"))
    w, x, offs = (
        random_array((1, 24, 256), 1),
        random_tokens(3, 256, 2, torch.float16),
        offs_of([3]),
    )
    out = torch.full((3, 24), torch.nan).half()
    order = emulating(order="adversarial-starve", seed=_SEARCHING_WARP, max_instructions=3_000_000)
    with order, written_late(offs, [0]):
        nibblas.grouped_mm(x, w, offs, out=out, backend="emulated")
    assert bool(out.isnan().all()) == planted
    if not planted:
        assert_right(out, x, w, offs)


def test_the_unbroken_kernel_is_never_accused(kernels: Path) -> None:
    for seed in range(25 if EVERY_FAULT else 6):
        product("random", seed)
        product("adversarial-starve", seed)
