"""How long a problem should take: rooflines, the CPU kernels' simple model, the GPU kernels'.

A prediction names its terms and which of them bounds it, so that a wrong one can be found wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nibblas.plan.arch import CPU_READ_BYTES_PER_S_PER_THREAD, CpuLevel, GpuArch
from nibblas.plan.kernel_schedule import KernelSchedule
from nibblas.plan.model import predict
from nibblas.plan.portable import FEW_TOKENS, PortableConfig
from nibblas.plan.problem import Problem


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds, the term that bounds them, and every term in seconds."""

    seconds: float
    bound: str
    terms: dict[str, float]


def roofline(problem: Problem, arch: GpuArch) -> Estimate:
    """The least time any kernel can take: bytes once through DRAM, or the arithmetic."""
    work = problem.work()
    return _slowest(
        {
            "memory": work.total_bytes / arch.read_bytes_per_s,
            "arithmetic": 2 * work.macs / arch.flops[problem.precision],
        }
    )


def cpu_time(problem: Problem, level: CpuLevel, threads: int) -> Estimate:
    """Time of a CPU level: the slower of memory and decode + arithmetic, plus the fixed part.

    Weights are decoded once per group, each core decodes and multiplies its share of rows.
    """
    work = problem.work()
    weights = work.weight_bytes * 16 / 9
    estimate = _slowest(
        {
            "memory": work.total_bytes / (CPU_READ_BYTES_PER_S_PER_THREAD * threads),
            "decode": weights / (level.decode_values_per_s[problem.precision] * threads),
            "arithmetic": work.macs / (level.macs_per_s[problem.precision] * threads),
        },
        together=("decode", "arithmetic"),
    )
    terms = estimate.terms | {"fixed": level.fixed_s}
    bound = "fixed" if level.fixed_s > estimate.seconds else estimate.bound
    return Estimate(estimate.seconds + level.fixed_s, bound, terms)


class Scheduled(Protocol):
    """A kernel's configuration, which knows what it means for time."""

    def schedule(self, sms: int) -> KernelSchedule:
        """On a device with so many multiprocessors, with as much work as there may be."""
        ...


def gpu_time(problem: Problem, arch: GpuArch, config: Scheduled) -> Estimate:
    """Time of one launch that computes the whole problem, by the calibrated model.

    Terms of the main loop are given as if each were alone; they overlap, so that their sum is more
    than the time. ``plan/model.py`` has the formula.
    """
    if arch.machine is None:
        return Estimate(math.inf, "not modelled on this device", {})
    predicted = predict(problem, arch.machine, config.schedule(arch.sms))
    between = {"between items": predicted.between_us} if predicted.between_us else {}
    terms = {**predicted.loop, **between, **predicted.fixed}
    seconds = {name: us * 1e-6 for name, us in terms.items()}
    return Estimate(predicted.total_us * 1e-6, predicted.bound, seconds)


#: By kernel, for its callers: what tells kernels apart is in their configurations' schedules.
sm100_time = gpu_time

MANY_TOKENS_FACTOR = 2.6
"""What the portable kernel with blocks of 64 tokens takes of the model's time, at least: 2.6 to 7.3
on an H200 (bench/results). Nobody has looked for the reason, since other kernels are for that."""


def portable_time(problem: Problem, arch: GpuArch, config: PortableConfig) -> Estimate:
    """Time of one launch of the portable kernel."""
    estimate = gpu_time(problem, arch, config)
    if config.tokens <= FEW_TOKENS:
        return estimate
    terms = {name: MANY_TOKENS_FACTOR * seconds for name, seconds in estimate.terms.items()}
    return Estimate(MANY_TOKENS_FACTOR * estimate.seconds, estimate.bound, terms)


def one_after_another(estimates: Sequence[Estimate]) -> Estimate:
    """Time of several launches; bound as the longest one is."""
    terms: dict[str, float] = {}
    for estimate in estimates:
        for name, seconds in estimate.terms.items():
            terms[name] = terms.get(name, 0.0) + seconds
    longest = max(estimates, key=lambda estimate: estimate.seconds)
    return Estimate(sum(e.seconds for e in estimates), longest.bound, terms)


def _slowest(terms: dict[str, float], together: tuple[str, ...] = ()) -> Estimate:
    """The largest term, where those named in ``together`` run one after the other."""
    joined = sum(terms[name] for name in together)
    alone = {name: t for name, t in terms.items() if name not in together}
    seconds = max([joined, *alone.values()])
    if together and joined >= max(alone.values(), default=0.0):
        bound = max(together, key=lambda name: terms[name])
    else:
        bound = max(alone, key=lambda name: alone[name])
    return Estimate(seconds, bound, terms)
