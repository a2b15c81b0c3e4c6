"""tcgen05.mma: matrix multiply-accumulate into tensor memory. PTX ISA, "tcgen05.mma".

One thread issues it for a CTA, or for both CTAs of a pair; machine/tcgen05_operation.py carries it
out. Not modelled: .sp, .ws, .ashift, K = 96.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.bulk import by_lane
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.isa.tcgen05_memory import GROUP, check_architecture, group_of
from nibblas.emulator.machine.tcgen05_operation import Form, Multiplication, Operands
from nibblas.emulator.ptx.model import Address, Operand, Vector

if TYPE_CHECKING:
    from nibblas.emulator.machine.memory import Array
    from nibblas.emulator.machine.warp import Warp

tcgen05_mma = Family("tcgen05_mma")

_MMA: Reference = {
    "section": "tcgen05.mma",
    "anchor": "tcgen05-mma-instructions-mma",
}
_COLLECTOR = "[collector:" + "|".join(
    f"collector::a::{op}" for op in ("fill", "use", "lastuse", "discard")
) + "]"  # fmt: skip


@tcgen05_mma.instruction(
    f"tcgen05 mma {GROUP} kind:kind::f16|kind::tf32|kind::f8f6f4|kind::i8 {_COLLECTOR}",
    **_MMA,
)
def multiply(build: Build) -> Step:
    """``[d], a-desc | [a], b-desc, idesc {, disable-output-lane}, enable-d {, scale-input-d}``."""
    given = build.count(5, 6, 7)
    vector = build.operands[4]
    words = vector.items if isinstance(vector, Vector) else ()
    masked = int(isinstance(vector, Vector))
    shift = 0
    if given == 6 + masked:
        shift = build.integer(5 + masked)
    elif given != 5 + masked:
        raise build.refusal(f"got {given} operands; want {5 + masked} or {6 + masked}")
    form = _form(build, shift=shift)
    if masked and len(words) != 4 * form.group:
        raise build.refusal(f"disable-output-lane has {len(words)} words; want {4 * form.group}")
    if given == 6 + masked and (form.kind not in ("f16", "tf32") or not 0 <= shift <= 15):
        raise build.refusal("scale-input-d is 0 to 15, and for kind::f16 and kind::tf32 only")
    disabled = [_value(build, word, "b32") for word in words]
    return _step(build, form, enable=4 + masked, disabled=disabled)


@tcgen05_mma.instruction(
    f"tcgen05 mma {GROUP} kind:kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4 block_scale "
    f"[vector:scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32] {_COLLECTOR}",
    **_MMA,
)
def multiply_scaled(build: Build) -> Step:
    """``[d], a-desc | [a], b-desc, idesc, [scale-a], [scale-b], enable-d``."""
    build.count(7)
    kind, vector = build.get("kind").removeprefix("kind::"), build.get("vector")
    block = _BLOCKS.get((kind, vector), 0)
    if not block:
        raise build.refusal(f"kind::{kind} {f'with .{vector}' if vector else 'without a size'}")
    scales = [build.address(4), build.address(5)]
    return _step(build, _form(build, block=block), enable=6, scales=scales)


_BLOCKS = {
    **{("mxf8f6f4", vector): 32 for vector in ("", "scale_vec::1X", "block32")},
    **{("mxf4", vector): 32 for vector in ("", "scale_vec::2X", "block32")},
    **{("mxf4nvf4", vector): 32 for vector in ("scale_vec::2X", "block32")},
    **{("mxf4nvf4", vector): 16 for vector in ("scale_vec::4X", "block16")},
}
"""Values per scale. PTX ISA, "Valid combinations of scale_vectorsize with types and MMA-Kind"."""


def _form(build: Build, *, block: int = 0, shift: int = 0) -> Form:
    kind = build.get("kind").removeprefix("kind::")
    check_architecture(build)
    if kind == "i8":
        build.require_arch("kind::i8", "sm_100")
    collector = build.get("collector", "collector::a::discard").removeprefix("collector::a::")
    in_tensor_memory = isinstance(build.operands[1], Address)
    return Form(kind, group_of(build), block, in_tensor_memory, shift, collector, build.arch)


_Values = Callable[["Warp"], "Array"]
"""An operand's values by lane."""


def _value(build: Build, operand: int | Operand, kind: str) -> _Values:
    slot = build.source(operand, kind)
    return lambda warp: warp.r[slot]


def _step(
    build: Build,
    form: Form,
    *,
    enable: int,
    scales: Sequence[_Values] = (),
    disabled: Sequence[_Values] = (),
) -> Step:
    """Each active thread issues one operation.

    Args:
        enable: index of the operand enable-input-d. scales: addresses. disabled: words.
    """
    d, b, idesc = build.address(0), _value(build, 2, "b64"), _value(build, 3, "b32")
    a = build.address(1) if form.a_in_tensor_memory else _value(build, 1, "b64")
    enable_slot, negated = build.predicate(enable)
    instruction = build.instruction

    def one(warp: Warp, lane: int) -> None:
        operands = Operands(
            d=int(d(warp)[lane]),
            a=int(a(warp)[lane]),
            b=int(b(warp)[lane]),
            idesc=int(idesc(warp)[lane]),
            scales=tuple(int(values(warp)[lane]) for values in scales),
            accumulates=bool(warp.r[enable_slot][lane]) != negated,
            disabled=tuple(int(values(warp)[lane]) for values in disabled),
        )
        site = warp.site(instruction, 1 << lane)
        Multiplication(warp.cta, form, operands).issue(warp, lane, site)

    return by_lane(one)
