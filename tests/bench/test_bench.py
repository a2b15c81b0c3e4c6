"""The benchmark: its cases, its gate, its arithmetic on known times, its lines."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import nibblas
from nibblas.bench import cases_named, floors, machine, report, runner, torch_rivals
from nibblas.bench.cases import CASES, KINDS, BenchCase, kinds_of
from nibblas.bench.contenders import CaseData, Contender, make_data
from nibblas.bench.floors import cpu_arch, floor_of
from nibblas.bench.report import Absence, Line
from nibblas.bench.runner import Settings, run_case
from nibblas.plan.arch import gpu

CPU = torch.device("cpu")
SMALL = BenchCase("small", (3, 0, 5), 32, 64, "cpu")
QUICK = Settings(levels=("portable",), rounds=2, rotate_bytes=0)


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch):
    monkeypatch.setattr(runner, "read_bytes_per_s", lambda: 1e10)
    monkeypatch.delenv("NIBBLAS_BACKEND", raising=False)
    monkeypatch.delenv("NIBBLAS_CPU_LEVEL", raising=False)


def run(kind="w4a4", settings=QUICK, **options):
    """Lines and absences by contender."""
    results = {result.contender: result for result in run_case(SMALL, kind, settings, **options)}
    lines = {name: found for name, found in results.items() if isinstance(found, Line)}
    return lines, {name: found for name, found in results.items() if isinstance(found, Absence)}


def canned(seconds_of):
    """A stand-in for timing: calls each contender, and takes the times from ``seconds_of``."""

    def make_turn(contender: Contender):
        times = iter([99.0, *seconds_of(contender.name)])

        def turn(i: int) -> float:
            contender.call(i % contender.sets)
            return next(times)

        return turn

    return make_turn


def test_the_table_has_every_case_once():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    cpu = ["c1", "c2", "c3", "c4m1", "c4m8", "c4m64", "c4m256"]
    assert [case.name for case in CASES if case.device == "cpu"] == cpu
    gpu_names = ["S1", "S2", "S3", "S4", "D1", "D2", "P1", "P2", "P2-skew"]
    assert [case.name for case in CASES if case.device == "cuda"] == gpu_names


@pytest.mark.parametrize(
    ("name", "floor_us"),
    [
        *[("S1", 74.8), ("S2", 37.4), ("S3", 16.0), ("S4", 8.0)],
        *[("D1", 112.4), ("D2", 53.2), ("P1", 598), ("P2", 256), ("P2-skew", 256)],
    ],
)
def test_floors_on_an_h200_are_the_published_ones(name, floor_us):
    """FLOP / 804 TFLOP/s or the least bytes / 4.29 TB/s, worked out apart from the planner."""
    (case,) = cases_named([name], "cuda")
    floor = floor_of(case.problem("w4a4", "cuda"), gpu("h200"))
    assert floor is not None
    assert floor.seconds * 1e6 == pytest.approx(floor_us, rel=0.02)


@pytest.mark.parametrize(
    ("name", "arch"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100")]
)
def test_a_gpu_is_known_by_its_name(monkeypatch, name, arch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = floors.gpu_arch(torch.device("cuda"))
    assert found is not None and found.name == arch


def test_routed_tokens_go_to_distinct_experts():
    (case,) = cases_named(["D2"], "cuda")
    assert sum(case.rows) == 64 * 8 and len(case.rows) == 128 and max(case.rows) <= 64


def test_skewed_rows_are_those_of_p2_with_nine_tenths_on_one_expert():
    even, skewed = cases_named(["P2", "P2-skew"], "cuda")
    assert (skewed.n, skewed.k, len(skewed.rows)) == (even.n, even.k, len(even.rows))
    assert sum(skewed.rows) == sum(even.rows)
    assert skewed.rows[0] / sum(skewed.rows) == pytest.approx(0.9, abs=1e-4)
    assert max(skewed.rows[1:]) - min(skewed.rows[1:]) <= 1


def test_names_choose():
    names = [case.name for case in cases_named(["c4", "c1"], "cpu")]
    assert names == ["c4m1", "c4m8", "c4m64", "c4m256", "c1"]
    assert len(cases_named([], "cuda")) == 9
    with pytest.raises(ValueError, match="case: got 'c5'; want one of c1, c2"):
        cases_named(["c5"], "cpu")


def test_precisions_and_types_of_tokens_make_kinds():
    assert kinds_of(["w4a16", "w4a4"], ["fp16"]) == ("w4a4", "w4a16-fp16")
    assert kinds_of(["w4a16"], ["fp16", "bf16"]) == ("w4a16-bf16", "w4a16-fp16")
    assert kinds_of(["w4a4"], ["fp16", "bf16"]) == ("w4a4",)
    with pytest.raises(ValueError, match="precision: got 'w8a8'; want one of w4a4, w4a16"):
        kinds_of(["w8a8"], ["bf16"])
    with pytest.raises(ValueError, match="activations: got 'fp32'; want one of bf16, fp16"):
        kinds_of(["w4a4"], ["fp32"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_checked_and_timed_for_every_contender(kind):
    lines, absences = run(kind)
    assert {"cpu/portable", "torch mm", "decode + torch mm"} <= set(lines)
    grouped = "torch grouped_mm" + (" in bf16" if kind == "w4a16-fp16" else "")
    assert grouped in lines or grouped in absences
    for line in lines.values():
        assert line.ours == line.contender.startswith("cpu/")
        assert (line.error_of_bound is not None) == line.ours == (line.predicted_us is not None)
        assert 0 < line.p10_us <= line.median_us <= line.p90_us
        assert line.rounds == 2 and line.machine["commit"] and line.machine["inputs"]
    assert 0 < lines["cpu/portable"].error_of_bound <= 1
    assert 1e-5 < lines["cpu/portable"].relative_error < 4e-3


def test_figures_follow_from_the_times():
    times = {"torch mm": [4e-3] * 3, "decode + torch mm": [8e-3] * 3}
    make_turn = canned(lambda name: times.get(name, [3e-3, 1e-3, 2e-3]))
    settings = Settings(levels=("portable",), rounds=3, rotate_bytes=0, rivals=("mm", "decode"))
    lines, _ = run(settings=settings, turn=make_turn)
    ours = lines["cpu/portable"]
    assert (ours.median_us, ours.p10_us, ours.p90_us) == (2000, 1000, 3000)
    assert ours.ratio_to_best_rival == 0.5 and lines["decode + torch mm"].ratio_to_best_rival == 2
    # 2 of 3 groups are busy: weights, 8 token rows, 8 output rows of bfloat16
    num_bytes = 2 * 32 * 64 * 9 // 16 + 8 * 64 * 9 // 16 + 8 * 32 * 2
    assert ours.floor_us == pytest.approx(num_bytes / 1e10 * 1e6)
    assert ours.floor_bound == "memory"
    assert ours.ratio_to_floor == pytest.approx(2000 / ours.floor_us)


def test_a_rival_of_other_maths_is_no_measure(monkeypatch):
    def fast(data, rotate_bytes):
        mm = torch_rivals.mm(data, rotate_bytes)
        return Contender("fast", mm.call, mm.sets, mm.result, other_maths="rounds more")

    monkeypatch.setattr(runner, "RIVALS", {"mm": torch_rivals.mm, "fast": fast})
    settings = Settings(levels=("portable",), rounds=1, rotate_bytes=0, rivals=("mm", "fast"))
    lines, _ = run(settings=settings, turn=canned(lambda name: [1.0 if name == "fast" else 4.0]))
    assert lines["cpu/portable"].ratio_to_best_rival == 1
    assert lines["fast"].ratio_to_best_rival == 0.25


def test_without_rivals_there_is_no_ratio_to_one():
    settings = Settings(levels=("portable",), rounds=1, rotate_bytes=0, rivals=())
    lines, absences = run(settings=settings)
    assert set(lines) == {"cpu/portable"} and not absences
    assert lines["cpu/portable"].ratio_to_best_rival is None


def test_a_matrix_unit_bounds_the_floor():
    problem = SMALL.problem("w4a4", "cpu")
    floor = floor_of(problem, cpu_arch(1e12, 1e6))
    assert floor is not None and floor.bound == "arithmetic"
    assert floor.seconds == pytest.approx(2 * 8 * 32 * 64 / 1e6)
    assert floor_of(problem, None) is None


@pytest.mark.parametrize("at_call", [1, 4])
def test_a_wrong_result_has_no_time_before_and_after(monkeypatch, at_call):
    right, calls = nibblas.grouped_mm, []

    def wrong(*arguments, out, **options):
        calls.append(1)
        right(*arguments, out=out, **options)
        if len(calls) >= at_call:
            out[-1, -1] += 1e6
        return out

    monkeypatch.setattr(nibblas, "grouped_mm", wrong)
    lines, absences = run(settings=Settings(levels=("portable",), rounds=4, rotate_bytes=0))
    assert "cpu/portable" not in lines and "torch mm" in lines
    assert absences["cpu/portable"].fault
    assert "times the error bound" in absences["cpu/portable"].absent


def test_every_set_that_was_called_is_checked(monkeypatch):
    """A result that is wrong for one set of inputs only, the second."""
    right, outs = nibblas.grouped_mm, []

    def wrong(*arguments, out, **options):
        right(*arguments, out=out, **options)
        if out.data_ptr() not in outs:
            outs.append(out.data_ptr())
        if outs.index(out.data_ptr()) == 1:
            out[0, 0] += 1e6
        return out

    monkeypatch.setattr(nibblas, "grouped_mm", wrong)
    settings = Settings(levels=("portable",), rounds=4, rotate_bytes=5000, rivals=())
    _, absences = run(settings=settings)
    assert len(outs) > 1 and absences["cpu/portable"].fault


def test_a_result_that_is_not_written_is_wrong(monkeypatch):
    monkeypatch.setattr(nibblas, "grouped_mm", lambda *a, out, **k: out)
    _, absences = run("w4a16-bf16")
    assert absences["cpu/portable"].fault


def test_ours_that_raises_is_a_fault_and_the_rest_goes_on(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(nibblas, "grouped_mm", broken)
    lines, absences = run()
    assert absences["cpu/portable"].fault and "torch mm" in lines
    assert absences["cpu/portable"].absent == "RuntimeError: no such kernel"


def test_a_rival_that_computes_something_else_is_noticed(monkeypatch):
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out.fill_(1.0))
    lines, absences = run()
    assert absences["torch mm"].fault and "relative error" in absences["torch mm"].absent
    assert "cpu/portable" in lines


def test_a_rival_that_is_not_here_is_left_out_with_its_reason():
    rivals = ("fp8", "humming", "mm")
    settings = Settings(levels=("portable",), rounds=1, rotate_bytes=0, rivals=rivals)
    lines, absences = run(settings=settings)
    assert set(lines) == {"cpu/portable", "torch mm"}
    assert not any(absence.fault for absence in absences.values())
    assert "needs a GPU" in absences["fp8"].absent
    assert "humming-kernels" in absences["humming"].absent


def test_an_unknown_rival_is_refused():
    with pytest.raises(ValueError, match="rivals: got 'marlin'; want some of mm, grouped, decode"):
        Settings(rivals=("marlin",))


def test_levels_choose_and_unknown_ones_are_refused():
    lines, _ = run()
    assert [line.contender for line in lines.values() if line.ours] == ["cpu/portable"]
    with pytest.raises(ValueError, match="avx9000"):
        run(settings=Settings(levels=("avx9000",), rounds=1, rotate_bytes=0))


def test_backends_choose_and_a_refusal_is_told():
    settings = Settings(
        backends=("cpu", "portable"), levels=("portable",), rounds=1, rotate_bytes=0, rivals=()
    )
    lines, absences = run(settings=settings)
    assert set(lines) == {"cpu/portable"}
    assert not absences["portable"].fault and "GPU" in absences["portable"].absent
    with pytest.raises(ValueError, match="case: got small; want a backend that takes w4a4 on cpu"):
        run(settings=Settings(backends=("portable",), rounds=1))


def test_a_gpu_case_without_a_gpu_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (case,) = cases_named(["S4"], "cuda")
    with pytest.raises(ValueError, match="device: got no CUDA device, for which S4 is made"):
        run_case(case, "w4a4")


def test_on_a_gpu_lines_have_its_floor_and_host_costs_and_every_set_is_checked(monkeypatch):
    """The GPU's way through a case, with tensors of the CPU and a canned clock."""
    gpu_type, made = torch.device("cuda"), make_data

    def ours(data, rotate_bytes, **choice):
        mm = torch_rivals.mm(data, 40_000.0)
        return [Contender("ours", mm.call, mm.sets, mm.result, ours=True)], {}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(machine, "gpu_state", lambda device: {"driver": "580.1"})
    monkeypatch.setattr(CaseData, "device", gpu_type)
    monkeypatch.setattr(runner, "make_data", lambda case, kind, device: made(case, kind, CPU))
    monkeypatch.setattr(runner, "our_contenders", ours)
    called: dict[str, set[int]] = {"ours": set(), "torch mm": set()}

    def all_sets(contender: Contender):
        for i in range(contender.sets):
            contender.call(i)
            called[contender.name].add(i)
        return lambda i: 1e-4

    case = dataclasses.replace(SMALL, device="cuda")
    settings = Settings(rounds=2, rotate_bytes=40_000.0, rivals=("mm", "humming"))
    monkeypatch.setattr(runner, "_called", lambda entry, rounds: entry.sets)
    found = {result.contender: result for result in run_case(case, "w4a16-fp16", settings,
                                                             turn=all_sets)}  # fmt: skip
    line = found["ours"]
    assert isinstance(line, Line) and len(called["ours"]) == line.sets > 1
    assert line.host_us > 0 and line.ratio_to_best_rival == 1 and line.machine["driver"] == "580.1"
    num_bytes = 2 * 32 * 64 * 9 // 16 + 8 * 64 * 2 + 8 * 32 * 2
    assert line.floor_us == pytest.approx(num_bytes / 4.29e12 * 1e6)
    assert "humming-kernels" in found["humming"].absent


