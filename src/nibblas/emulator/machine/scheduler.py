"""Runs warps and asynchronous operations until a grid has ended, or says why it cannot.

One loop: the order picks a warp that can run; then it says which operations in flight do their
next phase. When nothing runs and nothing is in flight, waits that may time out do; if that leads
nowhere, it is a deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nibblas.emulator.errors import Deadlock, NoProgress
from nibblas.emulator.machine.asynchronous import AsyncUnit
from nibblas.emulator.machine.waiting import Wait, WaitQueue
from nibblas.emulator.machine.warp import Warp, bits_of

if TYPE_CHECKING:
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.order import Order

_MAX_TIMEOUTS_IN_A_ROW = 16
_MAX_WAITS_SHOWN = 40
_MAX_TIMED = 4096


class Scheduler:
    """The loop of one launch.

    Attributes:
        asynchronous: operations in flight. instructions: run so far.
    """

    def __init__(self, order: Order, max_instructions: int) -> None:
        self.order = order
        self.asynchronous = AsyncUnit()
        self.instructions = 0
        self._max_instructions = max_instructions
        self._ready: list[Warp] = []
        self._timed: list[tuple[Wait, WaitQueue]] = []
        self._resident: list[Cta] = []
        self._timeouts = 0

    def start(self, cta: Cta) -> None:
        self._resident.append(cta)
        for warp in cta.warps:
            self.make_ready(warp)

    def make_ready(self, warp: Warp) -> None:
        """A fragment of the warp can run again."""
        if not warp.queued and not warp.finished:
            warp.queued = True
            self._ready.append(warp)

    def may_time_out(self, wait: Wait, queue: WaitQueue) -> None:
        self._timed.append((wait, queue))
        if len(self._timed) > _MAX_TIMED:
            self._timed = [(w, q) for w, q in self._timed if w.fragment.wait is w]

    def note_progress(self) -> None:
        """Something that a fragment waited for has come."""
        self._timeouts = 0

    def finish(self, cta: Cta) -> None:
        self._resident.remove(cta)
        self._timeouts = 0

    def run(self) -> None:
        """Runs all that was started, and what starts meanwhile, to the end.

        Raises:
            Deadlock, NoProgress, and whatever an instruction raises.
        """
        while self._resident:
            if self._ready:
                self._run_one()
            self._complete(idle=not self._ready)

    def drain(self) -> None:
        """Lets all that is still in flight take effect."""
        while self.asynchronous.pending:
            self._complete(idle=True)

    def _run_one(self) -> None:
        index, budget = self.order.pick(self._ready)
        warp = self._ready[index]
        self.instructions += warp.run(budget)
        if not warp.runnable:
            warp.queued = False
            self._ready.remove(warp)
        if self.instructions > self._max_instructions:
            raise NoProgress(
                f"{self.instructions} instructions and the grid has not ended; "
                f"max_instructions is {self._max_instructions}\n" + self.describe(),
                site=warp.site(warp.block.instructions[-1]),
            )

    def _complete(self, *, idle: bool) -> None:
        startable = self.asynchronous.startable
        if startable:
            for op in self.order.complete(startable, idle=idle):
                self.asynchronous.advance(op)
                self._timeouts = 0
        elif idle and self._resident:
            self._time_out()

    def _time_out(self) -> None:
        """Nothing else can happen: every wait that may give up does."""
        timed = [(wait, queue) for wait, queue in self._timed if wait.fragment.wait is wait]
        self._timed = []
        self._timeouts += 1
        if not timed or self._timeouts > _MAX_TIMEOUTS_IN_A_ROW:
            raise self._deadlock()
        for wait, queue in timed:
            queue.discard(wait)
            wait.wake(in_time=False)

    def _deadlock(self) -> Deadlock:
        waits = [f.wait for cta in self._resident for w in cta.warps for f in w.fragments if f.wait]
        error = Deadlock("nothing can run and nothing is in flight\n" + self.describe())
        error.site = waits[0].site if waits else None
        return error

    def describe(self) -> str:
        """Who waits for what, and what is in flight."""
        lines = []
        for cta in self._resident:
            for warp in cta.warps:
                for fragment in warp.fragments:
                    if fragment.wait is not None:
                        lines.append(f"{fragment.wait.site}\n    waits: {fragment.wait.describe()}")
                    elif fragment.gathering:
                        block = cta.machine.program.blocks[fragment.pc]
                        site = warp.site(block.instructions[0], bits_of(fragment.mask))
                        missing = bits_of(warp.alive & ~fragment.mask)
                        lines.append(f"{site}\n    waits: for lanes among {missing:#010x}")
        if len(lines) > _MAX_WAITS_SHOWN:
            more = len(lines) - _MAX_WAITS_SHOWN
            lines = [*lines[:_MAX_WAITS_SHOWN], f"and {more} more"]
        lines += [f"in flight: {op}" for op in self.asynchronous.pending]
        return "\n".join(f"  {line}" for line in lines)
