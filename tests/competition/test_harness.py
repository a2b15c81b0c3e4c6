"""The harness: what it reports, when it stops, and that every planted fault is noticed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from nibblas.competition import (
    EDGE_CASES,
    TESTS,
    BenchmarkCase,
    Case,
    ProgressEvent,
    StopRule,
    TimingResult,
    WrongOutputError,
    check_reused_addresses,
    generate_input,
    geometric_mean_us,
    run_tests,
    time_case,
)
from nibblas.competition.task import Kernel, clone_data, data_tensors, overwrite_data
from nibblas.competition.timing import CacheFlush, elapsed_us, standard_error
from tests.competition import kernels

SMALL = Case("S", 2, (8, 20), (128, 128), (256, 128))
BENCHMARK = BenchmarkCase(
    name="B", g=2, m=(12, 20), n=(128, 256), k=(256, 256), speed_of_light_us=0.5
)
FOUR_REPEATS = StopRule(600.0, min_seconds=0.0, max_repeats=4)


def quick(case: Case, kernel: Kernel, *, stop: StopRule = FOUR_REPEATS, **options) -> TimingResult:
    """``time_case`` with three inputs and a small flush."""
    return time_case(case, kernel, inputs=3, flush_bytes=1 << 16, stop=stop, **options)


def fault_name(kernel) -> str:
    return str(kernel.__name__)


# --- run_tests ---


def test_a_right_kernel_passes_all_public_tests_bit_exactly() -> None:
    results = run_tests("cpu", kernels.right_kernel)
    assert [result.case for result in results] == list(TESTS)
    assert all(result.verdict.bit_exact and result.seconds > 0 for result in results)


def test_a_right_kernel_passes_the_full_range_and_the_edges() -> None:
    results = run_tests("cpu", kernels.right_kernel, content="full_range")
    assert [result.case for result in results] == [*TESTS, *EDGE_CASES]
    assert [str(result.verdict) for result in results if not result.verdict.passed] == []


@pytest.mark.parametrize("content", ["public", "full_range"])
@pytest.mark.parametrize("fault", kernels.FAULTS_IN_ANY_DATA, ids=fault_name)
def test_a_fault_fails_the_tests(fault, content) -> None:
    (result,) = run_tests("cpu", fault, content=content, cases=[SMALL])
    assert not result.verdict.passed
    assert result.verdict.messages


def test_an_exception_is_a_verdict() -> None:
    (result,) = run_tests("cpu", kernels.raises, cases=[SMALL])
    assert result.verdict.messages == ("RuntimeError: no kernel image for this device",)


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        (kernels.knows_small_codes_only, SMALL),
        (kernels.normalises_by_padded_maximum, SMALL),
        (kernels.multiplies_padded_k_blocks, EDGE_CASES[2]),
    ],
    ids=["small codes", "padded maximum", "padded k blocks"],
)
def test_full_range_notices_what_the_public_data_cannot(fault, case: Case) -> None:
    (public,) = run_tests("cpu", fault, cases=[case])
    (full_range,) = run_tests("cpu", fault, cases=[case], content="full_range")
    assert public.verdict.bit_exact
    assert not full_range.verdict.passed


# --- time_case ---


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
def test_time_case_reports_a_right_kernel(strict: bool) -> None:
    result = quick(BENCHMARK, kernels.right_kernel, strict=strict)
    assert (result.case_name, result.device, result.inputs) == ("B", "cpu", 3)
    assert (result.strict, result.bit_exact) == (strict, True)
    assert 3 <= result.repeats <= 4
    assert 0 < result.best_us <= result.median_us <= result.worst_us
    assert result.best_us <= result.mean_us <= result.worst_us
    assert result.stderr_us >= 0
    assert result.speed_of_light_us == 0.5
    assert json.loads(json.dumps(result.to_dict()))["mean_us"] == result.mean_us


def test_time_case_full_range_is_judged_by_the_bound() -> None:
    result = quick(SMALL, kernels.right_kernel, content="full_range", strict=True)
    assert result.speed_of_light_us is None


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
@pytest.mark.parametrize("fault", kernels.FAULTS_IN_ANY_DATA[:-1], ids=fault_name)
def test_a_fault_stops_the_timing_before_it_starts(fault, strict: bool) -> None:
    with pytest.raises(WrongOutputError) as caught:
        quick(SMALL, fault, strict=strict)
    assert caught.value.stage in ("input 0", "reused addresses")
    assert not caught.value.verdict.passed


def test_a_kernel_that_caches_by_address_is_noticed() -> None:
    assert not check_reused_addresses(SMALL, kernels.caches_operands_by_address()).passed
    with pytest.raises(WrongOutputError, match="reused addresses"):
        quick(SMALL, kernels.caches_operands_by_address(), strict=True)


def test_a_right_kernel_may_meet_the_same_addresses_again() -> None:
    assert check_reused_addresses(SMALL, kernels.right_kernel).bit_exact
    assert check_reused_addresses(SMALL, kernels.right_kernel, content="full_range").passed


def test_work_left_out_on_later_repeats_is_noticed_in_strict_mode() -> None:
    with pytest.raises(WrongOutputError, match="reused addresses"):
        quick(SMALL, kernels.writes_each_address_once(), strict=True)


def test_outputs_replayed_in_call_order_are_noticed_in_strict_mode() -> None:
    plain = kernels.remembers_outputs_by_call_order(3, calls_before=3)
    assert quick(SMALL, plain).bit_exact
    strict = kernels.remembers_outputs_by_call_order(3, calls_before=5)
    with pytest.raises(WrongOutputError, match="repeat"):
        quick(SMALL, strict, strict=True)


def test_calls_merged_into_one_are_noticed_in_strict_mode() -> None:
    assert quick(SMALL, kernels.defers_until(3)).bit_exact
    with pytest.raises(WrongOutputError, match="reused addresses"):
        quick(SMALL, kernels.defers_until(3), strict=True)


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
def test_one_output_shared_by_all_calls_is_noticed(strict: bool) -> None:
    with pytest.raises(WrongOutputError, match="input 0"):
        quick(SMALL, kernels.reuses_one_output(), strict=strict)


def test_inputs_differ_by_seed_steps_of_42() -> None:
    seen: list[int] = []

    def recording(data):
        seen.append(int(data[0][0][0].view(torch.uint8).sum()))
        return kernels.right_kernel(data)

    quick(SMALL, recording)
    wanted = [
        int(
            generate_input(**SMALL.reseeded(seed).generator_arguments())[0][0][0]
            .view(torch.uint8)
            .sum()
        )
        for seed in (1153, 1195, 1237)
    ]
    assert seen[:3] == wanted
    assert seen[3:6] == wanted


def test_strict_repeats_change_their_order() -> None:
    orders: list[int] = []

    def recording(data):
        orders.append(int(data[0][0][0].view(torch.uint8).sum()))
        return kernels.right_kernel(data)

    stop = StopRule(600.0, min_seconds=0.0, relative_error=0.0, max_repeats=6)
    quick(SMALL, recording, strict=True, stop=stop)
    rounds = [tuple(orders[start : start + 3]) for start in range(5, len(orders), 3)]
    assert len(rounds) == 6
    assert len(set(rounds)) > 1
    assert {frozenset(each) for each in rounds} == {frozenset(rounds[0])}


@pytest.mark.parametrize("inputs", [0, -1])
def test_no_inputs_are_refused(inputs: int) -> None:
    with pytest.raises(ValueError, match=f"^inputs: got {inputs}; want at least 1$"):
        time_case(SMALL, kernels.right_kernel, inputs=inputs)


def test_unknown_content_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^content: got 'random'"):
        run_tests("cpu", kernels.right_kernel, content="random")  # type: ignore[arg-type]


def test_progress_is_reported_step_by_step() -> None:
    events: list[ProgressEvent] = []
    run_tests("cpu", kernels.right_kernel, cases=[SMALL], progress=events.append)
    quick(SMALL, kernels.right_kernel, progress=events.append)
    stages = [event.stage for event in events]
    assert stages[:7] == ["test"] + ["generate"] * 3 + ["check"] * 3
    assert set(stages[7:]) == {"time"}
    assert (events[0].done, events[0].total) == (1, 1)
    assert (events[3].done, events[3].total) == (3, 3)
    assert events[7].total is None


# --- when to stop ---


def test_stop_waits_for_all_three_aims() -> None:
    rule = StopRule(time_limit_s=100.0)
    steady = [10.0, 10.0, 10.0]
    assert rule.is_met(steady, 0.2)
    assert not rule.is_met(steady[:2], 0.2)
    assert not rule.is_met(steady, 0.05)
    assert not rule.is_met([10.0, 11.0, 12.0], 0.2)


def test_stop_obeys_the_limits() -> None:
    rule = StopRule(time_limit_s=100.0, max_repeats=4)
    assert rule.is_met([1.0, 2.0, 3.0, 4.0], 0.01)
    assert rule.is_met([1.0], 100.0)
    assert not rule.is_met([1.0], 99.0)


def test_a_time_limit_of_zero_still_gives_one_repeat() -> None:
    result = quick(SMALL, kernels.right_kernel, stop=StopRule(0.0))
    assert result.repeats == 1
    assert math.isnan(result.stderr_us)
    assert result.to_dict()["stderr_us"] is None


def test_default_limits_are_shorter_on_a_cpu() -> None:
    cpu, gpu = (StopRule.for_device(torch.device(name)) for name in ("cpu", "cuda"))
    assert cpu.time_limit_s < gpu.time_limit_s == 120.0
    assert (cpu.min_repeats, cpu.min_seconds, cpu.relative_error) == (3, 0.1, 1e-3)


def test_standard_error() -> None:
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3) / 2)


def test_elapsed_is_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((1.0, 1.25))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert elapsed_us(lambda: None, torch.device("cpu")) == 0.25e6


def test_flush_writes_its_whole_buffer() -> None:
    flush = CacheFlush(torch.device("cpu"), 4096)
    flush._buffer.zero_()
    flush.write()
    assert flush._buffer.numel() == 1024
    assert flush._buffer.count_nonzero() == 1024


# --- summaries and copies ---


def timing(mean_us: float) -> TimingResult:
    values = dict.fromkeys(("mean_us", "median_us", "best_us", "worst_us"), mean_us)
    return TimingResult("X", "cpu", 15, 3, strict=False, stderr_us=0.0, bit_exact=True, **values)


def test_geometric_mean() -> None:
    assert geometric_mean_us([timing(2.0), timing(8.0)]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match=r"^results: got none"):
        geometric_mean_us([])


def test_clones_keep_layout_and_overwriting_keeps_addresses() -> None:
    data = generate_input(**SMALL.generator_arguments())
    other = generate_input(**SMALL.reseeded(1).generator_arguments())
    copy = clone_data(data)
    addresses = [tensor.data_ptr() for tensor in data_tensors(copy)]
    for x, y in zip(data_tensors(copy), data_tensors(data), strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        assert x.data_ptr() != y.data_ptr()
        assert torch.equal(kernels.bits(x), kernels.bits(y))
    overwrite_data(copy, other)
    assert [tensor.data_ptr() for tensor in data_tensors(copy)] == addresses
    assert torch.equal(copy[0][0][0].view(torch.uint8), other[0][0][0].view(torch.uint8))
