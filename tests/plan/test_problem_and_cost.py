"""Problems, rooflines and the choice among plans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nibblas.plan.arch import GPUS, REFERENCE, gpu, gpu_of, planning_for
from nibblas.plan.cost import (
    Estimate,
    cpu_time,
    gpu_time,
    one_after_another,
    portable_time,
    roofline,
    sm100_time,
)
from nibblas.plan.portable import choose_config, target_of
from nibblas.plan.problem import GroupShape, Problem, even_rows, uniform_shapes
from nibblas.plan.select import Plan, fastest
from nibblas.plan.sm100 import choose_fused

C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)
C1 = uniform_shapes((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048)
C2 = uniform_shapes((192, 320), 3072, 4096)
C3 = uniform_shapes((128, 384), 4096, 1536)


@pytest.mark.parametrize(
    ("shapes", "published_us"), [(C0, 18.833), (C1, 10.667), (C2, 2.406), (C3, 1.525)]
)
def test_roofline_reproduces_the_published_speed_of_light_of_b200(shapes, published_us):
    estimate = roofline(Problem(shapes, "nvfp4", "fp16"), gpu("b200"))
    assert estimate.seconds * 1e6 == pytest.approx(published_us, rel=0.01)
    assert estimate.bound == "memory"


def test_groups_without_rows_cost_nothing():
    busy = Problem(uniform_shapes((4, 4), 64, 32), "bf16", "bf16").work()
    idle = Problem(uniform_shapes((4, 0, 4, 0), 64, 32), "bf16", "bf16").work()
    assert busy == idle


def test_work_counts_each_byte_once():
    work = Problem((GroupShape(3, 64, 32),), "fp16", "fp32").work()
    assert work.macs == 3 * 64 * 32
    assert work.weight_bytes == 64 * (16 + 2)
    assert work.token_bytes == 3 * 32 * 2
    assert work.out_bytes == 3 * 64 * 4
    assert Problem((GroupShape(3, 64, 32),), "nvfp4", "fp32").work().token_bytes == 3 * (16 + 2)


def test_cpu_time_names_its_bound():
    one_row = Problem(uniform_shapes((1,), 4096, 7168), "bf16", "bf16")
    many = Problem(uniform_shapes((4096,), 4096, 7168), "bf16", "bf16")
    tiny = Problem(uniform_shapes((1,), 16, 16), "bf16", "bf16")
    bounds = [cpu_time(p, REFERENCE, threads=2).bound for p in (one_row, many, tiny)]
    assert bounds == ["decode", "arithmetic", "fixed"]


def test_more_threads_are_never_slower():
    problem = Problem(uniform_shapes((7, 0, 9), 100, 160), "nvfp4", "bf16")
    assert cpu_time(problem, REFERENCE, 4).seconds < cpu_time(problem, REFERENCE, 2).seconds


def test_fastest_prefers_the_first_of_equals():
    plans = [
        Plan(name, "", Estimate(s, "", {})) for name, s in (("a", 2.0), ("b", 1.0), ("c", 1.0))
    ]
    assert fastest(plans).backend == "b"


def test_even_rows_share_out_the_total():
    assert even_rows(10, 4) == (3, 3, 2, 2)
    assert sum(even_rows(0, 3)) == 0


@pytest.mark.parametrize("shape", [(-1, 4, 16), (1, -1, 16), (1, 4, 0), (1, 4, 24)])
def test_problem_refuses_impossible_shapes(shape):
    with pytest.raises(ValueError, match=r"^shapes: got"):
        Problem((GroupShape(*shape),), "bf16", "bf16")


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("activations", ["fp16", "nvfp4"])
@pytest.mark.parametrize("shapes", [C0, C3, uniform_shapes((1, 0, 3), 4096, 7168)])
def test_no_kernel_is_faster_than_the_roofline(name, activations, shapes):
    problem, arch = Problem(shapes, activations, "fp16"), gpu(name)
    target = target_of(arch.compute_capability)
    assert target is not None
    found = portable_time(problem, arch, choose_config(problem, target))
    assert found.seconds > roofline(problem, arch).seconds
    if arch.target in ("sm_100", "sm_103"):
        found = sm100_time(problem, arch, choose_fused(problem.shapes))
        assert found.seconds > roofline(problem, arch).seconds


def test_an_estimate_names_all_terms_and_its_bound():
    found = sm100_time(Problem(C0, "nvfp4", "fp16"), gpu("b200"), choose_fused(C0))
    loop = {"ingest", "latency", "turn", "tensor", "memory"}
    fixed = {"gap", "prologue", "first latency", "tail"}
    assert set(found.terms) == loop | fixed
    assert found.bound in loop
    together = sum(found.terms[name] for name in fixed)
    longest = max(found.terms[name] for name in loop)
    assert together + longest <= found.seconds <= together + sum(found.terms[n] for n in loop)


def test_launches_after_one_another_add_up():
    one, two = Estimate(3.0, "a", {"a": 2.0, "b": 1.0}), Estimate(4.0, "c", {"a": 1.0, "c": 3.0})
    both = one_after_another([one, two])
    assert both == Estimate(7.0, "c", {"a": 3.0, "b": 1.0, "c": 3.0})


def test_a_gpu_without_constants_is_not_predicted():
    unknown = replace(gpu("b200"), machine=None)
    found = gpu_time(Problem(C0, "nvfp4", "fp16"), unknown, choose_fused(C0))
    assert (found.seconds, found.bound) == (math.inf, "not modelled on this device")


def test_gpus_are_found_by_capability_and_told_apart_by_their_multiprocessors():
    assert gpu_of((10, 0)) is GPUS["b200"]
    assert gpu_of((12, 0)) is gpu_of((12, 0), 188) is gpu_of((12, 0), 1) is GPUS["rtx_pro_6000"]
    assert gpu_of((12, 0), 170) is GPUS["rtx_5090"]
    assert gpu_of((8, 0)) is None


def test_planning_for_a_gpu_stands_for_its_target_only():
    with planning_for(GPUS["h100"]):
        assert gpu_of((9, 0), 132) is GPUS["h100"]
        assert gpu_of((10, 0)) is GPUS["b200"]
    assert gpu_of((9, 0), 132) is GPUS["h200"]


def test_a_target_names_its_first_gpu():
    assert gpu("sm_90") is gpu("H200") is GPUS["h200"]


def test_unknown_gpu_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"^arch: got 'z9'; want one of .*b200"):
        gpu("z9")
