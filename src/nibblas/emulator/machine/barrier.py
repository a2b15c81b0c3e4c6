"""CTA barriers: the sixteen named ones of a CTA. PTX ISA, "bar, barrier"."""

from __future__ import annotations

from nibblas.emulator.errors import BarrierError
from nibblas.emulator.machine.clock import NOTHING, Known, everything
from nibblas.emulator.machine.waiting import WaitQueue

NUM_BARRIERS = 16


class NamedBarrier:
    """One barrier of a CTA; it counts threads.

    Attributes:
        arrived: threads of the current phase. expected: None until the first has come.
        phase: completed phases.
        whole: the phase is for all threads of the CTA; those that have exited are not waited for.
        published: what is ordered before whoever has waited for the last complete phase.
        votes: by phase, how many threads brought a false and a true predicate to a reduction.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived = 0
        self.expected: int | None = None
        self.whole = False
        self.phase = 0
        self._gathered = self.published = NOTHING
        self.votes: dict[int, list[int]] = {}
        self.queue = WaitQueue()

    def vote(self, against: int, in_favour: int) -> None:
        """Counts the predicates of threads that are about to arrive."""
        votes = self.votes.setdefault(self.phase, [0, 0])
        votes[0] += against
        votes[1] += in_favour

    def arrive(self, threads: int, expected: int, *, whole: bool, by: Known | None = None) -> int:
        """Counts threads; returns the phase that they arrived in.

        Args:
            expected: threads that complete the phase.
            by: what is ordered before the arrival; None: everything so far.
        """
        if self.expected is None:
            self.expected, self.whole = expected, whole
        elif self.expected != expected:
            raise BarrierError(
                f"barrier {self.number} expects {self.expected} threads in this phase, "
                f"and an arrival expects {expected}"
            )
        self.arrived += threads
        self._gathered = self._gathered | (everything() if by is None else by)
        if self.arrived > expected:
            raise BarrierError(
                f"barrier {self.number} expects {expected} threads, and {self.arrived} arrived"
            )
        phase = self.phase
        self._complete_if_full()
        return phase

    def threads_exited(self, left: int) -> None:
        """A warp has exited and ``left`` threads are still there."""
        if self.whole and self.expected is not None:
            self.expected = left
            self._complete_if_full()

    def _complete_if_full(self) -> None:
        if self.expected is not None and self.arrived >= self.expected:
            self.arrived, self.expected, self.whole = 0, None, False
            self.phase += 1
            self.published = self._gathered
            self.queue.notify()

    def __str__(self) -> str:
        return f"barrier {self.number}: {self.arrived} of {self.expected} threads have arrived"
