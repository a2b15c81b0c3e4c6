"""Calls: the bodies of device functions take the place of their calls.

Done before decoding, so divergence and reconvergence see one graph, and every call has registers,
local memory and parameters of its own, as after a compiler's inlining. A parameter in ``.param``
space becomes another name for the argument's variable; one in ``.reg`` space a move. Functions
without a body stay calls, for isa/control.py; recursion and pointers to functions are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from nibblas.emulator.errors import PtxError, UnsupportedInstruction
from nibblas.emulator.ptx.model import (
    Address,
    BranchTargets,
    Function,
    Group,
    Guard,
    Imm,
    Instruction,
    Label,
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

_MAX_STATEMENTS = 400_000

#: What a callee's name stands for in the caller: a new name, or an operand.
Names = Mapping[str, str]


def inline_calls(function: Function, functions: Mapping[str, Function]) -> Function:
    """A function without calls of functions that have a body.

    Raises:
        UnsupportedInstruction: recursion, or arguments that do not fit, with the line.
    """
    if not any(_is_call(statement) for statement in function.body or ()):
        return function
    return _Inliner(functions).inline(function)


def _is_call(statement: Statement) -> bool:
    return isinstance(statement, Instruction) and statement.opcode == "call"


class _Inliner:
    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.statements: list[Statement] = []
        self.numbers = count(1)

    def inline(self, function: Function) -> Function:
        self.registers.update(function.registers)
        self.variables += function.variables
        self._body(function.body or (), (function.name,))
        return replace(
            function,
            body=tuple(self.statements),
            registers=self.registers,
            variables=tuple(self.variables),
        )

    def _body(self, statements: tuple[Statement, ...], stack: tuple[str, ...]) -> None:
        for statement in statements:
            if isinstance(statement, Instruction) and statement.opcode == "call":
                self._call(statement, stack)
            else:
                self.statements.append(statement)
        if len(self.statements) > _MAX_STATEMENTS:
            raise PtxError(f"{stack[0]}: more than {_MAX_STATEMENTS} statements with calls", 0)

    def _call(self, call: Instruction, stack: tuple[str, ...]) -> None:
        returns, target, arguments = _parts(call)
        callee = self.functions.get(target.name) if isinstance(target, (Symbol, Reg)) else None
        if callee is None:
            raise UnsupportedInstruction(f"{call}: not a function of this module", call.line)
        if callee.body is None:
            self.statements.append(call)
            return
        if callee.name in stack:
            raise UnsupportedInstruction(f"{call}: recursion is not modelled", call.line)
        if len(arguments) != len(callee.params) or len(returns) != len(callee.returns):
            raise UnsupportedInstruction(
                f"{call}: {len(arguments)} arguments and {len(returns)} results; "
                f"{callee.name} has {len(callee.params)} and {len(callee.returns)}",
                call.line,
            )
        tag = f"@{next(self.numbers)}"
        end = f"end{tag}"
        if call.guard is not None:
            around = Guard(call.guard.register, not call.guard.negated)
            self.statements.append(_instruction(call, "bra", (), (Reg(end),), around))
        names = self._declare(callee, tag)
        for param, argument in zip(callee.params, arguments, strict=True):
            self._bind(call, names, param, argument)
        results = [
            self._bind_result(names, param, result)
            for param, result in zip(callee.returns, returns, strict=True)
        ]
        body = tuple(_Renamer(names, end, callee.registers).all(callee.body))
        self._body(body, (*stack, callee.name))
        self.statements.append(Label(end, call.line))
        for move in results:
            if move is not None:
                self.statements.append(_instruction(call, *move, call.guard))

    def _declare(self, callee: Function, tag: str) -> dict[str, str]:
        """New names for everything that the callee declares."""
        names = {name: name + tag for name in callee.registers}
        self.registers |= {name + tag: kind for name, kind in callee.registers.items()}
        for variable in callee.variables:
            if variable.space == "shared":  # one for all calls
                if variable not in self.variables:
                    self.variables.append(variable)
                continue
            names[variable.name] = variable.name + tag
            self.variables.append(replace(variable, name=variable.name + tag))
        for statement in callee.body or ():
            if isinstance(statement, (Label, BranchTargets)):
                names[statement.name] = statement.name + tag
        return names

    def _bind(
        self, call: Instruction, names: dict[str, str], param: Variable, argument: Operand
    ) -> None:
        """Gives a parameter its argument."""
        kind = _bits(param)
        if param.space == "reg":
            target = Reg(names[param.name])
            self.statements.append(_instruction(call, "mov", (kind,), (target, argument), None))
        elif isinstance(argument, Symbol):
            names[param.name] = argument.name
        else:  # a register or a constant for a scalar in memory
            names[param.name] = self._own(param, next(self.numbers))
            place = Address(Symbol(names[param.name]))
            self.statements.append(
                _instruction(call, "st", ("param", kind), (place, argument), None)
            )

    def _bind_result(
        self, names: dict[str, str], param: Variable, result: Operand
    ) -> tuple[str, tuple[str, ...], tuple[Operand, ...]] | None:
        """Gives a result its place; the instruction that moves it after the call, if any."""
        kind = _bits(param)
        if param.space == "reg":
            if isinstance(result, Sink):
                return None
            return "mov", (kind,), (result, Reg(names[param.name]))
        if isinstance(result, Symbol):
            names[param.name] = result.name
            return None
        names[param.name] = self._own(param, next(self.numbers))
        if isinstance(result, Sink):
            return None
        return "ld", ("param", kind), (result, Address(Symbol(names[param.name])))

    def _own(self, param: Variable, number: int) -> str:
        name = f"{param.name}@{number}"
        self.variables.append(replace(param, name=name))
        return name


def _parts(call: Instruction) -> tuple[tuple[Operand, ...], Operand, tuple[Operand, ...]]:
    """Results, function, arguments."""
    operands = list(call.operands)
    first = operands.pop(0) if operands and isinstance(operands[0], Group) else Group(())
    if not operands:
        raise UnsupportedInstruction(f"{call}: no function", call.line)
    target = operands.pop(0)
    arguments = operands.pop(0) if operands and isinstance(operands[0], Group) else Group(())
    if operands or not isinstance(first, Group) or not isinstance(arguments, Group):
        raise UnsupportedInstruction(f"{call}: calls through a pointer are not modelled", call.line)
    return first.items, target, arguments.items


def _bits(param: Variable) -> str:
    """The type of the move of a scalar parameter."""
    return param.type if param.type == "pred" else f"b{8 * max(2, param.num_bytes)}"


def _instruction(
    call: Instruction,
    opcode: str,
    modifiers: tuple[str, ...],
    operands: tuple[Operand, ...],
    guard: Guard | None,
) -> Instruction:
    """An instruction at the place of a call."""
    text = f"{'.'.join((opcode, *modifiers))} (for {call})"
    return Instruction(opcode, modifiers, operands, call.line, guard, call.loc, text)


class _Renamer:
    """A callee's statements with the names of one call; ``ret`` becomes a branch to the end."""

    def __init__(self, names: Names, end: str, registers: Mapping[str, str]) -> None:
        self.names, self.end, self.registers = names, end, registers

    def all(self, statements: tuple[Statement, ...]) -> Iterator[Statement]:
        for statement in statements:
            yield self._statement(statement)

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Label):
            return replace(statement, name=self._name(statement.name))
        if isinstance(statement, BranchTargets):
            targets = tuple(self._name(target) for target in statement.targets)
            return replace(statement, name=self._name(statement.name), targets=targets)
        guard = statement.guard
        if guard is not None:
            guard = replace(guard, register=self._name(guard.register))
        if statement.opcode == "ret":
            return _instruction(statement, "bra", (), (Reg(self.end),), guard)
        operands = tuple(self._operand(operand) for operand in statement.operands)
        return replace(statement, operands=operands, guard=guard)

    def _name(self, name: str) -> str:
        return self.names.get(name, name)

    def _operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Reg):
            return Reg(self._name(operand.name))
        if isinstance(operand, Symbol):
            return replace(operand, name=self._name(operand.name))
        if isinstance(operand, Not):
            return Not(Reg(self._name(operand.operand.name)))
        if isinstance(operand, (Vector, Group)):
            return type(operand)(tuple(self._operand(item) for item in operand.items))
        if isinstance(operand, Pair):
            return Pair(self._operand(operand.first), self._operand(operand.second))
        if isinstance(operand, Address):
            coordinates = tuple(self._operand(item) for item in operand.coordinates)
            base = operand.base
            if not isinstance(base, Imm):
                base = replace(base, name=self._name(base.name))
            return replace(operand, base=base, coordinates=coordinates)
        return operand
