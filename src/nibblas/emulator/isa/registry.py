"""The table of handlers, and how a family adds to it.

A handler is called once per instruction of a kernel, with a ``Build``, and returns a step: a
closure that executes the instruction for a warp. See docs/emulator.md, "Adding an instruction".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from nibblas.emulator.errors import UnsupportedInstruction
from nibblas.emulator.isa.checked import CHECKED
from nibblas.emulator.isa.syntax import Syntax
from nibblas.emulator.ptx.model import Instruction

if TYPE_CHECKING:
    from nibblas.emulator.isa.build import Build
    from nibblas.emulator.machine.warp import Warp

PTX_ISA = "https://docs.nvidia.com/cuda/parallel-thread-execution/"
MANUAL_ONLY = "manual only"
"""Provenance of a handler that was written from the PTX ISA and compared with no device."""


class Reference(TypedDict):
    """A section of the PTX ISA that several handlers come from; ``**`` in their decorators."""

    section: str
    anchor: str


Step = Callable[["Warp"], None]
Handle = Callable[["Build"], Step]


@dataclass(frozen=True)
class Handler:
    """One entry of the table.

    Attributes:
        section: title of the PTX ISA section. anchor: of its page, for ``url``.
        provenance: MANUAL_ONLY, or "device, date" of a comparison whose results agreed, from
            checked.py.
        ends_block: the step may change what runs next: it blocks, branches, or yields.
        retries: the step may have to run again (``Warp.gather``), so it is alone in its block.
        converges: all lanes of the warp that have not exited execute it together; the step never
            runs before they have arrived.
        own_guard: the step looks at the instruction's guard itself (``bra``).
    """

    family: str
    syntaxes: tuple[Syntax, ...]
    handle: Handle
    section: str
    anchor: str
    provenance: str
    ends_block: bool
    retries: bool
    converges: bool
    own_guard: bool

    @property
    def opcode(self) -> str:
        return self.syntaxes[0].opcode

    @property
    def url(self) -> str:
        return f"{PTX_ISA}#{self.anchor}"


def handler_name(handler: Handler) -> str:
    """What checked.py calls a handler: family, first opcode, function."""
    return _name(handler.family, handler.opcode, handler.handle)


def _name(family: str, opcode: str, handle: Handle) -> str:
    return f"{family}.{opcode}.{handle.__name__}"


HANDLERS: dict[str, list[Handler]] = {}
"""Handlers by opcode."""


@dataclass(frozen=True)
class Family:
    """A family of instructions; its name groups the counts of a report.

    Attributes:
        handlers: in the order of the family's file.
    """

    name: str
    handlers: list[Handler] = field(default_factory=list)

    def instruction(
        self,
        *synopses: str,
        section: str,
        anchor: str,
        provenance: str = MANUAL_ONLY,
        ends_block: bool = False,
        retries: bool = False,
        converges: bool = False,
        own_guard: bool = False,
    ) -> Callable[[Handle], Handle]:
        """Enters a handler for one or more synopses of one opcode."""

        def enter(handle: Handle) -> Handle:
            syntaxes = tuple(Syntax(synopsis) for synopsis in synopses)
            name = _name(self.name, syntaxes[0].opcode, handle)
            handler = Handler(
                self.name,
                syntaxes,
                handle,
                section,
                anchor,
                CHECKED.get(name, provenance),
                ends_block or retries or converges,
                retries or converges,
                converges,
                own_guard,
            )
            self.handlers.append(handler)
            for opcode in {syntax.opcode for syntax in handler.syntaxes}:
                HANDLERS.setdefault(opcode, []).append(handler)
            return handle

        return enter


@dataclass(frozen=True)
class Match:
    """A handler that accepts an instruction, and the modifiers it found."""

    handler: Handler
    modifiers: dict[str, str]


def find_handler(instruction: Instruction) -> Match:
    """The first handler whose synopsis the instruction fits, else fits in another order.

    Raises:
        UnsupportedInstruction: none does; the message lists what is accepted.
    """
    candidates = HANDLERS.get(instruction.opcode, [])
    for match in (Syntax.match, Syntax.match_in_any_order):
        for handler in candidates:
            for syntax in handler.syntaxes:
                if syntax.opcode != instruction.opcode:
                    continue
                found = match(syntax, instruction.modifiers)
                if found is not None:
                    return Match(handler, found)
    if not candidates:
        raise UnsupportedInstruction(
            f"{instruction.full_name}: no handler for {instruction.opcode!r}", instruction.line
        )
    accepted = [syntax.synopsis for handler in candidates for syntax in handler.syntaxes]
    raise UnsupportedInstruction(
        f"{instruction.full_name}: these modifiers are not modelled; accepted: "
        + "; ".join(accepted),
        instruction.line,
    )
