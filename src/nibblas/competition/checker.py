"""What the outputs must be, and how they are judged.

The reference decodes by a table of its own and by torch's float8 conversion, multiplies in float64
and rounds once to float16: it shares no code with the kernels. Two rules:

*public*: ``|got - want| <= 1e-3 + 1e-3 * |want|`` with ``want`` in float16, equal shapes, NaN and
infinities in the same places. Source: utils.py and reference.py of gpu-mode/reference-kernels,
problems/nvidia/nvfp4_group_gemm (which compares in float16; here the comparison is in float32).

*bound*: ``|got - exact| <= 2**-11 * |exact| + K * 2**-24 * sum_k |a_k * b_k| + 2**-25``: float32
accumulation in any order and one cast to float16. For data whose sums are not exact in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from nibblas.competition.task import TaskData
from nibblas.formats.reference import round_once
from nibblas.formats.scale_layout import BLOCK

Rule = Literal["public", "bound"]

ABSOLUTE_TOLERANCE = 1e-3
RELATIVE_TOLERANCE = 1e-3

_HALF_ULP = 2.0**-11
_FLOAT32_HALF_ULP = 2.0**-24
_HALF_SMALLEST_SUBNORMAL = 2.0**-25
_OVERFLOW = 65520.0
"""From here on a value rounds to infinity in float16."""
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SHOWN_ELEMENTS = 5


@dataclass(frozen=True)
class Expected:
    """The right outputs of one input, per group, and what each element may differ by."""

    rounded: tuple[Tensor, ...]
    """[m, n, 1] float16: the exact product rounded once."""
    centre: tuple[Tensor, ...]
    """[m, n] that an output is compared with: ``rounded`` (public) or the exact float64 product."""
    allowed: tuple[Tensor, ...]
    """[m, n] largest allowed difference from ``centre``."""
    rule: Rule


@dataclass(frozen=True)
class Verdict:
    """The judgement of one output list."""

    passed: bool
    bit_exact: bool
    """float16 outputs equal to the exact product rounded once (NaN equals NaN, +0 equals -0)."""
    largest_error: float
    """In units of the allowed difference: at most 1 where all elements are finite and pass."""
    messages: tuple[str, ...] = ()
    """Why not passed: group, count and first elements."""

    def __str__(self) -> str:
        if not self.passed:
            return "failed: " + "; ".join(self.messages)
        exactness = "bit-exact" if self.bit_exact else "not bit-exact"
        return f"passed, {exactness}, largest error {self.largest_error:.3g} of the allowed"


class WrongOutputError(RuntimeError):
    """A kernel returned outputs that do not pass; nothing was or will be timed.

    ``verdict`` says how, ``stage`` at which point of the run.
    """

    def __init__(self, case_name: str, stage: str, verdict: Verdict) -> None:
        super().__init__(f"{case_name}, {stage}: {verdict}")
        self.case_name = case_name
        self.stage = stage
        self.verdict = verdict


def reference(data: TaskData) -> list[Tensor]:
    """The exact products rounded once: a list of [m, n, 1] float16 on the codes' device.

    Reads the linear scales (``sfasfb_tensors``), never the reordered ones; ``data`` is not changed.
    """
    return [round_once(a @ b.T, torch.float16)[:, :, None] for a, b in _decoded_groups(data)]


def expected(data: TaskData, rule: Rule = "public") -> Expected:
    """The reference outputs of ``data`` with the allowed differences of ``rule``."""
    rounded, centre, allowed = [], [], []
    for a, b in _decoded_groups(data):
        exact = a @ b.T
        half = round_once(exact, torch.float16)
        rounded.append(half[:, :, None])
        if rule == "public":
            centre.append(half)
            allowed.append(ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * half.float().abs())
        else:
            centre.append(exact)
            allowed.append(_error_bound(exact, a, b))
    return Expected(tuple(rounded), tuple(centre), tuple(allowed), rule)


def compare(want: Expected, outputs: Sequence[Tensor]) -> Verdict:
    """Judge ``outputs``, a list of [m, n, 1] tensors in group order; never raises for bad ones."""
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(want.rounded):
        found = len(outputs) if isinstance(outputs, (list, tuple)) else type(outputs).__name__
        message = f"outputs: got {found}; want a list of {len(want.rounded)} tensors"
        return Verdict(False, False, float("inf"), (message,))
    verdicts = [_compare_group(want, index, output) for index, output in enumerate(outputs)]
    return Verdict(
        passed=all(verdict.passed for verdict in verdicts),
        bit_exact=all(verdict.bit_exact for verdict in verdicts),
        largest_error=max((verdict.largest_error for verdict in verdicts), default=0.0),
        messages=tuple(message for verdict in verdicts for message in verdict.messages),
    )


def check(data: TaskData, outputs: Sequence[Tensor], *, rule: Rule = "public") -> Verdict:
    """Judge the ``outputs`` of one call on ``data``.

    Example:
        >>> from nibblas.competition import TESTS, check, custom_kernel, generate_input
        >>> data = generate_input(**TESTS[0].generator_arguments())
        >>> check(data, custom_kernel(data)).bit_exact
        True
    """
    return compare(expected(data, rule), outputs)


def _decoded_groups(data: TaskData) -> Iterator[tuple[Tensor, Tensor]]:
    """Exactly decoded float64 (m, k) and (n, k) of every group, on the codes' device."""
    for (a, b, _), (sfa, sfb) in zip(data[0], data[1], strict=True):
        yield _decode(a, sfa), _decode(b, sfb)


