"""The benchmark: its cases, its gate, its arithmetic on known times, its lines."""

from __future__ import annotations

import json
import math

import pytest
import torch

import nibblas
from nibblas.bench import cases_named, contenders, report, runner, timing
from nibblas.bench.cases import CASES, KINDS, BenchCase
from nibblas.bench.contenders import MM, Contender, decode, make_data
from nibblas.bench.floors import cpu_arch, floor_of
from nibblas.bench.runner import Settings, WrongResultError, run_case
from nibblas.bench.timing import Quantiles, time_on_cpu
from nibblas.plan.arch import gpu

CPU = torch.device("cpu")
SMALL = BenchCase("small", (3, 0, 5), 32, 64, "cpu")
QUICK = Settings(rounds=2, rotate_bytes=0)


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch):
    monkeypatch.setattr(runner, "read_bytes_per_s", lambda: 1e10)
    monkeypatch.delenv("NIBBLAS_BACKEND", raising=False)
    monkeypatch.delenv("NIBBLAS_CPU_LEVEL", raising=False)


def test_the_table_has_every_case_once():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    cpu = ["c1", "c2", "c3", "c4m1", "c4m8", "c4m64", "c4m256"]
    assert [case.name for case in CASES if case.device == "cpu"] == cpu
    gpu_names = ["S1", "S2", "S3", "S4", "D1", "D2", "P1", "P2"]
    assert [case.name for case in CASES if case.device == "cuda"] == gpu_names


@pytest.mark.parametrize(
    ("name", "floor_us"),
    [
        *[("S1", 74.8), ("S2", 37.4), ("S3", 16.0), ("S4", 8.0)],
        *[("D1", 112.4), ("D2", 53.2), ("P1", 598), ("P2", 256)],
    ],
)
def test_floors_on_an_h200_are_the_published_ones(name, floor_us):
    """FLOP / 804 TFLOP/s or the least bytes / 4.29 TB/s, worked out apart from the planner."""
    (case,) = cases_named([name], "cuda")
    floor = floor_of(case.problem("w4a4", "cuda"), gpu("h200"))
    assert floor is not None
    assert floor.seconds * 1e6 == pytest.approx(floor_us, rel=0.02)


def test_routed_tokens_go_to_distinct_experts():
    (case,) = cases_named(["D2"], "cuda")
    assert sum(case.rows) == 64 * 8 and len(case.rows) == 128 and max(case.rows) <= 64


