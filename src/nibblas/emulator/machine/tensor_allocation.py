"""Who gets which columns of tensor memory. PTX ISA, "Tensor Memory Allocation", "tcgen05.alloc".

With ``.cta_group::1`` a warp asks for columns of its CTA; with ``.cta_group::2`` a warp of each CTA
of the pair asks, and both get the same columns. Whoever asks for columns that are not free waits,
first come, first served. Under ``.cta_group::2`` dealloc, too, always waits for the other CTA's
warp: the PTX ISA says that it may.

Where the rules are "ptx", an allocation begins at a multiple of its size that the seed chooses,
never at column 0 if there is another: nothing promises more. Where they are "hardware" it is the
first that is free. Sizes may not grow from one allocation to the next, so neither leaves gaps that
a later one cannot use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nibblas.emulator.errors import DataRace, IllegalOperation, OutOfBounds
from nibblas.emulator.machine.tensor_memory import COLUMNS, LANES, TensorMemory, overlap, rectangle
from nibblas.emulator.machine.tensor_order import last_touches
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.machine.warp import Warp

SMALLEST = 32


class Request:
    """One warp's part of an allocation or deallocation.

    Attributes:
        columns: how many. first: of a deallocation; of an allocation, once it is done.
    """

    __slots__ = ("columns", "done", "first", "site")

    def __init__(self, columns: int, site: Site, first: int = -1) -> None:
        self.columns, self.site, self.first = columns, site, first
        self.done = False


class Allocator:
    """Columns of one CTA, or of both CTAs of a pair.

    Attributes:
        queue: notified when columns are handed out or come back.
    """

    def __init__(self, ctas: list[Cta], *, seed: int, hardware: bool) -> None:
        self._ctas = ctas
        self._memories = [cta.tensor_memory for cta in ctas]
        self._seed, self._hardware = seed, hardware
        self._allocs: list[list[Request]] = [[] for _ in ctas]
        self._deallocs: list[list[Request]] = [[] for _ in ctas]
        self._count = 0
        self._smallest = COLUMNS
        self._relinquished: dict[int, Site] = {}
        self.queue = WaitQueue()

    def alloc(self, cta: Cta, columns: int, site: Site) -> Request:
        """A warp asks for columns.

        Raises:
            IllegalOperation: the number is not allowed, or the CTA has given its right up.
        """
        _check_count(columns)
        if cta.rank in self._relinquished:
            raise IllegalOperation(
                "tcgen05.alloc after tcgen05.relinquish_alloc_permit, executed by "
                f"{self._relinquished[cta.rank]}"
            )
        if columns > self._smallest and not self._hardware:
            raise IllegalOperation(
                f"tcgen05.alloc of {columns} columns after one of {self._smallest}: the number "
                "must not increase between allocations of a CTA (PTX ISA, tcgen05.alloc)"
            )
        request = Request(columns, site)
        self._allocs[self._ctas.index(cta)].append(request)
        self._settle()
        return request

    def dealloc(self, warp: Warp, address: int, columns: int, site: Site) -> Request:
        """A warp gives columns of its CTA back.

        Raises:
            OutOfBounds: they are not one allocation. DataRace: something still uses them.
        """
        _check_count(columns)
        index = self._ctas.index(warp.cta)
        memory = self._memories[index]
        if memory.allocations.get(address, (0, None))[0] != columns:
            known = ", ".join(f"{c} at {a:#x}" for a, (c, _) in sorted(memory.allocations.items()))
            raise OutOfBounds(
                f"tcgen05.dealloc of {columns} columns at {address:#x} of {memory.name}; "
                f"allocated: {known or 'none'}"
            )
        _check_idle(memory, address, columns)
        _check_known(memory, address, columns, warp)
        request = Request(columns, site, address)
        self._deallocs[index].append(request)
        self._settle()
        return request

    def relinquish(self, cta: Cta, site: Site) -> None:
        """No thread of the CTA may allocate any more."""
        self._relinquished.setdefault(cta.rank, site)

    def missing(self, cta: Cta) -> str:
        """What a CTA's oldest request for columns waits for."""
        absent = [
            str(other.index)
            for other, queue in zip(self._ctas, self._allocs, strict=True)
            if not queue
        ]
        if absent:
            return f"the peer CTA {absent[0]} has not executed tcgen05.alloc"
        memory = self._memories[self._ctas.index(cta)]
        return f"{int((~memory.allocated).sum())} of {COLUMNS} of {memory.name} are free"

    def _settle(self) -> None:
        """Does what all CTAs concerned have asked for, as far as columns are free."""
        moved = False
        while all(self._deallocs):
            requests = self._matched(self._deallocs, "dealloc")
            for memory, request in zip(self._memories, requests, strict=True):
                _check_idle(memory, request.first, request.columns)
                memory.free(request.first)
                request.done = moved = True
        while all(self._allocs):
            heads = [queue[0] for queue in self._allocs]
            first = self._find(heads[0].columns)
            if first is None:
                break
            requests = self._matched(self._allocs, "alloc")
            self._count += 1
            self._smallest = min(self._smallest, heads[0].columns)
            for memory, request in zip(self._memories, requests, strict=True):
                memory.allocate(first, request.columns, request.site)
                request.first, request.done, moved = first, True, True
        if moved:
            self.queue.notify()

    def _matched(self, queues: list[list[Request]], what: str) -> list[Request]:
        """The oldest request of each CTA, which must ask for the same."""
        requests = [queue.pop(0) for queue in queues]
        for other in requests[1:]:
            if (other.columns, other.first) != (requests[0].columns, requests[0].first):
                raise IllegalOperation(
                    f"the CTAs of a pair execute different tcgen05.{what}.cta_group::2: "
                    f"{requests[0].columns} columns by {requests[0].site}, {other.columns} by "
                    f"{other.site}"
                )
        return requests

    def _find(self, columns: int) -> int | None:
        """A first column; None: there is no room."""
        free = [
            first
            for first in range(0, COLUMNS, columns)
            if not any(m.allocated[first : first + columns].any() for m in self._memories)
        ]
        if not free:
            return None
        if self._hardware:
            return free[0]
        away = [first for first in free if first] or free
        return away[(self._seed + self._count) % len(away)]


def _check_count(columns: int) -> None:
    if not SMALLEST <= columns <= COLUMNS or columns & (columns - 1):
        raise IllegalOperation(
            f"{columns} columns of tensor memory; want a power of two from {SMALLEST} to {COLUMNS}"
        )


def _check_idle(memory: TensorMemory, first: int, columns: int) -> None:
    """Raises DataRace if an operation that nothing has waited for uses the columns."""
    where = slice(0, LANES), slice(first, first + columns)
    for claim in memory.claims.values():
        if overlap(rectangle(claim.where), where):
            raise DataRace(
                f"tcgen05.dealloc of columns {first} to {first + columns - 1} of {memory.name} "
                f"while {claim} is in flight: nothing has waited for it"
            )


def _check_known(memory: TensorMemory, first: int, columns: int, warp: Warp) -> None:
    """Raises DataRace if no barrier orders the use of the columns before a warp's dealloc."""
    where = slice(0, LANES), slice(first, first + columns)
    for access, _ in last_touches(memory, where):
        over = access.settled_at
        if access.warp is warp or over is None:
            continue
        if not warp.known.covers(access.party, over):
            raise DataRace(
                f"tcgen05.dealloc of columns {first} to {first + columns - 1} of {memory.name}, "
                f"which {access} uses: no barrier that the warp has waited for orders the two"
            )
