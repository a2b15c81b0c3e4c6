"""The tensors of one problem, in the layouts and strides of its spec.

Whatever a result must not depend on is NaN: scale padding, gaps between rows, token rows past
offs[-1] or past masked_m, the space around the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nibblas.check.guard import GuardedOut, guarded_out, spread
from nibblas.check.problems import ProblemSpec
from nibblas.check.values import GroupNumbers, group_numbers
from nibblas.formats import e2m1, e4m3, scale_layout
from nibblas.formats.nvfp4 import NVFP4Array


@dataclass(frozen=True)
class Case:
    """One problem, ready to be called once: outputs are poisoned, inputs can be compared."""

    spec: ProblemSpec
    numbers: tuple[GroupNumbers, ...]
    x: Any
    """Tensor or NVFP4Array; a list of them in the list form."""
    w: Any
    offs: Tensor | None
    """int32 (G,): cumulative ends (packed) or rows in use (masked)."""
    keywords: dict[str, Any]
    """alpha, row_scale, bias, out, out_dtype, batch_invariant, validate, as the spec has them."""
    outs: tuple[GuardedOut, ...]
    """Empty when the call allocates its output."""

    def input_bits(self) -> list[Tensor]:
        """Every input tensor as bytes, over its whole storage (gaps and guards included)."""
        return [_storage_bytes(tensor) for tensor in self._inputs()]

    def _inputs(self) -> list[Tensor]:
        found: list[Tensor] = []
        stack: list[Any] = [self.x, self.w, self.offs]
        stack += [self.keywords.get(name) for name in ("alpha", "row_scale", "bias")]
        while stack:
            item = stack.pop()
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, NVFP4Array):
                stack += [item.codes, item.scales, item.global_scale]
            elif isinstance(item, (list, tuple)):
                stack += item
        return found


def build(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...] | None = None) -> Case:
    """The tensors of ``spec``; ``numbers`` may be given where they have been drawn already."""
    numbers = group_numbers(spec) if numbers is None else numbers
    place = {"packed": _packed, "masked": _masked, "list": _listed}[spec.form]
    return place(spec, numbers)


def moved(case: Case, device: str) -> Case:
    """A copy of the case on a device: whole storages, so that strides, gaps and guards stay."""
    storages: dict[int, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage().data_ptr()
        data = storages.get(key)
        if data is None:
            data = storages[key] = _storage_bytes(tensor).to(device, copy=True)
        elements = data.view(tensor.dtype)
        return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    parts = (case.x, case.w, case.offs, case.keywords)
    x, w, offs, keywords = pytree.tree_map_only(Tensor, move, parts)
    outs = tuple(
        replace(out, tensor=move(out.tensor), bits=move(out.bits), inside=move(out.inside))
        for out in case.outs
    )
    return Case(case.spec, case.numbers, x, w, offs, keywords, outs)


def group_starts(spec: ProblemSpec) -> list[int]:
    """First row of every group in the packed or (flattened) masked output."""
    if spec.form == "masked":
        max_m = max(spec.rows) + spec.spare_rows
        return [group * max_m for group in range(spec.groups)]
    return [sum(spec.rows[:group]) for group in range(spec.groups)]


def _packed(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> Case:
    offs = torch.tensor(spec.rows).cumsum(0).to(torch.int32)
    tokens = _with_spare(torch.cat([group.x for group in numbers]), spec.spare_rows)
    x: Any = _rows(spec, tokens)
    if spec.precision == "w4a4":
        token_scales = torch.cat([_scales_of(group) for group in numbers])
        token_scales = _with_spare(token_scales, spec.spare_rows)
        x = _packed_array(spec, tokens, token_scales, offs, _x_global(spec, numbers))
    rows = sum(spec.rows) + spec.spare_rows
    outs = _outs(spec, [(rows, spec.n[0])])
    keywords = _keywords(spec, numbers)
    scales = [group.row_scale for group in numbers if group.row_scale is not None]
    if scales:
        keywords["row_scale"] = _with_spare(torch.cat(scales), spec.spare_rows)
    if outs:
        keywords["out"] = outs[0].tensor
    return Case(spec, numbers, x, _stack_weights(spec, numbers), offs, keywords, outs)


def _packed_array(
    spec: ProblemSpec, codes: Tensor, scales: Tensor, offs: Tensor, global_scale: Tensor | None
) -> NVFP4Array:
    packed = _rows(spec, e2m1.pack(codes))
    if spec.x_layout == "linear":
        return NVFP4Array(packed, _rows(spec, scales), global_scale=global_scale)
    start: Any = spec.x_start
    blocked = scale_layout.to_blocked_by_group(scales, offs, rule=start, fill_byte=e4m3.NAN_BYTE)
    return NVFP4Array(
        packed, blocked, global_scale=global_scale, scale_layout="blocked", group_start=start
    )


def _masked(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> Case:
    max_m = max(spec.rows) + spec.spare_rows
    used = torch.tensor(spec.rows, dtype=torch.int32)
    x: Any = _padded(max_m, [group.x for group in numbers])
    if spec.precision == "w4a4":
        x = _array(
            e2m1.pack(x),
            _padded(max_m, [_scales_of(group) for group in numbers]),
            layout=spec.x_layout,
            global_scale=_x_global(spec, numbers),
        )
    outs = _outs(spec, [(spec.groups * max_m, spec.n[0])])
    keywords = _keywords(spec, numbers)
    scales = [group.row_scale for group in numbers if group.row_scale is not None]
    if scales:
        keywords["row_scale"] = _padded(max_m, scales)
    if outs:
        keywords["out"] = outs[0].tensor.unflatten(0, (spec.groups, max_m))
    return Case(spec, numbers, x, _stack_weights(spec, numbers), used, keywords, outs)


def _listed(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> Case:
    outs = _outs(spec, [(m, spec.group_n(g)) for g, m in enumerate(spec.rows)])
    keywords = _keywords(spec, numbers)
    if spec.row_scale:
        keywords["row_scale"] = [group.row_scale for group in numbers]
    if outs:
        keywords["out"] = [out.tensor for out in outs]
    x = [_listed_tokens(spec, group) for group in numbers]
    w = [_listed_weights(spec, group) for group in numbers]
    return Case(spec, numbers, x, w, None, keywords, outs)


def _listed_tokens(spec: ProblemSpec, group: GroupNumbers) -> Tensor | NVFP4Array:
    if group.x_scales is None:
        return _rows(spec, group.x)
    return _array(
        _rows(spec, e2m1.pack(group.x)),
        _linear_or_raw(spec, group.x_scales, spec.x_layout),
        layout=spec.x_layout,
        global_scale=group.x_global,
    )


def _listed_weights(spec: ProblemSpec, group: GroupNumbers) -> NVFP4Array:
    return _array(
        _rows(spec, e2m1.pack(group.w_codes)),
        _linear_or_raw(spec, group.w_scales, spec.w_layout),
        layout=spec.w_layout,
        global_scale=None if group.w_global is None else group.w_global[None, :],
    )


def _stack_weights(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> NVFP4Array:
    scales = torch.stack([group.w_scales for group in numbers])
    return _array(
        _rows(spec, e2m1.pack(torch.stack([group.w_codes for group in numbers]))),
        _linear_or_raw(spec, scales, spec.w_layout),
        layout=spec.w_layout,
        global_scale=_w_global(spec, numbers),
    )


def _linear_or_raw(spec: ProblemSpec, scales: Tensor, layout: str) -> Tensor:
    """Linear scales with the spec's row strides; scales that will be blocked as they are."""
    return _rows(spec, scales) if layout == "linear" else scales


