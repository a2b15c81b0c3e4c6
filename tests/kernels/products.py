"""Grouped products for the kernels, with their exact results from numpy alone.

Values are drawn first and laid out afterwards, so that every layout, form and stride of one
``Spec`` has one exact result. What must not be read into a result is NaN: padding of blocked
scales, gaps between rows, token rows of no group, everything around the output.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nibblas.backends.base import Operands
from tests import oracle

NAN_SCALE = 0x7F
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
HALF_SUBNORMAL = {"bf16": 2.0**-134, "fp16": 2.0**-25, "fp32": 2.0**-150}


@dataclass(frozen=True)
class Spec:
    """One packed or masked product.

    Attributes:
        rows: tokens per group. n, k: rows and values of every group's weights.
        tokens: "bf16", "fp16" or "nvfp4". out: "bf16", "fp16" or "fp32".
        x_layout, w_layout: "linear", "torch" or "flashinfer" (blocked with that start; any
            blocked name means the same for weights and masked tokens).
        masked: rows padded to the largest group and one more.
        spare_rows: packed rows that belong to no group.
        gaps: rows of codes, scales and tokens do not follow each other directly.
        out_strides: "contiguous", "rows" (gaps) or "columns" (every other element).
        factors: any of "w_global", "w_segments", "x_global", "alpha", "row_scale", "bias",
            "group_bias", "bf16_bias".
    """

    rows: tuple[int, ...] = (3, 0, 5)
    n: int = 20
    k: int = 64
    tokens: str = "bf16"
    out: str = "fp32"
    x_layout: str = "linear"
    w_layout: str = "linear"
    masked: bool = False
    spare_rows: int = 0
    gaps: bool = False
    out_strides: str = "contiguous"
    factors: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Numbers:
    """What a product multiplies: codes as nibbles and scales as bytes, row by row."""

    w_codes: np.ndarray  # (G, N, K)
    w_scales: np.ndarray  # (G, N, K/16)
    x: np.ndarray  # (sum of rows, K): codes, or float64 values of a 16-bit type
    x_scales: np.ndarray | None  # (sum of rows, K/16)


@dataclass(frozen=True)
class Product:
    """Operands with a poisoned output, and what must come out.

    ``exact`` and ``bound`` are float64 ``(M, N)``, NaN in rows of no group.
    """

    operands: Operands
    exact: np.ndarray
    bound: np.ndarray
    buffer: Tensor

    def used_rows(self) -> np.ndarray:
        used: np.ndarray = ~np.isnan(self.bound).all(axis=1)
        return used


def draw(spec: Spec) -> Numbers:
    """Random codes, scales of moderate size and tokens of a few binades."""
    rng = np.random.default_rng(spec.seed)
    total, groups = sum(spec.rows), len(spec.rows)
    w_codes = rng.integers(0, 16, (groups, spec.n, spec.k), dtype=np.uint8)
    w_scales = rng.integers(0x20, 0x58, (groups, spec.n, spec.k // 16), dtype=np.uint8)
    if spec.tokens == "nvfp4":
        x = rng.integers(0, 16, (total, spec.k), dtype=np.uint8)
        return Numbers(
            w_codes, w_scales, x, rng.integers(0, 0x60, (total, spec.k // 16), dtype=np.uint8)
        )
    values = torch.from_numpy(rng.standard_normal((total, spec.k))).to(TYPES[spec.tokens])
    return Numbers(w_codes, w_scales, values.double().numpy(), None)


def build(spec: Spec, numbers: Numbers | None = None) -> Product:
    """Lays the numbers out as the spec says, and computes the exact result."""
    numbers = draw(spec) if numbers is None else numbers
    factors = _factors(spec)
    places = _token_places(spec)
    m = _total_rows(spec)
    out, buffer = _poisoned_out(spec, m)
    x, x_scales = _tokens(spec, numbers, places)
    ends = np.asarray(spec.rows if spec.masked else np.cumsum(spec.rows))
    operands = Operands(
        x=x,
        x_scales=x_scales,
        x_scale_layout="linear" if spec.x_layout == "linear" else "blocked",
        x_scale_start="stacked" if spec.masked else spec.x_layout.replace("linear", "torch"),
        x_global=factors.get("x_global"),
        w=_gapped(_packed(numbers.w_codes), spec.gaps),
        w_scales=_weight_scales(spec, numbers),
        w_scale_layout="linear" if spec.w_layout == "linear" else "blocked",
        w_global=factors.get("w_global"),
        offs=torch.from_numpy(ends).to(torch.int32),
        max_m=m // len(spec.rows) if spec.masked else 0,
        alpha=factors.get("alpha"),
        row_scale=factors.get("row_scale"),
        bias=factors.get("bias"),
        out=out,
    )
    exact, bound = _expected(spec, numbers, operands, places)
    return Product(operands, exact, bound, buffer)


def check(product: Product, spec: Spec) -> float:
    """Asserts that the output is right and nothing else was written; the largest error / bound."""
    used = product.used_rows()
    got = product.operands.out.double().numpy()[used]
    exact, bound = product.exact[used], product.bound[used]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    largest = torch.finfo(TYPES[spec.out]).max
    overflow = np.isinf(got) & (exact * np.sign(got) + bound >= largest)
    judged = ~np.isnan(exact) & ~overflow
    error = np.abs(got - exact)[judged]
    assert (error <= bound[judged]).all(), f"{spec}: {error.max()} beyond {bound.max()}"
    assert_untouched(product, used)
    return float((error / bound[judged]).max(initial=0.0))


def assert_untouched(product: Product, written_rows: np.ndarray) -> None:
    """The buffer around the output, and its rows of no group, still hold their poison."""
    mask = torch.ones(product.buffer.shape, dtype=torch.bool)
    out = product.operands.out
    inside = mask.as_strided(out.shape, out.stride(), out.storage_offset())
    inside[torch.from_numpy(written_rows)] = False
    bits = product.buffer.view(torch.int32 if out.element_size() == 4 else torch.int16)
    assert (bits[mask] == _poison(out.dtype)).all()


def bits(product: Product) -> np.ndarray:
    """The output's bits in the rows that belong to a group."""
    out = product.operands.out
    kind = torch.int32 if out.element_size() == 4 else torch.int16
    written: np.ndarray = out.contiguous().view(kind).numpy()[product.used_rows()]
    return written


