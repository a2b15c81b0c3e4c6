"""One problem on one target, judged.

A run is right when every output lies within the stated bound of the float64 oracle, non-finite
values stand exactly where the inputs put them, and no byte changed that the call does not own.

Tensors are made on the CPU and copied to the target's device, where guards and inputs are looked at
again; outputs come back to the CPU, where the oracle is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nibblas.api import grouped_mm, grouped_mm_list, grouped_mm_masked
from nibblas.check.problems import ProblemSpec
from nibblas.check.targets import Target, forced, one_thread
from nibblas.check.tensors import Case, build, group_starts, moved
from nibblas.check.values import GroupNumbers, group_numbers, last_row
from nibblas.errors import UnsupportedProblemError
from nibblas.formats import e2m1
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound


@dataclass(frozen=True)
class Verdict:
    """What one run showed."""

    spec: ProblemSpec
    target: Target
    worst: float
    """Largest |out - exact| / bound over all finite outputs; 0 when there are none."""
    violations: tuple[str, ...]
    refused: str | None = None
    """Why the backend does not take the problem; it then wrote nothing."""

    @property
    def passed(self) -> bool:
        return not self.violations


@dataclass(frozen=True)
class Truth:
    """A spec's numbers and what each group of them must give; shared by all targets."""

    spec: ProblemSpec
    numbers: tuple[GroupNumbers, ...]
    exact: tuple[Exact, ...]


def truth_of(spec: ProblemSpec, numbers: tuple[GroupNumbers, ...] | None = None) -> Truth:
    """The float64 result of every group; the numbers are drawn from ``spec`` unless given."""
    with one_thread():
        numbers = group_numbers(spec) if numbers is None else numbers
        return Truth(spec, numbers, tuple(_exact_group(group) for group in numbers))


def judge(known: Truth, target: Target) -> Verdict:
    """Runs a problem on a target and compares.

    The problems of a bit-exact check (``spec.check`` is set) must give the exact value, rounded
    once to the output type; all others must lie within the bound.
    """
    spec = known.spec
    with one_thread():
        case = build(spec, known.numbers)
    alone = None
    try:
        case = _placed(case, target)
        before = [bits.clone() for bits in case.input_bits()]
        with forced(target):
            returned = call(case, target.backend)
            if spec.batch_invariant:
                alone = _largest_group_alone(known, target)
        _wait_for(target)
    except UnsupportedProblemError as error:
        reasons = error.reasons.get(target.backend, [str(error)])
        return Verdict(spec, target, 0.0, _foreign_writes(case, wrote=False), "; ".join(reasons))
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
        return Verdict(spec, target, 0.0, (f"raised {type(error).__name__}: {error}",))
    with one_thread():
        outs = [out.cpu() for out in group_outputs(spec, returned)]
        worst, wrong = _compare_groups(known, outs)
        found = [*_foreign_writes(case, wrote=True), *_changed_inputs(case, before)]
    found += _not_given_out(case, returned)
    if alone is not None and not _same_bits(alone, outs[_largest_group(spec)][-1]):
        found.append(f"group {_largest_group(spec)}: its last row alone gives other bits")
    return Verdict(spec, target, worst, (*found, *wrong))


def call(case: Case, backend: str) -> list[Tensor]:
    """Calls the public function of the case's form; its outputs, one (packed, masked) or many."""
    keywords = {**case.keywords, "backend": backend}
    if case.offs is None:
        return grouped_mm_list(case.x, case.w, **keywords)
    if case.spec.form == "masked":
        return [grouped_mm_masked(case.x, case.w, case.offs, **keywords)]
    return [grouped_mm(case.x, case.w, case.offs, **keywords)]


def _placed(case: Case, target: Target) -> Case:
    return case if target.device == "cpu" else moved(case, target.device)


def _wait_for(target: Target) -> None:
    """Raises here what a kernel did wrong: a device runs behind the host."""
    if torch.device(target.device).type == "cuda":
        torch.cuda.synchronize(target.device)


def _exact_group(group: GroupNumbers) -> Exact:
    """The oracle on one group, from plain linear arrays."""
    weights = _linear(group.w_codes, group.w_scales, group.w_global)
    x: Any = group.x
    if group.x_scales is not None:
        x = NVFP4Array(e2m1.pack(group.x), group.x_scales, global_scale=group.x_global)
    stacked = NVFP4Array(
        weights.codes[None],
        weights.scales[None],
        global_scale=None if group.w_global is None else group.w_global[None],
    )
    return grouped_mm_reference(
        x,
        stacked,
        None,
        alpha=None if group.alpha is None else group.alpha[None],
        row_scale=group.row_scale,
        bias=group.bias,
    )


def _linear(codes: Tensor, scales: Tensor, global_scale: Tensor | None) -> NVFP4Array:
    scale = None if global_scale is None else global_scale[None]
    return NVFP4Array(e2m1.pack(codes), scales, global_scale=scale)


