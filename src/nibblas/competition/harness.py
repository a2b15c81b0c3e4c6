"""Tests and timing of a kernel as the public harness does them, and stricter on demand.

One timed case, as in eval_better_bench_grouped_gemm.py of gpu-mode/reference-kernels: 15 inputs,
the seed raised by 42 before each; all outputs checked; then repeats of {wait; flush the caches;
the kernel once on each input, back to back; elapsed / 15} until ``StopRule`` says stop. Outputs
are checked again after every repeat, as its ranked mode does.

That leaves holes: the repeats see the same tensors with the right outputs already in place, in the
same order. The strict mode gives every repeat new copies with NaN outputs in random order, and
first calls the kernel twice on the same addresses with different contents.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nibblas.competition.cases import EDGE_CASES, TESTS, BenchmarkCase, Case
from nibblas.competition.checker import (
    Expected,
    Rule,
    Verdict,
    WrongOutputError,
    check,
    compare,
    expected,
)
from nibblas.competition.generate import generate_full_range, generate_input
from nibblas.competition.solution import custom_kernel
from nibblas.competition.task import Kernel, TaskData, clone_data, overwrite_data, poison_outputs
from nibblas.competition.timing import (
    CacheFlush,
    StopRule,
    TimingResult,
    elapsed_us,
    standard_error,
    synchronize,
)
from nibblas.errors import bad_value

Content = Literal["public", "full_range"]
"""Which generator fills the tensors; it also decides how outputs are judged."""

PUBLIC_INPUTS = 15
SEED_STEP = 42


@dataclass(frozen=True)
class ProgressEvent:
    """A step done, for display."""

    stage: Literal["test", "generate", "check", "time"]
    done: int
    total: int | None
    """None while the number of repeats is open."""
    detail: str = ""


Progress = Callable[[ProgressEvent], None]


@dataclass(frozen=True)
class TestResult:
    """The verdict of one test case; an exception of the kernel is a verdict too."""

    __test__ = False  # not a test class, whatever its name tells pytest

    case: Case
    verdict: Verdict
    seconds: float
    """Wall-clock time of the kernel's call."""


def run_tests(
    device: torch.device | str = "cpu",
    kernel: Kernel = custom_kernel,
    *,
    content: Content = "public",
    cases: Sequence[Case] | None = None,
    progress: Progress | None = None,
) -> list[TestResult]:
    """Run the kernel once on a copy of each case's data and judge the outputs.

    Args:
        content: "public": the public generator, cases and tolerance. "full_range": all codes and
            scale bytes, NaN padding, the edge cases too, judged by the error bound.
        cases: instead of the content's own.
        progress: called after each case.
    """
    device = torch.device(device)
    if cases is None:
        cases = TESTS if content == "public" else TESTS + EDGE_CASES
    results = []
    for case in cases:
        results.append(_run_test(case, kernel, device=device, content=content))
        _report(progress, ProgressEvent("test", len(results), len(cases), case.name))
    return results


def time_case(
    case: Case,
    kernel: Kernel = custom_kernel,
    *,
    device: torch.device | str = "cpu",
    inputs: int = PUBLIC_INPUTS,
    strict: bool = False,
    content: Content = "public",
    stop: StopRule | None = None,
    flush_bytes: int | None = None,
    progress: Progress | None = None,
) -> TimingResult:
    """Check the kernel on every input, then time it; see the module's description.

    Args:
        inputs: different inputs, called back to back in each repeat; 15 in the public harness.
            They are all held in memory: 15 times C0 is 1.8 GB, and twice that when strict.
        strict: new copies, NaN outputs and random order in every repeat, and
            ``check_reused_addresses`` first.
        content: which generator fills the tensors, see ``run_tests``.
        stop: when to stop repeating; None: ``StopRule.for_device``.
        flush_bytes: buffer written before each repeat; None: the public harness's on a GPU, or
            half of the free memory if that is less; 256 MiB on a CPU.
        progress: called after each input and each repeat.

    Raises:
        WrongOutputError: an output does not pass, before or during the timing.
        ValueError: inputs < 1.
    """
    if inputs < 1:
        raise bad_value("inputs", given=inputs, wanted="at least 1")
    device = torch.device(device)
    if strict:
        verdict = check_reused_addresses(case, kernel, device=device, content=content)
        _require(case, "reused addresses", verdict)
    datas = list(_generate_inputs(case, device, content, inputs=inputs, progress=progress))
    wants = [expected(data, _rule(content)) for data in datas]
    bit_exact = _check_all_inputs(case, kernel, datas, wants, progress=progress)

    repeats = _strict_repeats(datas, wants) if strict else _same_repeats(datas, wants)
    stop = stop or StopRule.for_device(device)
    flush = CacheFlush(device, flush_bytes)
    durations: list[float] = []
    begin = time.perf_counter()
    while not durations or not stop.is_met(durations, time.perf_counter() - begin):
        repeat_datas, repeat_wants = next(repeats)
        duration, outputs = _time_once(kernel, repeat_datas, device, flush)
        stage = f"repeat {len(durations)}"
        bit_exact &= _require_all(case, stage, zip(repeat_wants, outputs, strict=True))
        durations.append(duration)
        _report(progress, ProgressEvent("time", len(durations), None, f"{duration:.1f} us"))
    return _summarize(case, device, durations, inputs=inputs, strict=strict, bit_exact=bit_exact)