def test_tokens_in_their_own_type_are_exact():
    data = make_data(SMALL, "w4a4", CPU)
    assert torch.equal(data.tokens().double(), data.x.dequantize(torch.float64))


def test_lines_are_json_with_the_machine_beside(tmp_path):
    path = tmp_path / "lines.jsonl"
    settings = Settings(levels=("portable",), rounds=1, rotate_bytes=0, rivals=("mm", "fp8"))
    for _ in range(2):
        report.append_lines(path, run_case(SMALL, "w4a4", settings))
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["contender"] for line in read] == ["cpu/portable", "torch mm", "fp8"] * 2
    everywhere = {"case", "kind", "processor", "commit", "date", "torch", "case_s"}
    assert all(everywhere <= line.keys() for line in read)
    times = {"median_us", "p10_us", "p90_us", "ratio_to_best_rival", "floor_us", "relative_error"}
    assert all(times <= line.keys() for line in read if "absent" not in line)
    assert ["median_us" in line for line in read] == [True, True, False] * 2


def test_what_is_not_modelled_is_null_and_not_infinity():
    assert report._rounded(float("inf")) is None and report._rounded(1234.56) == 1235.0


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib")
    lines, _ = run()
    report.plot(tmp_path / "out.png", list(lines.values()))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="lines: got none"):
        report.plot(tmp_path / "none.png", [])


def test_a_gpu_says_its_driver_and_clocks(monkeypatch):
    said = {"nvidia-smi": "580.159.04, 1980, 1980, 3201, 512.3, 700.00, 41"}
    monkeypatch.setattr(machine, "_output_of", lambda *command: said.get(command[0]))
    properties = type("P", (), {"uuid": "abc"})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    state = machine.gpu_state(torch.device("cuda:0"))
    assert state["driver"] == "580.159.04" and state["sm_clock_mhz"] == 1980
    said["nvidia-smi"] = "No devices were found"
    assert machine.gpu_state(torch.device("cuda:0")) == {}


def test_a_commit_that_is_given_is_believed():
    assert machine.describe(CPU, "abc1234")["commit"] == "abc1234"
