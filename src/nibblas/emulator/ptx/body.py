"""Function bodies: nested scopes, registers, labels, instructions.

A body is read into a tree of scopes first and flattened after: a label may be used before its
scope says that it exists. Names declared twice in different scopes get ``#2``, ``#3`` ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nibblas.emulator.errors import PtxError
from nibblas.emulator.ptx.cursor import Cursor
from nibblas.emulator.ptx.declarations import parse_variables
from nibblas.emulator.ptx.model import (
    TYPE_BYTES,
    Address,
    BranchTargets,
    Group,
    Guard,
    Imm,
    Instruction,
    Label,
    Loc,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_SPACES = frozenset({".local", ".shared", ".param", ".global", ".const"})
_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True)
class Body:
    """A flattened body; see ``Function``."""

    statements: tuple[Statement, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]


@dataclass
class _Scope:
    """``{ ... }``: what it declares and what stands in it, nested scopes included."""

    registers: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    items: list[Statement | _Scope] = field(default_factory=list)


def parse_body(at: Cursor, params: Iterable[Variable]) -> Body:
    """The body at the cursor, from ``{`` to ``}``; ``params``: names that it may use."""
    scope = _ScopeReader(at).read()
    return _Flattener(params).flatten(scope)


class _ScopeReader:
    def __init__(self, at: Cursor) -> None:
        self.at = at
        self.loc: Loc | None = None

    def read(self) -> _Scope:
        at, scope = self.at, _Scope()
        at.expect("{")
        while not at.accept("}"):
            if at.text == "{":
                scope.items.append(self.read())
            elif at.kind == "directive":
                self._directive(scope)
            elif at.kind == "word" and at.following == ":":
                self._label(scope)
            elif not at.accept(";"):
                scope.items.append(self._instruction())
        return scope

    def _directive(self, scope: _Scope) -> None:
        at = self.at
        directive = at.take().text
        if directive == ".reg":
            self._registers(scope)
        elif directive in _SPACES:
            scope.variables += parse_variables(at, directive)
        elif directive == ".loc":
            self.loc = at.loc_directive()
        elif directive == ".file":
            at.rest_of_line()
        elif directive == ".pragma":
            at.take("string")
            at.expect(";")
        else:
            raise PtxError(f"unexpected directive {directive} in a function", at.line)

    def _registers(self, scope: _Scope) -> None:
        """``.reg .b32 %r<10>, %a;``"""
        at = self.at
        kind = at.take("directive").text[1:]
        if kind not in TYPE_BYTES:
            raise PtxError(f".reg has no type .{kind}", at.line)
        while True:
            name = at.take("word").text
            if at.accept("<"):
                scope.ranges[name] = (at.integer(), kind)
                at.expect(">")
            else:
                scope.registers[name] = kind
            if not at.accept(","):
                break
        at.expect(";")

    def _label(self, scope: _Scope) -> None:
        at = self.at
        name = at.take("word")
        at.expect(":")
        scope.labels.append(name.text)
        if at.text in (".branchtargets", ".calltargets"):
            at.take()
            targets = [at.take("word").text]
            while at.accept(","):
                targets.append(at.take("word").text)
            at.expect(";")
            scope.items.append(BranchTargets(name.text, tuple(targets), name.line))
        elif at.accept(".callprototype"):
            while not at.accept(";"):
                at.take()
        else:
            scope.items.append(Label(name.text, name.line))

    def _instruction(self) -> Instruction:
        at, start = self.at, self.at.index
        guard = None
        if at.accept("@"):
            negated = at.accept("!")
            guard = Guard(at.take("word").text, negated)
        token = at.take("word")
        opcode, *modifiers = token.text.split(".")
        operands: list[Operand] = []
        while not at.accept(";"):
            if operands:
                at.expect(",")
            operands.append(at.operand())
        text = at.text_between(start, at.index)
        return Instruction(
            opcode, tuple(modifiers), tuple(operands), token.line, guard, self.loc, text
        )


class _Flattener:
    """Gives every name its unique form, from the innermost scope outwards."""

    def __init__(self, params: Iterable[Variable]) -> None:
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.statements: list[Statement] = []
        self.used: dict[str, int] = {}
        self.scopes: list[tuple[dict[str, str], _Scope]] = []
        self.params = {param.name: param for param in params}
        for param in self.params.values():
            if param.space == "reg":
                self.registers[param.name] = param.type

    def flatten(self, scope: _Scope) -> Body:
        self._enter(scope)
        return Body(tuple(self.statements), self.registers, tuple(self.variables))

    def _enter(self, scope: _Scope) -> None:
        names: dict[str, str] = {}
        for name, kind in scope.registers.items():
            names[name] = self._unique(name)
            self.registers[names[name]] = kind
        for variable in scope.variables:
            names[variable.name] = self._unique(variable.name)
            self.variables.append(replace(variable, name=names[variable.name]))
        for name in scope.labels:
            names[name] = self._unique(name)
        self.scopes.append((names, scope))
        for item in scope.items:
            if isinstance(item, _Scope):
                self._enter(item)
            else:
                self.statements.append(self._renamed(item))
        self.scopes.pop()

    def _unique(self, name: str) -> str:
        count = self.used[name] = self.used.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _resolve(self, name: str) -> str:
        """The unique form of a name; names of the module and special registers stay."""
        for names, scope in reversed(self.scopes):
            found = names.get(name)
            if found is not None:
                return found
            numbered = _NUMBERED.match(name)
            if numbered and (declared := scope.ranges.get(numbered[1])):
                count, kind = declared
                if int(numbered[2]) < count:
                    names[name] = self._unique(name)
                    self.registers[names[name]] = kind
                    return names[name]
        return name

    def _renamed(self, statement: Statement) -> Statement:
        if isinstance(statement, Label):
            return replace(statement, name=self._resolve(statement.name))
        if isinstance(statement, BranchTargets):
            targets = tuple(self._resolve(target) for target in statement.targets)
            return replace(statement, name=self._resolve(statement.name), targets=targets)
        guard = statement.guard
        if guard is not None:
            guard = replace(guard, register=self._register(guard.register, statement.line))
        operands = tuple(self._operand(o, statement.line) for o in statement.operands)
        return replace(statement, guard=guard, operands=operands)

    def _register(self, name: str, line: int) -> str:
        resolved = self._resolve(name)
        if resolved not in self.registers:
            raise PtxError(f"{name} is not a declared register", line)
        return resolved

    def _base(self, base: Reg | Symbol | Imm, line: int) -> Reg | Symbol | Imm:
        if isinstance(base, Imm):
            return base
        name = self._resolve(base.name)
        if name in self.registers or name.split(".")[0] in _SPECIAL:
            return Reg(name)
        if name.startswith("%"):
            raise PtxError(f"{name} is neither a declared nor a special register", line)
        return Symbol(name)

    def _operand(self, operand: Operand, line: int) -> Operand:
        if isinstance(operand, Reg):
            return self._base(operand, line)
        if isinstance(operand, Symbol):
            return replace(operand, name=self._resolve(operand.name))
        if isinstance(operand, Not):
            return Not(Reg(self._register(operand.operand.name, line)))
        if isinstance(operand, (Vector, Group)):
            return type(operand)(tuple(self._operand(item, line) for item in operand.items))
        if isinstance(operand, Pair):
            return Pair(self._operand(operand.first, line), self._operand(operand.second, line))
        if isinstance(operand, Address):
            coordinates = tuple(self._operand(item, line) for item in operand.coordinates)
            return replace(operand, base=self._base(operand.base, line), coordinates=coordinates)
        assert isinstance(operand, (Imm, Sink))
        return operand


#: Special registers, without ``.x`` and the like. PTX ISA, chapter "Special Registers".
_SPECIAL_NAMES = """
    %tid %ntid %laneid %warpid %nwarpid %ctaid %nctaid %smid %nsmid
    %gridid %is_explicit_cluster %clusterid %nclusterid %cluster_ctaid
    %cluster_nctaid %cluster_ctarank %cluster_nctarank %lanemask_eq %lanemask_le
    %lanemask_lt %lanemask_ge %lanemask_gt %clock %clock_hi %clock64
    %globaltimer %globaltimer_lo %globaltimer_hi %dynamic_smem_size
    %total_smem_size %aggr_smem_size %reserved_smem_offset_begin
    %reserved_smem_offset_end %reserved_smem_offset_cap %current_graph_exec
"""
_SPECIAL = frozenset(_SPECIAL_NAMES.split())
