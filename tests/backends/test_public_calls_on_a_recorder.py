"""Public calls on the portable backend, whose launches a recording driver takes.

A CUDA tensor cannot exist here. The tensors are the CPU's, and the planner is told that they lie on
a GPU; all else, from the public function to the driver seam, is what runs on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import nibblas
from nibblas import ops
from nibblas.errors import NativeLibraryError
from nibblas.runtime.compile import compiler_version
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver
from tests.api.problems import offs_of, random_array, random_tokens


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingDriver]:
    """A Hopper that records, and a planner that takes CPU tensors for its own."""
    try:
        compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))
    problem_of = ops.problem_of

    def on_the_gpu(*arguments: Any, **keywords: Any) -> Any:
        return replace(problem_of(*arguments, **keywords), device="cuda")

    monkeypatch.setattr(ops, "problem_of", on_the_gpu)
    ops.forget_plans()
    with use_driver(RecordingDriver(compute_capability=(9, 0), sms=132)) as recorder:
        yield recorder
    ops.forget_plans()


def call(x: Any, w: nibblas.NVFP4Array, offs: torch.Tensor, **options: Any) -> torch.Tensor:
    return nibblas.grouped_mm(x, w, offs, backend="portable", **options)


def problem(seed: int, rows: int = 5) -> tuple[Any, ...]:
    w = random_array((2, 32, 256), seed)
    return random_tokens(rows, 256, seed, torch.bfloat16), w, offs_of([rows // 2, rows])


@pytest.mark.parametrize("quantized", [False, True])
def test_a_warm_public_call_is_one_launch_and_nothing_else(
    driver: RecordingDriver, quantized: bool
) -> None:
    x, w, offs = problem(1)
    x = random_array((5, 256), 2) if quantized else x
    out = torch.empty(5, 32)
    call(x, w, offs, out=out)
    cold = driver.launches[-1]
    driver.clear()
    for _ in range(3):
        call(x, w, offs, out=out)
    assert [event.call for event in driver.events] == ["launch"] * 3
    assert driver.launches == [cold] * 3


def test_every_call_launches_at_its_own_addresses(driver: RecordingDriver) -> None:
    problems = [(*problem(seed), torch.empty(5, 32)) for seed in range(6)]
    for x, w, offs, out in problems * 2:
        driver.clear()
        call(x, w, offs, out=out)
        words = memoryview(driver.launches[0].parameters).cast("q")
        tensors = (x, w.codes, w.scales, w.global_scale, offs, out)
        assert {tensor.data_ptr() for tensor in tensors} <= set(words)
    assert len(ops.prepared_calls) == 1


def test_the_queue_of_the_moment_is_used(driver: RecordingDriver) -> None:
    arguments, out = problem(1), torch.empty(5, 32)
    for queue in (0x10, 0x10, 0x20):
        driver.queue = queue
        call(*arguments, out=out)
    assert [launch.queue for launch in driver.launches] == [0x10, 0x10, 0x20]


def test_a_slice_off_its_alignment_takes_the_other_kernel(driver: RecordingDriver) -> None:
    x, w, offs = problem(1)
    shifted = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view_as(x)
    out = torch.empty(5, 32)
    for tokens in (x, shifted) * 2:
        call(tokens, w, offs, out=out)
    functions = [launch.function for launch in driver.launches]
    assert functions[0] == functions[2] != functions[1] == functions[3]


def test_another_driver_gets_its_own_kernel(driver: RecordingDriver) -> None:
    arguments, out = problem(1), torch.empty(5, 32)
    for _ in range(2):
        call(*arguments, out=out)
    driver.clear()
    with use_driver(RecordingDriver(compute_capability=(9, 0), sms=64)) as other:
        for _ in range(2):
            call(*arguments, out=out)
    assert not driver.launches
    assert [event.call for event in other.events][-2:] == ["launch", "launch"]
    assert other.count("load") == 1
    call(*arguments, out=out)
    assert len(driver.launches) == 1
