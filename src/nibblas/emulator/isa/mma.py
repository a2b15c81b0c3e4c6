"""mma.sync: matrix multiply-accumulate of one warp. PTX ISA, "mma".

Floats add as dot.py says; integers are exact and wrap, or saturate with .satfinite; .f64 is a chain
of fma in the order of k. The .m8n8k4 shape of .f16, sparse and block-scaled forms are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator import floats
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.isa.build import Build, put
from nibblas.emulator.isa.fragments import Fragment, a_fragment, b_fragment, c_fragment
from nibblas.emulator.isa.registry import Family, Reference, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Operand, Vector

mma = Family("mma")

_MMA: Reference = {
    "section": "mma",
    "anchor": "warp-level-matrix-instructions-mma",
}


def shape_of(build: Build) -> tuple[int, int, int]:
    """(m, n, k) of ".m16n8k16"."""
    m, _, rest = build.get("shape")[1:].partition("n")
    n, _, k = rest.partition("k")
    return int(m), int(n), int(k)


def slots_of(
    build: Build, operand: int, kind: str, wanted: int, *, dest: bool = False
) -> list[int]:
    """Slots of a fragment's registers."""
    given = build.operands[operand]
    items: tuple[Operand, ...] = given.items if isinstance(given, Vector) else (given,)
    if len(items) != wanted:
        raise build.refusal(f"operand {operand} has {len(items)} registers; want {wanted}")
    return [build.dest(i, kind) if dest else build.source(i, kind) for i in items]


def gather(warp: Warp, slots: list[int], element: np.dtype[np.generic], index: Array) -> Array:
    """The elements of a fragment, in the shape of its index."""
    registers = warp.r
    width = registers[slots[0]].dtype
    joined = np.empty((len(slots), 32), width)
    for row, slot in enumerate(slots):
        joined[row] = registers[slot]
    elements: Array = joined.view(element).ravel()[index]
    return elements


def scatter(
    warp: Warp, slots: list[int], values: Array, index: Array, register: np.dtype[np.generic]
) -> None:
    """Puts a matrix, in the shape of its index, into a fragment's registers."""
    flat = np.empty(values.size, values.dtype)
    flat[index] = values
    for slot, row in zip(slots, flat.view(register).reshape(len(slots), 32), strict=True):
        put(warp, slot, row)


_Multiply = Callable[[Array, Array, Array], Array]


def matrix_step(
    build: Build,
    multiply: _Multiply,
    a_element: str,
    b_element: str,
    c_element: str,
    register: str = "b32",
) -> Step:
    """The step: gathers A [K, M], B [K, N] and C [N, M], multiplies, scatters D."""
    build.count(4)
    m, n, k = shape_of(build)
    bits = np.dtype(f"u{int(register[1:]) // 8}")
    elements = [np.dtype(e) for e in (a_element, b_element, c_element)]
    counts = [bits.itemsize // e.itemsize for e in elements]
    c_register = register if counts[2] >= 1 else f"b{8 * elements[2].itemsize}"
    c_bits = np.dtype(f"u{int(c_register[1:]) // 8}")
    a_layout: Fragment = a_fragment(m, k, counts[0])
    b_layout = b_fragment(n, k, counts[1])
    c_layout = c_fragment(m, n, max(1, counts[2]))
    d = slots_of(build, 0, c_register, c_layout.registers, dest=True)
    a = slots_of(build, 1, register, a_layout.registers)
    b = slots_of(build, 2, register, b_layout.registers)
    c = slots_of(build, 3, c_register, c_layout.registers)
    a_index, b_index, c_index = a_layout.index, b_layout.index, c_layout.index
    key = "tensor operations"

    def step(warp: Warp) -> None:
        result = multiply(
            gather(warp, a, elements[0], a_index),
            gather(warp, b, elements[1], b_index),
            gather(warp, c, elements[2], c_index),
        )
        scatter(warp, d, result, c_index, c_bits)
        warp.cta.machine.counts[key] += 1

    return step


@mma.instruction(
    "mma sync aligned shape:m16n8k8|m16n8k16 row col d:f32|f16 a:f16 b:f16 c:f32|f16",
    "mma sync aligned shape:m16n8k8|m16n8k16 row col d:f32 a:bf16 b:bf16 c:f32",
    "mma sync aligned shape:m16n8k4|m16n8k8 row col d:f32 a:tf32 b:tf32 c:f32",
    "mma sync aligned shape:m16n8k16|m16n8k32 row col d:f32|f16 a:e4m3|e5m2 b:e4m3|e5m2 c:f32|f16",
    **_MMA,
    converges=True,
)
def mma_float(build: Build) -> Step:
    a_kind, b_kind, d_kind = build.get("a"), build.get("b"), build.get("d")
    if d_kind != build.get("c"):
        raise build.refusal("C and D of different types are not modelled")
    half = d_kind == "f16"
    model = accumulation(build.arch, a_kind)
    element = {"tf32": "u4", "f16": "u2", "bf16": "u2"}.get(a_kind, "u1")

    def multiply(a: Array, b: Array, c: Array) -> Array:
        return multiply_add(expanded(a, a_kind), expanded(b, b_kind), c, model, half=half)

    return matrix_step(build, multiply, element, element, "f2" if half else "f4")


@mma.instruction(
    "mma sync aligned shape:m8n8k16|m16n8k16|m16n8k32 row col [satfinite] s32 a:u8|s8 b:u8|s8 s32",
    **_MMA,
    converges=True,
)
def mma_integer(build: Build) -> Step:
    saturates = build.has("satfinite")

    def multiply(a: Array, b: Array, c: Array) -> Array:
        total = b.astype(np.float64).T @ a.astype(np.float64) + c  # exact: far below 2^53
        if saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        wrapped: Array = total.astype(np.int64).astype(np.int32)
        return wrapped

    elements = ["i1" if build.get(name) == "s8" else "u1" for name in ("a", "b")]
    return matrix_step(build, multiply, elements[0], elements[1], "i4")


@mma.instruction(
    "mma sync aligned shape:m8n8k4|m16n8k4|m16n8k8|m16n8k16 row col [rnd:rn|rz|rm|rp] "
    "f64 f64 f64 f64",
    **_MMA,
    converges=True,
)
def mma_double(build: Build) -> Step:
    fma = floats.fma_double(build.get("rnd", "rn"))

    def multiply(a: Array, b: Array, c: Array) -> Array:
        n, m = c.shape
        total = c.ravel()
        for a_row, b_row in zip(a, b, strict=True):
            total = fma(np.tile(a_row, n), np.repeat(b_row, m), total)
        return total.reshape(n, m)

    return matrix_step(build, multiply, "f8", "f8", "f8", "b64")
