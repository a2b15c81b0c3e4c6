"""What backends for NVIDIA GPUs share: the device's capability, 32-bit counters, tensor maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from nibblas.errors import NativeLibraryError
from nibblas.plan.problem import Problem
from nibblas.runtime.driver import Driver
from nibblas.runtime.kernel import compute_capability
from nibblas.runtime.tensormap import TensorMaps

_LARGEST_COUNT = 2**31 - 1024
"""What kernels count in 32 bits, with a tile, a block or a stage to spare."""

_maps: WeakKeyDictionary[Driver, TensorMaps] = WeakKeyDictionary()


def capability_of(problem: Problem) -> tuple[int, int] | str:
    """The compute capability of the problem's device, or why there is none."""
    if problem.device != "cuda":
        return f"it computes on NVIDIA GPUs, and the tensors are on {problem.device}"
    try:
        return compute_capability(problem.device_index)
    except NativeLibraryError as error:
        return str(error)


def beyond_32_bits(counts: Mapping[str, int]) -> list[str]:
    """Reasons for refusing sizes that 32-bit counters do not hold, by what is counted."""
    return [
        f"it counts {what} in 32 bits: at most {_LARGEST_COUNT:,}, and there may be {count:,}"
        for what, count in counts.items()
        if count > _LARGEST_COUNT
    ]


def launches_of(problem: Problem) -> list[Problem]:
    """What a kernel of one launch per product is given: of a list, each that has outputs."""
    if problem.form != "list":
        return [problem]
    busy = [shape for shape in problem.shapes if shape.m and shape.n]
    return [replace(problem, shapes=(shape,)) for shape in busy] or [problem]


def maps_of(driver: Driver) -> TensorMaps:
    """The tensor maps that a driver has encoded."""
    return _maps.setdefault(driver, TensorMaps(driver))
