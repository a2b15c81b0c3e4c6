"""What a self-test runs: small jobs, as plain data that travels to another process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from nibblas.check.problems import ProblemSpec, draw
from nibblas.competition.cases import BENCHMARKS, EDGE_CASES, TESTS, Case

Kind = Literal["facts", "competition", "check", "time", "hang"]

EMULATED = "emulated"

QUICK_CASES = (
    Case("Q0", 2, (40, 130), (128, 256), (256, 272)),
    Case("Q1", 3, (0, 1, 17), (129, 256, 8), (64, 528, 16)),
)
"""Small, yet with several tiles, an empty group, and ends of every kind along K."""

CHECKED_PROBLEMS = 60
QUICK_PROBLEMS = 4
_SEED = 0
_QUICK_PRODUCTS = 1 << 17
"""Most multiply-adds of a quick problem: a second on the emulator."""


@dataclass(frozen=True)
class Place:
    """Where a self-test runs.

    Attributes:
        device: "cuda", "cuda:1", or "emulated".
        arch: of the emulated device, "sm_100"; empty: a real one, which knows its own.
    """

    device: str
    arch: str = ""

    @property
    def emulated(self) -> bool:
        return self.device == EMULATED

    @property
    def tensors(self) -> str:
        """The torch device of the operands: an emulated GPU computes in the host's memory."""
        return "cpu" if self.emulated else self.device


@dataclass(frozen=True)
class Job:
    """One thing to do under one time limit.

    Attributes:
        subject: the case's name ("T3", "C0"), or the random problem's ("0:17").
        content: of a competition test: "public" or "full_range".
        backend: that computes. preset: of its kernel; empty: it has none.
    """

    kind: Kind
    subject: str = ""
    content: str = ""
    backend: str = ""
    preset: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.subject, self.content, self.preset)))


@dataclass(frozen=True)
class Kernels:
    """Which backend takes the device's products, by precision, and the presets of its kernel."""

    backends: dict[str, str]
    presets: tuple[str, ...]

    def presets_of(self, backend: str) -> tuple[str, ...]:
        return self.presets if backend == self.backends["w4a4"] and self.presets else ("",)


def result_jobs(kernels: Kernels, *, quick: bool) -> list[Job]:
    """The public tests on public and on hard data, for each preset; then a short random sweep."""
    return [*_competition_jobs(kernels, quick=quick), *_check_jobs(kernels, quick=quick)]


def time_jobs(kernels: Kernels) -> list[Job]:
    """One per public benchmark case; the presets take turns in it."""
    return [Job("time", case.name, backend=kernels.backends["w4a4"]) for case in BENCHMARKS]


def case_named(name: str) -> Case:
    """A case of the public problem, or one of ours."""
    return {case.name: case for case in (*TESTS, *EDGE_CASES, *QUICK_CASES, *BENCHMARKS)}[name]


def _competition_jobs(kernels: Kernels, *, quick: bool) -> Iterator[Job]:
    backend = kernels.backends["w4a4"]
    cases: dict[str, Sequence[Case]] = {"public": TESTS, "full_range": TESTS + EDGE_CASES}
    if quick:
        cases = {"full_range": QUICK_CASES}
    for preset in kernels.presets_of(backend):
        for content, own in cases.items():
            for case in own:
                yield Job("competition", case.name, content, backend, preset)


def _check_jobs(kernels: Kernels, *, quick: bool) -> Iterator[Job]:
    for i, spec in enumerate(_drawn(quick=quick)):
        backend = kernels.backends[spec.precision]
        presets = kernels.presets_of(backend)
        yield Job("check", spec.name, "", backend, presets[i % len(presets)])


def _drawn(*, quick: bool) -> Iterator[ProblemSpec]:
    """The sweep's problems: the first of its seed, the quick one's only those that are small."""
    count, index = QUICK_PROBLEMS if quick else CHECKED_PROBLEMS, 0
    while count:
        spec = draw(_SEED, index)
        index += 1
        if not quick or 0 < _products(spec) <= _QUICK_PRODUCTS:
            count -= 1
            yield spec


def _products(spec: ProblemSpec) -> int:
    return sum(m * spec.group_n(g) * spec.group_k(g) for g, m in enumerate(spec.rows))
