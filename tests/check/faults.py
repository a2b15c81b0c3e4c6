"""Backends with one fault each: the plain torch backend, wrong in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nibblas.backends.base import Operands
from nibblas.backends.reference import ReferenceBackend
from nibblas.formats import e4m3, scale_layout
from nibblas.formats.reference import row_ranges
from nibblas.plan.select import Plan

Run = Callable[[Operands], None]


class FaultyBackend(ReferenceBackend):
    """Runs every product through ``fault``, which gets the right way to run it."""

    name = "faulty"

    def __init__(self, fault: Callable[[Operands, Run], None]) -> None:
        self.fault = fault

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        for product in operands:
            self.fault(product, lambda p: ReferenceBackend.run(self, [p], plan))


def none(product: Operands, run: Run) -> None:
    run(product)


def drops_last_k_block(product: Operands, run: Run) -> None:
    values = 8 if product.x_scales is not None else 16
    x = product.x.clone()
    x[:, -values:] = 0
    run(replace(product, x=x))


def writes_row_after_out(product: Operands, run: Run) -> None:
    run(product)
    out = product.out
    if out.numel():
        offset = out.storage_offset() + product.m * out.stride(0)
        if offset < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), offset).fill_(0.0)


def writes_spare_rows(product: Operands, run: Run) -> None:
    run(product)
    product.out[: product.m] = torch.where(product.out.isnan(), 0.0, product.out)


def ignores(factor: str) -> Callable[[Operands, Run], None]:
    def fault(product: Operands, run: Run) -> None:
        fields: dict[str, Any] = {factor: None}
        run(replace(product, **fields))

    fault.__name__ = f"ignores_{factor}"
    return fault


def reads_padded_scale_rows(product: Operands, run: Run) -> None:
    """Decodes one scale row past N and lets it into the last column."""
    run(product)
    if product.w_scale_layout != "blocked" or product.n % 128 == 0:
        return
    rows = scale_layout.padded_rows(product.n)
    scales = scale_layout.from_blocked(product.w_scales, rows, product.k // 16)
    leak = 0.0 * e4m3.decode(scales[:, product.n]).sum(-1)
    for group, begin, end in row_ranges(product.offs, product.m, product.max_m):
        product.out[begin:end, -1] += leak[group]


def reads_rows_past_the_group(product: Operands, run: Run) -> None:
    """Lets row m of a group into its row m - 1, as a tile without a row guard would."""
    run(product)
    for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
        if begin < end < product.m and product.x_scales is None:
            product.out[end - 1] += 0.0 * float(product.x[end].sum())


def takes_the_other_start_rule(product: Operands, run: Run) -> None:
    other = {"torch": "flashinfer", "flashinfer": "torch"}
    run(replace(product, x_scale_start=other.get(product.x_scale_start, product.x_scale_start)))


def swaps_nibbles(product: Operands, run: Run) -> None:
    run(replace(product, w=(product.w >> 4) | (product.w << 4)))


def changes_its_input(product: Operands, run: Run) -> None:
    run(product)
    product.x[:1] = 0


def off_by_two_ulp(product: Operands, run: Run) -> None:
    """The first output of every group is two representable values away from the right one."""
    run(product)
    away = torch.tensor(float("inf"), dtype=product.out.dtype)
    for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
        if begin < end and product.n:
            first = product.out[begin, :1]
            product.out[begin, :1] = torch.nextafter(torch.nextafter(first, away), away)


def depends_on_group_size(product: Operands, run: Run) -> None:
    """Rounds the last step down in groups of many rows: within the bound, but not invariant."""
    run(product)
    zero = torch.zeros((), dtype=product.out.dtype)
    for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
        if end - begin > 8:
            product.out[begin:end] = torch.nextafter(product.out[begin:end], zero)


def accumulates_in_bfloat16(product: Operands, run: Run) -> None:
    rounded = torch.empty_like(product.out, dtype=torch.bfloat16)
    run(replace(product, out=rounded))
    for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
        product.out[begin:end] = rounded[begin:end].to(product.out.dtype)


def rounds_tokens_to_bfloat16(product: Operands, run: Run) -> None:
    """Drops three bits of float16 tokens."""
    if product.x.dtype == torch.float16:
        product = replace(product, x=product.x.bfloat16())
    run(product)
