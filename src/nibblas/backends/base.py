"""The seam between the operator and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from nibblas.plan.problem import Form, Problem
from nibblas.plan.select import Plan


@dataclass(frozen=True)
class Operands:
    """Tensors of one packed or masked grouped product, checked. A list form is a list of these.

    Attributes:
        x: tokens: bfloat16 or float16 ``(M, K)``, or packed E2M1 codes uint8 ``(M, K/2)``; adjacent
            along K, any row stride.
        x_scales: None for 16-bit tokens; else E4M3 bytes uint8, linear ``(M, K/16)`` or blocked
            ``(padded rows, padded K/16)``.
        x_scale_layout: "linear" or "blocked".
        x_scale_start: for blocked token scales, where group g's 128-row atoms start: "torch",
            "flashinfer" (packed), or "stacked" (masked: ``g * round_up(max_m, 128)``). Means
            nothing for linear scales and 16-bit tokens.
        x_global: float32 ``()`` or ``(G,)``; None: 1.
        w: packed codes uint8 ``(G, N, K/2)``, adjacent along K.
        w_scales: E4M3 bytes uint8, linear ``(G, N, K/16)`` or blocked
            ``(G, padded N, padded K/16)``.
        w_scale_layout: "linear" or "blocked".
        w_global: float32 ``()``, ``(G,)`` or ``(G, S)`` for S equal column segments; None: 1.
        offs: int32 ``(G,)``: cumulative ends (packed) or rows in use (masked); None: one group
            that owns all rows.
        max_m: 0 when packed; when masked, group g owns rows ``[g*max_m, g*max_m + offs[g])``.
        alpha: float32 ``(G,)``. row_scale: float32 ``(M,)``.
        bias: float32, bfloat16 or float16, ``(N,)`` or ``(G, N)``.
        out: float16, bfloat16 or float32 ``(M, N)``, any strides that do not overlap.
    """

    x: Tensor
    x_scales: Tensor | None
    x_scale_layout: str
    x_scale_start: str
    x_global: Tensor | None
    w: Tensor
    w_scales: Tensor
    w_scale_layout: str
    w_global: Tensor | None
    offs: Tensor | None
    max_m: int
    alpha: Tensor | None
    row_scale: Tensor | None
    bias: Tensor | None
    out: Tensor

    @classmethod
    def of(cls, product: Sequence[Any], out: Tensor) -> Operands:
        """From the torch operators' product arguments, which have this class's order."""
        return cls(*[*product, out])

    @property
    def m(self) -> int:
        return self.x.shape[0]

    @property
    def n(self) -> int:
        return self.w.shape[1]

    @property
    def k(self) -> int:
        return 2 * self.w.shape[2]

    @property
    def groups(self) -> int:
        return self.w.shape[0]

    @property
    def blocked_scale_rows(self) -> int | None:
        """Rows of x's blocked scales; None: it has none."""
        if self.x_scales is None or self.x_scale_layout != "blocked":
            return None
        return self.x_scales.shape[0]

    @property
    def form(self) -> Form:
        return "masked" if self.max_m else "packed"

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by field name, in this class's order: ``out`` is last."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


RunAt = Callable[[Sequence[int]], bool]
"""Runs a prepared product on tensors of the same metadata at other addresses, given in the order of
``Operands.tensors``. False: it cannot any more, or offs in the CPU's memory holds what no product
can have; nothing has been written."""


class Backend(Protocol):
    """Computes grouped products. Operands arrive checked; ``run`` writes only ``out``.

    Every backend applies the epilogue in one order, in float32 (``reference``: in float64), leaving
    absent factors out:
    ``s = w_global * x_global; s *= alpha; y = acc * s; y *= row_scale; y += bias; out = cast(y)``.
    Rows outside every group are not written.
    """

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that it computes on, "cpu" or "cuda", the usual one first."""
        ...

    def why_not(self, problem: Problem) -> list[str]:
        """Reasons for refusing the problem; empty: it can be run."""
        ...

    def plan(self, problem: Problem) -> Plan:
        """The configuration that would run, with its predicted time."""
        ...

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        """Computes every product of the sequence into its ``out``."""
        ...

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        """Does all that depends on metadata and alignment only, once for many calls.

        What is returned may be called by several threads at once. The addresses that it is called
        with equal the product's own modulo 16 for x, w and their block scales, and none is null.
        None: this backend has nothing to prepare.
        """
        ...


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured; False without CUDA, where torch's own call raises."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
