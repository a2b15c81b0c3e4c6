"""Processors as the planner sees them: rates as data, each with its source.

Sources:
    [H] measured by this project on one H200 (driver 580, CUDA 13.0): reads of 480 MB, fp16 GEMM.
    [C] measured by this project on a 2-core AMD EPYC (Zen 3, AVX2); see lab/cpu/README.md.
    [X] measured by this project on 2 cores of an Intel Xeon (AVX-512, AMX); see lab/cpu/README.md.
    [P] public: data sheets and published measurements, not measured by this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nibblas.errors import bad_value


@dataclass(frozen=True)
class GpuArch:
    """A GPU's rates. ``flops`` counts a multiply-add as two operations.

    Attributes:
        read_bytes_per_s: sustained DRAM reads.
        flops: dense rate of the exact arithmetic per precision. On Hopper NVFP4 values are
            multiplied as fp16, so both precisions have one rate.
        fixed_s: least time of a kernel in a CUDA graph.
    """

    name: str
    target: str
    sms: int
    read_bytes_per_s: float
    flops: Mapping[str, float]
    fixed_s: float
    source: str


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


GPUS: Mapping[str, GpuArch] = MappingProxyType(
    {
        "b200": GpuArch("b200", "sm_100", 148, 7.68e12, _rates(1.7e15, 6.9e15), 1.0e-6, "[P]"),
        "h200": GpuArch("h200", "sm_90", 132, 4.29e12, _rates(8.04e14, 8.04e14), 1.5e-6, "[H]"),
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


def gpu_of(compute_capability: tuple[int, int]) -> GpuArch | None:
    """The modelled GPU of that compute capability, None where there is none."""
    target = "sm_{}{}".format(*compute_capability)
    return next((arch for arch in GPUS.values() if arch.target == target), None)


def gpu(name: str) -> GpuArch:
    """The GPU of that name, e.g. "b200"; ValueError names the known ones."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise bad_value("arch", given=repr(name), wanted=f"one of {sorted(GPUS)}") from None
