"""PyTorch on the same numbers: weights decoded before or in the call, 16-bit or rowwise FP8.

Each function takes the case and the bytes to rotate over, and raises where this build of PyTorch
or this device has no such operation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from nibblas.bench.contenders import CaseData, Contender, decode, rotating, sets_for

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
FP8_LIMIT = 0.06
"""Largest relative error of rowwise FP8: rounding both operands to 4 bits costs about 3.7 %."""
DECODING_ROUNDS = 3
"""On a CPU, where it is slow."""

Multiply = Callable[[Tensor, Tensor], Tensor]


def mm(data: CaseData, rotate_bytes: float) -> Contender:
    """``torch.mm`` per group on weights decoded before."""
    x, w = data.tokens(), decode(data.w, data.dtype)
    count = sets_for(x.nbytes + w.nbytes, rotate_bytes)
    xs, ws = rotating(x, count), rotating(w, count)
    outs = [data.out() for _ in range(count)]
    groups = group_slices(data.case.rows)
    return Contender(
        "torch mm", lambda i: _mm_loop(groups, xs[i], ws[i], outs[i]), count, outs.__getitem__
    )


def grouped(data: CaseData, rotate_bytes: float) -> Contender:
    """``grouped_mm`` on weights decoded before, in bfloat16, the type that its GPU kernels take."""
    multiply = _grouped_mm(data)
    x, w = data.tokens(torch.bfloat16), decode(data.w, torch.bfloat16)
    count = sets_for(x.nbytes + w.nbytes, rotate_bytes)
    xs, ws = rotating(x, count), rotating(w, count)
    results: list[Tensor] = [torch.empty(0)] * count

    def call(i: int) -> None:
        results[i] = multiply(xs[i], ws[i])

    return Contender(f"torch grouped_mm{_in_bf16(data)}", call, count, results.__getitem__)


def decoding(data: CaseData, rotate_bytes: float) -> Contender:
    """Decoding inside the call: on a CPU by PyTorch's operations and ``torch.mm``, on a GPU by one
    Triton kernel, where there is Triton, and ``grouped_mm``."""
    return (
        _decode_mm(data, rotate_bytes)
        if data.device.type == "cpu"
        else _decode_grouped(data, rotate_bytes)
    )


def fp8(data: CaseData, rotate_bytes: float) -> Contender:
    """``_scaled_grouped_mm``: tokens and weights rounded to E4M3 with a scale per row, before."""
    _needs_gpu(data)
    x, x_scale = _rowwise(data.tokens())
    parts = [_rowwise(w) for w in decode(data.w, data.dtype)]
    w, w_scale = torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])
    count = sets_for(x.nbytes + w.nbytes, rotate_bytes)
    xs, ws = rotating(x, count), rotating(w, count)
    results: list[Tensor] = [torch.empty(0)] * count

    def call(i: int) -> None:
        results[i] = torch._scaled_grouped_mm(
            xs[i],
            ws[i].transpose(-2, -1),
            x_scale,
            w_scale,
            offs=data.offs,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return Contender(
        "torch fp8 rowwise",
        call,
        count,
        results.__getitem__,
        other_maths="both operands rounded to E4M3, a scale per row",
        error_limit=FP8_LIMIT,
    )


def _needs_gpu(data: CaseData) -> None:
    if data.device.type != "cuda":
        raise NotImplementedError("torch._scaled_grouped_mm needs a GPU")


def _decode_mm(data: CaseData, rotate_bytes: float) -> Contender:
    x = data.tokens()
    count = sets_for(x.nbytes + data.w.codes.nbytes + data.w.scales.nbytes, rotate_bytes)
    xs, codes, scales = _quantised_sets(data, x, count)
    outs = [data.out() for _ in range(count)]
    groups = group_slices(data.case.rows)

    def call(i: int) -> None:
        w = decode(type(data.w)(codes[i], scales[i]), data.dtype)
        _mm_loop(groups, xs[i], w, outs[i])

    return Contender("decode + torch mm", call, count, outs.__getitem__, rounds=DECODING_ROUNDS)


def _decode_grouped(data: CaseData, rotate_bytes: float) -> Contender:
    multiply = _grouped_mm(data)
    decode_bf16 = _gpu_decoder()
    x = data.tokens(torch.bfloat16)
    count = sets_for(x.nbytes + data.w.codes.nbytes + data.w.scales.nbytes, rotate_bytes)
    xs, codes, scales = _quantised_sets(data, x, count)
    results: list[Tensor] = [torch.empty(0)] * count

    def call(i: int) -> None:
        results[i] = multiply(xs[i], decode_bf16(codes[i], scales[i]))

    name = f"decode + torch grouped_mm{_in_bf16(data)}"
    return Contender(name, call, count, results.__getitem__)


def _quantised_sets(
    data: CaseData, x: Tensor, count: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    codes, scales = rotating(data.w.codes, count), rotating(data.w.scales, count)
    return rotating(x, count), codes, scales


def _gpu_decoder() -> Callable[[Tensor, Tensor], Tensor]:
    """Codes ``(G, N, K/2)`` and scales ``(G, N, K/16)`` to bfloat16 ``(G, N, K)``."""
    if importlib.util.find_spec("triton") is None:
        raise ModuleNotFoundError("decoding in one pass needs Triton, which is not installed")
    from nibblas.bench.triton_decode import decode_bf16

    return decode_bf16


def _grouped_mm(data: CaseData) -> Multiply:
    public = getattr(torch.nn.functional, "grouped_mm", None)
    private = getattr(torch, "_grouped_mm", None)
    found = public or private
    if found is None:
        raise NotImplementedError(f"torch {torch.__version__} has no grouped_mm")
    return lambda x, w: found(x, w.transpose(-2, -1), offs=data.offs)


def _in_bf16(data: CaseData) -> str:
    return "" if data.dtype == torch.bfloat16 else " in bf16"


def _rowwise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows rounded to E4M3, and the float32 scale of each, which multiplies."""
    scale = values.abs().amax(-1, keepdim=True).float() / FP8_MAX
    return (values.float() / scale).to(torch.float8_e4m3fn), scale.squeeze(-1)


def _mm_loop(groups: list[tuple[int, slice]], x: Tensor, w: Tensor, out: Tensor) -> None:
    for g, rows in groups:
        torch.mm(x[rows], w[g].T, out=out[rows])


def group_slices(group_rows: tuple[int, ...]) -> list[tuple[int, slice]]:
    """``(g, rows of x)`` of every group that has any."""
    slices, begin = [], 0
    for g, rows in enumerate(group_rows):
        if rows:
            slices.append((g, slice(begin, begin + rows)))
        begin += rows
    return slices
