"""Register slots of a kernel, and where its variables lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nibblas.emulator.errors import PtxError, UnsupportedInstruction
from nibblas.emulator.isa.build import bits_dtype
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import Function, Symbol, Variable


@dataclass(frozen=True)
class Layout:
    """Where variables lie: address or offset by name.

    ``absolute``: global and const variables and parameters, by generic address.
    """

    absolute: Mapping[str, int]
    shared: Mapping[str, int]
    local: Mapping[str, int]


class Slots:
    """Slots of registers, constants, special registers and addresses, made on first use."""

    def __init__(self, function: Function, layout: Layout) -> None:
        self._function, self._layout = function, layout
        self.values: list[Array] = []
        self._widths: list[int] = []
        self._registers: dict[str, int] = {}
        self._constants: dict[tuple[str, int], int] = {}
        self.specials: dict[str, int] = {}
        self.shared: list[tuple[int, int, int]] = []
        self._shared: dict[tuple[int, int], int] = {}
        self._read_only: set[int] = set()

    def _new(self, value: Array) -> int:
        value.setflags(write=False)
        self.values.append(value)
        self._widths.append(1 if value.dtype == bool else value.itemsize * (value.size // 32))
        return len(self.values) - 1

    def register(self, name: str, line: int) -> int:
        """A declared or special register."""
        slot = self._registers.get(name)
        if slot is not None:
            return slot
        kind = self._function.registers.get(name)
        if kind is None:
            return self._special(name, line)
        slot = self._registers[name] = self._new(_poisoned(kind))
        return slot

    def writable(self, name: str, line: int) -> int:
        if name not in self._function.registers:
            raise PtxError(f"{name} cannot be written", line)
        return self.register(name, line)

    def sink(self, kind: str) -> int:
        return self.register_of_kind("_", kind)

    def register_of_kind(self, name: str, kind: str) -> int:
        """A slot of the decoder's own, one per name and type."""
        key = f"{name} {kind}"
        if key not in self._registers:
            self._registers[key] = self._new(_poisoned(kind))
        return self._registers[key]

    def constant(self, value: np.generic) -> int:
        key = (value.dtype.str, int(value))
        if key not in self._constants:
            self._constants[key] = self._new(np.full(32, value))
        return self._constants[key]

    def symbol(self, symbol: Symbol, num_bytes: int, line: int) -> int:
        """The address of a variable in its own space, ``num_bytes`` wide."""
        name, layout = symbol.name, self._layout
        dtype = np.dtype(f"u{num_bytes}").type
        if name in layout.shared:
            key = (layout.shared[name] + symbol.offset, num_bytes)
            if key not in self._shared:
                self._shared[key] = self._new(np.zeros(32, dtype))
                self.shared.append((self._shared[key], *key))
            return self._shared[key]
        for table in (layout.local, layout.absolute):
            if name in table:
                address = table[name] + symbol.offset
                return self.constant(dtype(address & (1 << 8 * num_bytes) - 1))
        raise PtxError(f"{name} is not declared", line)

    def width(self, slot: int) -> int:
        return self._widths[slot]

    def is_predicate(self, slot: int) -> bool:
        return self.values[slot].dtype == bool

    def _special(self, name: str, line: int) -> int:
        kind = SPECIALS.get(name)
        if kind is None:
            raise UnsupportedInstruction(f"special register {name} is not modelled", line)
        if name not in self.specials:
            self.specials[name] = self._registers[name] = self._new(np.zeros(32, bits_dtype(kind)))
        return self.specials[name]


def _poisoned(kind: str) -> Array:
    if kind == "b128":
        return np.full((32, 2), 0xBAADF00DBAADF00D, np.uint64)
    if kind == "pred":
        return np.zeros(32, bool)
    dtype = bits_dtype(kind)
    return np.full(32, 0xBAADF00DBAADF00D & (1 << 8 * dtype.itemsize) - 1, dtype)


#: Special registers that do not change while a warp runs, by type.
SPECIALS: dict[str, str] = {
    **{
        f"%{name}.{axis}": "u32"
        for name in (
            *("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid"),
            *("cluster_ctaid", "cluster_nctaid"),
        )
        for axis in "xyz"
    },
    **{
        f"%{name}": "u32"
        for name in (
            *("laneid", "warpid", "nwarpid", "smid", "nsmid"),
            *("cluster_ctarank", "cluster_nctarank"),
            *("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt"),
            *("dynamic_smem_size", "total_smem_size", "aggr_smem_size"),
        )
    },
    "%gridid": "u64",
    "%is_explicit_cluster": "pred",
}


def layout_variables(
    variables: Mapping[str, Variable] | list[Variable], space: str, start: int = 0
) -> tuple[dict[str, int], int, int]:
    """Offsets by name of the variables of a space, their end, and the largest alignment."""
    offsets, at, largest = {}, start, 1
    found = variables.values() if isinstance(variables, Mapping) else variables
    for variable in found:
        if variable.space != space or variable.extern:
            continue
        at = -(-at // variable.align) * variable.align
        offsets[variable.name] = at
        at += variable.num_bytes
        largest = max(largest, variable.align)
    return offsets, at, largest
