"""Asynchronous operations: issued now, taking effect in phases at times that the order chooses.

An operation is a list of phases, each a function that does one step of its work on the real
memories: read the source, write the destination, count bytes on a barrier. Phases run in order;
between two of them anything else may happen. An operation starts when those in ``after`` are done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from nibblas.emulator.errors import EmulationError

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site

Phase = Callable[[], None]


class AsyncOp:
    """One operation in flight.

    Attributes:
        name: for messages: "cp.async.bulk.tensor.2d". site: the instruction that issued it.
        phases: still to run, in order. phase: how many have run. done: all have.
        number: of its issue; 0 before.
    """

    __slots__ = ("_blockers", "_followers", "name", "number", "phase", "phases", "site")

    def __init__(
        self, name: str, site: Site, phases: Iterable[Phase], after: Iterable[AsyncOp] = ()
    ) -> None:
        self.name, self.site = name, site
        self.phases = tuple(phases)
        self.phase = self.number = 0
        self._followers: list[AsyncOp] = []
        self._blockers = 0
        for op in set(after):
            if not op.done:
                op._followers.append(self)
                self._blockers += 1

    @property
    def done(self) -> bool:
        return self.phase == len(self.phases)

    @property
    def startable(self) -> bool:
        """Whether all operations that must come before it are done."""
        return self._blockers == 0

    def unblocked(self) -> list[AsyncOp]:
        """Now that it is done: those that waited for it alone."""
        for op in self._followers:
            op._blockers -= 1
        return [op for op in self._followers if op.startable]

    def __str__(self) -> str:
        return f"{self.name} (phase {self.phase} of {len(self.phases)}) issued by {self.site}"


class AsyncUnit:
    """All operations in flight of a launch.

    Attributes:
        startable: those that may do their next phase, oldest first.
    """

    def __init__(self) -> None:
        self.startable: list[AsyncOp] = []
        self.issued = 0
        self.peak = 0
        self._pending: dict[int, AsyncOp] = {}

    @property
    def pending(self) -> Collection[AsyncOp]:
        """Those in flight, oldest first."""
        return self._pending.values()

    def issue(self, op: AsyncOp) -> AsyncOp:
        """Puts an operation in flight; it does nothing before the order says so."""
        if op.done:
            return op
        self.issued += 1
        op.number = self.issued
        self._pending[op.number] = op
        self.peak = max(self.peak, len(self._pending))
        if op.startable:
            self.startable.append(op)
        return op

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
            del self._pending[op.number]
            del self.startable[self._place(op)]
            for follower in op.unblocked():
                if follower.number:
                    self.startable.insert(self._place(follower), follower)

    def _place(self, op: AsyncOp) -> int:
        return bisect_left(self.startable, op.number, key=lambda other: other.number)