def check_reused_addresses(
    case: Case,
    kernel: Kernel = custom_kernel,
    *,
    device: torch.device | str = "cpu",
    content: Content = "public",
) -> Verdict:
    """Call the kernel, put other contents into the same tensors, call again; judge both.

    A kernel that keeps results or converted inputs by address fails the second call.
    """
    device = torch.device(device)
    first = _generate(case.reseeded(case.seed + 1), device, content)
    second = _generate(case.reseeded(case.seed + 2), device, content)
    tensors = clone_data(first)
    for data in (first, second):
        overwrite_data(tensors, data)
        poison_outputs(tensors)
        outputs = kernel(tensors)
        synchronize(device)
        verdict = check(data, outputs, rule=_rule(content))
        if not verdict.passed:
            break
    return verdict


def _run_test(case: Case, kernel: Kernel, *, device: torch.device, content: Content) -> TestResult:
    data = _generate(case, device, content)
    copy = clone_data(data)
    synchronize(device)
    begin = time.perf_counter()
    try:
        outputs = kernel(copy)
        synchronize(device)
        seconds = time.perf_counter() - begin
        verdict = check(data, outputs, rule=_rule(content))
    except Exception as error:  # noqa: BLE001 (whatever a kernel raises is the test's outcome)
        seconds = time.perf_counter() - begin
        verdict = Verdict(False, False, float("inf"), (f"{type(error).__name__}: {error}",))
    return TestResult(case, verdict, seconds)


def _generate(case: Case, device: torch.device, content: Content) -> TaskData:
    if content not in ("public", "full_range"):
        raise bad_value("content", given=repr(content), wanted="'public' or 'full_range'")
    generator = generate_input if content == "public" else generate_full_range
    return generator(**case.generator_arguments(), device=device)


def _rule(content: Content) -> Rule:
    return "public" if content == "public" else "bound"


def _generate_inputs(
    case: Case,
    device: torch.device,
    content: Content,
    *,
    inputs: int,
    progress: Progress | None,
) -> Iterator[TaskData]:
    for index in range(1, inputs + 1):
        yield _generate(case.reseeded(case.seed + SEED_STEP * index), device, content)
        _report(progress, ProgressEvent("generate", index, inputs, case.name))


def _check_all_inputs(
    case: Case,
    kernel: Kernel,
    datas: Sequence[TaskData],
    wants: Sequence[Expected],
    *,
    progress: Progress | None,
) -> bool:
    """Call the kernel on a copy of every input, then judge; returns whether all are bit-exact."""
    outputs = [kernel(clone_data(data)) for data in datas]
    bit_exact = True
    for index, pair in enumerate(zip(wants, outputs, strict=True)):
        bit_exact &= _require_all(case, f"input {index}", [pair])
        _report(progress, ProgressEvent("check", index + 1, len(datas), case.name))
    return bit_exact


Repeat = tuple[Sequence[TaskData], Sequence[Expected]]


def _same_repeats(datas: Sequence[TaskData], wants: Sequence[Expected]) -> Iterator[Repeat]:
    while True:
        yield datas, wants


def _strict_repeats(datas: Sequence[TaskData], wants: Sequence[Expected]) -> Iterator[Repeat]:
    """Fresh copies with NaN outputs, in an order that changes from repeat to repeat."""
    shuffler = random.Random(len(datas))
    order = list(range(len(datas)))
    while True:
        shuffler.shuffle(order)
        copies = [clone_data(datas[index]) for index in order]
        for copy in copies:
            poison_outputs(copy)
        yield copies, [wants[index] for index in order]


def _time_once(
    kernel: Kernel, datas: Sequence[TaskData], device: torch.device, flush: CacheFlush
) -> tuple[float, list[list[Tensor]]]:
    """Microseconds per call, and the outputs of all calls."""
    outputs: list[list[Tensor]] = []

    def block() -> None:
        outputs.extend(kernel(data) for data in datas)

    synchronize(device)
    flush.write()
    return elapsed_us(block, device) / len(datas), outputs


def _require(case: Case, stage: str, verdict: Verdict) -> None:
    if not verdict.passed:
        raise WrongOutputError(case.name, stage, verdict)


def _require_all(
    case: Case, stage: str, pairs: Iterable[tuple[Expected, Sequence[Tensor]]]
) -> bool:
    """Raise on the first output that does not pass; returns whether all are bit-exact."""
    bit_exact = True
    for want, outputs in pairs:
        verdict = compare(want, outputs)
        _require(case, stage, verdict)
        bit_exact &= verdict.bit_exact
    return bit_exact


def _summarize(
    case: Case,
    device: torch.device,
    durations_us: Sequence[float],
    *,
    inputs: int,
    strict: bool,
    bit_exact: bool,
) -> TimingResult:
    return TimingResult(
        case_name=case.name,
        device=str(device),
        inputs=inputs,
        repeats=len(durations_us),
        strict=strict,
        mean_us=statistics.fmean(durations_us),
        median_us=statistics.median(durations_us),
        best_us=min(durations_us),
        worst_us=max(durations_us),
        stderr_us=standard_error(durations_us),
        bit_exact=bit_exact,
        speed_of_light_us=case.speed_of_light_us if isinstance(case, BenchmarkCase) else None,
    )


def _report(progress: Progress | None, event: ProgressEvent) -> None:
    if progress is not None:
        progress(event)
