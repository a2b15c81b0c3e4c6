"""Seconds per call of contenders that take turns.

One round gives every contender one turn; a machine whose clock changes during the run changes it
for all. On a CPU a turn is one call on the next set of inputs, by the host's clock. On a GPU it is
one replay of a CUDA graph that holds calls for every set, by events: the host is out of it, and
what an eager call costs the host is measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from nibblas.bench.contenders import Contender, at_level

Turn = Callable[[int], float]
"""Runs a contender in round i; seconds per call."""
Seconds = dict[str, list[float]]

MIN_CALLS = 24
"""In a graph at least: its start, a few us, is shared by so many."""
TRIAL_TURNS = 5
HOST_CALLS, HOST_TRIES = 4, 25
"""Eager calls between two synchronisations: few enough that the GPU's queue never fills."""

T = TypeVar("T")


@dataclass(frozen=True)
class Quantiles:
    """Of seconds per call."""

    median: float
    p10: float
    p90: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Quantiles:
        """By nearest rank."""
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return Quantiles(*(ordered[round(share * last)] for share in (0.5, 0.1, 0.9)))


def take_turns(turns: Mapping[str, Turn], rounds: Mapping[str, int]) -> Seconds:
    """Every contender's seconds per call, by name; the first round does not count."""
    seconds: Seconds = {name: [] for name in turns}
    for i in range(1 + max(rounds.values(), default=0)):
        for name, turn in turns.items():
            if i <= rounds[name]:
                elapsed = turn(i)
                if i:
                    seconds[name].append(elapsed)
    return seconds


def turn_on_cpu(contender: Contender) -> Turn:
    """Host clock around a call."""

    def turn(i: int) -> float:
        with at_level(contender.level):
            begin = time.perf_counter()
            contender.call(i % contender.sets)
            return time.perf_counter() - begin

    return turn


def turn_on_cuda(contender: Contender) -> Turn:
    """Events around the replay of a graph, divided by the calls in it."""
    graph, calls = _graph(contender)

    def turn(i: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms / 1e3 / calls

    return turn


def _graph(contender: Contender) -> tuple[torch.cuda.CUDAGraph, int]:
    """Calls for every set in turn, after one of each outside: compilers and allocators have run."""
    for i in range(contender.sets):
        contender.call(i)
    torch.cuda.synchronize()
    passes = -(-MIN_CALLS // contender.sets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in list(range(contender.sets)) * passes:
            contender.call(i)
    return graph, contender.sets * passes


def host_seconds_on_cuda(contender: Contender) -> float:
    """What an eager, warm call costs the host: the median over tries of a few calls each."""
    tries = []
    for _ in range(HOST_TRIES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(HOST_CALLS):
            contender.call(i % contender.sets)
        tries.append((time.perf_counter() - begin) / HOST_CALLS)
    torch.cuda.synchronize()
    return Quantiles.of(tries).median


def surviving(make: Callable[[T], Contender], options: Iterable[T]) -> list[Contender]:
    """The contenders of those options that can be made; the last error where none can."""
    made: list[Contender] = []
    error: Exception | None = None
    for option in options:
        try:
            made.append(make(option))
        except Exception as fault:  # noqa: BLE001  a rival's compiler may raise anything
            error = fault
    if not made and error is not None:
        raise error
    return made


def fastest_on_cuda(options: Sequence[Contender]) -> Contender:
    """The one with the shortest median of a few turns; those that cannot run are passed over."""
    trials: dict[int, float] = {}

    def trial(place: int) -> Contender:
        turn = turn_on_cuda(options[place])
        trials[place] = Quantiles.of([turn(i) for i in range(TRIAL_TURNS)]).median
        return options[place]

    surviving(trial, range(len(options)))
    return options[min(trials, key=lambda place: trials[place])]


def read_bytes_per_s(num_bytes: int = 800_000_000, tries: int = 5) -> float:
    """What this machine's cores read from memory, by PyTorch's sum: the median of some tries."""
    values = torch.ones(num_bytes // 4)
    seconds = []
    for _ in range(tries):
        begin = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - begin)
    return num_bytes / Quantiles.of(seconds).median
