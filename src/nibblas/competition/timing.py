"""Timing of a block of calls, and the rule for when to stop repeating it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from nibblas.errors import bad_value

PUBLIC_FLUSH_BYTES = 16000 * 1024 * 1024 * 4
"""What the public harness writes before each repeat; it also gives the host a head start."""
CPU_FLUSH_BYTES = 256 * 1024 * 1024
CPU_TIME_LIMIT_S = 20.0
PUBLIC_TIME_LIMIT_S = 120.0


@dataclass(frozen=True)
class StopRule:
    """Repeat until all three aims are met, or until one of the two limits is reached.

    The defaults but ``time_limit_s`` are those of the public harness.
    """

    time_limit_s: float
    """Wall-clock time of all repeats, flush and checks included; may cut below ``min_repeats``."""
    min_repeats: int = 3
    min_seconds: float = 0.1
    relative_error: float = 1e-3
    """Standard error of the mean over the mean."""
    max_repeats: int = 100

    @staticmethod
    def for_device(device: torch.device) -> StopRule:
        """The public rule on a GPU; on a CPU, whose times vary by more, a shorter time limit."""
        on_cpu = device.type == "cpu"
        return StopRule(CPU_TIME_LIMIT_S if on_cpu else PUBLIC_TIME_LIMIT_S)

    def is_met(self, durations_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop after these repeats."""
        if len(durations_us) >= self.max_repeats or elapsed_s >= self.time_limit_s:
            return True
        if len(durations_us) < self.min_repeats or elapsed_s < self.min_seconds:
            return False
        mean = statistics.fmean(durations_us)
        return standard_error(durations_us) < self.relative_error * mean


@dataclass(frozen=True)
class TimingResult:
    """Microseconds per call of one case; each repeat contributes elapsed / inputs."""

    case_name: str
    device: str
    inputs: int
    """Different inputs in a repeat, called back to back."""
    repeats: int
    strict: bool
    mean_us: float
    median_us: float
    best_us: float
    worst_us: float
    stderr_us: float
    """Standard error of the mean; NaN after a single repeat."""
    bit_exact: bool
    """Whether every checked output was."""
    speed_of_light_us: float | None = None
    """Published lower bound on a B200; None for cases that have none."""

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON values; None for a ``stderr_us`` that is NaN."""
        fields = asdict(self)
        return {**fields, "stderr_us": None if math.isnan(self.stderr_us) else self.stderr_us}


def standard_error(durations: Sequence[float]) -> float:
    """Standard error of the mean; NaN for fewer than two values."""
    if len(durations) < 2:
        return math.nan
    return statistics.stdev(durations) / math.sqrt(len(durations))


def geometric_mean_us(results: Sequence[TimingResult]) -> float:
    """The ranking number: geometric mean of the results' mean microseconds.

    Raises:
        ValueError: no results.
    """
    if not results:
        raise bad_value("results", given="none", wanted="at least one TimingResult")
    return statistics.geometric_mean([result.mean_us for result in results])


class CacheFlush:
    """A buffer larger than the caches; writing it drives everything else out of them."""

    def __init__(self, device: torch.device, num_bytes: int | None = None) -> None:
        self._on_cpu = device.type == "cpu"
        if num_bytes is None:
            num_bytes = _default_flush_bytes(device)
        self._buffer = torch.empty(num_bytes // 4, dtype=torch.float32, device=device)

    def write(self) -> None:
        """Queue the write; on a GPU with random data, as the public harness does. No wait."""
        if self._on_cpu:
            self._buffer.fill_(1.0)
        else:
            self._buffer.normal_()


def _default_flush_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_FLUSH_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return min(PUBLIC_FLUSH_BYTES, free // 2)


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed_us(block: Callable[[], None], device: torch.device) -> float:
    """Microseconds that ``block`` takes: CUDA events around it on a GPU, the host clock on a CPU.

    Waits for the device afterwards, not before: work queued earlier hides the block's launch cost.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        block()
        return (time.perf_counter() - start) * 1e6
    with torch.cuda.device(device):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        block()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) * 1e3
