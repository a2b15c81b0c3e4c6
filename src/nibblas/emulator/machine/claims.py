"""Claims: what asynchronous operations in flight say of the bytes that they read or write.

An operation claims its bytes when it is issued and lets go when the program has *waited* for it:
a successful wait on the mbarrier phase that counted it, a wait_group of the thread that issued it.
Whether it has physically taken effect is not the question, so a missing wait is found under every
order. Rules checked:

    at issue    bytes to be read are initialised, and no other operation writes them
                through the async proxy: nor were they written by ordinary stores without a
                fence.proxy.async of the thread that stored (GENERIC_DIRTY, see fences.py)
                bytes to be written are neither read nor written by another operation
    meanwhile   ordinary reads of bytes being written, ordinary writes of bytes being read or
                written, are a DataRace (access.py)
    at the end  a CTA that exits while its shared memory is claimed has UnfinishedWork

Claims count per byte, so several operations may read the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import DataRace, UnfinishedWork, UninitialisedRead
from nibblas.emulator.machine.memory import (
    ASYNC_READING,
    ASYNC_WRITING,
    GENERIC_DIRTY,
    INITIALISED,
    Claimable,
    Where,
)

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site

_MAX_SHOWN = 8


class Claim:
    """Bytes of one memory that one operation reads or writes.

    Attributes:
        where: a slice, or offsets of bytes, each at most once.
        writes: else it reads. what, site: the operation. held: not released yet.
    """

    __slots__ = ("held", "memory", "site", "what", "where", "writes")

    def __init__(
        self, memory: Claimable, where: Where, what: str, site: Site, *, writes: bool
    ) -> None:
        self.memory, self.where, self.writes = memory, where, writes
        self.what, self.site = what, site
        counts = memory.writers if writes else memory.readers
        counts[where] += 1
        memory.state[where] |= ASYNC_WRITING if writes else ASYNC_READING
        memory.claims[id(self)] = self
        memory.watched += 1
        if writes:
            memory.tracked += 1
        self.held = True

    def land(self) -> None:
        """The bytes have been written; nobody has waited for them yet."""
        state = self.memory.state
        state[self.where] = state[self.where] & ~np.uint8(GENERIC_DIRTY) | INITIALISED

    def release(self) -> None:
        """The program has waited for the operation."""
        if not self.held:
            return
        self.held = False
        memory, where = self.memory, self.where
        counts = memory.writers if self.writes else memory.readers
        flag = ASYNC_WRITING if self.writes else ASYNC_READING
        left = counts[where] - 1
        counts[where] = left
        if left.any():
            memory.state[where] &= np.where(left == 0, np.uint8(0xFF ^ flag), np.uint8(0xFF))
        else:
            memory.state[where] &= 0xFF ^ flag
        del memory.claims[id(self)]
        memory.watched -= 1
        if self.writes:
            memory.tracked -= 1

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return f"{self.what}, which {verb} {self.memory.name}, issued by {self.site}"


def claim_read(
    memory: Claimable, where: Where, what: str, site: Site, *, proxy: bool = True
) -> Claim:
    """Claims bytes that an operation reads; arguments and errors as in ``check_readable``."""
    check_readable(memory, where, what, proxy=proxy)
    return Claim(memory, where, what, site, writes=False)


def check_readable(memory: Claimable, where: Where, what: str, *, proxy: bool = True) -> None:
    """Raises if an operation that is issued now may not read some bytes.

    Args:
        proxy: it reads through the async proxy.

    Raises:
        DataRace, UninitialisedRead, OutOfBounds.
    """
    memory.check_bounds(where, what)
    states = memory.state[where]
    if (states & ASYNC_WRITING).any():
        raise DataRace(
            f"{what} reads {memory.place(where, states & ASYNC_WRITING)}, which "
            f"{_other(memory, writes=True)} writes; nothing has waited for it"
        )
    if not (states & INITIALISED).all():
        missing = (states & INITIALISED) == 0
        raise UninitialisedRead(
            f"{what} reads {memory.place(where, missing)}, of which {int(missing.sum())} bytes "
            "were never written"
        )
    if proxy and (states & GENERIC_DIRTY).any():
        raise DataRace(
            f"{what} reads {memory.place(where, states & GENERIC_DIRTY)}, which ordinary stores "
            "wrote: the threads that stored must execute fence.proxy.async before the barrier "
            "that precedes the operation"
        )


def claim_write(
    memory: Claimable, where: Where, what: str, site: Site, *, alone: bool = True
) -> Claim:
    """Claims bytes that an operation writes.

    Args:
        alone: other operations must not write them meanwhile; off for reductions.

    Raises:
        DataRace, OutOfBounds.
    """
    memory.check_bounds(where, what)
    if memory.claims:
        states = memory.state[where]
        busy = states & ((ASYNC_READING | ASYNC_WRITING) if alone else ASYNC_READING)
        if busy.any():
            writes = bool((busy & ASYNC_WRITING).any())
            raise DataRace(
                f"{what} writes {memory.place(where, busy)}, which "
                f"{_other(memory, writes=writes)} {'writes' if writes else 'reads'}; nothing has "
                "waited for it"
            )
    return Claim(memory, where, what, site, writes=True)


_BULK = ("cp.async.bulk", "cp.reduce.async.bulk")


def check_unfinished(memory: Claimable, *, stores_may_read: bool = False) -> None:
    """Raises UnfinishedWork if shared memory of a CTA that ends is still claimed.

    Args:
        stores_may_read: bulk copies to global memory do not count. No text promises that a CTA's
            memory outlives it for them; ThunderKittens and an example of CuTe's rely on it.
    """
    claims = list(memory.claims.values())
    if stores_may_read:
        claims = [c for c in claims if c.writes or not c.what.startswith(_BULK)]
    if not claims:
        return
    names = [f"  {claim}" for claim in claims[:_MAX_SHOWN]]
    if len(claims) > _MAX_SHOWN:
        names.append(f"  and {len(claims) - _MAX_SHOWN} more")
    raise UnfinishedWork(
        f"a CTA ended and nothing has waited for what uses {memory.name}:\n" + "\n".join(names),
        site=claims[0].site,
    )


def _other(memory: Claimable, *, writes: bool) -> str:
    """A claim of that kind, for messages."""
    for claim in memory.claims.values():
        if claim.writes == writes:
            return f"{claim.what} (issued by {claim.site})"
    return "another operation"
