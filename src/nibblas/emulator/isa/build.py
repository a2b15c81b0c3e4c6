"""What a handler sees of its instruction: modifiers by name, operands as register slots.

Every source is a slot of the warp's register list: registers, and also immediates, addresses of
variables and special registers, which are slots that nothing writes. A step reads ``warp.r[slot]``.
Values are never changed in place: a step puts a new array into the slot, so ``mov`` is aliasing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nibblas.emulator.errors import UnsupportedInstruction
from nibblas.emulator.isa.registry import Match, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import (
    TYPE_BYTES,
    Address,
    Imm,
    Instruction,
    Not,
    Operand,
    Reg,
    Sink,
    Symbol,
)

if TYPE_CHECKING:
    from nibblas.emulator.machine.warp import Warp
    from nibblas.emulator.slots import Slots

#: numpy's view of a PTX type; formats that numpy lacks are plain bits.
DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{p}{bits}": np.dtype(f"u{bits // 8}") for p in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "bf16": np.dtype("u2"),
    "f16x2": np.dtype("u4"),
    "bf16x2": np.dtype("u4"),
    "tf32": np.dtype("u4"),
    "u16x2": np.dtype("u4"),
    "s16x2": np.dtype("u4"),
    "f32x2": np.dtype("u8"),
    "pred": np.dtype("bool"),
}


SM_100_FAMILY = ("sm_100", "sm_103")
BLACKWELL = (*SM_100_FAMILY, "sm_120")
"""Devices, for ``Build.require_arch``."""


def bits_dtype(kind: str) -> np.dtype[Any]:
    """The unsigned type in which a register of that type keeps its bits; bool for predicates.

    A .b128 register is a pair of uint64.
    """
    return DTYPES["pred"] if kind == "pred" else np.dtype(f"u{min(8, TYPE_BYTES[kind])}")


class Build:
    """One instruction under construction.

    Attributes:
        instruction: as parsed. modifiers: by name, from the handler's synopsis.
        here: index of the block that it stands in; following: of the next one.
        arch: the device's, "sm_90".
    """

    def __init__(
        self,
        instruction: Instruction,
        match: Match,
        slots: Slots,
        *,
        here: int,
        following: int,
        labels: dict[str, int],
        tables: dict[str, tuple[str, ...]],
        arch: str,
    ) -> None:
        self.instruction = instruction
        self.modifiers = match.modifiers
        self.slots = slots
        self.here, self.following = here, following
        self.arch = arch
        self._labels, self._tables = labels, tables

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.instruction.operands

    def has(self, flag: str) -> bool:
        """Whether an optional literal modifier is there."""
        return flag in self.modifiers

    def get(self, name: str, default: str = "") -> str:
        return self.modifiers.get(name, default)

    def refusal(self, reason: str) -> UnsupportedInstruction:
        """To be raised: operands or a combination that this handler does not model."""
        return UnsupportedInstruction(f"{self.instruction}: {reason}", self.instruction.line)

    def require_arch(self, what: str, *archs: str) -> None:
        """Raises UnsupportedInstruction if the device is none of those that have a feature."""
        if self.arch not in archs:
            raise self.refusal(f"{what} needs {' or '.join(archs)}; the device is {self.arch}")

    def count(self, *wanted: int) -> int:
        """The number of operands, one of those wanted."""
        given = len(self.operands)
        if given not in wanted:
            expected = " or ".join(map(str, wanted))
            raise self.refusal(f"got {given} operands; want {expected}")
        return given

    def source(self, operand: int | Operand, kind: str, *, wider: bool = False) -> int:
        """The slot of a source of that type.

        Args:
            operand: its index, or the operand itself.
            wider: a register wider than the type is accepted; the step narrows it.
        """
        operand = self.operands[operand] if isinstance(operand, int) else operand
        if isinstance(operand, Imm):
            return self.slots.constant(self._immediate(operand, kind))
        if isinstance(operand, Symbol):
            return self.slots.symbol(operand, TYPE_BYTES[kind], self.instruction.line)
        if isinstance(operand, Not):
            raise self.refusal("a negated predicate is not allowed here")
        if not isinstance(operand, Reg):
            raise self.refusal(f"expected a register, a constant or a name, got {operand}")
        slot = self.slots.register(operand.name, self.instruction.line)
        self._check_width(operand.name, slot, kind, wider=wider)
        return slot

    def dest(self, operand: int | Operand, kind: str, *, wider: bool = False) -> int:
        """The slot of a destination; a sink gets a slot that nothing reads."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        if isinstance(operand, Sink):
            return self.slots.sink(kind)
        if not isinstance(operand, Reg):
            raise self.refusal(f"expected a register as destination, got {operand}")
        slot = self.slots.writable(operand.name, self.instruction.line)
        self._check_width(operand.name, slot, kind, wider=wider)
        return slot

    def predicate(self, operand: int | Operand) -> tuple[int, bool]:
        """(slot, negated) of a predicate source; ``!%p`` is accepted."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        if isinstance(operand, Not):
            return self.source(operand.operand, "pred"), True
        return self.source(operand, "pred"), False

    def address(self, operand: int | Operand) -> Callable[[Warp], Array]:
        """``[base+offset]``: lane addresses [32], uint32 or uint64 as the base is wide."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        if not isinstance(operand, Address) or operand.coordinates:
            raise self.refusal(f"expected an address, got {operand}")
        base, offset = operand.base, operand.offset
        if isinstance(base, Imm):
            slot = self.slots.constant(np.uint64(int(base.value) + offset & (1 << 64) - 1))
            return lambda warp: warp.r[slot]
        if isinstance(base, Symbol):
            name = Symbol(base.name, base.offset + offset)
            slot = self.slots.symbol(name, 8, self.instruction.line)
            return lambda warp: warp.r[slot]
        slot = self.slots.register(base.name, self.instruction.line)
        width = self.slots.width(slot)
        if width not in (4, 8):
            raise self.refusal(f"{base.name} is not wide enough for an address")
        if offset == 0:
            return lambda warp: warp.r[slot]
        step = np.full(32, offset & (1 << 8 * width) - 1, f"u{width}")
        return lambda warp: warp.r[slot] + step

    def target(self, operand: int | Operand) -> int:
        """The block that a label begins."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        name = operand.name if isinstance(operand, (Reg, Symbol)) else ""
        if name not in self._labels:
            raise self.refusal(f"{name or operand} is not a label")
        return self._labels[name]

    def targets(self, operand: int | Operand) -> list[int]:
        """The blocks that a ``.branchtargets`` table names."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        name = operand.name if isinstance(operand, (Reg, Symbol)) else ""
        if name not in self._tables:
            raise self.refusal(f"{name or operand} is not a table of branch targets")
        return [self._labels[label] for label in self._tables[name]]

    def integer(self, operand: int | Operand) -> int:
        """A constant that the instruction needs at decode time."""
        operand = self.operands[operand] if isinstance(operand, int) else operand
        if not isinstance(operand, Imm) or operand.kind != "int":
            raise self.refusal(f"expected an integer constant, got {operand}")
        return int(operand.value)

    def _immediate(self, operand: Imm, kind: str) -> Any:
        bits = bits_dtype(kind)
        if operand.kind == "int":
            if kind in ("f32", "f64", "f16", "bf16"):
                raise self.refusal(f"an integer constant as .{kind} operand")
            if kind == "pred":
                return np.bool_(operand.value)
            return bits.type(int(operand.value) & (1 << 8 * bits.itemsize) - 1)
        if bits.itemsize == 4:
            return np.float32(operand.value).view(np.uint32)
        if bits.itemsize == 8:
            return np.float64(operand.value).view(np.uint64)
        raise self.refusal(f"a floating-point constant as .{kind} operand")

    def _check_width(self, name: str, slot: int, kind: str, *, wider: bool) -> None:
        have, want = self.slots.width(slot), TYPE_BYTES[kind]
        if self.slots.is_predicate(slot) != (kind == "pred"):
            raise self.refusal(f"{name} {'is' if kind != 'pred' else 'is not'} a predicate")
        if have != want and not (wider and have > want):
            raise self.refusal(f"{name} has {8 * have} bits; .{kind} has {8 * want}")


