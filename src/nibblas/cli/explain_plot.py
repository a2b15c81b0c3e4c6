"""``nibblas explain --plot``: who computes what when on a GPU, and how far the roof is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nibblas.backends.sm90 import Sm90Choice
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.errors import bad_value
from nibblas.plan.arch import GpuArch
from nibblas.plan.cost import Scheduled, gpu_time, roofline
from nibblas.plan.model import Timeline, timeline
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan

_MOST_NAMED = 14
_INTENSITIES = np.logspace(-1, 4, 200)


def plot(path: Path, problem: Problem, plan: Plan, arch: GpuArch) -> None:
    """The predicted schedule of the plan's first launch over the GPU, and the roofline.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the plan's backend is not predicted by the schedule of a GPU kernel.
    """
    part, config = _first_launch(problem, plan)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        message = "a plot needs matplotlib: pip install 'nibblas[plot]'"
        raise ImportError(message) from error
    assert arch.machine is not None, "every GPU that can be asked for is modelled"
    figure = Figure(figsize=(12, 5))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_items(left, timeline(part, arch.machine, config.schedule(arch.sms)))
    estimate = gpu_time(part, arch, config)
    left.set_title(
        f"{arch.machine.title}, predicted {estimate.seconds * 1e6:.3g} us, bound by "
        f"{estimate.bound}\n{config}",
        fontsize="small",
    )
    _draw_roof(right, problem, plan, arch)
    figure.tight_layout()
    figure.savefig(path)


def _first_launch(problem: Problem, plan: Plan) -> tuple[Problem, Scheduled]:
    if isinstance(plan.config, Sm100Choice):
        return plan.config.launches_of(problem)[0]
    if isinstance(plan.config, Sm90Choice):  # its first launch only makes tokens ready
        return problem, plan.config.config
    if hasattr(plan.config, "schedule"):
        return problem, plan.config
    raise bad_value("plot", given=f"a plan of {plan.backend!r}", wanted="one of a GPU kernel")


def _draw_items(axes: Any, line: Timeline | None) -> None:
    """One row per worker; a bar per item in its group's colour, grey while it waits."""
    axes.set_xlabel("us of the main loop")
    axes.set_ylabel("worker: CTA or cluster")
    if line is None:
        axes.text(0.5, 0.5, "work is shared out evenly", transform=axes.transAxes, ha="center")
        return
    from matplotlib import colormaps

    axes.set_ylim(line.items.group.shape[1] - 0.5, -0.5)
    groups = [int(g) for g in np.unique(line.items.group) if g >= 0]
    color = {
        g: colormaps["turbo"](0.05 + 0.9 * i / max(len(groups) - 1, 1))
        for i, g in enumerate(groups)
    }
    start = 0.0
    for group, item_us, phase_us in zip(line.items.group, line.item_us, line.phase_us, strict=True):
        busy = np.flatnonzero(group >= 0)
        axes.barh(busy, phase_us, left=start, height=1.0, color="0.88")
        colors = [color[int(g)] for g in group[busy]]
        axes.barh(busy, item_us[busy], left=start, height=1.0, color=colors)
        start += phase_us
    axes.set_xlim(0, start)
    shown = groups if len(groups) <= _MOST_NAMED else [groups[0], groups[-1]]
    for g in shown:
        axes.barh(0, 0, color=color[g], label=f"group {g}")
    axes.barh(0, 0, color="0.88", label="waits: DRAM, others")
    axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5)


def _draw_roof(axes: Any, problem: Problem, plan: Plan, arch: GpuArch) -> None:
    work = problem.work()
    flop, least = 2 * work.macs, roofline(problem, arch)
    peak = arch.flops[problem.precision]
    axes.loglog(_INTENSITIES, np.minimum(peak, _INTENSITIES * arch.read_bytes_per_s) / 1e12, "k")
    if flop:
        intensity = flop / work.total_bytes
        axes.plot(intensity, flop / least.seconds / 1e12, "ko", label="roofline")
        axes.plot(intensity, flop / plan.estimate.seconds / 1e12, "C3o", label="predicted")
        axes.legend(fontsize="small", loc="lower right")
    axes.set_xlabel("FLOP per byte, each byte moved once")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{problem.precision}, at least {least.seconds * 1e6:.3g} us", fontsize="small")
