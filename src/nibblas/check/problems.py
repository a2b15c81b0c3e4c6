"""Random grouped products: a spec drawn from ``(seed, index)`` alone.

A spec holds shapes and choices, never tensors; :mod:`nibblas.check.tensors` builds those from it.
The sizes lean towards the edges (no rows, one row, one past a multiple of 128, K/16 off every
multiple of 4), because a uniform draw would hardly ever meet them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Literal

Form = Literal["packed", "masked", "list"]

MAX_PRODUCTS = 1 << 24
"""Upper bound of rows * N * K of one problem: keeps the float64 oracle at a few milliseconds."""
MAX_WEIGHTS = 1 << 21
"""Upper bound of G * N * K of one problem."""

_N_EDGES = (
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    160,
    255,
    256,
    257,
)
_K_EDGES = (16, 32, 48, 64, 80, 96, 112, 128, 144, 192, 208, 240, 256, 272, 320, 400, 512)
_K_LARGE = (528, 768, 784, 1024, 1040)
_M_EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65)
_M_LARGE = (96, 127, 128, 129, 200, 256, 257)
_OUTS = ("returned", "contiguous", "row_stride", "column_stride", "transposed")
"""The masked form takes contiguous tensors only: the first two."""


@dataclass(frozen=True)
class ProblemSpec:
    """One grouped product; ``repr`` is one line and starts with ``name``."""

    seed: int
    index: int
    form: Form
    precision: str
    """"w4a16" or "w4a4"."""
    x_dtype: str
    """"bfloat16" or "float16"; "nvfp4" under w4a4."""
    out_dtype: str
    """"float16", "bfloat16" or "float32"."""
    rows: tuple[int, ...]
    """Token rows of every group."""
    n: tuple[int, ...]
    """Weight rows: one entry for all groups; one per group in the list form."""
    k: tuple[int, ...]
    """Values along K, each a multiple of 16: as ``n``."""
    spare_rows: int
    """Packed: rows past offs[-1]. Masked: max_m minus the largest group. List: 0."""
    x_layout: str
    """"linear" or "blocked"; "none" under w4a16."""
    x_start: str
    """"torch" or "flashinfer" for packed blocked token scales; "none" elsewhere."""
    w_layout: str
    x_global: str
    """"none", "tensor" or "group"."""
    w_global: str
    """"none", "tensor", "group" or "segment"."""
    segments: int
    """Equal column segments with a global scale each; 1 unless w_global is "segment"."""
    alpha: bool
    row_scale: bool
    bias: str
    """"none", "shared" for (N,) or "group" for (G, N)."""
    bias_dtype: str
    out: str
    """"returned" (no out given), "contiguous", "row_stride", "column_stride" or "transposed"."""
    strided_inputs: bool
    """Rows of codes, values and linear scales lie further apart than their length (masked: of the
    weights only)."""
    scale_bytes: str
    """"all" 0x00..0x7E, "middle" 0x30..0x40, "small" 0x00..0x10 or "one"."""
    x_values: str
    """w4a16: "normal", "wide", "subnormal", "large" or "nonfinite"; w4a4: "codes"."""
    nan_scales: str
    """Which operand has NaN scales in use: "none", "x" or "w"."""
    batch_invariant: bool
    """Asked of the call; one row is then run alone as well and must give the same bits."""
    strict: bool
    check: str = ""
    """Name of the bit-exact check that the problem belongs to; empty in a random sweep."""

    @property
    def groups(self) -> int:
        return len(self.rows)

    def group_n(self, group: int) -> int:
        """N of one group."""
        return self.n[group if self.form == "list" else 0]

    def group_k(self, group: int) -> int:
        """K of one group, in values."""
        return self.k[group if self.form == "list" else 0]

    @property
    def name(self) -> str:
        """``seed:index`` or ``check:index``: what ``nibblas check --only`` takes."""
        return f"{self.check or self.seed}:{self.index}"

    def __repr__(self) -> str:
        parts = [self.name]
        for field in fields(self)[2:-1]:
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = ",".join(map(str, value))
            parts.append(f"{field.name}={value}")
        return " ".join(parts)


def draw(seed: int, index: int) -> ProblemSpec:
    """The problem ``index`` of sweep ``seed``; the same for every machine and Python version."""
    rng = random.Random(f"nibblas-check-{seed}-{index}")
    form: Form = rng.choices(("packed", "masked", "list"), (6, 2, 2))[0]
    precision = rng.choice(("w4a16", "w4a4"))
    groups = _draw_groups(rng)
    n, k = _draw_n_k(rng, form, groups)
    rows = _draw_rows(rng, groups, MAX_PRODUCTS // (max(n) * max(k)))
    w_global = rng.choice(("none", "tensor", "group", "segment"))
    segments = _draw_segments(rng, n) if w_global == "segment" else 1
    x_layout, x_start = _draw_x_scales(rng, form, precision)
    nan_scales = rng.choices(("none", "x", "w"), (18, 1, 1))[0]
    if nan_scales == "x" and precision == "w4a16":
        nan_scales = "none"
    x_values, x_dtype = _draw_x_values(rng, precision)
    bias = rng.choices(("none", "shared", "group"), (2, 1, 1))[0]
    return ProblemSpec(
        seed=seed,
        index=index,
        form=form,
        precision=precision,
        x_dtype=x_dtype,
        out_dtype=rng.choice(("float16", "bfloat16", "float32")),
        rows=rows,
        n=n,
        k=k,
        spare_rows=0 if form == "list" else rng.choice((0, 0, 1, 5, 130)),
        x_layout=x_layout,
        x_start=x_start,
        w_layout=rng.choice(("linear", "blocked")),
        x_global="none" if precision == "w4a16" else rng.choice(("none", "tensor", "group")),
        w_global="none" if segments == 1 and w_global == "segment" else w_global,
        segments=segments,
        alpha=rng.random() < 0.5,
        row_scale=rng.random() < 0.4,
        bias="group" if bias == "shared" and form == "list" else bias,
        bias_dtype=rng.choice(("float32", "bfloat16", "float16")),
        out=rng.choice(_OUTS[: 2 if form == "masked" else None]),
        strided_inputs=rng.random() < 0.4,
        scale_bytes=rng.choices(("all", "middle", "small", "one"), (3, 4, 1, 1))[0],
        x_values=x_values,
        nan_scales=nan_scales,
        batch_invariant=rng.random() < 0.25,
        strict=nan_scales == "none" and rng.random() < 0.25,
    )


def _draw_groups(rng: random.Random) -> int:
    if rng.random() < 0.03:
        return 64
    return rng.choice((1, 1, 2, 3, 4, 5, 8, 12))


def _draw_n_k(
    rng: random.Random, form: Form, groups: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """N and K, one of each (or one per group), within the weight budget."""
    budget = MAX_WEIGHTS // groups
    ns: list[int] = []
    ks: list[int] = []
    for _ in range(groups if form == "list" else 1):
        k = rng.choice(_K_LARGE if rng.random() < 0.08 else _K_EDGES)
        n = rng.choice(_N_EDGES) if rng.random() < 0.8 else rng.randrange(1, 400)
        ns.append(max(1, min(n, budget // k)))
        ks.append(k)
    return tuple(ns), tuple(ks)


def _draw_rows(rng: random.Random, groups: int, budget: int) -> tuple[int, ...]:
    """Rows of every group: all empty, all single rows, one busy group, or a ragged mix."""
    profile = rng.choices(("ragged", "single", "one_busy", "empty"), (10, 2, 2, 1))[0]
    if profile == "empty":
        return (0,) * groups
    if profile == "single":
        rows = [rng.choice((0, 1, 1)) for _ in range(groups)]
    elif profile == "one_busy":
        rows = [0] * groups
        rows[rng.randrange(groups)] = rng.choice(_M_EDGES + _M_LARGE)
    else:
        rows = [_draw_group_rows(rng, groups) for _ in range(groups)]
    return tuple(min(m, max(1, budget // groups)) for m in rows)


def _draw_group_rows(rng: random.Random, groups: int) -> int:
    kind = rng.random()
    if kind < 0.2:
        return 0
    if kind < 0.35 and groups <= 12:
        return rng.choice(_M_LARGE)
    return rng.choice(_M_EDGES)


def _draw_segments(rng: random.Random, n: tuple[int, ...]) -> int:
    """A number of equal segments that divides every N; 1 where there is none."""
    choices = [s for s in (2, 3, 4) if all(value % s == 0 for value in n)]
    return rng.choice(choices) if choices else 1


def _draw_x_scales(rng: random.Random, form: Form, precision: str) -> tuple[str, str]:
    """Layout of the token scales, and where each group's rows start in a blocked buffer."""
    if precision == "w4a16":
        return "none", "none"
    layout = rng.choices(("linear", "blocked"), (1, 2))[0]
    if layout == "linear" or form != "packed":
        return layout, "none"
    return layout, rng.choice(("torch", "flashinfer"))


def _draw_x_values(rng: random.Random, precision: str) -> tuple[str, str]:
    """Distribution and dtype of the tokens."""
    if precision == "w4a4":
        return "codes", "nvfp4"
    kinds = ("normal", "wide", "subnormal", "large", "nonfinite")
    return rng.choices(kinds, (8, 4, 1, 1, 1))[0], rng.choice(("bfloat16", "float16"))
