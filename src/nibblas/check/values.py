"""The numbers of one problem, group by group, before any layout is chosen.

Everything here is plain: codes one per byte, scale bytes linear, one global scale per column. The
oracle is fed from these, so it shares no layout, stride or offset code with what it judges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from nibblas.check.problems import ProblemSpec
from nibblas.formats import e4m3, scale_layout

_SCALE_RANGES = {
    "all": (0x00, 0x7F),
    "middle": (0x30, 0x41),
    "small": (0x00, 0x11),
    "one": (0x38, 0x39),
}
"""First byte and one past the last byte of each range; 0x38 is 1.0."""


@dataclass(frozen=True)
class GroupNumbers:
    """Operands of one group: ``out = ((x @ w.T) * s) * row_scale + bias``."""

    x: Tensor
    """(m, K) bfloat16/float16, or uint8 codes one per byte."""
    x_scales: Tensor | None
    """(m, K/16) uint8 scale bytes under w4a4."""
    w_codes: Tensor
    """(N, K) uint8, one code per byte."""
    w_scales: Tensor
    """(N, K/16) uint8 scale bytes."""
    x_global: Tensor | None
    """float32 ()."""
    w_global: Tensor | None
    """float32 (S,): one per equal column segment."""
    alpha: Tensor | None
    """float32 ()."""
    row_scale: Tensor | None
    """float32 (m,)."""
    bias: Tensor | None
    """(N,)."""


def generator(spec: ProblemSpec) -> Generator:
    """The source of a spec's numbers; the same for every run of that spec."""
    return torch.Generator().manual_seed((spec.seed * 1_000_003 + spec.index) % (1 << 63))


def group_numbers(spec: ProblemSpec) -> tuple[GroupNumbers, ...]:
    """The numbers of every group, in group order."""
    rng = generator(spec)
    x_tensor = _positive(rng, ()) if spec.x_global == "tensor" else None
    w_tensor = _positive(rng, (1,)) if spec.w_global == "tensor" else None
    shared_bias = _bias(rng, spec, spec.n[0]) if spec.bias == "shared" else None
    groups = []
    for group, m in enumerate(spec.rows):
        n, k = spec.group_n(group), spec.group_k(group)
        x, x_scales = _tokens(rng, spec, m, k)
        groups.append(
            GroupNumbers(
                x=x,
                x_scales=x_scales,
                w_codes=_codes(rng, n, k),
                w_scales=_scales(rng, spec, n, k, with_nan=spec.nan_scales == "w"),
                x_global=_positive(rng, ()) if spec.x_global == "group" else x_tensor,
                w_global=_w_global(rng, spec) if w_tensor is None else w_tensor,
                alpha=_alpha(rng) if spec.alpha else None,
                row_scale=_positive(rng, (m,)) if spec.row_scale else None,
                bias=_bias(rng, spec, n) if spec.bias == "group" else shared_bias,
            )
        )
    return tuple(groups)


def last_row(group: GroupNumbers) -> GroupNumbers:
    """The same group with its last token row only."""
    return replace(
        group,
        x=group.x[-1:],
        x_scales=None if group.x_scales is None else group.x_scales[-1:],
        row_scale=None if group.row_scale is None else group.row_scale[-1:],
    )


def _w_global(rng: Generator, spec: ProblemSpec) -> Tensor | None:
    return None if spec.w_global == "none" else _positive(rng, (spec.segments,))


def _codes(rng: Generator, rows: int, k: int) -> Tensor:
    return torch.randint(0, 16, (rows, k), dtype=torch.uint8, generator=rng)


def _scales(rng: Generator, spec: ProblemSpec, rows: int, k: int, *, with_nan: bool) -> Tensor:
    low, high = _SCALE_RANGES[spec.scale_bytes]
    blocks = (rows, k // scale_layout.BLOCK)
    scales = torch.randint(low, high, blocks, dtype=torch.uint8, generator=rng)
    if with_nan and rows:
        row = int(torch.randint(0, rows, (), generator=rng))
        block = int(torch.randint(0, blocks[1], (), generator=rng))
        scales[row, block] = e4m3.NAN_BYTE
    return scales


def _tokens(rng: Generator, spec: ProblemSpec, m: int, k: int) -> tuple[Tensor, Tensor | None]:
    if spec.precision == "w4a4":
        scales = _scales(rng, spec, m, k, with_nan=spec.nan_scales == "x")
        return _codes(rng, m, k), scales
    return _float_tokens(rng, spec, m, k), None


def _float_tokens(rng: Generator, spec: ProblemSpec, m: int, k: int) -> Tensor:
    dtype = getattr(torch, spec.x_dtype)
    values = torch.randn((m, k), generator=rng)
    if spec.x_values == "wide":
        values = values * torch.exp2(torch.randint(-8, 7, (m, k), generator=rng))
    elif spec.x_values == "large":
        values = values * (2.0**40 if dtype == torch.bfloat16 else 2.0**11)
    elif spec.x_values == "subnormal":
        return _subnormals(rng, dtype, m, k)
    elif spec.x_values == "nonfinite" and m:
        for special in (float("inf"), float("-inf"), float("nan")):
            row = int(torch.randint(0, m, (), generator=rng))
            values[row, int(torch.randint(0, k, (), generator=rng))] = special
    return values.to(dtype)


def _subnormals(rng: Generator, dtype: torch.dtype, m: int, k: int) -> Tensor:
    """Signed subnormals of ``dtype``, zero included: exponent bits clear, all else random."""
    mantissa_bits = 7 if dtype == torch.bfloat16 else 10
    magnitude = torch.randint(0, 1 << mantissa_bits, (m, k), dtype=torch.int16, generator=rng)
    negative = torch.randint(0, 2, (m, k), dtype=torch.bool, generator=rng)
    values = magnitude.view(dtype)
    return torch.where(negative, -values, values)


def _positive(rng: Generator, shape: tuple[int, ...]) -> Tensor:
    """Factors spread over 2^-6 .. 2^3 with full mantissas."""
    exponent = torch.randint(-6, 3, shape, generator=rng)
    return (1.0 + torch.rand(shape, generator=rng)) * torch.exp2(exponent)


def _alpha(rng: Generator) -> Tensor:
    """A factor of either sign; zero one time in ten."""
    kind = float(torch.rand((), generator=rng))
    if kind < 0.1:
        return torch.zeros(())
    return _positive(rng, ()) * (-1.0 if kind < 0.4 else 1.0)


def _bias(rng: Generator, spec: ProblemSpec, n: int) -> Tensor:
    return (4.0 * torch.randn((n,), generator=rng)).to(getattr(torch, spec.bias_dtype))
