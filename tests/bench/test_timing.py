"""Turns, graphs and quantiles, on a stand-in for the GPU's clock."""

from __future__ import annotations

import math

import pytest
import torch

from nibblas.bench import timing
from nibblas.bench.contenders import Contender, sets_for
from nibblas.bench.timing import Quantiles, take_turns, turn_on_cpu


def contender(name: str, call, sets: int, rounds: int | None = None) -> Contender:
    return Contender(name, call, sets, lambda i: torch.empty(0), rounds=rounds)


class Gpu:
    """torch.cuda's graphs and events; a call takes as many seconds as ``cost`` says of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = self
        self.now, self.captured, self.capturing = 0.0, 0.0, False
        self.log: list[str] = []

        class Graph:
            seconds, calls = 0.0, 0

            def replay(self) -> None:
                gpu.log.append(f"replay of {self.calls}")
                gpu.now += self.seconds

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = gpu.now

            def synchronize(self) -> None: ...

            def elapsed_time(self, end: Event) -> float:
                return 1e3 * (end.at - self.at)

        class Capture:
            def __init__(self, graph: Graph) -> None:
                self.graph = graph

            def __enter__(self) -> None:
                gpu.capturing, gpu.captured = True, 0.0
                Graph.calls = 0

            def __exit__(self, *_: object) -> None:
                gpu.capturing = False
                self.graph.seconds, self.graph.calls = gpu.captured, Graph.calls

        self.graph_type = Graph
        for name, fake in (("CUDAGraph", Graph), ("Event", Event), ("graph", Capture)):
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("wait"))

    def contender(self, name: str, cost: float, sets: int, rounds: int | None = None) -> Contender:
        def call(i: int) -> None:
            if self.capturing:
                self.captured += cost
                self.graph_type.calls += 1

        return contender(name, call, sets, rounds)


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order: list[tuple[str, int]] = []

    def entry(name: str, sets: int) -> Contender:
        return contender(name, lambda i: order.append((name, i)), sets)

    entries = [entry("a", 2), entry("b", 3), entry("c", 1)]
    turns = {entry.name: turn_on_cpu(entry) for entry in entries}
    seconds = take_turns(turns, {"a": 3, "b": 3, "c": 1})
    assert order == [
        *[("a", 0), ("b", 0), ("c", 0)],
        *[("a", 1), ("b", 1), ("c", 0)],
        *[("a", 0), ("b", 2)],
        *[("a", 1), ("b", 0)],
    ]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 1}


def test_graphs_are_replayed_in_turns_and_divided_by_their_calls(monkeypatch):
    gpu = Gpu(monkeypatch)
    entries = [gpu.contender("a", 2e-6, sets=3), gpu.contender("b", 5e-6, sets=11)]
    turns = {entry.name: timing.turn_on_cuda(entry) for entry in entries}
    gpu.log.clear()
    seconds = take_turns(turns, {"a": 2, "b": 1})
    # 3 sets are called 8 times each, so that a graph holds MIN_CALLS at least
    assert gpu.log == ["replay of 24", "replay of 33"] * 2 + ["replay of 24"]
    assert seconds == {"a": pytest.approx([2e-6] * 2), "b": pytest.approx([5e-6])}


def test_the_fastest_is_found_and_what_cannot_run_is_passed_over(monkeypatch):
    gpu = Gpu(monkeypatch)

    def broken(i: int) -> None:
        raise RuntimeError("too much shared memory")

    options = [
        contender("broken", broken, 2),
        gpu.contender("slow", 3e-6, 2),
        gpu.contender("fast", 2e-6, 2),
    ]
    assert timing.fastest_on_cuda(options).name == "fast"
    with pytest.raises(RuntimeError, match="shared memory"):
        timing.fastest_on_cuda(options[:1])


def test_what_an_eager_call_costs_the_host(monkeypatch):
    gpu, clock = Gpu(monkeypatch), [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def call(i: int) -> None:
        clock[0] += 7e-6

    assert timing.host_seconds_on_cuda(contender("a", call, 3)) == pytest.approx(7e-6)
    assert len(gpu.log) == timing.HOST_TRIES + 1


def test_quantiles_are_values_that_were_measured():
    quantiles = Quantiles.of([float(i) for i in range(11)][::-1])
    assert (quantiles.median, quantiles.p10, quantiles.p90) == (5.0, 1.0, 9.0)
    assert Quantiles.of([2.0]) == Quantiles(2.0, 2.0, 2.0)


def test_inputs_rotate_over_as_many_bytes_as_asked():
    assert sets_for(100, 0) == 1
    for num_bytes in (1, 99, 100, 101, 10_000):
        assert (sets_for(num_bytes, 1000) - 1) * num_bytes >= 1000


def test_the_read_rate_is_a_rate():
    rate = timing.read_bytes_per_s(1_000_000, tries=2)
    assert math.isfinite(rate) and rate > 0
