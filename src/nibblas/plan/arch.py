"""Processors as the planner sees them: rates as data, each with its source.

A GPU has its roofline's rates here, and the constants of the cost model in ``plan/machines.py``.

Sources:
    [H] measured by this project on one H200 (driver 580, CUDA 13.0): reads of 480 MB, fp16 GEMM.
    [C] measured by this project on a 2-core AMD EPYC (Zen 3, AVX2); see lab/cpu/README.md.
    [X] measured by this project on 2 cores of an Intel Xeon (AVX-512, AMX); see lab/cpu/README.md.
    [P] public: data sheets and published measurements, not measured by this project.
    [D] data sheets alone: bandwidth on paper, and the machine's dense rate at its clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from nibblas.errors import bad_value
from nibblas.plan.machines import MACHINES, Machine


@dataclass(frozen=True)
class GpuArch:
    """A GPU's rates. ``flops`` counts a multiply-add as two operations.

    Attributes:
        target: "sm_90" and the like; several machines may share one.
        read_bytes_per_s: the most that DRAM gives.
        flops: dense rate of the exact arithmetic per precision. On Hopper NVFP4 values are
            multiplied as fp16, so both precisions have one rate.
        machine: constants of the cost model; None: there are none.
    """

    name: str
    target: str
    sms: int
    read_bytes_per_s: float
    flops: Mapping[str, float]
    source: str
    machine: Machine | None = None

    @property
    def compute_capability(self) -> tuple[int, int]:
        digits = int(self.target.removeprefix("sm_"))
        return digits // 10, digits % 10


@dataclass(frozen=True)
class CpuLevel:
    """One core's rates at one instruction level.

    Attributes:
        decode_values_per_s: weights decoded from NVFP4 into the form that is multiplied.
        macs_per_s: multiply-adds per precision once weights are decoded.
        fixed_s: one call's set-up, threads woken included.
    """

    name: str
    decode_values_per_s: Mapping[str, float]
    macs_per_s: Mapping[str, float]
    fixed_s: float
    source: str


def _rates(w4a16: float, w4a4: float) -> Mapping[str, float]:
    return MappingProxyType({"w4a16": w4a16, "w4a4": w4a4})


def _gpu(
    name: str,
    target: str,
    read_bytes_per_s: float,
    *,
    flops: Mapping[str, float] | None = None,
    source: str = "[D]",
) -> GpuArch:
    machine = MACHINES[name]
    if flops is None:
        fp16, _, nvfp4 = machine.flop_per_cycle
        cycles_per_s = machine.sms * machine.clock_ghz * 1e9
        flops = _rates(cycles_per_s * fp16, cycles_per_s * (nvfp4 or fp16))
    return GpuArch(name, target, machine.sms, read_bytes_per_s, flops, source, machine)


#: By name; of those that share a target the first one stands for it. B300 multiplies NVFP4 half as
#: fast again as B200 on paper, which its machine leaves out.
GPUS: Mapping[str, GpuArch] = MappingProxyType(
    {
        "b200": _gpu("b200", "sm_100", 7.68e12, flops=_rates(1.7e15, 6.9e15), source="[P]"),
        "b300": _gpu("b300", "sm_103", 8.0e12, flops=_rates(2.4e15, 1.5e16)),
        "h200": _gpu("h200", "sm_90", 4.29e12, flops=_rates(8.04e14, 8.04e14), source="[H]"),
        "h100": _gpu("h100", "sm_90", 3.35e12),
        "rtx_pro_6000": _gpu("rtx_pro_6000", "sm_120", 1.79e12),
        "rtx_5090": _gpu("rtx_5090", "sm_120", 1.79e12),
        "gb10": _gpu("gb10", "sm_121", 2.73e11),
    }
)

#: What one core reads from DRAM. [C]
CPU_READ_BYTES_PER_S_PER_THREAD = 9.6e9

#: The CPU library's levels, one core each. [C]; ``fixed_s`` is assumed.
CPU_LEVELS: Mapping[str, CpuLevel] = MappingProxyType(
    {
        "portable": CpuLevel("portable", _rates(1.3e9, 7.8e8), _rates(6.5e9, 4.0e9), 1.5e-5, "[C]"),
        "avx2": CpuLevel("avx2", _rates(8.7e9, 2.1e10), _rates(3.8e10, 7.9e10), 1.5e-5, "[C]"),
        "avx512": CpuLevel(
            "avx512", _rates(1.15e10, 1.9e10), _rates(4.9e10, 9.9e10), 1.5e-5, "[X]"
        ),
        "amx": CpuLevel("amx", _rates(2.0e10, 2.0e10), _rates(2.8e11, 2.8e11), 1.5e-5, "[X]"),
    }
)

#: The plain torch path: float64 arithmetic through torch's matmul, one core. [C]
REFERENCE = CpuLevel("reference", _rates(2.0e8, 2.0e8), _rates(1.2e10, 1.2e10), 2.0e-4, "[C]")


_planned_for: ContextVar[GpuArch | None] = ContextVar("planned_for", default=None)


@contextmanager
def planning_for(arch: GpuArch) -> Iterator[None]:
    """Lets ``gpu_of`` tell machines apart that share a target, e.g. an H100 from an H200."""
    token = _planned_for.set(arch)
    try:
        yield
    finally:
        _planned_for.reset(token)


def gpu_of(compute_capability: tuple[int, int], sms: int | None = None) -> GpuArch | None:
    """The modelled GPU of that compute capability, None where there is none.

    Args:
        sms: the device's multiprocessors, which tell some machines apart; else the first is taken.
    """
    known = [arch for arch in GPUS.values() if arch.compute_capability == compute_capability]
    planned = _planned_for.get()
    if planned in known:
        return planned
    return next((arch for arch in known if arch.sms == sms), known[0] if known else None)


def gpu(name: str) -> GpuArch:
    """The GPU of that name or target, e.g. "b200" or "sm_100"; ValueError names the known ones."""
    given = name.lower()
    for arch in GPUS.values():
        if given in (arch.name, arch.target):
            return arch
    targets = dict.fromkeys(arch.target for arch in GPUS.values())
    raise bad_value("arch", given=repr(name), wanted=f"one of {', '.join([*GPUS, *targets])}")