def group_outputs(spec: ProblemSpec, returned: Sequence[Tensor]) -> list[Tensor]:
    """The rows (m, N) of every group, from whatever the form returned."""
    if spec.form == "list":
        return list(returned)
    flat = returned[0].flatten(0, -2) if spec.form == "masked" else returned[0]
    starts = group_starts(spec)
    return [flat[start : start + m] for start, m in zip(starts, spec.rows, strict=True)]


def _compare(out: Tensor, exact: Exact, spec: ProblemSpec) -> tuple[float, list[str]]:
    """Largest error/bound of one group's rows, and what is wrong with them."""
    dtype = getattr(torch, spec.out_dtype)
    if out.dtype != dtype or out.shape != exact.value.shape:
        wanted = f"{tuple(exact.value.shape)} {dtype}"
        return 0.0, [f"returned {tuple(out.shape)} {out.dtype}, want {wanted}"]
    if spec.check:
        rounded = exact.value.float().to(dtype)
        bound = torch.zeros_like(exact.value)
        right = _same(out, rounded)
    else:
        bound = error_bound(exact, dtype)
        right = within_bound(out, exact, bound)
        special = ~exact.value.isfinite()
        right = torch.where(special, _same(out.double(), exact.value), right)
    faults = [] if bool(right.all()) else [_first_fault(out, exact, bound, right)]
    return _worst_ratio(out, exact, bound), faults


def _compare_groups(known: Truth, outs: Sequence[Tensor]) -> tuple[float, list[str]]:
    """Largest error/bound of all groups, and what is wrong, each with its group."""
    worst = 0.0
    found: list[str] = []
    for group, out in enumerate(outs):
        ratio, faults = _compare(out, known.exact[group], known.spec)
        worst = max(worst, ratio)
        found += [f"group {group}: {fault}" for fault in faults]
    return worst, found


def _same(got: Tensor, want: Tensor) -> Tensor:
    return (got == want) | (got.isnan() & want.isnan())


def _worst_ratio(out: Tensor, exact: Exact, bound: Tensor) -> float:
    judged = out.isfinite() & exact.value.isfinite() & bound.isfinite() & (bound > 0)
    errors = ((out.double() - exact.value).abs() / bound)[judged]
    return float(errors.max()) if errors.numel() else 0.0


def _first_fault(out: Tensor, exact: Exact, bound: Tensor, right: Tensor) -> str:
    wrong = (~right).nonzero()
    row, column = wrong[0].tolist()
    return (
        f"{wrong.shape[0]} of {out.numel()} outputs wrong, first ({row}, {column}): "
        f"{float(out[row, column])!r}, exact {float(exact.value[row, column])!r}, "
        f"bound {float(bound[row, column]):.3g}"
    )


def _foreign_writes(case: Case, *, wrote: bool) -> tuple[str, ...]:
    """Writes outside the rows that belong to a group (to any row at all after a refusal)."""
    spec = case.spec
    faults = []
    for index, out in enumerate(case.outs):
        rows = torch.full((out.tensor.shape[0],), spec.form == "list" and wrote)
        if spec.form != "list" and wrote:
            for start, m in zip(group_starts(spec), spec.rows, strict=True):
                rows[start : start + m] = True
        count = out.foreign_writes(rows)
        if count:
            faults.append(f"out {index}: {count} elements written that belong to no group")
    return tuple(faults)


def _changed_inputs(case: Case, before: Sequence[Tensor]) -> list[str]:
    after = case.input_bits()
    changed = sum(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    return [f"{changed} input tensors changed"] if changed else []


def _not_given_out(case: Case, returned: Sequence[Tensor]) -> list[str]:
    """With out given, what is returned must be that memory."""
    if not case.outs:
        return []
    pairs = zip(case.outs, returned, strict=True)
    if all(given.tensor.data_ptr() == got.data_ptr() for given, got in pairs):
        return []
    return ["the tensor returned is not the out that was given"]


def _largest_group(spec: ProblemSpec) -> int:
    return max(range(spec.groups), key=lambda group: spec.rows[group])


def _largest_group_alone(known: Truth, target: Target) -> Tensor | None:
    """The last row of the largest group, (N,), run as a problem of its own; None without rows."""
    spec = known.spec
    group = _largest_group(spec)
    if not spec.rows[group]:
        return None
    n, k = (spec.group_n(group),), (spec.group_k(group),)
    alone = replace(spec, rows=(1,), n=n, k=k, spare_rows=0)
    case = _placed(build(alone, (last_row(known.numbers[group]),)), target)
    return group_outputs(alone, call(case, target.backend))[0][0].cpu()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two rows of one type agree bit for bit, any NaN with any NaN."""
    bits = torch.int32 if a.dtype == torch.float32 else torch.int16
    return bool(((a.view(bits) == b.view(bits)) | (a.isnan() & b.isnan())).all())
