"""What orders operations on tensor memory. PTX ISA, "Memory Consistency Model for 5th generation
of TensorCore operations"; the sections named below are parts of it.

Two sets of rules, by ``Device(rules=...)``:

    "ptx"       what the text promises, no more
        pipelined pairs (PAIRS) of one thread run in order; of two threads, if fences order them:
            fence::before_thread_sync (or commit) after the first, a barrier, and
            fence::after_thread_sync before the second
        any other two that meet in a cell need the first to be complete and waited for (commit and
            mbarrier for mma, cp, shift; tcgen05.wait for ld, st), and then the same fences
    "hardware"  what devices are known to do, which CUTLASS and DeepGEMM rely on
        mma, cp, shift and commit of one CTA run in the order of issue, whoever issued them
        no fences are needed: waiting for each other is
        an ld is over when an instruction uses one of its registers, which waits for all of them

What is ordered before what follows from barriers: an arrival hands on what its warp has done and
knows, a wait takes it (clock.py). fence::before_thread_sync and fence::after_thread_sync let that
count for tensor memory. A load that is volatile, relaxed or acquire, and an atomic, count as waits
for everything so far. So a barrier or fence that is missing is noticed under every order, except
between the lanes of one warp, which know the same, and for readers of a cell that are done and not
its last (``TensorMemory.last``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nibblas.emulator.machine.claims import Claim
from nibblas.emulator.machine.clock import NOTHING, Known, tick

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.asynchronous import AsyncOp
    from nibblas.emulator.machine.machine import Machine
    from nibblas.emulator.machine.memory import Array
    from nibblas.emulator.machine.tensor_memory import Cells, TensorMemory
    from nibblas.emulator.machine.warp import Warp

Rules = Literal["ptx", "hardware"]
Kind = Literal["mma", "cp", "cp.4x256b", "shift", "ld", "st"]

PIPELINES = 'PTX ISA, "Pipelined tcgen05 Instructions"'
FENCES = 'PTX ISA, "Specialized Inter-thread Synchronization for tcgen05 instructions"'
COMPLETION = 'PTX ISA, "mbarrier based completion mechanism"'
WAITS = 'PTX ISA, "tcgen05.wait instruction based completion mechanism"'

PAIRS = {
    ("mma", "mma"),
    ("cp", "mma"),
    ("cp.4x256b", "mma"),
    ("shift", "mma"),
    ("shift", "cp.4x256b"),
    ("mma", "shift"),
}
"""Pipelined pairs; two mma only with the same accumulator and shape."""


class Access:
    """An operation on tensor memory, as far as others must be ordered after it.

    Attributes:
        kind, name, site: what it is. lanes: bits of the threads of ``warp`` that issued it.
        pipeline: of an mma, its accumulator and shape.
        after: what is ordered before it; by each of the lanes, where they differ.
        fenced_at: when all its threads had executed fence::before_thread_sync; None: not yet.
        settled_at: when its completion was signalled, or its wait executed; None: not yet.
    """

    __slots__ = (
        *("after", "fenced_at", "kind", "lanes", "name"),
        *("pipeline", "settled_at", "site", "strict", "unfenced", "warp"),
    )

    def __init__(
        self,
        kind: Kind,
        name: str,
        site: Site,
        warp: Warp,
        lanes: int,
        pipeline: Any = None,
    ) -> None:
        self.kind, self.name, self.site = kind, name, site
        self.warp, self.lanes, self.pipeline = warp, lanes, pipeline
        self.strict = warp.cta.machine.rules == "ptx"
        self.after = warp.tensor.after_of(lanes) if self.strict else {warp.known}
        self.unfenced = lanes
        self.fenced_at: int | None = None
        self.settled_at: int | None = None

    @property
    def party(self) -> int:
        """Whose event its end is."""
        return self.warp.core if self.is_tensor else self.warp.party

    @property
    def is_tensor(self) -> bool:
        """Whether the tensor core runs it, and commit tracks it."""
        return self.kind not in ("ld", "st")

    def fence_before(self, lanes: int, now: int) -> None:
        self.unfenced &= ~lanes
        if not self.unfenced and self.fenced_at is None:
            self.fenced_at = now

    def __str__(self) -> str:
        return f"{self.name} (issued by {self.site})"


Touch = tuple[Access, bool]
"""An access to some cells, and whether it writes those."""


class TensorClaim(Claim):
    """Cells of tensor memory that an operation reads or writes; ``access``: the operation."""

    __slots__ = ("access",)

    def __init__(self, memory: TensorMemory, where: Cells, access: Access, *, writes: bool) -> None:
        super().__init__(memory, where, access.name, access.site, writes=writes)
        self.access = access


class TensorThreads:
    """What the threads of a warp have done with tensor memory.

    Attributes:
        issued: operations of each thread that commit tracks, by lane.
        loads, stores: ld and st that tcgen05.wait has not waited for.
    """

    def __init__(self) -> None:
        self._after = [NOTHING] * 32
        self._unfenced: list[Access] = []  # ld and st
        self.issued: dict[int, list[Issued]] = {}
        self.loads: list[Transfer] = []
        self.stores: list[Transfer] = []

    def after_of(self, lanes: int) -> set[Known]:
        """What the fences of these lanes order before their next operation."""
        return {self._after[lane] for lane in range(32) if lanes >> lane & 1}

    def fence_after(self, lanes: int, known: Known) -> None:
        """The lanes order what follows after all that is known."""
        self._after = [known if lanes >> lane & 1 else k for lane, k in enumerate(self._after)]

    def fence_before(self, lanes: int, now: int) -> None:
        """The lanes order what they have done before whatever they arrive at later."""
        for access in self._unfenced:
            access.fence_before(lanes, now)
        self._unfenced = [access for access in self._unfenced if access.fenced_at is None]
        for lane, issued in self.issued.items():
            if lanes >> lane & 1:
                for entry in issued:
                    entry.access.fence_before(lanes, now)

    def use(self, slots: frozenset[int], machine: Machine) -> None:
        """An instruction uses registers: with the rules of "hardware" their ld is over."""
        if machine.rules == "hardware":
            used = [load for load in self.loads if not slots.isdisjoint(load.slots)]
            for load in used:
                self.loads.remove(load)
                self.waited(load, tick())

    def waited(self, transfer: Transfer, now: int) -> None:
        """tcgen05.wait has waited for an ld or st; a fence::before_thread_sync may follow."""
        for claim in transfer.claims:
            claim.release()
        transfer.access.settled_at = now
        if transfer.access.strict:
            self._unfenced.append(transfer.access)


class Issued:
    """An operation that commit tracks. ``claims``: on tensor and shared memory."""

    __slots__ = ("access", "claims", "op")

    def __init__(self, access: Access, op: AsyncOp, claims: list[Claim]) -> None:
        self.access, self.op, self.claims = access, op, claims

    @property
    def over(self) -> bool:
        """Done and waited for."""
        return self.op.done and not any(claim.held for claim in self.claims)


class Transfer:
    """An ld or st that nothing has waited for. ``registers``: (name, slot, value) of an ld."""

    __slots__ = ("access", "claims", "registers")

    def __init__(self, access: Access, claims: list[Claim]) -> None:
        self.access, self.claims = access, claims
        self.registers: list[tuple[str, int, Array]] = []

    @property
    def slots(self) -> list[int]:
        return [slot for _, slot, _ in self.registers]


def pipelined(first: Access, second: Access) -> bool:
    """Whether the two run in order, as a pair whose order is established. PIPELINES, FENCES."""
    if not (first.is_tensor and second.is_tensor):
        return False
    if not second.strict:
        return True
    if not (_same_thread(first, second) or _passed_on(first, second)):
        return False
    if (first.kind, second.kind) not in PAIRS:
        return False
    return (first.kind, second.kind) != ("mma", "mma") or first.pipeline == second.pipeline


def _same_thread(first: Access, second: Access) -> bool:
    return first.warp is second.warp and first.lanes == second.lanes


def _passed_on(first: Access, second: Access) -> bool:
    """Whether the first's fence::before_thread_sync is ordered before the second. FENCES"""
    return _known(first.warp.party, first.fenced_at, second)


