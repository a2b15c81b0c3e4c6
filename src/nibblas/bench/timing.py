"""Seconds per call of contenders that take turns.

One round runs every contender once, on its next set of weights; a machine whose clock changes
during the run changes it for all. On a GPU a turn is one replay of a CUDA graph that holds a call
for every set, timed by events: the host is out of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nibblas import env
from nibblas.bench.contenders import Contender

Seconds = dict[str, list[float]]


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


def at_level(contender: Contender) -> contextlib.AbstractContextManager[None]:
    """Inside, the CPU backend runs at the contender's level."""
    return env.cpu_level(contender.level) if contender.level else contextlib.nullcontext()


def time_on_cpu(contenders: Sequence[Contender], rounds: int) -> Seconds:
    """Host clock around each call; the first round does not count."""
    seconds: Seconds = {contender.name: [] for contender in contenders}
    for i in range(rounds + 1):
        for contender in contenders:
            if contender.rounds is not None and i > contender.rounds:
                continue
            with at_level(contender):
                begin = time.perf_counter()
                contender.call(i % contender.sets)
                end = time.perf_counter()
            if i:
                seconds[contender.name].append(end - begin)
    return seconds


def time_on_cuda(contenders: Sequence[Contender], rounds: int) -> Seconds:
    """Events around each replay, divided by the calls in the graph; the first does not count."""
    graphs = {contender.name: _graph(contender) for contender in contenders}
    seconds: Seconds = {name: [] for name in graphs}
    for i in range(rounds + 1):
        for contender in contenders:
            if contender.rounds is not None and i > contender.rounds:
                continue
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            graphs[contender.name].replay()
            end.record()
            end.synchronize()
            if i:
                elapsed = begin.elapsed_time(end) / 1e3 / contender.sets
                seconds[contender.name].append(elapsed)
    return seconds


def _graph(contender: Contender) -> torch.cuda.CUDAGraph:
    """A call for every set, after one of each outside: compilers and allocators have then run."""
    for i in range(contender.sets):
        contender.call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(contender.sets):
            contender.call(i)
    return graph


def read_bytes_per_s(num_bytes: int = 800_000_000, tries: int = 5) -> float:
    """What this machine's cores read from memory, by PyTorch's sum: the median of some tries."""
    values = torch.ones(num_bytes // 4)
    seconds = []
    for _ in range(tries):
        begin = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - begin)
    return num_bytes / Quantiles.of(seconds).median