def test_names_choose():
    assert [case.name for case in cases_named(["c4", "c1"], "cpu")] == [
        "c4m1",
        "c4m8",
        "c4m64",
        "c4m256",
        "c1",
    ]
    assert len(cases_named([], "cuda")) == 8
    with pytest.raises(ValueError, match="case: got 'c5'; want one of c1, c2"):
        cases_named(["c5"], "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_is_exact(kind):
    data = make_data(SMALL, kind, CPU)
    assert torch.equal(decode(data.w, data.dtype).double(), data.w.dequantize(torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_checked_and_timed_for_every_contender(kind):
    lines = run_case(SMALL, kind, QUICK)
    names = [line.contender for line in lines]
    assert "cpu/portable" in names and MM in names and "decode + torch mm" in names
    assert ("torch grouped_mm" in names) == (
        kind != "w4a16-fp16" and hasattr(torch.nn.functional, "grouped_mm")
    )
    assert not any("reference" in name for name in names)
    for line in lines:
        assert line.ours == line.contender.startswith("cpu/")
        assert 0 < line.p10_us <= line.median_us <= line.p90_us
        assert line.rounds == 2 and line.machine["commit"] and line.machine["inputs"]


def test_figures_follow_from_the_times():
    def timer(entries, rounds):
        assert rounds == 7
        times = {entry.name: [3e-3, 1e-3, 2e-3] for entry in entries}
        return times | {MM: [4e-3] * 3}

    settings = Settings(rounds=7, rotate_bytes=0)
    lines = {x.contender: x for x in run_case(SMALL, "w4a4", settings, timer=timer)}
    ours = lines["cpu/portable"]
    assert (ours.median_us, ours.p10_us, ours.p90_us) == (2000, 1000, 3000)
    assert ours.ratio_to_mm == 0.5 and lines[MM].ratio_to_mm == 1
    # 2 of 3 groups are busy: weights, 8 token rows, 8 output rows of bfloat16
    num_bytes = 2 * 32 * 64 * 9 // 16 + 8 * 64 * 9 // 16 + 8 * 32 * 2
    assert ours.floor_us == pytest.approx(num_bytes / 1e10 * 1e6)
    assert ours.floor_bound == "memory"
    assert ours.ratio_to_floor == pytest.approx(2000 / ours.floor_us)


def test_a_matrix_unit_bounds_the_floor():
    problem = SMALL.problem("w4a4", "cpu")
    floor = floor_of(problem, cpu_arch(1e12, 1e6))
    assert floor is not None and floor.bound == "arithmetic"
    assert floor.seconds == pytest.approx(2 * 8 * 32 * 64 / 1e6)
    assert floor_of(problem, None) is None


def broken(monkeypatch, at_call: int):
    """Our product is wrong from call number ``at_call`` on."""
    right, calls = nibblas.grouped_mm, []

    def wrong(*arguments, out, **options):
        calls.append(1)
        right(*arguments, out=out, **options)
        if len(calls) >= at_call:
            out[-1, -1] += 1e6
        return out

    monkeypatch.setattr(nibblas, "grouped_mm", wrong)


@pytest.mark.parametrize("at_call", [1, 4])
def test_a_wrong_result_has_no_time_before_and_after(monkeypatch, at_call):
    broken(monkeypatch, at_call)
    with pytest.raises(WrongResultError, match="cpu/portable gives a wrong result"):
        run_case(SMALL, "w4a4", Settings(levels=("portable",), rounds=4, rotate_bytes=0))


def test_a_result_that_is_not_written_is_wrong(monkeypatch):
    monkeypatch.setattr(nibblas, "grouped_mm", lambda *a, out, **k: out)
    with pytest.raises(WrongResultError):
        run_case(SMALL, "w4a16-bf16", QUICK)


def test_a_rival_that_computes_something_else_is_noticed(monkeypatch):
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out.fill_(1.0))
    with pytest.raises(WrongResultError, match="torch mm gives a wrong result"):
        run_case(SMALL, "w4a4", QUICK)


def test_levels_choose_and_unknown_ones_are_refused():
    lines = run_case(SMALL, "w4a4", Settings(levels=("portable",), rounds=1, rotate_bytes=0))
    assert [line.contender for line in lines if line.ours] == ["cpu/portable"]
    with pytest.raises(ValueError, match="avx9000"):
        run_case(SMALL, "w4a4", Settings(levels=("avx9000",), rounds=1, rotate_bytes=0))


def test_weights_rotate_over_as_many_bytes_as_asked():
    data = make_data(SMALL, "w4a4", CPU)
    entries = contenders.contenders(data, 40_000.0, levels=("portable",))
    ours, mm = entries[0], next(entry for entry in entries if entry.name == MM)
    assert ours.sets * data.weight_bytes >= 40_000
    assert mm.sets * 3 * 32 * 64 * 2 >= 40_000
    assert ours.sets > mm.sets > 1


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order: list[tuple[str, int]] = []

    def entry(name: str, sets: int, rounds: int | None = None) -> Contender:
        call = lambda i: order.append((name, i))  # noqa: E731
        return Contender(name, call, sets, torch.Tensor, rounds=rounds)

    seconds = time_on_cpu([entry("a", 2), entry("b", 3), entry("c", 1, rounds=1)], 3)
    assert order == [
        *[("a", 0), ("b", 0), ("c", 0)],
        *[("a", 1), ("b", 1), ("c", 0)],
        *[("a", 0), ("b", 2)],
        *[("a", 1), ("b", 0)],
    ]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 1}


def test_graphs_are_replayed_in_turns_and_divided_by_their_calls(monkeypatch):
    """The GPU's timing on a stand-in for torch.cuda that counts."""
    log: list[str] = []
    clock = [0.0]

    class Graph:
        calls = 0

        def replay(self):
            log.append(f"replay of {self.calls}")
            clock[0] += self.calls * 2.0

    class Event:
        def __init__(self, enable_timing):
            self.at = 0.0

        def record(self):
            self.at = clock[0]

        def synchronize(self): ...

        def elapsed_time(self, end):
            return end.at - self.at

    class capture:
        def __init__(self, graph):
            self.graph = graph

        def __enter__(self):
            calls[0] = 0

        def __exit__(self, *_):
            self.graph.calls = calls[0]

    calls = [0]
    for name, fake in (("CUDAGraph", Graph), ("Event", Event), ("graph", capture)):
        monkeypatch.setattr(timing.torch.cuda, name, fake)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)

    def call(i: int) -> None:
        calls[0] += 1

    entries = [
        Contender("a", call, 3, torch.Tensor),
        Contender("b", call, 5, torch.Tensor, rounds=1),
    ]
    seconds = timing.time_on_cuda(entries, 2)
    assert log == ["replay of 3", "replay of 5"] * 2 + ["replay of 3"]
    assert seconds == {"a": pytest.approx([2e-3] * 2), "b": pytest.approx([2e-3])}


def test_quantiles_are_values_that_were_measured():
    quantiles = Quantiles.of([float(i) for i in range(11)][::-1])
    assert (quantiles.median, quantiles.p10, quantiles.p90) == (5.0, 1.0, 9.0)
    assert Quantiles.of([2.0]) == Quantiles(2.0, 2.0, 2.0)


def test_the_read_rate_is_a_rate():
    rate = timing.read_bytes_per_s(1_000_000, tries=2)
    assert math.isfinite(rate) and rate > 0


def test_a_gpu_case_without_a_gpu_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (case,) = cases_named(["S4"], "cuda")
    with pytest.raises(ValueError, match="device: got no CUDA device, for which S4 is made"):
        run_case(case, "w4a4")


def test_lines_are_json_with_the_machine_beside(tmp_path):
    path = tmp_path / "lines.jsonl"
    for _ in range(2):
        report.append_lines(path, run_case(SMALL, "w4a4", QUICK))
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(read) % 2 == 0 and {line["case"] for line in read} == {"small"}
    wanted = {"median_us", "p10_us", "p90_us", "ratio_to_mm", "floor_us", "processor", "commit"}
    assert all(wanted <= line.keys() for line in read)


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib")
    report.plot(tmp_path / "out.png", run_case(SMALL, "w4a4", QUICK))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="lines: got none"):
        report.plot(tmp_path / "none.png", [])
