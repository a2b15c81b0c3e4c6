"""The plain torch backend: float64 sums and epilogue on any device, one rounding into the output.

It is the oracle itself behind the operator: slow, and right. It reads offs on the host, which
synchronises when offs lives on a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nibblas.backends.base import Operands, RunAt, is_capturing
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.reference import grouped_mm_reference, round_once, row_ranges
from nibblas.plan.arch import REFERENCE
from nibblas.plan.cost import Estimate, cpu_time
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan

ROW_BY_ROW = "float64, row by row"


class ReferenceBackend:
    """float64 through torch's matmul."""

    name = "reference"
    devices = ("cpu", "cuda")

    def why_not(self, problem: Problem) -> list[str]:
        if problem.device == "cuda" and is_capturing():
            return ["it reads offs on the host, which a CUDA graph cannot capture"]
        return []

    def plan(self, problem: Problem) -> Plan:
        invariant = problem.batch_invariant
        notes = ["sums in float64" + (", one row at a time: batch-invariant" if invariant else "")]
        if problem.device == "cpu":
            estimate = cpu_time(problem, REFERENCE, torch.get_num_threads())
        else:
            estimate = Estimate(math.inf, "not modelled on this device", {})
            notes.append("reads offs on the host: synchronises the device")
        config = ROW_BY_ROW if invariant else "float64"
        return Plan(self.name, config, estimate, tuple(notes))

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        for product in operands:
            _run_one(product, row_by_row=plan.config == ROW_BY_ROW)

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        return None


def _run_one(product: Operands, *, row_by_row: bool) -> None:
    exact = grouped_mm_reference(
        tokens_of(product),
        weights_of(product),
        product.offs,
        max_m=product.max_m,
        alpha=product.alpha,
        row_scale=product.row_scale,
        bias=product.bias,
        with_magnitude=False,
        row_by_row=row_by_row,
    )
    for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
        product.out[begin:end] = round_once(exact.value[begin:end], product.out.dtype)


def tokens_of(product: Operands) -> torch.Tensor | NVFP4Array:
    """The tokens as the oracle takes them: values, or an NVFP4Array (a stack when masked)."""
    if product.x_scales is None:
        return product.x
    codes, scales = product.x, product.x_scales
    blocked = product.x_scale_layout == "blocked"
    start = product.x_scale_start if blocked else None
    if product.max_m:
        codes = codes.unflatten(0, (product.groups, product.max_m))
        scales = scales.unflatten(0, (product.groups, -1))
        start = None
    elif product.offs is None:
        start = None
    return NVFP4Array._trusted(
        codes,
        scales,
        torch.ones(()) if product.x_global is None else product.x_global,
        "blocked" if blocked else "linear",
        start if start in ("torch", "flashinfer") else None,  # type: ignore[arg-type]
    )


def checked_tokens(product: Operands) -> NVFP4Array:
    """NVFP4 tokens, checked as the constructor checks; errors name codes, scales, global_scale."""
    trusted = tokens_of(product)
    assert isinstance(trusted, NVFP4Array), "only NVFP4 tokens have scales"
    return NVFP4Array(
        trusted.codes,
        trusted.scales,
        global_scale=trusted.global_scale.to(product.x.device),
        scale_layout=trusted.scale_layout,
        group_start=trusted.group_start,
    )


def weights_of(product: Operands) -> NVFP4Array:
    """The weights as the oracle takes them, ``(G, N, K)``."""
    return NVFP4Array._trusted(
        product.w,
        product.w_scales,
        torch.ones(()) if product.w_global is None else product.w_global,
        "blocked" if product.w_scale_layout == "blocked" else "linear",
        None,
    )