def _known(party: int, time: int | None, second: Access) -> bool:
    return time is not None and all(known.covers(party, time) for known in second.after)


def why_unordered(first: Access, second: Access) -> str:
    """Why the second may not touch cells of the first, which nothing has waited for."""
    if not first.is_tensor:
        return (
            f"nothing has waited for it: want tcgen05.wait::{first.kind} in the thread that issued "
            f"it. {WAITS}"
        )
    if not second.is_tensor:
        return (
            "nothing has waited for it: want tcgen05.commit, a wait for its mbarrier and "
            f"tcgen05.fence::after_thread_sync. {COMPLETION}"
        )
    if (first.kind, second.kind) in PAIRS:
        if not _same_thread(first, second) and not _passed_on(first, second):
            return (
                "the two come from different threads: want fence::before_thread_sync in the first "
                f"and fence::after_thread_sync in the second, or a wait. {FENCES}"
            )
        return f"accumulator or shape differ, so the two may run in either order. {PIPELINES}"
    return (
        f"{first.kind} -> {second.kind} is no pipelined pair, so the two may run in either order: "
        f"want tcgen05.commit and a wait for its mbarrier between them. {PIPELINES}"
    )


def why_late(first: Access, second: Access) -> str:
    """Why the second may not touch cells of the first though that is over; "": it may."""
    if pipelined(first, second) or (first.warp is second.warp and not first.is_tensor):
        return ""
    by_end = first.is_tensor or not second.strict
    since = first.settled_at if by_end else first.fenced_at
    if _known(first.party, since, second):
        return ""
    if not second.strict:
        return "that is over, but no barrier that the thread has waited for says so"
    if since is None:
        return (
            "its threads have executed no tcgen05.fence::before_thread_sync after tcgen05.wait. "
            f"{FENCES}"
        )
    event = "its completion" if first.is_tensor else "the other's fence::before_thread_sync"
    return (
        f"that is over, but no tcgen05.fence::after_thread_sync of the thread follows {event} and "
        f"a barrier. {FENCES}"
    )


def last_touches(memory: TensorMemory, where: Cells) -> list[Touch]:
    """What touched some cell of a rectangle last."""
    numbers = memory.last[where]
    first = int(numbers[0, 0])
    found = [first] if (numbers == first).all() else np.unique(numbers).tolist()
    return [touch for number in found if (touch := memory.touches[number]) is not None]
