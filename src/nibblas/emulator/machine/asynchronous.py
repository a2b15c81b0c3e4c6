"""Asynchronous operations: issued now, taking effect in phases at times that the order chooses.

An operation is a list of phases, each a function that does one step of its work on the real
memories: read the source, write the destination, count bytes on a barrier. Phases run in order;
between two of them anything else may happen. An operation starts when those in ``after`` are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nibblas.emulator.errors import EmulationError

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site

Phase = Callable[[], None]


class AsyncOp:
    """One operation in flight.

    Attributes:
        name: for messages: "cp.async.bulk.tensor.2d". site: the instruction that issued it.
        phases: still to run, in order. after: operations that must be done first.
        phase: how many have run. done: all have.
    """

    __slots__ = ("after", "name", "phase", "phases", "site")

    def __init__(
        self, name: str, site: Site, phases: Iterable[Phase], after: Iterable[AsyncOp] = ()
    ) -> None:
        self.name, self.site = name, site
        self.phases = tuple(phases)
        self.phase = 0
        self.after = [op for op in after if not op.done]

    @property
    def done(self) -> bool:
        return self.phase == len(self.phases)

    @property
    def startable(self) -> bool:
        if self.after:
            self.after = [op for op in self.after if not op.done]
        return not self.after

    def __str__(self) -> str:
        return f"{self.name} (phase {self.phase} of {len(self.phases)}) issued by {self.site}"


class AsyncUnit:
    """All operations in flight of a launch, in the order of issue."""

    def __init__(self) -> None:
        self.pending: list[AsyncOp] = []
        self.issued = 0
        self.peak = 0

    def issue(self, op: AsyncOp) -> AsyncOp:
        """Puts an operation in flight; it does nothing before the order says so."""
        if op.done:
            return op
        self.pending.append(op)
        self.issued += 1
        self.peak = max(self.peak, len(self.pending))
        return op

    def startable(self) -> list[AsyncOp]:
        return [op for op in self.pending if op.startable]

    def advance(self, op: AsyncOp) -> None:
        """Runs the next phase of an operation."""
        phase = op.phases[op.phase]
        op.phase += 1
        try:
            phase()
        except EmulationError as error:
            error.site = error.site or op.site
            raise
        if op.done:
            self.pending.remove(op)
