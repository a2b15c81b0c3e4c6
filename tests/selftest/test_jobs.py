"""What is run: every preset meets every case, and quick problems are small."""

from __future__ import annotations

from nibblas.check.problems import draw
from nibblas.competition import BENCHMARKS, EDGE_CASES, TESTS
from nibblas.selftest.jobs import (
    CHECKED_PROBLEMS,
    QUICK_CASES,
    QUICK_PROBLEMS,
    Job,
    Kernels,
    case_named,
    result_jobs,
    time_jobs,
)

B200 = Kernels({"w4a4": "sm100", "w4a16": "portable"}, ("one", "two"))
H200 = Kernels({"w4a4": "portable", "w4a16": "portable"}, ())


def test_every_preset_meets_every_public_case_on_both_contents() -> None:
    jobs = [job for job in result_jobs(B200, quick=False) if job.kind == "competition"]
    assert len(jobs) == len(set(jobs)) == 2 * (2 * len(TESTS) + len(EDGE_CASES))
    for preset in B200.presets:
        for case in TESTS:
            for content in ("public", "full_range"):
                assert Job("competition", case.name, content, "sm100", preset) in jobs


def test_random_problems_go_to_the_backend_of_their_precision() -> None:
    jobs = [job for job in result_jobs(B200, quick=False) if job.kind == "check"]
    assert len(jobs) == CHECKED_PROBLEMS
    for job in jobs:
        seed, _, index = job.subject.partition(":")
        wanted = B200.backends[draw(int(seed), int(index)).precision]
        assert job.backend == wanted
        assert bool(job.preset) == (wanted == "sm100")
    assert {job.preset for job in jobs} == {"", "one", "two"}


def test_a_kernel_without_presets_runs_each_case_once() -> None:
    jobs = result_jobs(H200, quick=False)
    assert {job.preset for job in jobs} == {""}
    assert len(jobs) == 2 * len(TESTS) + len(EDGE_CASES) + CHECKED_PROBLEMS
    assert [job.subject for job in time_jobs(H200)] == [case.name for case in BENCHMARKS]


def test_a_quick_run_is_small_and_still_meets_every_preset() -> None:
    jobs = result_jobs(B200, quick=True)
    assert len(jobs) == 2 * len(QUICK_CASES) + QUICK_PROBLEMS
    for job in jobs:
        if job.kind == "competition":
            assert case_named(job.subject).flop < 2**28
        else:
            spec = draw(0, int(job.subject.partition(":")[2]))
            products = (m * spec.group_n(g) * spec.group_k(g) for g, m in enumerate(spec.rows))
            assert 0 < sum(products) <= 1 << 17
