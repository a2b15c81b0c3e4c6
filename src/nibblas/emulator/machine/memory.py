"""Bytes with bounds and a state per byte; and the address map of a device.

An address of the global, const or entry-parameter space is its own generic address. Shared and
local memory have windows in the generic space:

    0x1_7000_0000_0000   shared::cluster window: + 32-bit shared address
    0x1_7100_0000_0000   local window: + offset in the thread's local memory
    0x1_7200_0000_0000   const variables
    0x1_7300_0000_0000   parameters of the running entry
    0x1_7400_0000_0000   global allocations, guard gaps between them

All lie above 2^48, where no process has memory of its own: a CPU tensor can be adopted at its own
address. All fit in 49 bits, as device addresses do.

A 32-bit shared address is ``rank of the CTA in its cluster << 24 | offset``, as on hardware, where
clearing bit 24 names the even CTA of a pair.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nibblas.emulator.errors import IllegalOperation, OutOfBounds

if TYPE_CHECKING:
    from nibblas.emulator.machine.claims import Claim
    from nibblas.emulator.machine.mbarrier import MBarrier

Array = npt.NDArray[Any]
Where = slice | Array | tuple[slice, slice]
"""Pieces of a memory: bytes as a slice or as offsets, each at most once; of tensor memory, lanes
and columns."""

SHARED_WINDOW = 0x1_7000_0000_0000
LOCAL_WINDOW = 0x1_7100_0000_0000
CONST_BASE = 0x1_7200_0000_0000
PARAM_BASE = 0x1_7300_0000_0000
GLOBAL_BASE = 0x1_7400_0000_0000
WINDOW_BYTES = 1 << 32
RANK_SHIFT = 24
"""Position of the CTA's cluster rank in a shared address."""

ALLOCATION_ALIGN = 512
GUARD_BYTES = 1 << 20

# What is known of a byte; the states of one byte are or-ed together.
INITIALISED = 1
GENERIC_DIRTY = 2
"""Written through the generic proxy, not yet fenced towards the async proxy."""
ASYNC_WRITING = 4
"""An asynchronous operation in flight may write it at any time."""
ASYNC_READING = 8
"""An asynchronous operation in flight may read it at any time."""

READABLE = bytes([1, 3, 9, 11])
"""States in which an ordinary read is right."""
WRITABLE = bytes([0, 1, 2, 3])
"""States in which an ordinary write is right."""

POISON = 0xCD


class Claimable:
    """Memory whose pieces asynchronous operations in flight claim: see claims.py.

    Attributes:
        name: for messages.
        data: the pieces. state: uint8, the same shape; flags as above.
        tracked: whether ordinary reads look at ``state``: 1 for memory that may hold pieces never
            written, and 1 more for each operation in flight that writes here.
        watched: whether ordinary writes look at ``state``: operations in flight here.
        claims: of operations in flight, by id.
    """

    name: str
    data: Array
    state: Array
    tracked: int
    watched: int
    claims: dict[int, Claim]
    _readers: Array | None = None
    _writers: Array | None = None

    @property
    def readers(self) -> Array:
        """Operations in flight that read each piece. uint16, as ``state``"""
        if self._readers is None:
            self._readers = np.zeros(self.state.shape, np.uint16)
        return self._readers

    @property
    def writers(self) -> Array:
        """Operations in flight that write each piece. uint16, as ``state``"""
        if self._writers is None:
            self._writers = np.zeros(self.state.shape, np.uint16)
        return self._writers

    def check_bounds(self, where: Where, what: str) -> None:
        """Raises OutOfBounds if an operation reaches pieces that are not there."""
        raise NotImplementedError

    def place(self, where: Where, flags: Array) -> str:
        """Where the first piece that is flagged lies; flags: as ``state[where]``."""
        raise NotImplementedError


