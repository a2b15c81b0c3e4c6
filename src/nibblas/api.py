"""The public operator: ``grouped_mm``, its masked and list forms, and ``explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nibblas import calls, eager, ops
from nibblas.backends.base import Operands
from nibblas.backends.selection import Explanation, explain_problem
from nibblas.calls import Epilogue, Options
from nibblas.errors import bad_type, bad_value, renamed
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.plan.problem import Form
from nibblas.validation.operands import check_out

Validate = Literal["default", "strict"]


def grouped_mm(
    x: Tensor | NVFP4Array,
    w: NVFP4Array,
    offs: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    backend: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    validate: Validate = "default",
) -> Tensor:
    """Multiplies each group's rows of x by its expert: ``y[rows of g] = x[rows of g] @ w[g].T``.

    ``y = cast(alpha[g] * row_scale[m] * sum_k x[m, k] * w[g, n, k] + bias[g, n])``, where x and w
    are decoded values, their global scales included; every product of codes and block scales is
    exact, sums are in float32 (see ``nibblas.formats.reference.error_bound``).

    Args:
        x: tokens sorted by group, ``(M, K)``, K a multiple of 16. bfloat16 or float16 runs as
            w4a16; an NVFP4Array as w4a4. Nothing is converted to another precision.
        w: experts, ``(G, N, K)``.
        offs: int32 ``(G,)``, cumulative end of each group's rows, on x's device; group g owns rows
            ``offs[g-1]:offs[g]`` (the convention of ``torch.nn.functional.grouped_mm``). Groups may
            be empty. Rows past ``offs[-1]`` belong to no group and are not written: without ``out``
            they hold whatever the memory held.
        out: ``(M, N)`` float16, bfloat16 or float32, any strides whose elements do not overlap.
        out_dtype: default: out's, else x's dtype, bfloat16 for an NVFP4Array.
        alpha: float32 ``(G,)``.
        row_scale: float32 ``(M,)``.
        bias: ``(N,)`` or ``(G, N)``, float32, bfloat16 or float16.
        backend: a backend's name; default: NIBBLAS_BACKEND, else the fastest that can.
        precision: "w4a16" or "w4a4": an assertion about x.
        batch_invariant: a row's bits do not depend on how many rows its group has. Kernels for GPUs
            and "cpu" always work so, at no cost, but for the CPU level "amx", which is then slower
            for few rows; "reference" then takes one row at a time. A backend is then chosen among
            those that give the same bits.
        validate: "strict" also checks block scales and contents on a device, which synchronises.

    Returns:
        ``(M, N)``; ``out`` where given. Without ``out``, differentiable with respect to x.

    Raises:
        ValueError, TypeError: bad input; the message names the argument. Nothing is written.
        UnsupportedProblemError: no backend can, with every backend's reasons.

    Example:
        >>> w = nibblas.quantize(torch.randn(2, 32, 64))
        >>> nibblas.grouped_mm(torch.randn(5, 64).bfloat16(), w, torch.tensor([3, 5]).int()).shape
        torch.Size([5, 32])
    """
    how = (out_dtype, backend, precision, batch_invariant, validate)
    call = ("packed", x, w, offs, out, alpha, row_scale, bias, how)
    done = eager.run(call)
    if done is not None:
        return done
    product = calls.packed_product(x, w, offs, Epilogue(alpha, row_scale, bias))
    options = Options(backend, precision, batch_invariant, validate)
    options.check(x)
    dtype = calls.out_dtype_of(x, out, out_dtype)
    if out is None:
        y: Tensor = torch.ops.nibblas.grouped_mm(*product, dtype, *options.arguments)
    else:
        check_out(out, (x.shape[0], w.rows), dtype=dtype, device=x.device)
        calls.refuse_gradient(x, "x")
        torch.ops.nibblas.grouped_mm_out(*product, out, *options.arguments)
        y = out
    eager.keep(call, product, y)
    return y


def grouped_mm_masked(
    x: Tensor | NVFP4Array,
    w: NVFP4Array,
    masked_m: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    backend: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    validate: Validate = "default",
) -> Tensor:
    """``grouped_mm`` on a padded batch: group g uses the first ``masked_m[g]`` rows of ``x[g]``.

    Args:
        x: ``(G, max_m, K)``, contiguous; an NVFP4Array's blocked scales are per group.
        w: experts, ``(G, N, K)``.
        masked_m: int32 ``(G,)``, rows in use, each 0..max_m (the convention of DeepGEMM's and
            FlashInfer's masked kernels).
        out: ``(G, max_m, N)``, contiguous.
        row_scale: float32 ``(G, max_m)``.

    The other arguments and the errors are ``grouped_mm``'s.

    Returns:
        ``(G, max_m, N)``. Rows past ``masked_m[g]`` are not written: without ``out`` they hold
        whatever the memory held.
    """
    how = (out_dtype, backend, precision, batch_invariant, validate)
    call = ("masked", x, w, masked_m, out, alpha, row_scale, bias, how)
    done = eager.run(call)
    if done is not None:
        return done
    product = calls.masked_product(x, w, masked_m, Epilogue(alpha, row_scale, bias))
    options = Options(backend, precision, batch_invariant, validate)
    options.check(x)
    dtype = calls.out_dtype_of(x, out, out_dtype)
    shape = (x.shape[0], x.shape[1], w.rows)
    if out is not None:
        check_out(out, shape, dtype=dtype, device=x.device)
        if not out.is_contiguous():
            raise bad_value("out", given=f"strides {out.stride()}", wanted="a contiguous tensor")
        calls.refuse_gradient(x, "x")
    with renamed({"offs": "masked_m"}):
        if out is None:
            y: Tensor = torch.ops.nibblas.grouped_mm(*product, dtype, *options.arguments)
        else:
            y = out.flatten(0, 1)
            torch.ops.nibblas.grouped_mm_out(*product, y, *options.arguments)
    eager.keep(call, product, y)
    return y.view(shape) if out is None else out


def grouped_mm_list(
    a: Sequence[Tensor | NVFP4Array],
    b: Sequence[NVFP4Array],
    *,
    out: Sequence[Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
    row_scale: Sequence[Tensor] | None = None,
    bias: Sequence[Tensor] | None = None,
    backend: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    validate: Validate = "default",
) -> list[Tensor]:
    """Products of any shapes in one call: ``y[i] = a[i] @ b[i].T``.

    Args:
        a: tokens per group, ``(m_i, k_i)``, all bfloat16, all float16 or all NVFP4Array.
        b: weights per group, ``(n_i, k_i)``.
        out: outputs per group, ``(m_i, n_i)``, of one dtype, any strides.
        alpha: float32 ``(G,)``.
        row_scale: float32 ``(m_i,)`` per group.
        bias: ``(n_i,)`` per group.

    The other arguments and the errors are ``grouped_mm``'s. Not differentiable.

    Returns:
        ``(m_i, n_i)`` per group, in the order given; ``out``'s tensors where given.
    """
    product = calls.list_product(a, b, alpha=alpha, row_scale=row_scale, bias=bias)
    options = Options(backend, precision, batch_invariant, validate)
    options.check(a[0])
    for i, x in enumerate(a):
        calls.refuse_gradient(x, f"a[{i}]")
    shapes = [(x.shape[0], w.rows) for x, w in zip(a, b, strict=True)]
    if out is not None:
        if not isinstance(out, (list, tuple)) or len(out) != len(a):
            given = f"{len(out)} entries" if isinstance(out, (list, tuple)) else type(out).__name__
            raise bad_type("out", given=given, wanted=f"a list of {len(a)} tensors")
        dtype = calls.out_dtype_of(a[0], out[0], out_dtype)
        for i, (y, shape) in enumerate(zip(out, shapes, strict=True)):
            check_out(y, shape, dtype=dtype, device=a[0].device, name=f"out[{i}]")
        outs = list(out)
    else:
        dtype = calls.out_dtype_of(a[0], None, out_dtype)
        outs = [torch.empty(shape, dtype=dtype, device=a[0].device) for shape in shapes]
    torch.ops.nibblas.grouped_mm_list_out(*product, outs, *options.arguments)
    return outs


def explain(
    x: Tensor | NVFP4Array | Sequence[Tensor | NVFP4Array],
    w: NVFP4Array | Sequence[NVFP4Array],
    offs: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
    row_scale: Tensor | Sequence[Tensor] | None = None,
    bias: Tensor | Sequence[Tensor] | None = None,
    backend: str | None = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    validate: Validate = "default",
) -> Explanation:
    """Which backend would run a call, how long it should take, what bounds it, why others refused.

    Takes what ``grouped_mm`` takes, with x ``(G, max_m, K)`` what ``grouped_mm_masked`` takes, with
    lists what ``grouped_mm_list`` takes, and checks it as they do. Nothing is computed.

    Example:
        >>> print(nibblas.explain(x, w, offs))  # doctest: +SKIP
    """
    options = Options(backend, precision, batch_invariant, validate)
    factors: Any = {"alpha": alpha, "row_scale": row_scale, "bias": bias}
    form: Form
    if isinstance(x, (list, tuple)) or isinstance(w, (list, tuple)):
        operands, form = _list_operands(x, w, options, out_dtype, factors), "list"
    else:
        operands = [_row_operands(x, w, offs, options, out_dtype, Epilogue(**factors))]
        form = operands[0].form
    ops.check_contents(operands, form, options.validate)
    problem = ops.problem_of(operands, form, batch_invariant=batch_invariant, read_sizes=True)
    return explain_problem(problem, backend)


def _list_operands(
    a: Any, b: Any, options: Options, out_dtype: torch.dtype | None, factors: Any
) -> list[Operands]:
    """The list form's operands with outputs that have no memory."""
    product: Any = calls.list_product(a, b, **factors)
    options.check(a[0])
    dtype = calls.out_dtype_of(a[0], None, out_dtype)
    outs = [_meta(x.shape[0], w.rows, dtype) for x, w in zip(a, b, strict=True)]
    return ops.list_operands(*[*product, outs])


def _row_operands(
    x: Any,
    w: Any,
    offs: Any,
    options: Options,
    out_dtype: torch.dtype | None,
    epilogue: Epilogue,
) -> Operands:
    """The packed or masked form's operands with an output that has no memory."""
    masked = getattr(x, "ndim", 2) == 3
    describe = calls.masked_product if masked else calls.packed_product
    product = describe(x, w, offs, epilogue)
    options.check(x)
    tokens, weights = product[0], product[5]
    dtype = calls.out_dtype_of(x, None, out_dtype)
    return Operands.of(product, _meta(tokens.shape[0], weights.shape[1], dtype))


def _meta(rows: int, n: int, dtype: torch.dtype) -> Tensor:
    return torch.empty((rows, n), dtype=dtype, device="meta")
