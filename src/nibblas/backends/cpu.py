"""The CPU backend: exact NVFP4 arithmetic in C++ with SIMD, in torch's own thread pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nibblas.backends.base import Operands, RunAt
from nibblas.env import forced_cpu_level
from nibblas.errors import NativeLibraryError
from nibblas.formats.scale_layout import packed_rows_bound
from nibblas.plan.arch import CPU_LEVELS
from nibblas.plan.cost import cpu_time
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.runtime import cpu_library
from nibblas.runtime.cpu_library import PROBLEM
from nibblas.runtime.records import (
    SCALE_LAYOUTS,
    SCALE_STARTS,
    TYPES,
    RecordTemplate,
    address,
)

#: Where ``problem_record`` puts addresses, in words of 8 bytes, by the names of Operands.
_ADDRESS_WORDS = {
    "x": 6,
    "x_scales": 9,
    "x_global": 13,
    "w": 15,
    "w_scales": 18,
    "w_global": 22,
    "offs": 26,
    "alpha": 27,
    "row_scale": 28,
    "bias": 29,
    "out": 32,
}

_IN_PLACE = "weights in place"
_INVARIANT = ("one fp32 sum per output in an order of its own: batch-invariant", _IN_PLACE)
_BY_SIZE = ("the order of a sum depends on the size of its group alone", _IN_PLACE)

#: Levels that have another order of summation for few tokens, unless batch_invariant is asked for.
_LEVELS_OF_TWO_ORDERS = ("amx",)


@dataclass(frozen=True)
class CpuConfig:
    """An instruction level, and whether a row's bits may depend on the size of its group."""

    level: str
    batch_invariant: bool = False

    def __str__(self) -> str:
        return self.level


class CpuBackend:
    """The native library at its best level, or at the one that NIBBLAS_CPU_LEVEL names."""

    name = "cpu"
    devices = ("cpu",)

    def why_not(self, problem: Problem) -> list[str]:
        if problem.device != "cpu":
            return [f"it computes on the CPU, and the tensors are on {problem.device}"]
        try:
            cpu_library.load()
        except NativeLibraryError as error:
            return [str(error)]
        return []

    def plan(self, problem: Problem) -> Plan:
        level = cpu_library.load().choose_level(forced_cpu_level())
        estimate = cpu_time(problem, CPU_LEVELS[level], torch.get_num_threads())
        config = CpuConfig(level, problem.batch_invariant)
        by_size = level in _LEVELS_OF_TWO_ORDERS and not problem.batch_invariant
        return Plan(self.name, config, estimate, _BY_SIZE if by_size else _INVARIANT)

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        config: CpuConfig = plan.config
        records = [problem_record(product, config.batch_invariant) for product in operands]
        cpu_library.load().grouped_mm(records, config.level, torch.get_num_threads())

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        if _scales_may_end_early(product):
            return None
        words = [_ADDRESS_WORDS[name] for name in product.tensors]
        config: CpuConfig = plan.config
        record = problem_record(product, config.batch_invariant)
        record_at = RecordTemplate(record, words).filled
        grouped_mm = cpu_library.load().bind(config.level)

        def run_at(addresses: Sequence[int]) -> bool:
            return grouped_mm(record_at(addresses), torch.get_num_threads())

        return run_at


def _scales_may_end_early(product: Operands) -> bool:
    """Whether some offs that fit x would take blocked token scales past their end."""
    rows = product.blocked_scale_rows
    if rows is None or product.max_m or product.offs is None:
        return False
    return rows < packed_rows_bound(product.m, product.offs.shape[0])


def problem_record(product: Operands, batch_invariant: bool = False) -> bytes:
    """``NibblasProblem`` of abi.h, section by section in its order."""
    groups, n, half_k = product.w.shape
    return PROBLEM.pack(
        PROBLEM.size,
        groups,
        product.x.shape[0],
        n,
        2 * half_k,
        product.max_m,
        *_token_fields(product),
        *_weight_fields(product),
        *_epilogue_fields(product),
        product.out.data_ptr(),
        TYPES[product.out.dtype],
        *product.out.stride(),
        batch_invariant,
    )


def _token_fields(product: Operands) -> tuple[int, ...]:
    x, scales, x_global = product.x, product.x_scales, product.x_global
    return (
        x.data_ptr(),
        TYPES[x.dtype],
        x.stride(0) * x.element_size(),
        address(scales),
        SCALE_LAYOUTS[product.x_scale_layout],
        0 if scales is None else scales.stride(0),
        SCALE_STARTS[product.x_scale_start],
        address(x_global),
        x_global.stride(0) if x_global is not None and x_global.ndim else 0,
    )


def _weight_fields(product: Operands) -> tuple[int, ...]:
    w, scales, w_global = product.w, product.w_scales, product.w_global
    group_stride = w_global.stride(0) if w_global is not None and w_global.ndim else 0
    segments, segment_stride = 1, 0
    if w_global is not None and w_global.ndim == 2:
        segments, segment_stride = w_global.shape[1], w_global.stride(1)
    return (
        w.data_ptr(),
        *w.stride()[:2],
        scales.data_ptr(),
        SCALE_LAYOUTS[product.w_scale_layout],
        *scales.stride()[:2],
        address(w_global),
        group_stride,
        segments,
        segment_stride,
    )


def _epilogue_fields(product: Operands) -> tuple[int, ...]:
    bias = product.bias
    return (
        address(product.offs),
        address(product.alpha),
        address(product.row_scale),
        address(bias),
        0 if bias is None else TYPES[bias.dtype],
        bias.stride(0) if bias is not None and bias.ndim == 2 else 0,
    )
