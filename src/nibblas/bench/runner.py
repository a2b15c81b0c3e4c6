"""One case from gate to lines: no time is shown of a result that is wrong, before or after."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch

from nibblas.bench import humming_rival, torch_rivals
from nibblas.bench.cases import BenchCase, Kind
from nibblas.bench.contenders import CaseData, Contender, at_level, make_data, our_contenders
from nibblas.bench.floors import cpu_arch, floor_of, gpu_arch
from nibblas.bench.machine import describe
from nibblas.bench.report import Absence, Line, Result
from nibblas.bench.timing import (
    Quantiles,
    Seconds,
    Turn,
    host_seconds_on_cuda,
    read_bytes_per_s,
    take_turns,
    turn_on_cpu,
    turn_on_cuda,
)
from nibblas.errors import bad_value
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound
from nibblas.plan.arch import GpuArch

ROTATED_BYTES = {"cpu": 400e6, "cuda": 300e6}
ROUNDS = {"cpu": 20, "cuda": 40}

RIVALS: Mapping[str, Callable[[CaseData, float], Contender]] = MappingProxyType(
    {
        "mm": torch_rivals.mm,
        "grouped": torch_rivals.grouped,
        "decode": torch_rivals.decoding,
        "humming": humming_rival.heuristic,
        "humming-tuned": humming_rival.tuned,
        "fp8": torch_rivals.fp8,
    }
)
USUAL_RIVALS = {"cpu": ("mm", "grouped", "decode"), "cuda": tuple(RIVALS)}

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        device: where; the case's own kind of device where it is None.
        backends: of ours; none: all that take the case.
        levels: CPU levels; none: all that run here.
        rivals: names in ``RIVALS``; None: ``USUAL_RIVALS`` of the device.
        rounds: of timing; None: 20 on a CPU, 40 on a GPU.
        rotate_bytes: of each contender's inputs; None: 400 MB on a CPU, 300 MB on a GPU.
        flop_per_s: of the CPU's matrix unit, for the floor; None: known for AMX.
        commit: of the source tree; None: as git says.
    """

    device: str | None = None
    backends: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    rivals: tuple[str, ...] | None = None
    rounds: int | None = None
    rotate_bytes: float | None = None
    flop_per_s: float | None = None
    commit: str | None = None

    def __post_init__(self) -> None:
        for name in self.rivals or ():
            if name not in RIVALS:
                raise bad_value("rivals", given=repr(name), wanted=f"some of {', '.join(RIVALS)}")


