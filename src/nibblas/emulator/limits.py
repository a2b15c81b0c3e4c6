"""Limits of devices and what a launch must keep to.

Source: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nibblas.emulator.errors import LaunchError

if TYPE_CHECKING:
    from nibblas.emulator.machine.cta import Dim3
    from nibblas.emulator.program import Program


@dataclass(frozen=True)
class Limits:
    """Of one architecture: ``shared_bytes`` per CTA by opt-in, ``cluster`` CTAs of a cluster."""

    num_sms: int
    shared_bytes: int
    cluster: int
    threads: int = 1024
    block: Dim3 = (1024, 1024, 64)
    grid: Dim3 = (2**31 - 1, 65535, 65535)


LIMITS = {
    "sm_80": Limits(108, 163 * 1024, 1),
    "sm_86": Limits(84, 99 * 1024, 1),
    "sm_89": Limits(128, 99 * 1024, 1),
    "sm_90": Limits(132, 227 * 1024, 16),
    "sm_100": Limits(148, 227 * 1024, 16),
    "sm_103": Limits(148, 227 * 1024, 16),
    "sm_120": Limits(188, 99 * 1024, 8),
}


def check_launch(
    program: Program,
    limits: Limits,
    *,
    grid: Dim3,
    block: Dim3,
    cluster: Dim3,
    dynamic_bytes: int,
) -> None:
    """Raises LaunchError, naming the argument, if the device or the kernel refuses the launch."""
    _check_range("grid", grid, limits.grid)
    _check_range("block", block, limits.block)
    threads = _product(block)
    if threads > limits.threads:
        raise LaunchError(f"block: got {threads} threads; want at most {limits.threads}")
    if _product(cluster) > limits.cluster or min(cluster) < 1:
        raise LaunchError(f"cluster: got {cluster}; want at most {limits.cluster} CTAs")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid: got {grid}; want multiples of the cluster {cluster}")
    total = program.shared_bytes + dynamic_bytes
    if dynamic_bytes < 0 or total > limits.shared_bytes:
        raise LaunchError(
            f"smem: got {dynamic_bytes} dynamic and {program.shared_bytes} static bytes; want at "
            f"most {limits.shared_bytes} in all"
        )
    directives = program.function.directives
    most = directives.get("maxntid")
    if most and threads > _product(most):
        raise LaunchError(f"block: got {block}; want at most {most} threads (.maxntid)")
    exact = directives.get("reqntid")
    if exact and block != exact:
        raise LaunchError(f"block: got {block}; want {exact} (.reqntid)")
    exact = directives.get("reqnctapercluster")
    if exact and cluster != exact:
        raise LaunchError(f"cluster: got {cluster}; want {exact} (.reqnctapercluster)")


def _check_range(name: str, given: Dim3, most: Dim3) -> None:
    if (
        any(not 1 <= value <= limit for value, limit in zip(given, most, strict=True))
        or len(given) != 3
    ):
        raise LaunchError(f"{name}: got {given}; want 1 to {most}")


def _product(dims: tuple[int, ...]) -> int:
    product = 1
    for value in dims:
        product *= value
    return product