def _array(
    codes: Tensor, scales: Tensor, *, layout: str, global_scale: Tensor | None
) -> NVFP4Array:
    """A matrix or a stack: packed codes (..., rows, K/2), linear scales (..., rows, K/16)."""
    if layout == "linear":
        return NVFP4Array(codes, scales, global_scale=global_scale)
    blocked = scale_layout.to_blocked(scales, fill_byte=e4m3.NAN_BYTE)
    return NVFP4Array(codes, blocked, global_scale=global_scale, scale_layout="blocked")


def _w_global(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> Tensor | None:
    scales = [group.w_global for group in numbers if group.w_global is not None]
    if not scales:
        return None
    if spec.w_global == "tensor":
        return scales[0][0]
    stacked = torch.stack(scales)
    return stacked[:, 0] if spec.w_global == "group" else stacked


def _x_global(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> Tensor | None:
    scales = [group.x_global for group in numbers if group.x_global is not None]
    if not scales:
        return None
    return torch.stack(scales) if spec.x_global == "group" else scales[0]


def _scales_of(group: GroupNumbers) -> Tensor:
    assert group.x_scales is not None
    return group.x_scales


def _with_spare(rows: Tensor, count: int) -> Tensor:
    """``rows`` and ``count`` rows of NaN more (a float, or the E4M3 byte; code 0xF in codes)."""
    poison = float("nan") if rows.is_floating_point() else e4m3.NAN_BYTE
    spare = torch.full((count, *rows.shape[1:]), poison).to(rows.dtype)
    return torch.cat([rows, spare])


def _padded(rows: int, tensors: list[Tensor]) -> Tensor:
    """The tensors stacked, each with poison after its own rows up to ``rows``."""
    return torch.stack([_with_spare(tensor, rows - tensor.shape[0]) for tensor in tensors])


def _rows(spec: ProblemSpec, tensor: Tensor) -> Tensor:
    """``tensor`` as it is, or with gaps between its rows."""
    if not spec.strided_inputs:
        return tensor
    return spread(tensor, poison=float("nan") if tensor.is_floating_point() else e4m3.NAN_BYTE)


def _outs(spec: ProblemSpec, shapes: list[tuple[int, int]]) -> tuple[GuardedOut, ...]:
    if spec.out == "returned":
        return ()
    dtype = getattr(torch, spec.out_dtype)
    return tuple(guarded_out(*shape, dtype=dtype, strides=spec.out) for shape in shapes)


def _keywords(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...]) -> dict[str, Any]:
    """Keyword arguments that do not depend on the form."""
    keywords: dict[str, Any] = {"precision": spec.precision}
    keywords["batch_invariant"] = spec.batch_invariant
    keywords["validate"] = "strict" if spec.strict else "default"
    if spec.out == "returned":
        keywords["out_dtype"] = getattr(torch, spec.out_dtype)
    if spec.alpha:
        keywords["alpha"] = torch.stack([g.alpha for g in numbers if g.alpha is not None])
    biases = [group.bias for group in numbers if group.bias is not None]
    if biases and spec.form == "list":
        keywords["bias"] = biases
    elif biases:
        keywords["bias"] = torch.stack(biases) if spec.bias == "group" else biases[0]
    return keywords


def _storage_bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(storage)