def _total_rows(spec: Spec) -> int:
    if spec.masked:
        return len(spec.rows) * (max(spec.rows) + 1)
    return sum(spec.rows) + spec.spare_rows


def _token_places(spec: Spec) -> np.ndarray:
    """Row of x of each token, group by group."""
    if not spec.masked:
        return np.arange(sum(spec.rows))
    max_m = max(spec.rows) + 1
    return np.concatenate([g * max_m + np.arange(m) for g, m in enumerate(spec.rows)])


def _tokens(spec: Spec, numbers: Numbers, places: np.ndarray) -> tuple[Tensor, Tensor | None]:
    m = _total_rows(spec)
    if spec.tokens != "nvfp4":
        values = np.full((m, spec.k), np.nan)
        values[places] = numbers.x
        return _gapped(torch.from_numpy(values).to(TYPES[spec.tokens]), spec.gaps), None
    assert numbers.x_scales is not None
    codes = np.full((m, spec.k), 0x7, dtype=np.uint8)
    codes[places] = numbers.x
    x = _gapped(_packed(codes), spec.gaps)
    if spec.x_layout == "linear":
        scales = np.full((m, spec.k // 16), NAN_SCALE, dtype=np.uint8)
        scales[places] = numbers.x_scales
        return x, _gapped(torch.from_numpy(scales), spec.gaps).view(torch.float8_e4m3fn)
    if spec.masked:
        padded = -(-(max(spec.rows) + 1) // 128) * 128
        starts = [g * padded for g in range(len(spec.rows))]
    else:
        starts = oracle.group_scale_rows(np.cumsum(spec.rows).tolist(), spec.x_layout)
    rows = np.concatenate([s + np.arange(r) for s, r in zip(starts, spec.rows, strict=True)])
    return x, blocked(numbers.x_scales, rows, starts[-1] + -(-(spec.rows[-1] + 1) // 128) * 128)


def _weight_scales(spec: Spec, numbers: Numbers) -> Tensor:
    if spec.w_layout == "linear":
        return _gapped(torch.from_numpy(numbers.w_scales), spec.gaps).view(torch.float8_e4m3fn)
    padded = -(-spec.n // 128) * 128
    return torch.stack([blocked(s, np.arange(spec.n), padded) for s in numbers.w_scales])


def blocked(scales: np.ndarray, rows: np.ndarray, padded_rows: int) -> Tensor:
    """Scales (R, K/16) at the given rows of a 128x4 buffer, NaN elsewhere."""
    k_blocks = scales.shape[1]
    flat = np.full(padded_rows * (-(-k_blocks // 4) * 4), NAN_SCALE, dtype=np.uint8)
    for values, row in zip(scales, rows, strict=True):
        for k_block in range(k_blocks):
            flat[oracle.blocked_address(int(row), k_block, k_blocks)] = values[k_block]
    return torch.from_numpy(flat.reshape(padded_rows, -1)).view(torch.float8_e4m3fn)


def _packed(codes: np.ndarray) -> Tensor:
    return torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4)


def _gapped(tensor: Tensor, gaps: bool) -> Tensor:
    """The tensor, or a view of the same values with poison between and around its rows."""
    if not gaps:
        return tensor
    poison = float("nan") if tensor.is_floating_point() else NAN_SCALE
    shape = (*tensor.shape[:-2], tensor.shape[-2] + 1, tensor.shape[-1] + 3)
    buffer = torch.full(shape, poison).to(tensor.dtype)
    view = buffer[..., : tensor.shape[-2], 1 : 1 + tensor.shape[-1]]
    return view.copy_(tensor)


def _poison(dtype: torch.dtype) -> int:
    """Bits of a NaN that no computation produces."""
    return {torch.float32: 0x7FC0BEEF, torch.bfloat16: 0x7FDB, torch.float16: 0x7EDB}[dtype]


def _poisoned_out(spec: Spec, m: int) -> tuple[Tensor, Tensor]:
    dtype = TYPES[spec.out]
    row, column = {"contiguous": (spec.n, 1), "rows": (spec.n + 3, 1), "columns": (1, m + 4)}[
        spec.out_strides
    ]
    size = (m + 3) * row + (spec.n + 3) * column + 2 * spec.n
    kind = torch.int32 if spec.out == "fp32" else torch.int16
    buffer = torch.full((size,), _poison(dtype), dtype=kind).view(dtype)
    return buffer.as_strided((m, spec.n), (row, column), spec.n + 1), buffer


def _factors(spec: Spec) -> dict[str, Tensor]:
    rng = np.random.default_rng(spec.seed + 1)
    groups, m = len(spec.rows), _total_rows(spec)

    def random(*shape: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-2, 2, shape).astype(np.float32))

    made = {
        "w_global": lambda: ("w_global", random(groups)),
        "w_segments": lambda: ("w_global", random(groups, 2)),
        "x_global": lambda: ("x_global", random(groups)),
        "alpha": lambda: ("alpha", random(groups)),
        "row_scale": lambda: ("row_scale", random(m)),
        "bias": lambda: ("bias", random(spec.n)),
        "group_bias": lambda: ("bias", random(groups, spec.n)),
        "bf16_bias": lambda: ("bias", random(groups, spec.n).bfloat16()),
    }
    return dict(made[name]() for name in spec.factors)


def _expected(
    spec: Spec, numbers: Numbers, operands: Operands, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    m = _total_rows(spec)
    exact, bound = np.full((m, spec.n), np.nan), np.full((m, spec.n), np.nan)
    begin = 0
    for g, count in enumerate(spec.rows):
        at = places[begin : begin + count]
        x = _values(numbers.x, numbers.x_scales)[begin : begin + count]
        w = _values(numbers.w_codes[g], numbers.w_scales[g])
        scale = _column_scale(spec, operands, g)[None, :]
        if operands.row_scale is not None:
            scale = scale * operands.row_scale.double().numpy()[at, None]
        with np.errstate(invalid="ignore"):  # NaN and infinities are wanted in some tests
            value = x @ w.T * scale
            magnitude = np.abs(x) @ np.abs(w).T * np.abs(scale)
        if operands.bias is not None:
            bias = operands.bias if operands.bias.ndim == 1 else operands.bias[g]
            value = value + bias.double().numpy()
        exact[at], bound[at] = value, _bound(spec, value, magnitude)
        begin += count
    return exact, bound


def _values(codes_or_values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    if scales is None:
        return codes_or_values
    if not codes_or_values.size:
        return codes_or_values.astype(np.float64)
    codes = oracle.decode_codes(_packed(codes_or_values))
    block_scales = oracle.decode_scales(torch.from_numpy(scales))
    values: np.ndarray = codes * np.repeat(block_scales, 16, axis=-1)
    return values


def _column_scale(spec: Spec, operands: Operands, g: int) -> np.ndarray:
    scale = np.ones(spec.n)
    if operands.w_global is not None:
        per_segment = operands.w_global[g].double().numpy().reshape(-1)
        scale = scale * np.repeat(per_segment, spec.n // per_segment.size)
    for factor in (operands.x_global, operands.alpha):
        scale = scale if factor is None else scale * float(factor[g])
    return scale


def _bound(spec: Spec, value: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """u_out |exact| + (K + steps of the epilogue) 2^-24 (magnitude + |exact|) + subnormals."""
    u_out = UNIT_ROUNDOFF[spec.out]
    fp32 = 2.0**-24 * ((spec.k + 6) * magnitude + 6 * np.abs(value))
    bound: np.ndarray = u_out * np.abs(value) + (1 + u_out) * fp32 + HALF_SUBNORMAL[spec.out]
    return bound + 2.0**-149