def _decode(codes: Tensor, scales: Tensor) -> Tensor:
    """(rows, k) float64 of [rows, k/2, 1] codes and [rows, k/16, 1] scales."""
    packed = codes[:, :, 0].view(torch.uint8)
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float64, device=packed.device)
    table = torch.cat((magnitudes, -magnitudes))
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack((table[byte % 16], table[byte // 16]), dim=-1)
    block_scales = scales[:, :, 0].to(packed.device).to(torch.float32).to(torch.float64)
    values = functional.embedding(packed.int(), pairs)
    return values.view(*block_scales.shape, BLOCK).mul_(block_scales[:, :, None]).flatten(1)


def _error_bound(exact: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(m, n) float64 bound of the *bound* rule.

    A float64 sum is exact up to K = 1188 (products are multiples of 2**-20 and at most 2688**2)
    and off by at most K * 2**-53 of the magnitude beyond, far below the float32 term.
    """
    magnitude = a.abs() @ b.abs().T
    accumulation = a.shape[1] * _FLOAT32_HALF_ULP * magnitude
    return _HALF_ULP * exact.abs() + accumulation + _HALF_SMALLEST_SUBNORMAL


def _compare_group(want: Expected, index: int, output: Tensor) -> Verdict:
    rounded = want.rounded[index]
    if not isinstance(output, Tensor) or output.shape != rounded.shape:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        message = f"group {index}: got shape {found}; want {tuple(rounded.shape)}"
        return Verdict(False, False, float("inf"), (message,))
    if output.device != rounded.device:
        message = f"group {index}: got device {output.device}; want {rounded.device}"
        return Verdict(False, False, float("inf"), (message,))
    got = output[:, :, 0]
    difference = (got.to(torch.float64) - want.centre[index].to(torch.float64)).abs()
    wrong = _wrong_elements(want, index, got, difference)
    share = (difference / want.allowed[index]).nan_to_num(nan=0.0, posinf=0.0)
    equal = (output == rounded) | (output.isnan() & rounded.isnan())
    return Verdict(
        passed=not bool(wrong.any()),
        bit_exact=output.dtype == torch.float16 and bool(equal.all()),
        largest_error=float(share.max()) if share.numel() else 0.0,
        messages=_describe(index, wrong, got, want.centre[index]),
    )


def _wrong_elements(want: Expected, index: int, got: Tensor, difference: Tensor) -> Tensor:
    """(m, n) bool: elements beyond the allowed difference, or with a NaN or infinity misplaced."""
    centre, allowed = want.centre[index], want.allowed[index]
    nan_misplaced = got.isnan() != centre.isnan()
    if want.rule == "public":
        infinity_misplaced = (got.isposinf() != centre.isposinf()) | (
            got.isneginf() != centre.isneginf()
        )
        return (difference > allowed) | nan_misplaced | infinity_misplaced
    may_overflow = centre.abs() + allowed >= _OVERFLOW
    overflowed = got.isinf() & may_overflow & (got.sign() == centre.sign())
    return ((difference > allowed) & ~overflowed) | nan_misplaced


def _describe(index: int, wrong: Tensor, got: Tensor, centre: Tensor) -> tuple[str, ...]:
    positions = wrong.nonzero()
    if not len(positions):
        return ()
    shown = [
        f"[{row}, {column}] got {float(got[row, column]):.6g} want {float(centre[row, column]):.6g}"
        for row, column in positions[:_SHOWN_ELEMENTS].tolist()
    ]
    return (f"group {index}: {len(positions)} of {wrong.numel()} elements: {', '.join(shown)}",)