class Memory(Claimable):
    """A run of bytes at an address of some window.

    Attributes, beside those of Claimable:
        base: address of the first byte. num_bytes: exact size. barriers: mbarriers, by offset.
        data, state: [num_bytes], uint8.
        read_only: ordinary writes are refused. guarded: whether they are looked at for that, or
            for coming before the grid's griddepcontrol.wait.
        written: what an ordinary write leaves in ``state``.

    ``data`` given, uint8 [num_bytes]: the bytes are the caller's own, not copied.
    """

    def __init__(
        self,
        name: str,
        base: int,
        num_bytes: int,
        *,
        initialised: bool = False,
        read_only: bool = False,
        written: int = INITIALISED,
        data: Array | None = None,
    ) -> None:
        self.name, self.base, self.num_bytes = name, base, num_bytes
        self.read_only, self.written = read_only, written
        self.guarded = read_only
        padded = num_bytes if data is not None else -(-num_bytes // 64) * 64
        self._data = np.full(padded, POISON, np.uint8) if data is None else data
        self._state = np.full(padded, INITIALISED if initialised else 0, np.uint8)
        self.data, self.state = self._data[:num_bytes], self._state[:num_bytes]
        self.tracked = int(not initialised)
        self.watched = 0
        self.claims: dict[int, Claim] = {}
        self.barriers: dict[int, MBarrier] = {}
        self._views: dict[tuple[int, int], tuple[Array, Array]] = {}

    def __repr__(self) -> str:
        return f"{self.name} [{self.base:#x}, {self.base + self.num_bytes:#x})"

    @property
    def end(self) -> int:
        return self.base + self.num_bytes

    def check_bounds(self, where: Where, what: str) -> None:
        if isinstance(where, slice):
            low, high = where.start, where.stop
        else:
            assert isinstance(where, np.ndarray)
            if not where.size:
                return
            low, high = int(where.min()), int(where.max()) + 1
        if low < 0 or high > self.num_bytes:
            raise OutOfBounds(
                f"{what} reaches bytes {low} to {high} of {self.name}, which has {self.num_bytes}"
            )

    def place(self, where: Where, flags: Array) -> str:
        first = int(np.flatnonzero(flags)[0])
        if isinstance(where, slice):
            offset = where.start + first
        else:
            assert isinstance(where, np.ndarray)
            offset = int(where.reshape(-1)[first])
        return f"byte {offset:#x} of {self.name}"

    def view(self, element_bytes: int, count: int) -> tuple[Array, Array]:
        """(data, state) as rows of one access: [n] for one element, else [n, count].

        Only whole rows within the bounds: an index past them is an IndexError.
        """
        key = (element_bytes, count)
        if key not in self._views:
            size = element_bytes * count
            rows = self.num_bytes // size
            shape = (rows,) if count == 1 else (rows, count)
            dtype = np.dtype(f"u{element_bytes}")
            self._views[key] = (
                self._data[: rows * size].view(dtype).reshape(shape),
                self._state[: rows * size].view(dtype).reshape(shape),
            )
        return self._views[key]

    def close(self) -> None:
        """Frees it: whoever still holds it finds every access out of bounds."""
        self.num_bytes = 0
        self._views.clear()

    def contains(self, address: int, num_bytes: int) -> bool:
        return self.base <= address and address + num_bytes <= self.end

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Bytes, whatever their state."""
        return self.data[offset : offset + num_bytes].tobytes()

    def write(self, offset: int, data: bytes) -> None:
        """Bytes from the host or the emulator itself: initialised afterwards."""
        self.data[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        self.state[offset : offset + len(data)] |= INITIALISED


class AddressMap:
    """Global, const and parameter memory of a device: every allocation by address."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._by_base: dict[int, Memory] = {}
        self._next = {"global": GLOBAL_BASE, "const": CONST_BASE, "param": PARAM_BASE}
        self.live_bytes = 0
        self.peak_bytes = 0

    def allocate(
        self, name: str, num_bytes: int, *, space: str = "global", initialised: bool = False
    ) -> Memory:
        """A new allocation, 512-byte aligned, a guard gap after it."""
        base = self._next[space]
        size = -(-max(num_bytes, 1) // ALLOCATION_ALIGN) * ALLOCATION_ALIGN
        self._next[space] = base + size + GUARD_BYTES
        memory = Memory(name, base, num_bytes, initialised=initialised, read_only=space != "global")
        self._by_base[base] = memory
        insort(self._bases, base)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return memory

    def adopt(self, memory: Memory) -> None:
        """Enters memory that lies at an address of its own, such as a CPU tensor's.

        Raises:
            ValueError: the range overlaps an allocation.
        """
        other = self.below(memory.end - 1)
        if other is not None and other.end > memory.base:
            raise ValueError(f"{memory} overlaps {other}")
        self._by_base[memory.base] = memory
        insort(self._bases, memory.base)
        self.live_bytes += memory.num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def free(self, memory: Memory) -> None:
        if self._by_base.pop(memory.base, None) is None:
            raise ValueError(f"{memory} is not allocated")
        self._bases.remove(memory.base)
        self.live_bytes -= memory.num_bytes
        memory.close()

    def reuse(self, space: str) -> None:
        """Lets the next allocation of a space begin where its first one did."""
        self._next[space] = {"const": CONST_BASE, "param": PARAM_BASE}[space]

    def guard_writes(self) -> None:
        """A grid begins that may overlap with the one before it."""
        for memory in self._by_base.values():
            memory.guarded = True

    def end_grid(self) -> None:
        """A grid has ended: whatever it wrote asynchronously is there for everyone."""
        for memory in self._by_base.values():
            memory.guarded = memory.read_only
            for claim in list(memory.claims.values()):
                claim.release()

    def below(self, address: int) -> Memory | None:
        """The allocation that begins last at or before an address."""
        index = bisect_right(self._bases, address)
        return self._by_base[self._bases[index - 1]] if index else None

    def find(self, address: int, num_bytes: int) -> Memory:
        """The allocation that holds a range.

        Raises:
            OutOfBounds: none does; the message names the nearest.
        """
        memory = self.below(address)
        if memory is not None and memory.contains(address, num_bytes):
            return memory
        raise OutOfBounds(
            f"{num_bytes} bytes at {address:#x} are in no allocation{self._nearest(address)}"
        )

    def _nearest(self, address: int) -> str:
        memory = self.below(address)
        if memory is not None and address - memory.end < GUARD_BYTES:
            return (
                f"; {address - memory.base} bytes into {memory.name}, which has {memory.num_bytes}"
            )
        index = bisect_right(self._bases, address)
        if index < len(self._bases) and self._bases[index] - address < GUARD_BYTES:
            memory = self._by_base[self._bases[index]]
            return f"; {memory.base - address} bytes before {memory.name}"
        return "; the null pointer" if address < 4096 else ""


def shared_base(rank: int) -> int:
    """The shared address at which the memory of a cluster's CTA begins."""
    return rank << RANK_SHIFT


def refuse_write(memory: Memory) -> None:
    raise IllegalOperation(f"a store to {memory.name}, which is read-only")
