"""Waiting: what a fragment of a warp stands still for, and how it is woken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.warp import Fragment, Warp


class Wait:
    """One fragment that waits.

    Attributes:
        ready: whether what it waits for has come.
        describe: what it waits for, for a deadlock report.
        resume: called once when it wakes, with True if ready, False if it timed out; the
            fragment's lanes are active in the warp.
        may_time_out: the instruction may give up (``mbarrier.try_wait``).
    """

    __slots__ = ("describe", "fragment", "may_time_out", "ready", "resume", "site", "warp")

    def __init__(
        self,
        warp: Warp,
        fragment: Fragment,
        site: Site,
        *,
        ready: Callable[[], bool],
        describe: Callable[[], str],
        resume: Callable[[bool], None] | None,
        may_time_out: bool,
    ) -> None:
        self.warp, self.fragment, self.site = warp, fragment, site
        self.ready, self.describe, self.resume = ready, describe, resume
        self.may_time_out = may_time_out

    def wake(self, *, in_time: bool) -> None:
        """Makes the fragment runnable."""
        self.fragment.wait = None
        if self.resume is not None:
            warp = self.warp  # other lanes of it may be what runs now, and have ended the wait
            running = warp.current, warp.mask, warp.full, warp.lanes
            warp.activate(self.fragment)
            self.resume(in_time)
            warp.current, warp.mask, warp.full, warp.lanes = running
        scheduler = self.warp.cta.machine.scheduler
        if in_time:
            scheduler.note_progress()
        scheduler.make_ready(self.warp)


class WaitQueue:
    """The waits that one object (a barrier, a group of copies) may end."""

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def add(self, wait: Wait) -> None:
        self._waits.append(wait)

    def discard(self, wait: Wait) -> None:
        """After a time-out."""
        self._waits = [other for other in self._waits if other is not wait]

    def notify(self) -> None:
        """To be called after every change of the object: wakes those whose condition holds."""
        if not self._waits:
            return
        woken = [wait for wait in self._waits if wait.ready()]
        if woken:
            self._waits = [wait for wait in self._waits if wait not in woken]
            for wait in woken:
                wait.wake(in_time=True)
