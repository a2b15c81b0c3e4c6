"""The torch operators: ``torch.ops.nibblas.*``, with fake kernels and a gradient.

They take flat tensors, because an operator's schema knows no NVFP4Array. They check contents, which
tracing (torch.compile) cannot see, and once per shape the metadata too, since an exported program
brings tensors that no public function has looked at; then they choose a backend and run it.

grouped_mm           packed or masked rows -> a new output; differentiable in x
grouped_mm_out       the same into ``out``
grouped_mm_list_out  a list of products into a list of outputs
grouped_mm_grad_x    the gradient of x

Defined with ``torch.library.Library`` rather than ``custom_op``, which costs several times as much
a call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from nibblas import env
from nibblas.backends import registry
from nibblas.backends.base import Operands, is_capturing
from nibblas.backends.prepared import PreparedCall
from nibblas.backends.reference import checked_tokens, tokens_of, weights_of
from nibblas.backends.selection import choose
from nibblas.errors import bad_value, renamed
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.reference import input_gradient, row_ranges
from nibblas.formats.scale_layout import ScaleLayout
from nibblas.plan.problem import Form, GroupShape, Problem, even_rows
from nibblas.plan.select import Plan
from nibblas.runtime.bounded import BoundedCache
from nibblas.validation import operands as check
from nibblas.validation.memory import check_apart
from nibblas.validation.offs import check_group_sizes, check_offs_metadata
from nibblas.validation.operands import ACTIVATION_NAMES, OUT_NAMES
from nibblas.validation.scales import check_scale_contents

_PRODUCT = (
    "Tensor x, Tensor? x_scales, str x_scale_layout, str x_scale_start, Tensor? x_global, "
    "Tensor w, Tensor w_scales, str w_scale_layout, Tensor w_global, "
    "Tensor? offs, int max_m, Tensor? alpha, Tensor? row_scale, Tensor? bias"
)
_OPTIONS = "str? backend, bool batch_invariant, str validate"
_SCHEMAS = (
    f"grouped_mm({_PRODUCT}, ScalarType out_dtype, {_OPTIONS}) -> Tensor",
    f"grouped_mm_out({_PRODUCT}, Tensor(a!) out, {_OPTIONS}) -> ()",
    "grouped_mm_list_out("
    "Tensor[] x, Tensor[] x_scales, str[] x_scale_layout, Tensor[] x_global, "
    "Tensor[] w, Tensor[] w_scales, str[] w_scale_layout, Tensor[] w_global, "
    f"Tensor? alpha, Tensor[] row_scale, Tensor[] bias, Tensor(a!)[] out, {_OPTIONS}) -> ()",
    "grouped_mm_grad_x(Tensor grad, Tensor w, Tensor w_scales, str w_scale_layout, "
    "Tensor w_global, Tensor? offs, int max_m, Tensor? alpha, Tensor? row_scale, "
    "ScalarType dtype) -> Tensor",
)

_library = torch.library.Library("nibblas", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.needs_fixed_stride_order,))


def problem_of(
    operands: Sequence[Operands], form: Form, *, batch_invariant: bool, read_sizes: bool
) -> Problem:
    """The planner's view of checked operands.

    Args:
        read_sizes: take group sizes from CPU offs; else, and for offs on a device, rows are shared
            out evenly.
    """
    first = operands[0]
    shapes: list[GroupShape] = []
    rows_known = True
    for product in operands:
        if product.offs is not None and not (read_sizes and product.offs.device.type == "cpu"):
            rows_known = False
            sizes = even_rows(product.m, product.groups)
        else:
            ranges = row_ranges(product.offs, product.m, product.max_m)
            sizes = tuple(end - begin for _, begin, end in ranges)
        shapes += [GroupShape(m, product.n, product.k) for m in sizes]
    present = (("alpha", first.alpha), ("row_scale", first.row_scale), ("bias", first.bias))
    return Problem(
        shapes=tuple(shapes),
        activations="nvfp4" if first.x_scales is not None else ACTIVATION_NAMES[first.x.dtype],
        out=OUT_NAMES[first.out.dtype],
        device=first.x.device.type,
        device_index=first.x.device.index or 0,
        form=form,
        rows_known=rows_known,
        x_scale_layout=first.x_scale_layout,
        w_scale_layout=first.w_scale_layout,
        epilogue=tuple(name for name, tensor in present if tensor is not None),
        batch_invariant=batch_invariant,
    )


def check_contents(operands: Sequence[Operands], form: Form, validate: str) -> None:
    """Refuses bad contents: always where they lie on the CPU, elsewhere under "strict" only.

    Raises:
        ValueError: naming offs, masked_m, x.scales, w.scales, a global scale, or validate itself
            (strict reading is impossible while a CUDA graph is captured).
    """
    strict = validate == "strict"
    if strict and operands[0].x.device.type == "cuda" and is_capturing():
        raise bad_value(
            "validate",
            given="'strict' during CUDA graph capture",
            wanted="'default': strict reads contents on the host",
        )
    for i, product in enumerate(operands):
        offs = product.offs
        if offs is not None and (strict or offs.device.type == "cpu"):
            rows = (product.m, product.max_m, product.blocked_scale_rows)
            check_group_sizes(offs, *rows, product.x_scale_start)
        if strict:
            with renamed(_list_names(i) if form == "list" else {}):
                _check_scales(product)


def _list_names(i: int) -> dict[str, str]:
    """Names of the list form's entries, by the names of a single product's parts."""
    parts = {"x": f"a[{i}]", "w": f"b[{i}]"}
    for part in ("scales", "global_scale"):
        parts |= {f"x.{part}": f"a[{i}].{part}", f"w.{part}": f"b[{i}].{part}"}
    return parts | {name: f"{name}[{i}]" for name in ("out", "row_scale", "bias")}


def check_operands(product: Operands) -> None:
    """Refuses flat operands that do not fit each other; a kernel believes what passes here.

    The public functions have checked theirs already, but an exported program or a direct call of
    the operators comes with tensors that nobody has looked at.
    """
    with renamed({"codes": "w", "scales": "w.scales", "global_scale": "w.global_scale"}):
        weights = NVFP4Array(
            product.w,
            product.w_scales,
            global_scale=product.w_global,
            scale_layout=cast(ScaleLayout, product.w_scale_layout),
        )
    check.check_weights(weights)
    groups, m, masked = product.groups, product.m, product.max_m > 0
    if masked and m != groups * product.max_m:
        raise bad_value("x", given=f"{m} rows", wanted=f"{groups} groups of {product.max_m}")
    tokens: Tensor | NVFP4Array = product.x
    if product.x_scales is not None:
        with renamed({"codes": "x", "scales": "x.scales", "global_scale": "x.global_scale"}):
            tokens = checked_tokens(product)
    check.check_tokens(tokens, ndim=3 if masked and product.x_scales is not None else 2)
    check.check_contraction(tokens, weights)
    if not masked:
        check.check_packed_scales(tokens, groups)
    if product.offs is None:
        if groups != 1:
            raise bad_value("offs", given=None, wanted=f"({groups},)")
    else:
        name = "masked_m" if masked else "offs"
        check_offs_metadata(product.offs, groups, product.x.device, name)
    shape = (groups, m, product.n)
    check.check_epilogue(
        product.alpha, product.row_scale, product.bias, shape=shape, device=product.x.device
    )
    check.check_out(product.out, (m, product.n), dtype=None, device=product.x.device)


def _check_scales(product: Operands) -> None:
    check_scale_contents(weights_of(product), "w")
    tokens = tokens_of(product)
    if not isinstance(tokens, Tensor):
        in_use = torch.zeros(product.m, dtype=torch.bool)
        for _, begin, end in row_ranges(product.offs, product.m, product.max_m):
            in_use[begin:end] = True
        check_scale_contents(tokens, "x", offs=product.offs, rows_in_use=in_use)


def _check_memory(operands: Sequence[Operands], form: Form) -> None:
    """Refuses outputs that share memory with an input or with each other."""
    outs, inputs = [], []
    for i, product in enumerate(operands):
        x, w, place = (f"a[{i}]", f"b[{i}]", f"[{i}]") if form == "list" else ("x", "w", "")
        outs.append((f"out{place}", product.out))
        inputs += [
            (x, product.x),
            (f"{x}.scales", product.x_scales),
            (f"{x}.global_scale", product.x_global),
            (w, product.w),
            (f"{w}.scales", product.w_scales),
            (f"{w}.global_scale", product.w_global),
            ("offs", product.offs),
            ("alpha", product.alpha),
            (f"row_scale{place}", product.row_scale),
            (f"bias{place}", product.bias),
        ]
    check_apart(outs, inputs)


def plan_of(
    operands: Sequence[Operands], form: Form, backend: str | None, batch_invariant: bool
) -> Plan:
    """The plan of a call, made and its metadata checked once for all that agree in metadata."""
    key = (form, backend, batch_invariant, env.forced())
    metadata = tuple(_metadata_of(product) for product in operands)
    capturing = operands[0].x.is_cuda and is_capturing()

    def plan_anew() -> Plan:
        for i, product in enumerate(operands):
            with renamed(_list_names(i) if form == "list" else {}):
                check_operands(product)
        problem = problem_of(operands, form, batch_invariant=batch_invariant, read_sizes=False)
        return choose(problem, backend)

    return _plans.get_or_make((key, metadata, capturing), plan_anew)


_plans: BoundedCache[Hashable, Plan] = BoundedCache(1024)

prepared_calls: BoundedCache[Hashable, PreparedCall] = BoundedCache(1024)
"""Kept by ``eager``; here, because whoever forgets plans forgets what was prepared by them."""


def forget_plans() -> None:
    """Lets every call plan anew: after a backend has changed its mind about what it can take."""
    _plans.clear()
    prepared_calls.clear()


def _run(
    operands: Sequence[Operands],
    form: Form,
    backend: str | None,
    batch_invariant: bool,
    validate: str,
) -> None:
    plan = plan_of(operands, form, backend, batch_invariant)
    check_contents(operands, form, validate)
    with torch.no_grad():
        registry.get(plan.backend).run(operands, plan)


def _metadata_of(product: Operands) -> Hashable:
    """All that checks and plans depend on: types, shapes and strides, never addresses, contents."""
    return tuple(
        (value.dtype, value.shape, value.stride(), value.device)
        if isinstance(value, Tensor)
        else value
        for value in vars(product).values()
    )


def _grouped_mm_out(*arguments: Any) -> None:
    *product, out, backend, batch_invariant, validate = arguments
    operands = [Operands.of(product, out)]
    _check_memory(operands, operands[0].form)
    _run(operands, operands[0].form, backend, batch_invariant, validate)
    mark_written(out)


def _grouped_mm(*arguments: Any) -> Tensor:
    *product, out_dtype, backend, batch_invariant, validate = arguments
    out = _new_out(product, out_dtype)
    operands = [Operands.of(product, out)]
    _run(operands, operands[0].form, backend, batch_invariant, validate)
    return out


def _new_out(product: Sequence[Any], out_dtype: torch.dtype) -> Tensor:
    x, w = product[0], product[5]
    result: Tensor = x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype)
    return result


def _fake_grouped_mm(*arguments: Any) -> Tensor:
    return _new_out(arguments[:-4], arguments[-4])


def _fake_nothing(*arguments: Any) -> None:
    return None


def list_operands(
    x: Sequence[Tensor],
    x_scales: Sequence[Tensor],
    x_scale_layout: Sequence[str],
    x_global: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scales: Sequence[Tensor],
    w_scale_layout: Sequence[str],
    w_global: Sequence[Tensor],
    alpha: Tensor | None,
    row_scale: Sequence[Tensor],
    bias: Sequence[Tensor],
    out: Sequence[Tensor],
) -> list[Operands]:
    """One Operands per product of the list form; absent lists are empty."""
    return [
        Operands(
            x=x[i],
            x_scales=x_scales[i] if x_scales else None,
            x_scale_layout=x_scale_layout[i] if x_scale_layout else "linear",
            x_scale_start="torch",
            x_global=x_global[i] if x_global else None,
            w=w[i][None],
            w_scales=w_scales[i][None],
            w_scale_layout=w_scale_layout[i],
            w_global=w_global[i],
            offs=None,
            max_m=0,
            alpha=None if alpha is None else alpha[i : i + 1],
            row_scale=row_scale[i] if row_scale else None,
            bias=bias[i] if bias else None,
            out=out[i],
        )
        for i in range(len(x))
    ]


def _grouped_mm_list_out(*arguments: Any) -> None:
    *lists, backend, batch_invariant, validate = arguments
    operands = list_operands(*lists)
    _check_memory(operands, "list")
    _run(operands, "list", backend, batch_invariant, validate)
    for product in operands:
        mark_written(product.out)


def _grouped_mm_grad_x(
    grad: Tensor,
    w: Tensor,
    w_scales: Tensor,
    w_scale_layout: str,
    w_global: Tensor,
    offs: Tensor | None,
    max_m: int,
    alpha: Tensor | None,
    row_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    layout = cast(ScaleLayout, w_scale_layout)
    weights = NVFP4Array._trusted(w, w_scales, w_global, layout, None)
    exact = input_gradient(grad, weights, offs, max_m=max_m, alpha=alpha, row_scale=row_scale)
    return exact.to(dtype)


def _fake_grad_x(grad: Tensor, w: Tensor, *rest: Any) -> Tensor:
    return grad.new_empty((grad.shape[0], 2 * w.shape[2]), dtype=rest[-1])


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x = inputs[0]
    w, w_scales, w_scale_layout, w_global, offs, max_m, alpha, row_scale = inputs[5:13]
    ctx.save_for_backward(w, w_scales, w_global, offs, alpha, row_scale)
    ctx.w_scale_layout, ctx.max_m, ctx.dtype = w_scale_layout, max_m, x.dtype
    ctx.arguments = len(inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    w, w_scales, w_global, offs, alpha, row_scale = ctx.saved_tensors
    grad_x = torch.ops.nibblas.grouped_mm_grad_x(
        grad,
        w,
        w_scales,
        ctx.w_scale_layout,
        w_global,
        offs,
        ctx.max_m,
        alpha,
        row_scale,
        ctx.dtype,
    )
    return (grad_x, *[None] * (ctx.arguments - 1))


def mark_written(out: Tensor) -> None:
    """Tells autograd, which does not see the backends write, that a saved output has changed."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


for _name, _kernel, _fake in (
    ("grouped_mm", _grouped_mm, _fake_grouped_mm),
    ("grouped_mm_out", _grouped_mm_out, _fake_nothing),
    ("grouped_mm_list_out", _grouped_mm_list_out, _fake_nothing),
    ("grouped_mm_grad_x", _grouped_mm_grad_x, _fake_grad_x),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"nibblas::{_name}", _fake, lib=_library)
torch.library.register_autograd(
    "nibblas::grouped_mm", _backward, setup_context=_save_for_backward, lib=_library
)
