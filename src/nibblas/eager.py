"""The short way of a plain eager call that has been made before with the same metadata.

A call's key is all that checks and plans depend on: types, shapes, strides and devices of its
tensors as they are now, options, forced backend and level, and the alignment of what kernels read
in vectors; never an identity or an address. A key that is known means that an equal call has passed
every check, so its prepared form runs at the new addresses. Whatever is not plain, and whatever is
new, takes the long way through the checks and the torch operator: there is one behaviour.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.utils._device import DeviceContext

from nibblas import env, ops
from nibblas.backends import registry
from nibblas.backends.base import Operands, is_capturing
from nibblas.backends.prepared import PreparedCall
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.runtime.bounded import BoundedCache

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})

try:
    _dispatch_modes = torch._C._len_torch_dispatch_stack
    _function_modes = torch._C._len_torch_function_stack
    _function_mode = torch._C._get_function_stack_at
    _transform = torch._C._functorch.peek_interpreter_stack
    _profiling = torch._C._autograd._profiler_enabled
    _jit_trace = torch._C._get_tracing_state
    _can_tell = hasattr(forward_ad, "_current_level")
except AttributeError:  # a torch in which they are elsewhere: every call takes the long way
    _can_tell = False


class _NotPlainError(Exception):
    """A tensor is more than its metadata and its memory."""


#: What reading a call may raise: the long way says what is wrong, if anything is.
_NOT_PLAIN = (_NotPlainError, AttributeError, RuntimeError, TypeError)


Call = tuple[Any, ...]
"""form ("packed" or "masked"), x, w, offs, out, alpha, row_scale, bias, (out_dtype, backend,
precision, batch_invariant, validate): what a user gave, unchecked."""


def run(call: Call) -> Tensor | None:
    """Runs a call if an equal one has been kept; None: take the long way, nothing has been done."""
    if _is_watched():
        return None
    if not _function_modes():
        return _run(call)
    if not _sets_default_device_only():
        return None
    with torch._C.DisableTorchFunction():  # else it looks at every attribute that is read
        return _run(call)


def keep(call: Call, product: Sequence[Any], out: Tensor) -> None:
    """Prepares the next calls like this one, which has passed every check and has been run.

    Args:
        product: the operators' product arguments. out: what they were computed into, of their rank.
    """
    if _is_watched() or (out.is_cuda and is_capturing()):
        return
    with torch._C.DisableTorchFunction():
        try:
            key, _ = _describe(call)
            if not _is_as_pinned(call[2]):
                return
        except _NOT_PLAIN:
            return
        operands = Operands.of(product, out)
        _, backend, _, batch_invariant, _ = call[-1]
        plan = ops.plan_of([operands], operands.form, backend, bool(batch_invariant))
        run_at = registry.get(plan.backend).prepare(operands, plan)
        if run_at is not None:
            ops.prepared_calls.put(key, PreparedCall(operands, run_at))


def _is_watched() -> bool:
    """Whether something traces, transforms or counts operators, so that it must see this one."""
    return (
        torch.compiler.is_compiling()
        or not _can_tell
        or _dispatch_modes() > 0
        or _transform() is not None
        or _jit_trace() is not None
        or _profiling()
        or forward_ad._current_level >= 0
    )


def _sets_default_device_only() -> bool:
    """Whether function modes do no more than torch.set_default_device, which only makes tensors."""
    return all(type(_function_mode(i)) is DeviceContext for i in range(_function_modes()))


def _run(call: Call) -> Tensor | None:
    try:
        key, addresses = _describe(call)
        prepared = ops.prepared_calls.get(key)
    except _NOT_PLAIN:
        return None
    if prepared is None:
        return None
    out: Tensor | None = call[4]
    if out is None:
        return _run_into_new(prepared, call, addresses)
    if not prepared.run(addresses):
        return None
    if not out.is_inference():
        increment_version(out)
    return out


def _run_into_new(prepared: PreparedCall, call: Call, addresses: list[int]) -> Tensor | None:
    form, x = call[:2]
    rows = prepared.new_out(x.codes if type(x) is NVFP4Array else x)
    if not prepared.run([*addresses, rows.data_ptr()]):
        return None
    return rows if form == "packed" else rows.unflatten(0, x.shape[:2])


def _describe(call: Call) -> tuple[Hashable, list[int]]:
    """A call's key, and the addresses of its tensors in the order of ``Operands.tensors``.

    Written out, x, offs and out tensor by tensor: it is most of what a warm call costs.

    Raises:
        One of _NOT_PLAIN: not a plain call, or not one at all.
    """
    form, x, w, offs, out, alpha, row_scale, bias, options = call
    if type(w) is not NVFP4Array or type(offs) not in _PLAIN_TYPES or options[-1] != "default":
        raise _NotPlainError
    weights: _Weights = w._pinned or _pin(w)
    if w.global_scale.requires_grad and torch.is_grad_enabled():
        raise _NotPlainError
    codes_at, scales_at = weights.codes.data_ptr(), weights.scales.data_ptr()
    quantized: Hashable = None
    if type(x) is NVFP4Array:
        x_scales, x_global = x.scales, x.global_scale
        quantized = (_facts(x_scales), _factor(x_global), x.scale_layout, x.group_start)
        x = x.codes
    if type(x) not in _PLAIN_TYPES or (x.requires_grad and torch.is_grad_enabled()):
        raise _NotPlainError
    x_at = x_scales_at = x.data_ptr()
    addresses = [x_at]
    if quantized is not None:
        x_scales_at = x_scales.data_ptr()
        addresses += (x_scales_at, x_global.data_ptr())
    addresses += (codes_at, scales_at, weights.global_scale.data_ptr(), offs.data_ptr())
    factors: Hashable = None
    if alpha is not None or row_scale is not None or bias is not None:
        given = (alpha, row_scale, bias)
        factors = tuple(None if factor is None else _factor(factor) for factor in given)
        addresses += [factor.data_ptr() for factor in given if factor is not None]
    target: Hashable = None
    if out is not None:
        if type(out) not in _PLAIN_TYPES or out.requires_grad or out.is_neg():
            raise _NotPlainError
        target = (out.dtype, out.shape, out.stride(), out.device)
        addresses.append(out.data_ptr())
    key = (
        form,
        x.dtype,
        x.shape,
        x.stride(),
        x.device,
        quantized,
        weights.metadata,
        offs.dtype,
        offs.shape,
        offs.stride(),
        offs.device,
        factors,
        target,
        options,
        env.forced(),
        (x_at | x_scales_at | codes_at | scales_at) & 15
        and (x_at & 15, x_scales_at & 15, codes_at & 15, scales_at & 15),
    )
    return key, addresses


def _facts(tensor: Any) -> Hashable:
    """What a key holds of one tensor, which must be plain."""
    if type(tensor) not in _PLAIN_TYPES:
        raise _NotPlainError
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _factor(tensor: Any) -> Hashable:
    """The same of a float32 or 16-bit factor or bias, whose values must be what memory holds.

    Tokens need no such look: torch negates lazily where it takes the imaginary part of a
    conjugate, and then no two values lie side by side.
    """
    if tensor.is_neg() or (tensor.requires_grad and torch.is_grad_enabled()):
        raise _NotPlainError
    return _facts(tensor)


class _Metadata:
    """Stands for an array's metadata: arrays that agree share one, which a key compares at once."""

    __slots__ = ("facts",)

    def __init__(self, facts: Hashable) -> None:
        self.facts = facts


class _Weights(NamedTuple):
    """An array's tensors under names of our own, so that nobody else can change their metadata."""

    metadata: _Metadata
    codes: Tensor
    scales: Tensor
    global_scale: Tensor


_metadata: BoundedCache[Hashable, _Metadata] = BoundedCache(1024)


def _array_facts(w: NVFP4Array) -> Hashable:
    parts = (_facts(w.codes), _facts(w.scales), _factor(w.global_scale))
    return (*parts, w.scale_layout, w.group_start)


def _pin(w: NVFP4Array) -> _Weights:
    """Takes an array's tensors as they are now, once for all products with it."""
    facts = _array_facts(w)
    metadata = _metadata.get_or_make(facts, lambda: _Metadata(facts))
    weights = _Weights(metadata, w.codes.detach(), w.scales.detach(), w.global_scale.detach())
    w._pin(weights)
    return weights


def _is_as_pinned(w: NVFP4Array) -> bool:
    """Whether an array is what was pinned; if someone has changed it in place, pins it anew."""
    same = w._pinned.metadata.facts == _array_facts(w)
    if not same:
        _pin(w)
    return bool(same)
