"""A kernel decoded: blocks of steps over register slots. Done once per kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nibblas.emulator.errors import PtxError
from nibblas.emulator.flow import weak_topological_order
from nibblas.emulator.inline import inline_calls
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Handler, Match, Step
from nibblas.emulator.isa.table import find_handler
from nibblas.emulator.machine.guards import (
    after_loads,
    converging_end,
    guarded_end,
    guarded_step,
    uniform_guard,
)
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import (
    Address,
    BranchTargets,
    Function,
    Group,
    Instruction,
    Label,
    Pair,
    Reg,
    Symbol,
    Variable,
    Vector,
)
from nibblas.emulator.slots import Layout, Slots, layout_variables

_LOCAL_ALIGN = 32


@dataclass
class Block:
    """Instructions that always run together.

    Attributes:
        index: its place in the order of visits. following: the block after it in the text.
        steps: all instructions but one that may change what runs next; that one is ``end``.
        instructions: those of steps and end. size: their number. families: counts.
    """

    index: int
    following: int
    steps: list[Step] = field(default_factory=list)
    end: Step | None = None
    instructions: list[Instruction] = field(default_factory=list)
    families: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return self._size

    def seal(self) -> None:
        self._size = max(1, len(self.instructions))


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    Attributes:
        registers: what a warp's slots hold at its start; specials and ``shared`` are filled in.
        specials: slot by (special register's name, bytes). shared: (slot, offset, bytes) of
            addresses of shared variables.
        shared_bytes: of static shared memory; dynamic follows it. local_bytes: per thread.
    """

    name: str
    function: Function
    blocks: list[Block]
    registers: list[Array]
    specials: Mapping[str, int]
    shared: list[tuple[int, int, int]]
    shared_bytes: int
    dynamic_align: int
    local_bytes: int
    params: Mapping[str, int]
    param_bytes: int

    @cached_property
    def uses_tensor_memory(self) -> bool:
        return any(
            instruction.opcode == "tcgen05"
            for block in self.blocks
            for instruction in block.instructions
        )

    @cached_property
    def async_proxy(self) -> bool:
        """Whether something in it reads shared memory through the async proxy."""
        return any(
            reads_shared_asynchronously(instruction)
            for block in self.blocks
            for instruction in block.instructions
        )


def reads_shared_asynchronously(instruction: Instruction) -> bool:
    """wgmma, tcgen05, and bulk copies from shared memory."""
    if instruction.opcode in ("wgmma", "tcgen05"):
        return True
    modifiers = instruction.modifiers
    if "bulk" not in modifiers or "shared::cta" not in modifiers:
        return False
    before = modifiers[modifiers.index("shared::cta") - 1]
    return before in ("global", "shared::cluster")


class Decoder:
    """One kernel's statements to blocks."""

    def __init__(self, function: Function, slots: Slots, arch: str) -> None:
        self.function, self.slots, self.arch = function, slots, arch
        self.matches: dict[int, Match] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self._loaded = _loaded_from_tensor_memory(function)

    def blocks(self) -> list[Block]:
        """All blocks, numbered in the order of visits."""
        groups, label_group = self._groups()
        targets = [self._successors(group, label_group) for group in groups]
        successors = [
            [*explicit, *([i + 1] if falls and i + 1 < len(groups) else [])]
            for i, (explicit, falls) in enumerate(targets)
        ]
        order = weak_topological_order(successors)
        place = {group: index for index, group in enumerate(order)}
        labels = {name: place.get(group, -1) for name, group in label_group.items()}
        blocks = []
        for index, group in enumerate(order):
            following = place.get(group + 1, -1)
            if targets[group][1] and following < 0:
                line = groups[group][-1].line if groups[group] else self.function.line
                raise PtxError(f"{self.function.name} runs past its end", line)
            blocks.append(self._block(index, following, groups[group], labels))
        return blocks

    def _groups(self) -> tuple[list[list[Instruction]], dict[str, int]]:
        """Instructions by block in text order, and the block that each label begins."""
        groups: list[list[Instruction]] = [[]]
        labels: dict[str, int] = {}
        for statement in self.function.body or ():
            if isinstance(statement, BranchTargets):
                self.tables[statement.name] = statement.targets
            elif isinstance(statement, Label):
                if groups[-1]:
                    groups.append([])
                labels[statement.name] = len(groups) - 1
            else:
                match = self.matches[id(statement)] = find_handler(statement)
                if match.handler.retries and groups[-1]:
                    groups.append([])
                groups[-1].append(statement)
                if match.handler.ends_block:
                    groups.append([])
        if not groups[-1] and len(groups) > 1 and len(groups) - 1 not in labels.values():
            groups.pop()
        return groups, labels

    def _successors(
        self, group: list[Instruction], labels: Mapping[str, int]
    ) -> tuple[list[int], bool]:
        """(explicit targets, whether the next block can follow)."""
        if not group:
            return [], True
        last = group[-1]
        guarded = last.guard is not None
        if last.opcode == "bra":
            return [self._label(last, labels)], guarded
        if last.opcode == "brx":
            table = last.operands[1]
            name = table.name if isinstance(table, (Reg, Symbol)) else ""
            if name not in self.tables:
                raise PtxError(f"{name} is not a table of branch targets", last.line)
            return [labels[target] for target in self.tables[name]], guarded
        return [], guarded or last.opcode not in ("ret", "exit", "trap")

    def _label(self, instruction: Instruction, labels: Mapping[str, int]) -> int:
        operand = instruction.operands[0] if instruction.operands else None
        name = operand.name if isinstance(operand, (Reg, Symbol)) else ""
        if name not in labels:
            raise PtxError(f"{instruction}: {name!r} is not a label", instruction.line)
        return labels[name]

    def _block(
        self, index: int, following: int, group: list[Instruction], labels: dict[str, int]
    ) -> Block:
        block = Block(index, following)
        for instruction in group:
            match = self.matches[id(instruction)]
            build = Build(
                instruction,
                match,
                self.slots,
                here=index,
                following=following,
                labels=labels,
                tables=self.tables,
                arch=self.arch,
            )
            step = match.handler.handle(build)
            used = self._loaded & _mentioned(instruction) if self._loaded else set()
            if used and not _is_tensor_load(instruction):
                found = (self.slots.register(name, instruction.line) for name in used)
                step = after_loads(step, frozenset(found))
            guard = instruction.guard
            slot = self.slots.register(guard.register, instruction.line) if guard else -1
            if guard and not self.slots.is_predicate(slot):
                raise build.refusal(f"{guard.register} is not a predicate")
            if guard and not match.handler.own_guard:
                step = _guard_of(match.handler)(step, slot, negated=guard.negated)
            if match.handler.ends_block:
                block.end = converging_end(step) if match.handler.converges else step
            else:
                block.steps.append(step)
            block.instructions.append(instruction)
            block.families[match.handler.family] += 1
        block.seal()
        return block


