"""How long the Hopper kernel should take: its steps, dealt to CTAs as the kernel deals them.

Constants are fitted to an H200 (lab/sm90); the shape of the formula is kernels/sm90/walk.cuh's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nibblas.plan.arch import GpuArch
from nibblas.plan.cost import Estimate
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.sm90 import (
    ALONE_COST,
    STAGE_K,
    STEP_CYCLES,
    STEP_TOKEN_CYCLES,
    UNIT_ROWS,
    Sm90Config,
)

CLOCK_HZ = 1.7e9
"""Of the multiprocessors while the tensor cores are busy."""
START_CYCLES = 7000
"""Until a CTA's first data: offs read, the launch cut, the first copies."""
LAUNCH_S = 1.5e-6
"""Between launches of a graph."""

_MOST_STEPS = 100_000
"""Beyond, CTAs are taken to end together."""


def sm90_time(problem: Problem, arch: GpuArch, config: Sm90Config) -> Estimate:
    """Of the launch that multiplies.

    Args:
        problem: packed or masked, or a list of one product.
    """
    shapes = [shape for shape in problem.shapes if shape.m and shape.n]
    ways = [_steps_cycles(shapes, config, cut, arch.sms) for cut in config.cuts]
    steps = min(ways, default=0.0) / CLOCK_HZ
    memory = problem.work().total_bytes / arch.read_bytes_per_s
    start = START_CYCLES / CLOCK_HZ + LAUNCH_S
    terms = {"steps": steps, "memory": memory, "start": start}
    bound = max(terms, key=lambda name: terms[name])
    return Estimate(max(steps, memory) + start, bound, terms)


def _steps_cycles(
    shapes: Sequence[GroupShape], config: Sm90Config, cut: tuple[int, int], ctas: int
) -> float:
    """Of the CTA that takes longest, if the launch is cut so."""
    most_tokens, units = cut
    counts: dict[float, int] = {}
    for shape in shapes:
        tiles = -(-shape.m // most_tokens)
        tokens = -(-shape.m // tiles)
        width = next(width for width in config.widths if width >= tokens)
        together = config.multiply_groups if units > 1 else ALONE_COST
        blocks = -(-shape.n // (UNIT_ROWS * units))
        stages = -(-shape.k // STAGE_K)
        cycles = stages * STAGE_K / 16 * together * config.width_cycles(width)
        cycles += STEP_CYCLES + STEP_TOKEN_CYCLES * width
        counts[cycles] = counts.get(cycles, 0) + tiles * blocks
    steps = sum(counts.values())
    if steps > _MOST_STEPS:
        return sum(cycles * count for cycles, count in counts.items()) / ctas
    descending = sorted(counts, reverse=True)
    dealt = np.zeros(-(-steps // ctas) * ctas)
    dealt[:steps] = np.repeat(descending, [counts[cycles] for cycles in descending])
    rounds = dealt.reshape(-1, ctas)
    rounds[1::2] = rounds[1::2, ::-1]  # every other round the other way
    return float(rounds.sum(axis=0).max())
