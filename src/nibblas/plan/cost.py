"""How long a problem should take: rooflines, and the CPU kernels' simple model.

A prediction names its terms and which of them bounds it, so that a wrong one can be found wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from nibblas.plan.arch import CPU_READ_BYTES_PER_S_PER_THREAD, CpuLevel, GpuArch
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


#: Share of DRAM bandwidth that the portable kernel reached on an H200 (lab/portable, D1), and of
#: dense tensor throughput that it is built for.
PORTABLE_MEMORY_SHARE = 0.68
PORTABLE_TENSOR_SHARE = 0.3


def portable_time(problem: Problem, arch: GpuArch) -> Estimate:
    """Time of the portable GPU kernel: its share of the roofline."""
    work = problem.work()
    estimate = _slowest(
        {
            "memory": work.total_bytes / (PORTABLE_MEMORY_SHARE * arch.read_bytes_per_s),
            "arithmetic": 2 * work.macs / (PORTABLE_TENSOR_SHARE * arch.flops["w4a16"]),
        }
    )
    terms = estimate.terms | {"fixed": arch.fixed_s}
    return Estimate(estimate.seconds + arch.fixed_s, estimate.bound, terms)


#: Share of the roofline of the datacenter Blackwell kernel: assumed, since none of it has been
#: measured.
SM100_SHARE = 0.7


def sm100_time(problem: Problem, arch: GpuArch) -> Estimate:
    """Time of the datacenter Blackwell kernel: its assumed share of the roofline."""
    least = roofline(problem, arch)
    terms = {name: seconds / SM100_SHARE for name, seconds in least.terms.items()}
    estimate = _slowest(terms)
    terms["fixed"] = arch.fixed_s
    return Estimate(estimate.seconds + arch.fixed_s, estimate.bound, terms)


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
