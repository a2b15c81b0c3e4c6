"""Checkpoint tensors, as they are stored, to ``NVFP4Array``.

Both formats store codes with even k in the low nibble and linear E4M3 scales. They differ in the
direction of the global scale, which is why there is a function for each:

=====================  =====================  ============================
\\                      ModelOpt               compressed-tensors
=====================  =====================  ============================
codes                  ``weight``             ``weight_packed``
block scales           ``weight_scale``       ``weight_scale``
global scale           ``weight_scale_2``     ``weight_global_scale``
which is               amax / 2688            2688 / amax
and                    multiplies             divides
=====================  =====================  ============================

Each argument is, all three alike,

- a tensor of one weight, ``(N, K/2)``, or of a stack, ``(G, N, K/2)``: used in place, no copy;
- or a sequence over experts, each a tensor ``(N, K/2)``, or a tuple of projections such as
  ``(gate, up)``, all of one shape, which are joined along N in the order given: copied into one
  stack ``(G, P * N, K)``. The projections keep their own global scales, ``(G, P)``: in real
  checkpoints gate and up differ by up to ten times.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.experts import Part, WeightParts, stack_experts, weight_in_place
from nibblas.formats.nvfp4 import NVFP4Array

PerExpert = Sequence[Tensor | Sequence[Tensor]]
"""Per expert, a tensor or its projections."""
GlobalPerExpert = Sequence[Tensor | float | Sequence[Tensor | float]]


def from_modelopt(
    weight: Tensor | PerExpert,
    weight_scale: Tensor | PerExpert,
    weight_scale_2: Tensor | float | GlobalPerExpert,
) -> NVFP4Array:
    """Weights of NVIDIA Model Optimizer's NVFP4 checkpoints; the argument forms are above.

    Args:
        weight: uint8 ``(N, K/2)`` or ``(G, N, K/2)``, or a sequence over experts.
        weight_scale: float8_e4m3fn ``(N, K/16)`` or ``(G, N, K/16)``, or as ``weight``.
        weight_scale_2: multiplies. Float32: for a stack ``()``, ``(G,)`` or ``(G, S)`` (one for
            each of S equal segments of the rows), for one weight ``()`` or ``(1, S)``; in a
            sequence one number for each tensor of ``weight``.

    Raises:
        TypeError, ValueError: naming the argument and, in a sequence, the item. Contents are
            checked: no NaN or negative block scales, global scales finite and positive. That
            reads device tensors on the host.

    Example:
        >>> w = from_modelopt([(gate0, up0), (gate1, up1)], scales, scales_2)  # doctest: +SKIP
    """
    return _from_tensors(
        ("weight", weight),
        ("weight_scale", weight_scale),
        ("weight_scale_2", weight_scale_2),
        divides=False,
    )


def from_compressed_tensors(
    weight_packed: Tensor | PerExpert,
    weight_scale: Tensor | PerExpert,
    weight_global_scale: Tensor | float | GlobalPerExpert,
) -> NVFP4Array:
    """Weights of compressed-tensors' ``nvfp4-pack-quantized`` checkpoints (llm-compressor).

    Args:
        weight_packed: uint8 ``(N, K/2)`` or ``(G, N, K/2)``, or a sequence over experts.
        weight_scale: float8_e4m3fn ``(N, K/16)`` or ``(G, N, K/16)``, or as ``weight_packed``.
        weight_global_scale: divides; the forms are those of ``from_modelopt``'s
            ``weight_scale_2``. Its reciprocal, rounded to float32, is what the array holds.

    Raises:
        TypeError, ValueError: as ``from_modelopt``.
    """
    return _from_tensors(
        ("weight_packed", weight_packed),
        ("weight_scale", weight_scale),
        ("weight_global_scale", weight_global_scale),
        divides=True,
    )


def _from_tensors(
    codes: tuple[str, object],
    scales: tuple[str, object],
    global_scale: tuple[str, object],
    *,
    divides: bool,
) -> NVFP4Array:
    if isinstance(codes[1], Tensor):
        parts = WeightParts(Part(*codes), Part(*scales), Part(*global_scale))
        return weight_in_place(parts, divides=divides)
    per_expert = [_parts(*argument) for argument in (codes, scales, global_scale)]
    _check_same_nesting([codes[0], scales[0], global_scale[0]], per_expert)
    experts = [
        [WeightParts(*projection) for projection in zip(*expert, strict=True)]
        for expert in zip(*per_expert, strict=True)
    ]
    return stack_experts(experts, groups=len(experts), divides=divides)


def _parts(name: str, value: object) -> list[list[Part]]:
    """Per expert, its projections, each named by its place in the argument."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise bad_type(
            name, given=type(value).__name__, wanted="a tensor, or a sequence over experts"
        )
    if not value:
        raise bad_value(name, given="no experts", wanted="at least one")
    experts = []
    for e, expert in enumerate(value):
        if isinstance(expert, Sequence) and not isinstance(expert, str):
            experts.append([Part(f"{name}[{e}][{p}]", item) for p, item in enumerate(expert)])
        else:
            experts.append([Part(f"{name}[{e}]", expert)])
    return experts


def _check_same_nesting(names: Sequence[str], arguments: Sequence[list[list[Part]]]) -> None:
    reference_name, reference = names[0], arguments[0]
    for name, experts in zip(names, arguments, strict=True):
        if len(experts) != len(reference):
            raise bad_value(
                name,
                given=f"{len(experts)} experts",
                wanted=f"{len(reference)}, as {reference_name}",
            )
        for e, (expert, wanted) in enumerate(zip(experts, reference, strict=True)):
            if len(expert) != len(wanted) or not expert:
                raise bad_value(
                    f"{name}[{e}]",
                    given=f"{len(expert)} projections",
                    wanted=f"{max(len(wanted), 1)}, as {reference_name}[{e}]",
                )
