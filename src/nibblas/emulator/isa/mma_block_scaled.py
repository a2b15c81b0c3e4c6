"""mma.sync of sm_120: block scaling, and floats of 4 and 6 bits. PTX ISA, "mma".

block_scaled.py says how they add. A scale of A's row g comes from lane 4 g + 2 thread-id-a, that of
row g + 8 from the lane after it; the scales of B's column g from lane 4 g + thread-id-b. A row's
scales lie in consecutive bytes of the register, from byte-id on. PTX ISA, "Block Scaling for
mma.sync"; CUTLASS, cute/atom/mma_traits_sm120.hpp (SFALayout, SFBLayout), for the rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.block_scaled import container_codes, multiply_add_fp4, multiply_add_scaled
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.fragments import a_fragment, b_fragment, c_fragment
from nibblas.emulator.isa.mma import gather, matrix_step, scatter, slots_of
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Vector

mma_block_scaled = Family("mma_block_scaled")

_MMA: Reference = {
    "section": "mma",
    "anchor": "warp-level-matrix-instructions-mma",
}
_NARROW = "e4m3|e5m2|e3m2|e2m3|e2m1"
_ROWS, _COLUMNS, _K_BYTES = 16, 8, 32


def _both_orders(kind: str, shape: str, types: str) -> tuple[str, str]:
    """The kind may stand before the shape, as CUTLASS writes it, or after the layouts."""
    return (
        f"mma sync aligned {kind} shape:{shape} row col {types}",
        f"mma sync aligned shape:{shape} row col {kind} {types}",
    )


@mma_block_scaled.instruction(
    *_both_orders(
        "kind::f8f6f4", "m16n8k32", f"d:f32|f16 a:{_NARROW} b:{_NARROW} c:f32|f16"
    ),
    **_MMA,
    converges=True,
)  # fmt: skip
def mma_narrow(build: Build) -> Step:
    build.require_arch("mma with .kind", "sm_120")
    a_kind, b_kind, d_kind = build.get("a"), build.get("b"), build.get("d")
    if d_kind != build.get("c"):
        raise build.refusal("C and D of different types are not modelled")
    half = d_kind == "f16"
    model = accumulation(build.arch, a_kind)

    def multiply(a: Array, b: Array, c: Array) -> Array:
        left = expanded(container_codes(a, a_kind), a_kind)
        right = expanded(container_codes(b, b_kind), b_kind)
        return multiply_add(left, right, c, model, half=half)

    return matrix_step(build, multiply, "u1", "u1", "f2" if half else "f4")


_Multiply = Callable[[Array, Array, Array, Array, Array], Array]


@mma_block_scaled.instruction(
    *_both_orders(
        "kind:kind::mxf4|kind::mxf4nvf4 block_scale [vector:scale_vec::2X|scale_vec::4X]",
        "m16n8k64",
        "f32 e2m1 e2m1 f32 scale:ue8m0|ue4m3",
    ),
    **_MMA,
    converges=True,
)
def mma_fp4(build: Build) -> Step:
    """``d, a, b, c, scale-a-data, {byte-id, thread-id}, scale-b-data, {byte-id, thread-id}``."""
    vector, scale = build.get("vector"), build.get("scale")
    if build.get("kind") == "kind::mxf4":
        if vector == "scale_vec::4X" or scale != "ue8m0":
            raise build.refusal("kind::mxf4 has .scale_vec::2X and .ue8m0")
    elif not vector:
        raise build.refusal("kind::mxf4nvf4 needs .scale_vec::2X or .scale_vec::4X")
    elif vector == "scale_vec::2X" and scale != "ue8m0":
        raise build.refusal("scales of .ue4m3 need .scale_vec::4X")

    def multiply(a: Array, b: Array, c: Array, sfa: Array, sfb: Array) -> Array:
        d: Array = multiply_add_fp4(a.T, b.T, c.T, sfa, sfb, scale).T
        return d

    return _scaled(build, multiply, 4 if vector == "scale_vec::4X" else 2)


@mma_block_scaled.instruction(
    *_both_orders(
        "kind::mxf8f6f4 block_scale [scale_vec::1X]",
        "m16n8k32",
        f"f32 a:{_NARROW} b:{_NARROW} f32 ue8m0",
    ),
    **_MMA,
    converges=True,
)
def mma_scaled(build: Build) -> Step:
    """Operands as for ``mma_fp4``."""
    a_kind, b_kind = build.get("a"), build.get("b")
    model = accumulation(build.arch, a_kind)

    def multiply(a: Array, b: Array, c: Array, sfa: Array, sfb: Array) -> Array:
        left = expanded(container_codes(a, a_kind), a_kind)
        right = expanded(container_codes(b, b_kind), b_kind)
        return multiply_add_scaled(left, right, c, sfa[:, 0], sfb[:, 0], model)

    return _scaled(build, multiply, 1)


def _scaled(build: Build, multiply: _Multiply, scales: int) -> Step:
    """The step of a block-scaled form.

    Args:
        multiply: (A [32, M], B [32, N], both bytes, C [N, M], scales of A [M, scales], of B) -> D.
        scales: of a row.
    """
    build.require_arch("mma with .kind", "sm_120")
    build.count(8)
    byte, single, bits = np.dtype("u1"), np.dtype("f4"), np.dtype("u4")
    a_layout = a_fragment(_ROWS, _K_BYTES, 4)
    b_layout = b_fragment(_COLUMNS, _K_BYTES, 4)
    c_layout = c_fragment(_ROWS, _COLUMNS, 1)
    d = slots_of(build, 0, "b32", c_layout.registers, dest=True)
    a, b, c = (
        slots_of(build, 1 + i, "b32", layout.registers)
        for i, layout in enumerate((a_layout, b_layout, c_layout))
    )
    data = [_scale_data(build, 4), _scale_data(build, 6)]
    selectors = [_selector(build, 5), _selector(build, 7)]

    def step(warp: Warp) -> None:
        sfa, sfb = (
            _scales(warp, slot, selector, scales, of_a=of_a)
            for slot, selector, of_a in zip(data, selectors, (True, False), strict=True)
        )
        result = multiply(
            gather(warp, a, byte, a_layout.index),
            gather(warp, b, byte, b_layout.index),
            gather(warp, c, single, c_layout.index),
            sfa,
            sfb,
        )
        scatter(warp, d, result, c_layout.index, bits)
        warp.cta.machine.counts["tensor operations"] += 1

    return step


def _selector(build: Build, operand: int) -> tuple[int, int]:
    """Slots of ``{byte-id, thread-id}``."""
    given = build.operands[operand]
    if not isinstance(given, Vector) or len(given.items) != 2:
        raise build.refusal(f"operand {operand} must be {{byte-id, thread-id}}")
    first, second = given.items
    return build.source(first, "b16"), build.source(second, "b16")


def _scale_data(build: Build, operand: int) -> int:
    """The register of scales, which CUTLASS puts between braces."""
    given = build.operands[operand]
    if isinstance(given, Vector) and len(given.items) == 1:
        given = given.items[0]
    return build.source(given, "b32")


def _scales(
    warp: Warp, slot: int, selector: tuple[int, int], scales: int, *, of_a: bool
) -> Array:  # fmt: skip
    """Of all rows of an operand. uint8 [rows, scales]

    Raises:
        IllegalOperation: a selector that the PTX ISA does not allow, or one per lane.
    """
    name = "a" if of_a else "b"
    found = []
    for which, what, allowed in (
        (0, f"byte-id-{name}", range(0, 4, scales)),
        (1, f"thread-id-{name}", range(2 if of_a else 4)),
    ):
        values = warp.r[selector[which]]
        value = int(values[0])
        if (values != value).any():
            raise IllegalOperation(f"{what} differs between the lanes of a warp")
        if value not in allowed:
            raise IllegalOperation(
                f'{what} is {value}; want one of {list(allowed)} (PTX ISA, "Block Scaling for '
                'mma.sync", valid values for selector components)'
            )
        found.append(value)
    byte, thread = found
    groups = 4 * np.arange(8)
    lanes = np.concatenate([groups + 2 * thread, groups + 2 * thread + 1]) if of_a else (
        groups + thread
    )  # fmt: skip
    words: Array = np.ascontiguousarray(warp.r[slot]).view(np.uint8).reshape(32, 4)
    return words[lanes, byte : byte + scales]