def put(warp: Warp, slot: int, value: Array) -> None:
    """Writes a result for the active lanes."""
    if warp.full:
        warp.r[slot] = value
    else:
        mask = warp.mask if value.ndim == 1 else warp.mask[:, None]  # .b128: [32, 2]
        warp.r[slot] = np.where(mask, value, warp.r[slot])


def compute(build: Build, function: Callable[..., Array], result: str, *kinds: str) -> Step:
    """The step of an instruction ``d, a, b, ...`` whose lanes are independent.

    Args:
        function: numpy arrays of the sources' types -> array [32] of the result's type.
        result: type of operand 0. kinds: types of the operands after it.
    """
    build.count(1 + len(kinds))
    dest = build.dest(0, result)
    sources = [build.source(i + 1, kind) for i, kind in enumerate(kinds)]
    return compute_slots(function, dest, result, sources, kinds)


def compute_slots(
    function: Callable[..., Array],
    dest: int,
    result: str,
    sources: list[int],
    kinds: tuple[str, ...] | list[str],
) -> Step:
    """``compute`` for operands that the handler has looked up itself."""
    dtypes = [DTYPES[kind] for kind in kinds]
    bits = bits_dtype(result)
    if bits == DTYPES[result] and all(
        d == bits_dtype(k) for d, k in zip(dtypes, kinds, strict=True)
    ):
        return _plain(function, dest, sources)
    views = list(zip(sources, dtypes, strict=True))

    def step(warp: Warp) -> None:
        r = warp.r
        value = function(*[r[slot].view(dtype) for slot, dtype in views]).view(bits)
        r[dest] = value if warp.full else np.where(warp.mask, value, r[dest])

    return step


def _plain(function: Callable[..., Array], dest: int, sources: list[int]) -> Step:
    """Sources and result are bits already: no views."""
    if len(sources) == 1:
        (a,) = sources

        def unary(warp: Warp) -> None:
            r = warp.r
            value = function(r[a])
            r[dest] = value if warp.full else np.where(warp.mask, value, r[dest])

        return unary
    if len(sources) == 2:
        a, b = sources

        def binary(warp: Warp) -> None:
            r = warp.r
            value = function(r[a], r[b])
            r[dest] = value if warp.full else np.where(warp.mask, value, r[dest])

        return binary

    def several(warp: Warp) -> None:
        r = warp.r
        value = function(*[r[slot] for slot in sources])
        r[dest] = value if warp.full else np.where(warp.mask, value, r[dest])

    return several
