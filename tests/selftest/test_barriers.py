"""Where barriers are, on the emulator, and what their words say, by the compiler's own."""

from __future__ import annotations

from functools import partial

import pytest

from nibblas import env
from nibblas.competition import Case, custom_kernel, run_tests
from nibblas.emulator import backend
from nibblas.emulator.backend import emulating
from nibblas.emulator.driver import EmulatedDriver
from nibblas.emulator.errors import Site
from nibblas.emulator.machine.mbarrier import init_barrier
from nibblas.emulator.machine.memory import Memory
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.driver import use_driver
from nibblas.runtime.kernel import loaded_kernels
from nibblas.selftest.barriers import (
    SHARED_WORDS,
    Barrier,
    Words,
    barrier_of,
    barrier_words,
    described,
)

SMALL = Case("S", 1, (8,), (128,), (256,))


def wide(parity: int, pending: int, expected: int, tx: int = 0) -> int:
    return parity << 63 | (2**20 - pending) << 43 | tx << 21 | (2**20 - expected) << 1


def test_the_words_that_the_compiler_stores_are_barriers_with_all_arrivals_pending() -> None:
    """``nibblas_selftest_hang`` with its count of 1, as nvdisasm shows it."""
    assert barrier_of(0x7FFFF800001FFFFE, wide=True) == Barrier(0, 1, 1, 0)
    assert barrier_of(0x7FFFFFFF3FFFFFFF, wide=False) == Barrier(0, 1, 1, 0)


def test_an_arrival_counts_up_and_the_last_one_flips_the_parity() -> None:
    assert barrier_of(wide(0, 3, 3) + (1 << 43), wide=True) == Barrier(0, 2, 3, 0)
    assert wide(0, 1, 1) + (1 << 43) == 1 << 63 | (2**20 - 1) << 1
    assert barrier_of(wide(1, 2, 5, tx=7), wide=True) == Barrier(1, 2, 5, 7)


@pytest.mark.parametrize("word", [0, 1, 0x12, 2**64 - 1, wide(0, 5, 4), wide(0, 9, 5000)])
def test_other_words_are_no_barriers(word: int) -> None:
    assert barrier_of(word, wide=True) is None


def test_each_barrier_of_a_printed_array_has_a_line() -> None:
    printed = ", ".join(f"{word:#x}" for word in (wide(1, 1, 2), 0x12, wide(0, 4, 4)))
    lines = ["kernels", SHARED_WORDS, f"$1 = {{{printed}}}", "0x7ffff800001ffffe"]
    first, second = described(lines, Words(0x1000, 3))
    assert "at 0x1000: barrier, parity 1, lacks 1 of 2 arrivals" in first
    assert "at 0x1010: barrier, parity 0, lacks 4 of 4 arrivals" in second
    assert list(described(lines[:1], Words(0x1000, 3))) == []
    assert list(described(lines[:2], Words(0x1000, 3))) == []


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("arch", "preset"), [*(("sm_100", preset) for preset in PRESETS), ("sm_90", PRESETS[0])]
)
def test_every_barrier_of_a_kernel_is_among_the_words(
    arch: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator, whose shared memory begins at 0x400 too, shows where they are initialised."""
    barriers = set[int]()

    def noting(memory: Memory, offset: int, count: int, site: Site) -> None:
        barriers.add(memory.base + offset & 0xFFFFFF)  # in its own CTA of a cluster
        init_barrier(memory, offset, count, site)

    driver = EmulatedDriver(arch)
    monkeypatch.setattr("nibblas.emulator.isa.mbarriers.init_barrier", noting)
    monkeypatch.setattr(backend, "driver_of", lambda arch: driver)
    with emulating(arch, num_sms=4), env.sm100_preset(preset):
        (test,) = run_tests("cpu", partial(custom_kernel, backend="emulated"), cases=[SMALL])
    assert test.verdict.passed
    assert barriers
    with use_driver(driver):
        (kernel,) = loaded_kernels()
    words = barrier_words(kernel.config, kernel.source.target)
    assert barriers <= set(range(words.address, words.address + 8 * words.count, 8))
