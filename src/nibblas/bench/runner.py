"""One case from gate to lines: nothing is timed before our result is right, nor if it stays so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nibblas.bench.cases import BenchCase, Kind
from nibblas.bench.contenders import MM, CaseData, Contender, contenders, make_data
from nibblas.bench.floors import cpu_arch, floor_of, gpu_arch
from nibblas.bench.machine import describe
from nibblas.bench.report import Line
from nibblas.bench.timing import (
    Quantiles,
    Seconds,
    at_level,
    read_bytes_per_s,
    time_on_cpu,
    time_on_cuda,
)
from nibblas.errors import bad_value
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound
from nibblas.plan.arch import GpuArch

Timer = Callable[[Sequence[Contender], int], Seconds]

ROTATED_BYTES = {"cpu": 400e6, "cuda": 600e6}
ROUNDS = {"cpu": 20, "cuda": 30}
RIVAL_LIMIT = 0.02
"""Largest relative error, of Frobenius norms, of a rival: it computes the same product at all."""


class WrongResultError(RuntimeError):
    """A contender's result is wrong; it has no time."""


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        device: where; the case's own kind of device where it is None.
        levels: CPU levels; none: all that run here.
        rounds: of timing; None: 20 on a CPU, 30 on a GPU.
        rotate_bytes: of each contender's weights; None: 400 MB on a CPU, 600 MB on a GPU.
        flop_per_s: of the CPU's matrix unit, for the floor; None: known for AMX.
    """

    device: str | None = None
    levels: tuple[str, ...] = ()
    rounds: int | None = None
    rotate_bytes: float | None = None
    flop_per_s: float | None = None


def place_of(case: BenchCase, settings: Settings) -> torch.device:
    """Where the case runs; ValueError where there is no such device."""
    device = torch.device(settings.device or case.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        given = f"no CUDA device, for which {case.name} is made"
        raise bad_value("device", given=given, wanted="a GPU, or --device cpu to run it here")
    return device


def run_case(
    case: BenchCase, kind: Kind, settings: Settings | None = None, *, timer: Timer | None = None
) -> list[Line]:
    """A line for each contender, ours first.

    Args:
        timer: what times; None: ``time_on_cpu`` or ``time_on_cuda``.

    Raises:
        WrongResultError: a result that is wrong, before the timing or after it.
        ValueError: a device or level that is not here, or no backend that takes the case.
    """
    settings = settings or Settings()
    device = place_of(case, settings)
    rounds = settings.rounds or ROUNDS[device.type]
    rotated = settings.rotate_bytes
    data = make_data(case, kind, device)
    entries = contenders(
        data, ROTATED_BYTES[device.type] if rotated is None else rotated, levels=settings.levels
    )
    if not any(entry.ours for entry in entries):
        wanted = f"a backend that takes {kind} on {device.type}; see nibblas info"
        raise bad_value("case", given=case.name, wanted=wanted)
    exact = grouped_mm_reference(data.x, data.w, data.offs)
    for entry in entries:
        entry.latest().fill_(float("nan"))
        with at_level(entry):
            entry.call(0)
        check(entry, exact)
    timer = timer or (time_on_cpu if device.type == "cpu" else time_on_cuda)
    seconds = timer(entries, rounds)
    for entry in entries:
        check(entry, exact)
    machine = describe(device)
    if device.type == "cpu":
        read = read_bytes_per_s()
        machine["read_gb_per_s"] = round(read / 1e9, 2)
        arch: GpuArch | None = cpu_arch(read, settings.flop_per_s)
    else:
        arch = gpu_arch(device)
    return _lines(data, entries, seconds, machine, arch)


def check(entry: Contender, exact: Exact) -> None:
    """Ours within the error bound everywhere; a rival near."""
    out = entry.latest()
    if entry.ours:
        right = bool(within_bound(out, exact, error_bound(exact, out.dtype)).all())
    else:
        error = (out.double() - exact.value).norm() / exact.value.norm()
        right = bool(error <= RIVAL_LIMIT)
    if not right:
        raise WrongResultError(f"{entry.name} gives a wrong result: no time is shown")


def _lines(
    data: CaseData,
    entries: Sequence[Contender],
    seconds: Seconds,
    machine: dict[str, object],
    arch: GpuArch | None,
) -> list[Line]:
    problem = data.case.problem(data.kind, data.w.device.type)
    floor = floor_of(problem, arch)
    mm = Quantiles.of(seconds[MM]).median
    lines = []
    for entry in entries:
        times = Quantiles.of(seconds[entry.name])
        lines.append(
            Line(
                case=data.case.name,
                kind=data.kind,
                shape=str(data.case),
                contender=entry.name,
                ours=entry.ours,
                median_us=times.median * 1e6,
                p10_us=times.p10 * 1e6,
                p90_us=times.p90 * 1e6,
                rounds=len(seconds[entry.name]),
                weight_sets=entry.sets,
                ratio_to_mm=times.median / mm,
                floor_us=None if floor is None else floor.seconds * 1e6,
                floor_bound=None if floor is None else floor.bound,
                ratio_to_floor=None if floor is None else times.median / floor.seconds,
                machine=machine,
            )
        )
    return lines
