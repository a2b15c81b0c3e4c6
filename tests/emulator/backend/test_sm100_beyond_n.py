"""CTAs of a cluster that lie beyond N: they take part in the cluster and touch nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nibblas
from nibblas import ops
from nibblas.backends.sm100 import Sm100Backend
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.emulator import emulating
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import choose_fused, choose_wide_deep
from tests.api.problems import assert_right, offs_of, random_array

pytestmark = pytest.mark.usefixtures("nvrtc")

CONFIGS = {
    "wide": choose_wide_deep([GroupShape(1, 4096, 2048)], 148),
    "fused": choose_fused([GroupShape(1, 512, 4096)]),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", ["blocked", "linear"])
def test_the_other_ctas_of_a_cluster_read_no_factors(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N = 24 in a cluster of four: three CTAs have no columns, and so no segment of w's scale."""
    planned = Sm100Backend.plan

    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        choice = Sm100Choice("wide_deep", (CONFIGS[name],))
        return replace(planned(self, problem), config=choice)

    monkeypatch.setattr(Sm100Backend, "plan", plan)
    ops.forget_plans()
    x = random_array((3, 64), 1, layout=layout)
    w = random_array((1, 24, 64), 2, layout=layout, global_shape=(1, 2))
    try:
        with emulating("sm_100", num_sms=4) as emulation:
            y = nibblas.grouped_mm(x, w, offs_of([3]), backend="emulated")
    finally:
        ops.forget_plans()
    assert_right(y, x, w, offs_of([3]))
    (report,) = emulation.reports
    assert "at most 4 CTAs at once" in str(report)
