"""The least time that any kernel can take: the planner's roofline of the machine at hand."""

from __future__ import annotations

from types import MappingProxyType

import torch

from nibblas.plan.arch import GPUS, GpuArch, gpu_of
from nibblas.plan.cost import Estimate, roofline
from nibblas.plan.problem import Problem
from nibblas.runtime import cpu_library

AMX_FLOP_PER_S_PER_THREAD = 8.7e11
"""bf16 tiles from registers, measured on a Xeon with AMX; see lab/cpu."""


def cpu_arch(read_bytes_per_s: float, flop_per_s: float | None) -> GpuArch:
    """This machine as the roofline takes processors.

    Args:
        flop_per_s: of the matrix unit; None: of AMX where it is, else infinite. Without a matrix
            unit the floor is memory alone, since what SIMD units can reach depends on the trick.
    """
    if flop_per_s is None:
        has_amx = "amx" in cpu_library.load().levels
        flop_per_s = AMX_FLOP_PER_S_PER_THREAD * torch.get_num_threads() if has_amx else torch.inf
    rates = MappingProxyType({"w4a16": flop_per_s, "w4a4": flop_per_s})
    threads = torch.get_num_threads()
    return GpuArch("cpu", "", threads, read_bytes_per_s, rates, "measured here")


def gpu_arch(device: torch.device) -> GpuArch | None:
    """The planner's model of a GPU, by its name (an H100 is no H200), else by what it computes on;
    None: it has none."""
    name = torch.cuda.get_device_name(device).lower()
    named = (arch for arch in GPUS.values() if arch.name.replace("_", " ") in name)
    return next(named, None) or gpu_of(torch.cuda.get_device_capability(device))


def floor_of(problem: Problem, arch: GpuArch | None) -> Estimate | None:
    """None where the processor is not modelled."""
    return None if arch is None else roofline(problem, arch)
