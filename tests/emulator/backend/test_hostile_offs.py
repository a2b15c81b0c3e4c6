"""What offs may hold on a device, where nobody has read it: kernels stay inside the operands."""

from __future__ import annotations

import pytest
import torch

from nibblas import NVFP4Array, env
from nibblas.backends import registry
from nibblas.backends.base import Operands
from nibblas.emulator import emulating
from nibblas.formats import scale_layout
from nibblas.plan.problem import Problem, even_rows, uniform_shapes
from tests.api.problems import random_array

pytestmark = pytest.mark.usefixtures("nvrtc")

ROWS, GROUPS, N, K = 9, 3, 24, 512


def product_of(x: NVFP4Array, scales: torch.Tensor, entries: list[int], rule: str) -> Operands:
    w = random_array((GROUPS, N, K), 1, layout="blocked")
    return Operands(
        x=x.codes.view(torch.uint8),
        x_scales=scales,
        x_scale_layout="blocked",
        x_scale_start=rule,
        x_global=None,
        w=w.codes.view(torch.uint8),
        w_scales=w.scales.view(torch.uint8),
        w_scale_layout="blocked",
        w_global=None,
        offs=torch.tensor(entries, dtype=torch.int32),
        max_m=0,
        alpha=None,
        row_scale=None,
        bias=None,
        out=torch.full((ROWS, N), float("nan")),
    )


@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
@pytest.mark.parametrize(
    ("arch", "preset"),
    [("sm_90", ""), ("sm_100", "fused_persistent"), ("sm_100", "wide_deep"), ("sm_100", "swapped")],
)
def test_scales_end_before_the_groups_that_offs_asks_for(arch: str, preset: str, rule: str) -> None:
    """One atom of rows, and offs with three groups in use: other scales, none beyond the buffer."""
    x = random_array((ROWS, K), 2)
    scales = scale_layout.to_blocked(x.scales.view(torch.uint8), fill_byte=0x38)
    assert len(scales) == 128
    product = product_of(x, scales, [3, 6, 9], rule)
    shapes = uniform_shapes(even_rows(ROWS, GROUPS), N, K)
    problem = Problem(
        shapes,
        "nvfp4",
        "fp32",
        rows_known=False,
        x_scale_layout="blocked",
        w_scale_layout="blocked",
    )
    backend = registry.get("emulated")
    with env.sm100_preset(preset), emulating(arch) as emulation:
        backend.run([product], backend.plan(problem))
    assert len(emulation.reports) == 1
    assert bool(product.out.isfinite().all())
