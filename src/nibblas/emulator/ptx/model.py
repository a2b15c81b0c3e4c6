"""What a PTX module holds, as frozen dataclasses.

Names of registers, labels and local variables are unique within their function: the parser has
resolved nested scopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Space = Literal["global", "const", "shared", "local", "param", "reg"]

#: Bytes of a fundamental type. PTX ISA, "Fundamental Types", "Alternate Floating-Point Formats".
TYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **{f"{kind}{bits}": bits // 8 for kind in "bsu" for bits in (8, 16, 32, 64)},
        "f16": 2,
        "f16x2": 4,
        "bf16": 2,
        "bf16x2": 4,
        "tf32": 4,
        "f32": 4,
        "f64": 8,
        "b128": 16,
        "e4m3": 1,
        "e5m2": 1,
        "u16x2": 4,
        "s16x2": 4,
        "f32x2": 8,
        "pred": 1,
    }
)


@dataclass(frozen=True)
class Reg:
    """A register, special registers included: "%r1", "%tid.x"."""

    name: str


@dataclass(frozen=True)
class Not:
    """A negated predicate as source: ``!%p1``."""

    operand: Reg


@dataclass(frozen=True)
class Imm:
    """A constant. ``kind``: "int", "f32" or "f64" (bits are those of the written value)."""

    value: int | float
    kind: Literal["int", "f32", "f64"] = "int"


@dataclass(frozen=True)
class Symbol:
    """A variable, function or label by name; ``offset``: in bytes from a variable's start."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Sink:
    """``_``: a result that is not wanted."""


@dataclass(frozen=True)
class Vector:
    """``{a, b}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Group:
    """``(a, b)``: arguments or results of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """``[base+offset]``; ``coordinates`` of a tensor operand ``[map, {c0, c1}, ...]``."""

    base: Reg | Symbol | Imm
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


Operand = Reg | Not | Imm | Symbol | Sink | Vector | Pair | Group | Address


@dataclass(frozen=True)
class Loc:
    """A source line, from ``.loc``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Guard:
    """``@%p`` or ``@!%p``."""

    register: str
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: "ld". modifiers: ("global", "v4", "f32").
        line: in the PTX text. loc: the source line in force.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: Guard | None = None
    loc: Loc | None = None
    text: str = field(default="", compare=False)

    @property
    def full_name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))

    def __str__(self) -> str:
        return self.text or self.full_name


@dataclass(frozen=True)
class Label:
    """A place in a function's body."""

    name: str
    line: int


@dataclass(frozen=True)
class BranchTargets:
    """``name: .branchtargets L1, L2;`` (also ``.calltargets``)."""

    name: str
    targets: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class SymbolByte:
    """One element of an initialiser that comes from an address.

    The element is ``((address of name) + offset) & mask``, shifted so that the mask's lowest byte
    lands at bit 0; ``generic``: the generic address.
    """

    name: str
    offset: int = 0
    mask: int = -1
    generic: bool = False


Initialiser = tuple[int | float | SymbolByte, ...]


@dataclass(frozen=True)
class Variable:
    """A variable that is no register.

    Attributes:
        type: of an element, "b8". vector: elements per item, 1, 2 or 4.
        dims: array extents; () for a scalar; a first extent 0: open (``[]``).
        align: in bytes. init: elements from the start; what is missing is zero.
        extern: declared here, laid out elsewhere (dynamic shared memory).
    """

    name: str
    space: Space
    type: str
    align: int
    line: int
    vector: int = 1
    dims: tuple[int, ...] = ()
    init: Initialiser | None = None
    extern: bool = False

    @property
    def num_bytes(self) -> int:
        count = self.vector
        for extent in self.dims:
            count *= extent
        return count * TYPE_BYTES[self.type]


Statement = Instruction | Label | BranchTargets


@dataclass(frozen=True)
class Function:
    """An ``.entry`` or ``.func``.

    Attributes:
        registers: type by unique name. variables: of its body, all scopes.
        body: None for a declaration.
        directives: "maxntid" -> (256, 1, 1) and the like.
    """

    name: str
    is_entry: bool
    params: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    line: int
    body: tuple[Statement, ...] | None
    registers: Mapping[str, str]
    variables: tuple[Variable, ...]
    directives: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Module:
    """One PTX text.

    Attributes:
        version: (9, 3). target: "sm_90a". address_bits: 64.
    """

    version: tuple[int, int]
    target: str
    address_bits: int
    functions: Mapping[str, Function]
    variables: Mapping[str, Variable]
