"""Checks that allow no error: each output must equal the exact value rounded once.

``one_hot``: one non-zero token value per row, at every k in turn. ``codes_scales``: every code
with every valid scale byte. ``exact_sums``: data whose partial sums are all representable in
float32, so that the order of accumulation cannot matter. Equality is that of values: the sign of
a zero is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nibblas.check.problems import ProblemSpec, draw
from nibblas.check.values import GroupNumbers, generator, group_numbers
from nibblas.check.verdict import Truth, truth_of
from nibblas.formats import e4m3
from nibblas.formats.scale_layout import BLOCK

CODES = 16
VALID_SCALES = e4m3.NAN_BYTE
"""Valid scale bytes are 0x00..0x7E."""
_ONE_SCALE = 0x38
_CODE_1_5 = 0x3
_ONE_HOT_KS = (*range(16, 273, 16), 528)
_ROW_CYCLE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64)
_SUM_SCALES = (0x30, 0x38, 0x40)
"""0.5, 1 and 2."""
_SUM_PROBLEMS = 60


@dataclass(frozen=True)
class ExactCheck:
    """One kind of bit-exact problem."""

    specs: tuple[ProblemSpec, ...]
    numbers: Callable[[ProblemSpec], tuple[GroupNumbers, ...]]

    def problem(self, index: int) -> Truth:
        """Problem ``index`` with its exact results; IndexError past the end."""
        spec = self.specs[index]
        return truth_of(spec, self.numbers(spec))

    def problems(self) -> Iterator[Truth]:
        """All problems, in order."""
        return (self.problem(index) for index in range(len(self.specs)))


def _one_hot_specs() -> Iterator[ProblemSpec]:
    """Every K as one group of K rows and as many groups of 1..64 rows.

    So the paths for few and for many rows are both met.
    """
    index = itertools.count()
    for k in _ONE_HOT_KS:
        for precision in ("w4a16", "w4a4"):
            yield _plain_spec("one_hot", next(index), precision=precision, rows=(k,), n=33, k=k)
            i = next(index)
            rows = _ragged(k, start=i)
            yield _plain_spec("one_hot", i, precision=precision, rows=rows, n=33, k=k)


def _codes_scales_specs() -> Iterator[ProblemSpec]:
    """All pairs on the weights' side, and under w4a4 on both.

    A product of two pairs has 12 significant bits: float32 out. One pair has 6: any out.
    """
    pairs = CODES * VALID_SCALES
    shapes = (
        ("w4a16", (BLOCK,)),
        ("w4a16", (1,) * BLOCK),
        ("w4a16", (2, 3, 4, 7)),
        ("w4a4", (pairs,)),
        ("w4a4", _ragged(pairs, start=0)),
    )
    for index, (precision, rows) in enumerate(shapes):
        spec = _plain_spec("codes_scales", index, precision=precision, rows=rows, n=pairs, k=BLOCK)
        yield replace(spec, out_dtype="float32") if precision == "w4a4" else spec


def _exact_sums_specs() -> Iterator[ProblemSpec]:
    """Problems as they are drawn, of every form and layout, without NaN and infinities."""
    for index in range(_SUM_PROBLEMS):
        spec = replace(draw(0, index), check="exact_sums", nan_scales="none")
        yield spec if spec.x_values == "codes" else replace(spec, x_values="normal")


def _plain_spec(
    check: str, index: int, *, precision: str, rows: tuple[int, ...], n: int, k: int
) -> ProblemSpec:
    """A packed problem with no factor and no bias; layouts, strides and types as drawn."""
    x_layout, x_start = "none", "none"
    if precision == "w4a4":
        x_layout, x_start = (("linear", "none"), ("blocked", "torch"), ("blocked", "flashinfer"))[
            index % 3
        ]
    return replace(
        draw(0, index),
        check=check,
        form="packed",
        precision=precision,
        x_dtype="nvfp4" if precision == "w4a4" else ("bfloat16", "float16")[index // 4 % 2],
        rows=rows,
        n=(n,),
        k=(k,),
        x_layout=x_layout,
        x_start=x_start,
        x_global="none",
        w_global="none",
        segments=1,
        alpha=False,
        row_scale=False,
        bias="none",
        scale_bytes="all",
        x_values="codes" if precision == "w4a4" else "normal",
        nan_scales="none",
    )


def _ragged(total: int, *, start: int) -> tuple[int, ...]:
    """``total`` rows as groups of 1..64 rows, beginning at entry ``start`` of their cycle."""
    sizes = itertools.cycle(
        _ROW_CYCLE[start % len(_ROW_CYCLE) :] + _ROW_CYCLE[: start % len(_ROW_CYCLE)]
    )
    rows: list[int] = []
    left = total
    while left:
        rows.append(min(next(sizes), left))
        left -= rows[-1]
    return tuple(rows)


def _one_hot_numbers(spec: ProblemSpec) -> tuple[GroupNumbers, ...]:
    """Row m of x holds 1.5 at k = m and nothing else: out[m, n] = 1.5 * w[n, m], exactly.

    Weights have random codes and valid scales; the result has 8 significant bits.
    """
    drawn = group_numbers(replace(spec, rows=spec.rows[:1]))[0]
    k = spec.k[0]
    positions = torch.eye(k, dtype=torch.bool)
    if spec.precision == "w4a16":
        x = positions.to(getattr(torch, spec.x_dtype)) * 1.5
        return _shared_weights(spec, x, None, drawn)
    scales = torch.randint(
        0, VALID_SCALES, (k, k // BLOCK), dtype=torch.uint8, generator=generator(spec)
    )
    own_block = torch.arange(k)[:, None] // BLOCK == torch.arange(k // BLOCK)
    scales[own_block] = _ONE_SCALE
    return _shared_weights(spec, positions.to(torch.uint8) * _CODE_1_5, scales, drawn)


def _codes_scales_numbers(spec: ProblemSpec) -> tuple[GroupNumbers, ...]:
    """Weights: one row per (code, scale). Tokens: one-hot at k = m % 16, all pairs or 1.0."""
    drawn = group_numbers(replace(spec, rows=(0,)))[0]
    codes = torch.arange(CODES, dtype=torch.uint8).repeat_interleave(VALID_SCALES)
    scales = torch.arange(VALID_SCALES, dtype=torch.uint8).repeat(CODES)[:, None]
    weights = replace(drawn, w_codes=codes[:, None].repeat(1, BLOCK), w_scales=scales)
    m = torch.arange(sum(spec.rows))
    positions = m[:, None] % BLOCK == torch.arange(BLOCK)
    if spec.precision == "w4a16":
        return _shared_weights(spec, positions.to(getattr(torch, spec.x_dtype)), None, weights)
    return _shared_weights(spec, positions * codes[:, None], scales, weights)


def _shared_weights(
    spec: ProblemSpec, x: Tensor, x_scales: Tensor | None, weights: GroupNumbers
) -> tuple[GroupNumbers, ...]:
    """The rows of ``x`` shared out over the groups, which all have the same weights."""
    parts = x.split(spec.rows)
    scale_parts = (None,) * len(parts) if x_scales is None else x_scales.split(spec.rows)
    return tuple(
        replace(weights, x=part, x_scales=scales)
        for part, scales in zip(parts, scale_parts, strict=True)
    )


def _small_numbers(spec: ProblemSpec) -> tuple[GroupNumbers, ...]:
    """Weights are multiples of 1/4 up to 12, tokens integers up to 8 (w4a4: as the weights).

    So K products sum to at most K * 144 in units of 1/16: below 2**24 units up to K = 7281.
    Factors are powers of two, or 1 where a bias is added: no epilogue step rounds either.
    """
    rng = generator(spec)
    factor = torch.ones_like if spec.bias != "none" else _power_of_two
    return tuple(
        replace(
            group,
            x=_small_integers(group.x, rng) if group.x_scales is None else group.x,
            x_scales=None if group.x_scales is None else _small_scales(group.x_scales, rng),
            w_scales=_small_scales(group.w_scales, rng),
            x_global=_apply(factor, group.x_global),
            w_global=_apply(factor, group.w_global),
            alpha=_apply(factor, group.alpha),
            row_scale=_apply(factor, group.row_scale),
            bias=_apply(torch.round, group.bias),
        )
        for group in group_numbers(spec)
    )


def _apply(function: Callable[[Tensor], Tensor], tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else function(tensor)


def _small_integers(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randint(-8, 9, tuple(like.shape), generator=rng).to(like.dtype)


def _small_scales(like: Tensor, rng: torch.Generator) -> Tensor:
    choice = torch.randint(0, len(_SUM_SCALES), tuple(like.shape), generator=rng)
    return torch.tensor(_SUM_SCALES, dtype=torch.uint8)[choice]


def _power_of_two(factor: Tensor) -> Tensor:
    """The factor's own power of two, its sign kept; zero stays zero."""
    mantissa, exponent = torch.frexp(factor)
    return torch.where(mantissa == 0, 0.0, torch.ldexp(mantissa.sign(), exponent - 1))


CHECKS: dict[str, ExactCheck] = {
    "one_hot": ExactCheck(tuple(_one_hot_specs()), _one_hot_numbers),
    "codes_scales": ExactCheck(tuple(_codes_scales_specs()), _codes_scales_numbers),
    "exact_sums": ExactCheck(tuple(_exact_sums_specs()), _small_numbers),
}
"""Every bit-exact check by its name."""