def place_of(case: BenchCase, settings: Settings) -> torch.device:
    """Where the case runs; ValueError where there is no such device."""
    device = torch.device(settings.device or case.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        given = f"no CUDA device, for which {case.name} is made"
        raise bad_value("device", given=given, wanted="a GPU, or --device cpu to run it here")
    return device


def compile_ahead(work: Iterable[tuple[BenchCase, Kind]], settings: Settings) -> None:
    """What rivals compile for the work, all at once: one case at a time takes minutes."""
    on_gpu = [(case, kind) for case, kind in work if place_of(case, settings).type == "cuda"]
    names = rivals_of("cuda", settings)
    if on_gpu and {"humming", "humming-tuned"} & set(names):
        humming_rival.compile_ahead(on_gpu, search="humming-tuned" in names)


def rivals_of(device_type: str, settings: Settings) -> tuple[str, ...]:
    """Names in ``RIVALS``."""
    return USUAL_RIVALS[device_type] if settings.rivals is None else settings.rivals


class WrongResultError(Exception):
    """A contender's result is wrong: it has no time."""


@dataclass(frozen=True)
class Out:
    """Why a contender has no time, and whether that is a fault: of ours, or a wrong result."""

    reason: str
    fault: bool


class Field:
    """The contenders of a case that are still in, and why the others are out."""

    def __init__(self, entries: Iterable[Contender]) -> None:
        self.entries = list(entries)
        self.out: dict[str, Out] = {}

    def each(self, step: Callable[[Contender], T]) -> dict[str, T]:
        """What ``step`` returns for each, by name; a contender for which it raises is out."""
        found: dict[str, T] = {}
        for entry in tuple(self.entries):
            try:
                with at_level(entry.level):
                    found[entry.name] = step(entry)
            except Exception as error:  # noqa: BLE001  a rival, or a kernel, may raise anything
                self.entries.remove(entry)
                fault = entry.ours or isinstance(error, WrongResultError)
                self.out[entry.name] = Out(_account(error), fault)
        return found


def _account(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip(": \n")


def run_case(
    case: BenchCase,
    kind: Kind,
    settings: Settings | None = None,
    *,
    turn: Callable[[Contender], Turn] | None = None,
) -> list[Result]:
    """A line for each contender, ours first, and an absence for each that has no time.

    Args:
        turn: what times; None: ``turn_on_cpu`` or ``turn_on_cuda``.

    Raises:
        ValueError: a device or level that is not here, or no backend that takes the case.
    """
    settings = settings or Settings()
    device = place_of(case, settings)
    make_turn = turn or (turn_on_cpu if device.type == "cpu" else turn_on_cuda)
    with torch.inference_mode():
        results = _measured(make_data(case, kind, device), settings, make_turn)
    _release(device)
    return results


def _measured(
    data: CaseData, settings: Settings, make_turn: Callable[[Contender], Turn]
) -> list[Result]:
    began = time.perf_counter()
    device = data.device
    rounds = settings.rounds or ROUNDS[device.type]
    field = _field(data, settings)
    exact = grouped_mm_reference(data.x, data.w, data.offs)
    field.each(_first_call)
    field.each(lambda entry: check(entry, exact, sets=1))
    turns = field.each(make_turn)
    limits = {entry.name: min(rounds, entry.rounds or rounds) for entry in field.entries}
    seconds = take_turns(turns, limits)
    machine = describe(device, settings.commit)
    errors = field.each(lambda entry: check(entry, exact, sets=_called(entry, limits)))
    host: Mapping[str, float] = {}
    arch: GpuArch | None
    if device.type == "cuda":
        host = field.each(host_seconds_on_cuda)
        arch = gpu_arch(device)
    else:
        read = read_bytes_per_s()
        machine["read_gb_per_s"] = round(read / 1e9, 2)
        arch = cpu_arch(read, settings.flop_per_s)
    machine["case_s"] = round(time.perf_counter() - began, 1)
    return _results(data, field, seconds, errors, host, machine, arch)


def _field(data: CaseData, settings: Settings) -> Field:
    rotated = settings.rotate_bytes
    rotate = ROTATED_BYTES[data.device.type] if rotated is None else rotated
    ours, refused = our_contenders(data, rotate, backends=settings.backends, levels=settings.levels)
    field = Field(ours)
    for name in settings.backends:
        if name in refused:
            field.out[name] = Out("; ".join(refused[name]), fault=False)
    for name in rivals_of(data.device.type, settings):
        try:
            field.entries.append(RIVALS[name](data, rotate))
        except Exception as error:  # noqa: BLE001  a rival that cannot be built is left out
            field.out[name] = Out(_account(error), fault=False)
    return field


def _called(entry: Contender, rounds: Mapping[str, int]) -> int:
    """Sets that its turns have called: one after the other on a CPU, all in a GPU's graph."""
    if entry.result(0).is_cuda:
        return entry.sets
    return min(entry.sets, 1 + rounds[entry.name])


def _first_call(entry: Contender) -> None:
    """Computes with the first set, over NaN where the output is the contender's own."""
    for i in range(entry.sets):
        out = entry.result(i)
        if out.numel():
            out.fill_(float("nan"))
    entry.call(0)


@dataclass(frozen=True)
class Error:
    """Of a result against float64: relative, of Frobenius norms, and the largest share of the
    error bound, which is None for a rival."""

    relative: float
    of_bound: float | None


def check(entry: Contender, exact: Exact, *, sets: int) -> Error:
    """The largest error over the first ``sets`` sets.

    Raises:
        WrongResultError: ours outside the error bound anywhere, or a rival far from the product.
    """
    errors = [_checked(entry, entry.result(i), exact) for i in range(sets)]
    shares = [error.of_bound for error in errors if error.of_bound is not None]
    return Error(max(error.relative for error in errors), max(shares, default=None))


def _checked(entry: Contender, out: torch.Tensor, exact: Exact) -> Error:
    if out.shape != exact.value.shape:
        raise WrongResultError(f"shape {tuple(out.shape)}, want {tuple(exact.value.shape)}")
    difference = out.double() - exact.value
    relative = float(difference.norm() / exact.value.norm())
    if not entry.ours:
        if not relative <= entry.error_limit:
            raise WrongResultError(
                f"relative error {relative:.3g}, want {entry.error_limit} at most"
            )
        return Error(relative, None)
    bound = error_bound(exact, out.dtype)
    share = float((difference.abs() / bound).max())
    if not bool(within_bound(out, exact, bound).all()):
        raise WrongResultError(f"{share:.3g} times the error bound")
    return Error(relative, share)


def _results(
    data: CaseData,
    field: Field,
    seconds: Seconds,
    errors: Mapping[str, Error],
    host: Mapping[str, float],
    machine: dict[str, object],
    arch: GpuArch | None,
) -> list[Result]:
    floor = floor_of(data.problem, arch)
    best = _best_rival(field.entries, seconds)
    results: list[Result] = []
    for entry in field.entries:
        times = Quantiles.of(seconds[entry.name])
        error = errors[entry.name]
        results.append(
            Line(
                case=data.case.name,
                kind=data.kind,
                shape=str(data.case),
                contender=entry.name,
                ours=entry.ours,
                config=entry.config,
                other_maths=entry.other_maths,
                median_us=times.median * 1e6,
                p10_us=times.p10 * 1e6,
                p90_us=times.p90 * 1e6,
                rounds=len(seconds[entry.name]),
                sets=entry.sets,
                host_us=host[entry.name] * 1e6 if host else None,
                relative_error=error.relative,
                error_of_bound=error.of_bound,
                ratio_to_best_rival=None if best is None else times.median / best,
                floor_us=None if floor is None else floor.seconds * 1e6,
                floor_bound=None if floor is None else floor.bound,
                ratio_to_floor=None if floor is None else times.median / floor.seconds,
                predicted_us=entry.plan.estimate.seconds * 1e6 if entry.plan else None,
                predicted_bound=entry.plan.estimate.bound if entry.plan else None,
                machine=machine,
            )
        )
    return results + [
        Absence(data.case.name, data.kind, name, out.reason, out.fault, machine)
        for name, out in field.out.items()
    ]


def _best_rival(entries: Sequence[Contender], seconds: Seconds) -> float | None:
    """The shortest median of those that compute the same product as ours."""
    medians = [
        Quantiles.of(seconds[entry.name]).median
        for entry in entries
        if not entry.ours and not entry.other_maths
    ]
    return min(medians, default=None)


def _release(device: torch.device) -> None:
    """A case's tensors and graphs go before the next: some cases take tens of GB."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
