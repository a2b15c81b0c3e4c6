"""Groups of asynchronous copies: commit_group and wait_group, per thread.

PTX ISA, "cp.async.commit_group", "cp.async.wait_group" and their ``.bulk`` forms. A warp keeps one
list for all its threads; each entry says whose it is, so that diverged threads have groups of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.asynchronous import AsyncOp
    from nibblas.emulator.machine.claims import Claim
    from nibblas.emulator.machine.warp import Warp


_PRUNE = 64


class Copy:
    """A copy that a group may hold.

    Attributes:
        op: in flight. phases_read: phases after which its source has been read.
        reads, writes: its claims.
    """

    __slots__ = ("op", "phases_read", "reads", "writes")

    def __init__(
        self, op: AsyncOp, reads: list[Claim], writes: list[Claim], *, phases_read: int = 1
    ) -> None:
        self.op, self.reads, self.writes, self.phases_read = op, reads, writes, phases_read

    @property
    def has_read(self) -> bool:
        return self.op.phase >= self.phases_read

    @property
    def done(self) -> bool:
        return self.op.done

    @property
    def settled(self) -> bool:
        """Done, and waited for by some other means: a barrier that tracked it."""
        return self.done and not any(claim.held for claim in (*self.reads, *self.writes))

    def waited(self, *, read_only: bool) -> None:
        """The thread knows that the source has been read, and that all is done if not so."""
        for claim in self.reads:
            claim.release()
        if not read_only:
            for claim in self.writes:
                claim.release()


class _Group:
    __slots__ = ("copies", "mask", "site")

    def __init__(self, copies: list[Copy], mask: Array, site: Site) -> None:
        self.copies, self.mask, self.site = copies, mask, site


class CopyGroups:
    """The groups of a warp's threads, oldest first. ``queue``: notified when a copy moves on."""

    def __init__(self) -> None:
        self.queue = WaitQueue()
        self._open: list[tuple[Copy, Array]] = []
        self._groups: list[_Group] = []

    def add(self, copy: Copy, mask: Array) -> None:
        """A copy that these threads have issued."""
        self._open.append((copy, mask))
        if len(self._open) % _PRUNE == 0:
            self._open = [entry for entry in self._open if not entry[0].settled]

    def issued(self, mask: Array) -> list[Copy]:
        """All copies of these threads that they have not waited for."""
        self._open = [entry for entry in self._open if not entry[0].settled]
        found = [copy for copy, whose in self._open if (whose & mask).any()]
        for group in self._groups:
            if (group.mask & mask).any():
                found += group.copies
        return found

    def commit(self, mask: Array, site: Site) -> None:
        """Makes the threads' open copies a group; it may be empty."""
        taken, left = [], []
        for copy, whose in self._open:
            mine = whose & mask
            if mine.any():
                taken.append(copy)
                whose = whose & ~mask
            if whose.any():
                left.append((copy, whose))
        self._open = left
        self._groups.append(_Group(taken, mask, site))

    def due(self, mask: Array, pending: int) -> list[Copy]:
        """Copies of all but the threads' latest ``pending`` groups."""
        newer = np.zeros(32, np.int64)
        found: list[Copy] = []
        for group in reversed(self._groups):
            mine = group.mask & mask
            if (mine & (newer >= pending)).any():
                found += group.copies
            newer += mine
        return found

    def forget(self, mask: Array, pending: int) -> None:
        """Drops what the threads have waited for."""
        newer = np.zeros(32, np.int64)
        kept = []
        for group in reversed(self._groups):
            mine = group.mask & mask
            over = mine & (newer >= pending)
            newer += mine
            if over.any():
                group.mask = group.mask & ~over
            if group.mask.any():
                kept.append(group)
        self._groups = kept[::-1]

    def drop_open(self, mask: Array) -> None:
        """The threads' open copies have been waited for as well."""
        kept = [(copy, whose & ~mask) for copy, whose in self._open]
        self._open = [(copy, whose) for copy, whose in kept if whose.any()]


def wait_for(
    warp: Warp,
    groups: CopyGroups,
    copies: list[Copy],
    what: str,
    *,
    read_only: bool = False,
    then: Callable[[], None],
) -> None:
    """Stops the active lanes until the copies are done, or their sources read.

    Only for steps that end a block. ``then`` runs when they go on.
    """

    def ready() -> bool:
        return all(copy.has_read if read_only else copy.done for copy in copies)

    def finish(in_time: bool = True) -> None:
        for copy in copies:
            copy.waited(read_only=read_only)
        then()

    if ready():
        finish()
        return

    def describe() -> str:
        open_ = [str(copy.op) for copy in copies if not copy.done]
        return f"{what}: {len(open_)} copies in flight, first {open_[0] if open_ else 'none'}"

    warp.wait(groups.queue, ready=ready, describe=describe, resume=finish)
