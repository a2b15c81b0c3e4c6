"""wgmma: asynchronous matrix multiply-accumulate of a warpgroup. PTX ISA, "wgmma".

machine/warpgroup.py: operations in flight and registers. machine/matrix_descriptor.py: operands in
shared memory, which is read through the async proxy. dot.py: how floats add. Sparse and single-bit
forms are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.fragments import a_fragment
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.claims import check_readable, claim_read
from nibblas.emulator.machine.matrix_descriptor import K_BYTES, decode, offsets_of
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.machine.warpgroup import (
    WARPS,
    InFlight,
    Multiply,
    Part,
    wait_for_groups,
)
from nibblas.emulator.ptx.model import Imm, Operand, Reg, Vector

wgmma = Family("wgmma")

ROWS = 64
_WARP_ROWS = 16
_WHAT = "wgmma.mma_async"
_ELEMENT = {"f16": "u2", "bf16": "u2", "tf32": "u4", "e4m3": "u1", "e5m2": "u1"}
_ANCHOR = "asynchronous-warpgroup-level-matrix-instructions-wgmma-"


def _shapes(k: int) -> str:
    return "shape:" + "|".join(f"m64n{n}k{k}" for n in range(8, 257, 8))


@dataclass(frozen=True)
class _Kind:
    """An instruction's arithmetic and operands.

    Attributes:
        n: columns. element: numpy type of an element of A and B. half: results are .f16.
        product: (A [K, 64], B [K, N], C [N, 64]) -> D [N, 64].
        result: numpy type of C and D.
    """

    n: int
    element: np.dtype[Any]
    result: np.dtype[Any]
    product: Callable[[Array, Array, Array], Array]

    @property
    def registers(self) -> int:
        """Accumulator registers of a thread."""
        return self.n * self.result.itemsize // 8


@cache
def accumulator_index(n: int, per_register: int) -> Array:
    """Positions in [registers, 32 lanes, elements], flat, of a warp's D. [N, 16]

    PTX ISA, "Register Fragments for wgmma": element i of a lane is row lane / 4 + 8 (i / 2 % 2),
    column 8 (i / 4) + 2 (lane % 4) + i % 2.
    """
    registers = n // 2 // per_register
    r, lane, j = np.indices((registers, 32, per_register))
    i = (per_register * r + j).ravel()
    lane = lane.ravel()
    index = np.zeros((n, _WARP_ROWS), np.intp)
    column, row = 8 * (i // 4) + 2 * (lane % 4) + i % 2, lane // 4 + 8 * (i // 2 % 2)
    index[column, row] = np.arange(i.size)
    return index


@wgmma.instruction(
    f"wgmma mma_async sync aligned {_shapes(16)} d:f32|f16 a:f16 b:f16",
    f"wgmma mma_async sync aligned {_shapes(16)} d:f32 a:bf16 b:bf16",
    f"wgmma mma_async sync aligned {_shapes(8)} d:f32 a:tf32 b:tf32",
    f"wgmma mma_async sync aligned {_shapes(32)} d:f32|f16 a:e4m3|e5m2 b:e4m3|e5m2",
    section="wgmma.mma_async",
    anchor=_ANCHOR + "mma-async",
    converges=True,
)
def multiply_floats(build: Build) -> Step:
    """``d, a, b-desc, scale-d, imm-scale-a, imm-scale-b {, imm-trans-a} {, imm-trans-b}``."""
    a_kind, b_kind = build.get("a"), build.get("b")
    half = build.get("d") == "f16"
    transposable = a_kind in ("f16", "bf16")
    from_registers = isinstance(build.operands[1], Vector)
    flags = (2 - from_registers) * transposable
    build.count(6 + flags)
    negate_a, negate_b = (_sign(build, index) for index in (4, 5))
    transposes = [build.integer(6 + i) for i in range(flags)]
    if any(t not in (0, 1) for t in transposes):
        raise build.refusal("a transpose that is neither 0 nor 1")
    model = accumulation(build.arch, a_kind, wgmma=True)

    def product(a: Array, b: Array, c: Array) -> Array:
        a2, b2 = expanded(a, a_kind), expanded(b, b_kind)
        if negate_a != negate_b:
            a2 = a2 * np.array([-1.0, 1.0])[:, None, None]
        return multiply_add(a2, b2, c, model, half=half)

    kind = _Kind(
        _columns(build), np.dtype(_ELEMENT[a_kind]), np.dtype("f2" if half else "f4"), product
    )
    return _multiply(
        build,
        kind,
        a_mn_major=bool(transposes[0]) if flags == 2 else False,
        b_mn_major=bool(transposes[-1]) if flags else False,
    )


@wgmma.instruction(
    f"wgmma mma_async sync aligned {_shapes(32)} [satfinite] s32 a:s8|u8 b:s8|u8",
    f"wgmma mma_async sync aligned {_shapes(32)} s32 a:s8|u8 b:s8|u8 satfinite",
    section="wgmma.mma_async",
    anchor=_ANCHOR + "mma-async",
    converges=True,
)
def multiply_integers(build: Build) -> Step:
    """``d, a, b-desc, scale-d``; exact, and wraps unless ``.satfinite``."""
    build.count(4)
    n = _columns(build)
    if n > 24 and n % 16:
        raise build.refusal("no such shape for integers")
    types = [np.dtype("i1" if build.get(name) == "s8" else "u1") for name in ("a", "b")]
    saturates = build.has("satfinite")

    def product(a: Array, b: Array, c: Array) -> Array:
        wide = [x.view(t).astype(np.float64) for x, t in zip((a, b), types, strict=True)]
        total = wide[1].T @ wide[0] + c
        if saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        narrow: Array = total.astype(np.int64).astype(np.int32)
        return narrow

    kind = _Kind(n, np.dtype("u1"), np.dtype("i4"), product)
    return _multiply(build, kind, a_mn_major=False, b_mn_major=False)


def _columns(build: Build) -> int:
    return int(build.get("shape").partition("n")[2].partition("k")[0])


def _sign(build: Build, index: int) -> bool:
    """Whether an imm-scale negates."""
    value = build.integer(index)
    if value not in (1, -1):
        raise build.refusal(f"a scale of {value}; want 1 or -1")
    return value == -1


def _names(build: Build, index: int, wanted: int) -> list[Operand]:
    operand = build.operands[index]
    items = operand.items if isinstance(operand, Vector) else ()
    if len(items) != wanted:
        raise build.refusal(f"operand {index} has {len(items)} registers; want {wanted}")
    return list(items)


def _multiply(build: Build, kind: _Kind, *, a_mn_major: bool, b_mn_major: bool) -> Step:
    d_names = _names(build, 0, kind.registers)
    d_slots = [build.dest(name, "b32") for name in d_names]
    from_registers = isinstance(build.operands[1], Vector)
    a_names = _names(build, 1, 4) if from_registers else []
    a_slots = [build.source(name, "b32") for name in a_names]
    a_desc = None if from_registers else build.source(1, "b64")
    b_desc = build.source(2, "b64")
    scale = build.operands[3]
    scale_slot, scale_negated = (-1, False) if isinstance(scale, Imm) else build.predicate(3)
    constant = bool(scale.value) if isinstance(scale, Imm) else False
    instruction = build.instruction
    identity = id(instruction)

    def step(warp: Warp) -> None:
        if not warp.mask.all():
            raise IllegalOperation("wgmma needs all 32 lanes of the warp")
        group, state, site = warp.cta.warpgroup_of(warp), warp.wgmma, warp.site(instruction)
        accumulates = constant
        if scale_slot >= 0:
            accumulates = bool(_uniform(warp, scale_slot, "scale-d")) != scale_negated
        descriptors = tuple(
            None if slot is None else int(_uniform(warp, slot, "a matrix descriptor"))
            for slot in (a_desc, b_desc)
        )
        multiply = group.join(warp, (identity, descriptors, accumulates), site)
        part = _part(warp, multiply, d_names, d_slots, a_names, a_slots)
        multiply.parts[warp.index % WARPS] = part
        state.open.append((multiply, part))
        majors = (a_mn_major, b_mn_major)
        _check_operands(warp, multiply, kind, zip(descriptors, (ROWS, kind.n), majors, strict=True))
        if not multiply.missing:
            _begin(warp, multiply, kind, accumulates=accumulates)
            group.queue.notify()

    return step


def _uniform(warp: Warp, slot: int, what: str) -> Any:
    values = warp.r[slot]
    if (values != values[0]).any():
        raise IllegalOperation(f"{what} differs between the lanes of a warp")
    return values[0]


def _part(
    warp: Warp,
    multiply: Multiply,
    d_names: list[Operand],
    d_slots: list[int],
    a_names: list[Operand],
    a_slots: list[int],
) -> Part:
    """Takes the operands' registers and leaves the results' place-holders in them."""
    registers: list[Any] = warp.r
    sources = [registers[slot] for slot in d_slots]
    for name, source in zip(d_names, sources, strict=True):
        if type(source) is InFlight:
            _check_shape(source, len(d_slots))
            source.replaced = True
        else:
            warp.wgmma.check_fenced(_name(name), source)
    fragments = []
    for name, slot in zip(a_names, a_slots, strict=True):
        value = registers[slot]
        if type(value) is InFlight:
            value.refuse()
        warp.wgmma.check_fenced(_name(name), value)
        fragments.append((_name(name), slot, value))
    results = [InFlight(_name(name), multiply) for name in d_names]
    for slot, result in zip(d_slots, results, strict=True):
        registers[slot] = result
    return Part(d_slots, sources, results, fragments)


def _check_shape(source: InFlight, registers: int) -> None:
    """Accumulators may be handed on without a wait between operations of one shape only."""
    if any(len(part.results) != registers for part in source.multiply.parts.values()):
        source.refuse()


def _name(operand: Operand) -> str:
    return operand.name if isinstance(operand, Reg) else str(operand)


def _check_operands(
    warp: Warp, multiply: Multiply, kind: _Kind, operands: Iterable[tuple[int | None, int, bool]]
) -> None:
    """Raises if a warp that executes the operation now may not read its operands.

    Args:
        operands: (descriptor, None for registers; rows; MN-major) of A and B.
    """
    shared = warp.cta.shared
    if multiply.places:
        for where in multiply.places:
            if where is not None:
                check_readable(shared, where, _WHAT)
        return
    for bits, rows, mn_major in operands:
        where = None
        if bits is not None:
            where = offsets_of(decode(bits), rows, kind.element.itemsize, mn_major=mn_major)
            multiply.claims.append(claim_read(shared, where, _WHAT, multiply.site))
        multiply.places.append(where)


def _begin(warp: Warp, multiply: Multiply, kind: _Kind, *, accumulates: bool) -> None:
    """All four warps have come: puts the operation in flight."""
    shared, group, places = warp.cta.shared, warp.cta.warpgroup_of(warp), multiply.places
    parts = [multiply.parts[index] for index in range(WARPS)]
    operands: list[Array] = []

    def read() -> None:
        for where in places:
            if where is None:
                operands.append(_fragments(parts, kind))
            else:
                operands.append(shared.data[where].view(kind.element)[:, :, 0])

    def finish() -> None:
        c = _accumulators(parts, kind) if accumulates else _zeros(kind)
        d = kind.product(operands[0], operands[1], c)
        _deliver(parts, kind, d)
        group.queue.notify()

    op = AsyncOp(_WHAT, multiply.site, [read, finish], [group.last] if group.last else [])
    multiply.op = group.last = op
    machine = warp.cta.machine
    machine.scheduler.asynchronous.issue(op)
    machine.counts["tensor operations"] += 1


def _zeros(kind: _Kind) -> Array:
    return np.zeros((kind.n, ROWS), kind.result)


def _fragments(parts: list[Part], kind: _Kind) -> Array:
    """A from registers. [K, 64]"""
    per_register = 4 // kind.element.itemsize
    index = a_fragment(_WARP_ROWS, K_BYTES // kind.element.itemsize, per_register).index
    columns = [
        np.stack([value for _, _, value in part.a]).view(kind.element).ravel()[index]
        for part in parts
    ]
    return np.concatenate(columns, axis=1)


def _accumulators(parts: list[Part], kind: _Kind) -> Array:
    """C. [N, 64]"""
    index = accumulator_index(kind.n, 4 // kind.result.itemsize)
    columns = []
    for part in parts:
        registers: list[Any] = [s.value if type(s) is InFlight else s for s in part.sources]
        columns.append(np.stack(registers).view(kind.result).ravel()[index])
    return np.concatenate(columns, axis=1)


def _deliver(parts: list[Part], kind: _Kind, d: Array) -> None:
    """Gives each warp its 16 rows."""
    index = accumulator_index(kind.n, 4 // kind.result.itemsize)
    flat = np.empty(index.size, kind.result)
    for number, part in enumerate(parts):
        flat[index] = d[:, _WARP_ROWS * number : _WARP_ROWS * number + _WARP_ROWS]
        rows = flat.view(np.uint32).reshape(len(part.results), 32)
        for result, row in zip(part.results, rows, strict=True):
            result.value = row.copy()


@wgmma.instruction(
    "wgmma fence sync aligned",
    section="wgmma.fence",
    anchor=_ANCHOR + "fence",
    converges=True,
)
def fence(build: Build) -> Step:
    build.count(0)
    return lambda warp: warp.wgmma.fence(warp)


@wgmma.instruction(
    "wgmma commit_group sync aligned",
    section="wgmma.commit_group",
    anchor=_ANCHOR + "commit-group",
    converges=True,
)
def commit_group(build: Build) -> Step:
    build.count(0)

    def step(warp: Warp) -> None:
        warp.wgmma.groups.append(warp.wgmma.open)
        warp.wgmma.open = []

    return step


@wgmma.instruction(
    "wgmma wait_group sync aligned",
    section="wgmma.wait_group",
    anchor=_ANCHOR + "wait-group",
    converges=True,
)
def wait_group(build: Build) -> Step:
    build.count(1)
    kept = build.integer(0)

    def step(warp: Warp) -> None:
        wait_for_groups(warp, warp.cta.warpgroup_of(warp), warp.wgmma, kept)

    return step
