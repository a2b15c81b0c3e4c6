"""What the model counts of a kernel is what the kernel does: counters of the shipped PTX, emulated.

Only counts: bytes that land in shared memory, multiplications, outputs. The emulator has no time.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nibblas
from nibblas.backends.sm100 import Sm100Backend
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.emulator import Report, emulating
from nibblas.errors import NativeLibraryError
from nibblas.plan.cost import Estimate
from nibblas.plan.kernel_schedule import KernelSchedule, items_of
from nibblas.plan.model import turn_bytes
from nibblas.plan.portable import config_for
from nibblas.plan.problem import Problem, uniform_shapes
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import choose_fused, choose_wide_deep
from nibblas.plan.sm100_config import Sm100Config
from nibblas.plan.sm100_swapped import swapped
from nibblas.runtime.compile import compiler_version
from tests.api.problems import offs_of, random_array

SMS = 4
K = 512
MMA_K = 64


@pytest.fixture(scope="module", autouse=True)
def nvrtc() -> str:
    try:
        return compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))


def problem_of(rows: tuple[int, ...], n: int) -> Problem:
    return Problem(uniform_shapes(rows, n, K), "nvfp4", "fp16", device="cuda")


def emulated(arch: str, problem: Problem) -> Report:
    """The one launch of the problem."""
    n = problem.shapes[0].n
    ends = np.cumsum([shape.m for shape in problem.shapes]).tolist()
    x = random_array((ends[-1], K), 1, ends=ends, rule="torch")
    w = random_array((len(ends), n, K), 2, layout="blocked")
    out = torch.empty(ends[-1], n, dtype=torch.float16)
    nibblas.ops.forget_plans()
    try:
        with emulating(arch, num_sms=SMS) as emulation:
            nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
        (report,) = emulation.reports
    finally:
        nibblas.ops.forget_plans()
    return report


def ctas_turns(problem: Problem, schedule: KernelSchedule) -> np.ndarray:
    """(tokens, turns) of every item of every CTA."""
    shapes = [s for s in problem.shapes if s.m]
    items = items_of(shapes, schedule)
    exists = items.group >= 0
    m, k = (np.array([getattr(s, name) for s in shapes]) for name in ("m", "k"))
    tokens = np.minimum(m[items.group] - items.tile * schedule.tile_tokens, schedule.tile_tokens)
    turns = -(-k[items.group] // schedule.block_k)
    return np.repeat(np.stack([tokens[exists], turns[exists]]), schedule.cluster, axis=1)


CONFIGS = {
    "fused, cluster of 2": choose_fused(uniform_shapes((128,), 256, 1024)),
    "wide, cluster of 4": choose_wide_deep(uniform_shapes((128,), 4096, 4096), SMS),
    "deep": choose_wide_deep(uniform_shapes((128,), 128, 512), SMS),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_blackwell_kernel_moves_and_multiplies_what_the_model_counts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Sm100Config = CONFIGS[name]

    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        choice = Sm100Choice("fused_persistent", (config,))
        return Plan(self.name, choice, Estimate(0.0, "forced", {}))

    monkeypatch.setattr(Sm100Backend, "plan", plan)
    problem = problem_of((129, 0, 1), 256)
    report = emulated("sm_100", problem)
    schedule = config.schedule(SMS)
    tokens, turns = ctas_turns(problem, schedule)
    padded = np.ceil(tokens / schedule.token_step) * schedule.token_step
    moved = report.bytes_by_path
    landed = moved["cp.async.bulk.tensor to shared"] + moved["cp.async.bulk to shared"]
    assert landed == (turns * turn_bytes(problem, schedule, padded)).sum()
    assert report.instructions["tcgen05_mma"] == (turns * schedule.block_k / MMA_K).sum()
    assert moved["store global"] == problem.work().out_bytes


def test_swapped_kernel_moves_a_little_more_than_the_model_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both CTAs of a pair have the scales of all tokens, in whole atoms, and codes in boxes."""
    config = swapped(2, 128)

    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        return Plan(self.name, Sm100Choice("swapped", (config,)), Estimate(0.0, "forced", {}))

    monkeypatch.setattr(Sm100Backend, "plan", plan)
    problem = problem_of((129, 0, 1), 256)
    report = emulated("sm_100", problem)
    schedule = config.schedule(SMS)
    tokens, turns = ctas_turns(problem, schedule)
    padded = np.ceil(tokens / schedule.token_step) * schedule.token_step
    moved = report.bytes_by_path
    landed = moved["cp.async.bulk.tensor to shared"] + moved["cp.async.bulk to shared"]
    counted = (turns * turn_bytes(problem, schedule, padded)).sum()
    assert counted < landed < 1.12 * counted
    of_pairs = (turns * schedule.block_k / MMA_K).sum() / schedule.cluster
    assert report.instructions["tcgen05_mma"] == of_pairs
    assert moved["store global"] == problem.work().out_bytes


def test_portable_kernel_loads_the_weights_that_the_model_counts() -> None:
    """Its tokens come through registers, and its runs end between the model's items."""
    rows, n = (17, 0, 1), 128
    report = emulated("sm_90", problem_of(rows, n))
    schedule = config_for("nvfp4", 16, "sm_90a", aligned=True).schedule(SMS)
    blocks = sum(-(-m // schedule.tile_tokens) for m in rows)
    weights = n * K * 9 // 16
    assert report.bytes_by_path["cp.async.bulk.tensor to shared"] == blocks * weights
    assert report.bytes_by_path["store global"] == problem_of(rows, n).work().out_bytes
