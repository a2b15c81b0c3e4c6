"""mbarrier objects. PTX ISA, "mbarrier".

A barrier counts pending arrivals and a signed number of transaction bytes. Its phase is complete
when both are zero. ``complete_tx`` may come before ``expect_tx`` within a phase.

The object itself lives here, by its offset in shared memory; the eight bytes in memory hold a
signature, so that a store over a barrier is noticed at the next use. The states that arrive
returns hold phase and pending count, as mbarrier.pending_count needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from nibblas.emulator.errors import BarrierError, UnfinishedWork
from nibblas.emulator.machine.clock import NOTHING, Known, everything
from nibblas.emulator.machine.memory import Memory
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.warp import Warp

MBARRIER_BYTES = 8
MAX_COUNT = 2**20 - 1
"""Most arrivals, and most bytes either way. PTX ISA, "Contents of the mbarrier object"."""

_SIGNATURE = b"mbarrier"


class Releasable(Protocol):
    """Something that ends when a thread has waited for the phase: a claim, say."""

    def release(self) -> None: ...


class MBarrier:
    """One barrier.

    Attributes:
        phase: completed phases. expected: arrivals of a phase. pending: of them, still missing.
        tx: bytes expected minus bytes completed. queue: who waits.
        published: what is ordered before whoever has waited for the last complete phase.
        site: of its init. gone: its CTA has exited.
    """

    def __init__(self, memory: Memory, offset: int, count: int, site: Site) -> None:
        self.memory, self.offset, self.site = memory, offset, site
        self.expected = self.pending = count
        self.phase = self.tx = 0
        self._gathered = self.published = NOTHING
        self.gone = False
        self.queue = WaitQueue()
        self._landed: list[tuple[int, Releasable]] = []

    def __str__(self) -> str:
        where = self.site.source or f"PTX line {self.site.ptx_line}"
        return (
            f"mbarrier {self.memory.base + self.offset:#x} of {self.memory.name} (init at {where})"
        )

    @property
    def status(self) -> str:
        """What the current phase lacks."""
        if self.tx >= 0:
            missing = f"{self.tx} bytes"
        else:
            missing = f"an expect_tx for {-self.tx} bytes that have come"
        return (
            f"phase {self.phase} (parity {self.phase & 1}) lacks {self.pending} of "
            f"{self.expected} arrivals and {missing}"
        )

    @property
    def state(self) -> int:
        """What an arrive returns: the object before it."""
        return self.phase << 32 | self.pending

    def is_complete(self, state: int) -> bool:
        """Whether the phase that a state belongs to is complete.

        Raises:
            BarrierError: it is neither the current phase nor the one before it.
        """
        behind = self.phase - (state >> 32)
        if behind not in (0, 1):
            raise BarrierError(
                f"{self}: a state of phase {state >> 32}; the current phase is {self.phase}, and "
                "only it and the one before it may be tested"
            )
        return behind == 1

    def parity_complete(self, parity: int) -> bool:
        """Whether the last phase of that parity is complete: the current one has the other."""
        return self.phase & 1 != parity

    def arrive(
        self,
        count: int = 1,
        *,
        drop: bool = False,
        may_complete: bool = True,
        by: Known | None = None,
    ) -> int:
        """Counts arrivals of one thread; returns the state before them.

        Args:
            by: what is ordered before the arrival; None: everything so far.
            drop: later phases expect that many fewer.
            may_complete: off for ``.noComplete``.
        """
        self._check_there()
        state = self.state
        if not 1 <= count <= MAX_COUNT:
            raise BarrierError(f"{self}: a count of {count}; want 1 to {MAX_COUNT}")
        if count > self.pending:
            raise BarrierError(
                f"{self}: {count} arrivals at once, and {self.status}: more than its count"
            )
        if not may_complete and count == self.pending:
            raise BarrierError(f"{self}: .noComplete, and the arrival completes the phase")
        self._gather(by)
        if drop:
            self.expected -= count
        self.pending -= count
        self._advance()
        return state

    def arrive_each(self, threads: int, *, by: Known | None = None) -> None:
        """One arrival of each of several threads."""
        if threads <= self.pending:
            self.arrive(threads, by=by)
        else:
            for _ in range(threads):
                self.arrive(by=by)

    def expect(self, num_bytes: int) -> None:
        self._count(num_bytes)

    def complete(
        self, num_bytes: int, claims: Iterable[Releasable] = (), *, by: Known | None = None
    ) -> None:
        """Counts bytes that have come.

        Args:
            claims: those that a wait for the phase ends. by: as for ``arrive``.
        """
        self._gather(by)
        self._landed += [(self.phase, claim) for claim in claims]
        self._count(-num_bytes)
        self._advance()

    def attach(self, claims: Iterable[Releasable]) -> None:
        """Claims that end when somebody has waited for the current phase."""
        self._landed += [(self.phase, claim) for claim in claims]

    def observed(self, warp: Warp) -> None:
        """A thread of a warp has seen that all phases before the current one are complete."""
        warp.learn(self.published)
        if self._landed:
            for phase, claim in self._landed:
                if phase < self.phase:
                    claim.release()
            self._landed = [entry for entry in self._landed if entry[0] >= self.phase]

    def _check_there(self) -> None:
        if self.gone:
            raise UnfinishedWork(
                f"{self} is signalled after its CTA has exited: a CTA must stay until its cluster "
                "needs it no longer"
            )

    def _gather(self, known: Known | None) -> None:
        self._gathered = self._gathered | (everything() if known is None else known)

    def _count(self, num_bytes: int) -> None:
        self._check_there()
        self.tx += num_bytes
        if abs(self.tx) > MAX_COUNT:
            raise BarrierError(
                f"{self}: {self.tx} bytes; the transaction count holds -{MAX_COUNT} to {MAX_COUNT}"
            )

    def _advance(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.published = self._gathered
            self.pending = self.expected
            self.queue.notify()


def init_barrier(memory: Memory, offset: int, count: int, site: Site) -> None:
    """mbarrier.init.

    Raises:
        BarrierError: the count is out of range, or there is a barrier already.
    """
    if not 1 <= count <= MAX_COUNT:
        raise BarrierError(f"a count of {count}; want 1 to {MAX_COUNT}")
    for near in range(offset - MBARRIER_BYTES + 1, offset + MBARRIER_BYTES):
        known = memory.barriers.get(near)
        if known is not None and _is_intact(memory, near):
            raise BarrierError(
                f"init over {known}, {known.status}: want mbarrier.inval first, and one init"
            )
    memory.barriers[offset] = MBarrier(memory, offset, count, site)
    memory.write(offset, _SIGNATURE)


def invalidate(memory: Memory, offset: int) -> None:
    """mbarrier.inval: the bytes are ordinary memory again, and hold nothing."""
    find_barrier(memory, offset)
    del memory.barriers[offset]
    memory.state[offset : offset + MBARRIER_BYTES] = 0


def find_barrier(memory: Memory, offset: int) -> MBarrier:
    """The barrier at a place.

    Raises:
        BarrierError: there is none, or something was stored over it.
    """
    barrier = memory.barriers.get(offset)
    if barrier is None:
        known = ", ".join(f"{memory.base + other:#x}" for other in sorted(memory.barriers))
        raise BarrierError(
            f"no mbarrier at {memory.base + offset:#x} of {memory.name}: mbarrier.init has not run "
            f"there; barriers are at: {known or 'none'}"
        )
    if not _is_intact(memory, offset):
        raise BarrierError(f"{barrier}: something was stored over it")
    return barrier


def _is_intact(memory: Memory, offset: int) -> bool:
    return memory.data[offset : offset + MBARRIER_BYTES].tobytes() == _SIGNATURE