def _guard_of(handler: Handler) -> Callable[..., Step]:
    if handler.converges:
        return uniform_guard
    return guarded_end if handler.ends_block else guarded_step


def decode(
    function: Function,
    *,
    functions: Mapping[str, Function],
    absolute: Mapping[str, int],
    module_shared: Mapping[str, Variable],
    param_base: int,
    arch: str,
) -> Program:
    """Decodes an entry.

    Args:
        functions: of the module, for calls.
        absolute: generic addresses of the module's global and const variables.
        module_shared: the module's shared variables, extern ones included.
        param_base: generic address that the entry's parameters will have.
        arch: the device's, "sm_90".
    """
    if not function.is_entry or function.body is None:
        raise PtxError(f"{function.name} is not an entry with a body", function.line)
    function = inline_calls(function, functions)
    used = _names(function)
    shared = [v for v in module_shared.values() if v.space == "shared" and v.name in used]
    shared_offsets, shared_bytes, _ = layout_variables([*shared, *function.variables], "shared")
    externs = [v for v in shared if v.extern]
    dynamic_align = max([16, *(v.align for v in externs)])
    dynamic = -(-shared_bytes // dynamic_align) * dynamic_align
    shared_offsets.update({v.name: dynamic for v in externs})
    local_offsets, local_bytes, _ = layout_variables(list(function.variables), "local")
    call_offsets, local_bytes, _ = layout_variables(list(function.variables), "param", local_bytes)
    params, param_bytes, _ = layout_variables(list(function.params), "param")
    addresses = {name: param_base + offset for name, offset in params.items()}
    layout = Layout({**absolute, **addresses}, shared_offsets, {**local_offsets, **call_offsets})
    slots = Slots(function, layout)
    blocks = Decoder(function, slots, arch).blocks()
    return Program(
        function.name,
        function,
        blocks,
        slots.values,
        slots.specials,
        slots.shared,
        shared_bytes,
        dynamic_align,
        -(-local_bytes // _LOCAL_ALIGN) * _LOCAL_ALIGN,
        params,
        param_bytes,
    )


def _names(function: Function) -> set[str]:
    """Every name that an instruction of the body mentions."""
    found: set[str] = set()
    for statement in function.body or ():
        if isinstance(statement, Instruction):
            found |= _mentioned(statement)
    return found


def _mentioned(instruction: Instruction) -> set[str]:
    """Registers and symbols among an instruction's operands."""
    found: set[str] = set()
    pending: list[object] = list(instruction.operands)
    while pending:
        operand = pending.pop()
        if isinstance(operand, (Reg, Symbol)):
            found.add(operand.name)
        elif isinstance(operand, Address):
            pending += [operand.base, *operand.coordinates]
        elif isinstance(operand, (Vector, Group)):
            pending += operand.items
        elif isinstance(operand, Pair):
            pending += [operand.first, operand.second]
    return found


def _is_tensor_load(instruction: Instruction) -> bool:
    return instruction.opcode == "tcgen05" and instruction.modifiers[0] == "ld"


def _loaded_from_tensor_memory(function: Function) -> set[str]:
    """The registers that some tcgen05.ld of the body writes."""
    loads = (s for s in function.body or () if isinstance(s, Instruction) and _is_tensor_load(s))
    operands = (load.operands[0] for load in loads)
    items = (x.items if isinstance(x, Vector) else (x,) for x in operands)
    return {item.name for registers in items for item in registers if isinstance(item, Reg)}
