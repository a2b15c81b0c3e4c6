"""Loads and stores of a warp: a fast path for 32 lanes in one memory, an exact one for the rest.

The fast path guesses the memory (the last one, or the CTA's own), computes 32 row indices and lets
numpy's own bounds check decide. Whatever does not fit goes lane by lane through ``locate``, which
finds the true memory or raises with the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import (
    DataRace,
    EmulationError,
    Misaligned,
    OutOfBounds,
    UninitialisedRead,
)
from nibblas.emulator.machine.memory import (
    ASYNC_READING,
    ASYNC_WRITING,
    GENERIC_DIRTY,
    INITIALISED,
    LOCAL_WINDOW,
    RANK_SHIFT,
    READABLE,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WRITABLE,
    Array,
    Memory,
    refuse_write,
)

if TYPE_CHECKING:
    from nibblas.emulator.machine.warp import Warp

Guess = tuple[Memory, int]
"""A memory, and what to subtract from an address to get the offset in it."""

Locate = Callable[["Warp", int, int, int], Guess]
"""(warp, lane, address, bytes) -> memory and its base as addresses of the space; or raises."""


def locate_global(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    memory = warp.cta.machine.addresses.find(address, num_bytes)
    return memory, memory.base


def locate_shared_cta(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    """shared::cta: the CTA's own memory."""
    return _in_shared(warp.cta.shared, address, num_bytes), warp.cta.shared.base


def locate_shared_cluster(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    """shared::cluster: the memory of the CTA that bits 24 and up of the address name."""
    rank = address >> RANK_SHIFT
    cluster = warp.cta.cluster
    if rank >= len(cluster.ctas):
        raise OutOfBounds(
            f"shared::cluster address {address:#x} names CTA {rank} of a cluster of "
            f"{len(cluster.ctas)}"
        )
    memory = cluster.shared_of(rank)
    return _in_shared(memory, address, num_bytes), memory.base


def _in_shared(memory: Memory, address: int, num_bytes: int) -> Memory:
    if memory.contains(address, num_bytes):
        return memory
    raise OutOfBounds(
        f"{num_bytes} bytes at shared address {address:#x} are outside {memory.name}, which is "
        f"[{memory.base:#x}, {memory.end:#x})"
    )


def locate_local(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    memory = warp.local
    pitch = warp.local_bytes
    if address >= 0 and address + num_bytes <= pitch:
        return memory, -lane * pitch
    raise OutOfBounds(f"{num_bytes} bytes at local address {address:#x}; a thread has {pitch}")


def locate_param(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    """Parameters of the entry, or of a call: those lie in local memory."""
    if address < WINDOW_BYTES:
        return locate_local(warp, lane, address, num_bytes)
    return locate_global(warp, lane, address, num_bytes)


def locate_generic(warp: Warp, lane: int, address: int, num_bytes: int) -> Guess:
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        memory, base = locate_shared_cluster(warp, lane, address - SHARED_WINDOW, num_bytes)
        return memory, base + SHARED_WINDOW
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        memory, base = locate_local(warp, lane, address - LOCAL_WINDOW, num_bytes)
        return memory, base + LOCAL_WINDOW
    return locate_global(warp, lane, address, num_bytes)


LOCATE: dict[str, Locate] = {
    "global": locate_global,
    "const": locate_global,
    "param": locate_param,
    "shared": locate_shared_cta,
    "shared::cta": locate_shared_cta,
    "shared::cluster": locate_shared_cluster,
    "local": locate_local,
    "generic": locate_generic,
}


class Path:
    """How one instruction reaches memory: element size, count, state space.

    ``load`` and ``store`` take lane addresses (uint32 or uint64 [lanes]) and the lanes' numbers,
    None for all 32.
    """

    def __init__(self, space: str, element_bytes: int, count: int = 1) -> None:
        self.space, self.element_bytes, self.count = space, element_bytes, count
        self.size = element_bytes * count
        self.locate = LOCATE[space]
        self._shift = np.full(32, self.size.bit_length() - 1, np.uint64)
        self._shift32 = self._shift.astype(np.uint32)
        self._low = np.full(32, self.size - 1, np.uint64)
        self._low32 = self._low.astype(np.uint32)
        self._memory: Memory | None = None
        self._kind = {"shared": "own", "shared::cta": "own"}.get(space, "")
        self._base = -1
        self._bases = np.zeros(32, np.uint64)
        self._bases32 = np.zeros(32, np.uint32)

    def _guessed(self, warp: Warp) -> Memory | None:
        """The memory that the last access of this instruction met, as this warp sees it."""
        if self._kind == "own":
            shared = warp.cta.shared
            if shared.base != self._base:
                self._set_base(shared.base)
            return shared
        if self._kind == "peer":
            return warp.cta.cluster.shared_if_alive(self._base >> RANK_SHIFT & 0xFF)
        if self._kind == "local":
            return warp.local
        return self._memory

    def _rows(self, warp: Warp, addresses: Array) -> tuple[Memory, Array] | None:
        """The guessed memory and the row of each of 32 lanes; None where the guess is wrong.

        Rows may be out of bounds: indexing finds that out. Subtraction wraps, and a negative
        offset shifted right is far out of bounds; single bytes are not shifted, so they lose
        their top bit.
        """
        memory = self._guessed(warp)
        if memory is None:
            return None
        if addresses.dtype == np.uint32:
            offsets: Array = addresses - self._bases32
            if self.size > 1:
                if (offsets & self._low32).tobytes() != _ALIGNED32:
                    return None
                offsets >>= self._shift32
            return memory, offsets
        offsets = addresses - self._bases
        if self.size == 1:
            return memory, offsets & _TOP_CLEARED
        if (offsets & self._low).tobytes() != _ALIGNED:
            return None
        offsets >>= self._shift
        return memory, offsets

    def _remember(self, warp: Warp, memory: Memory, lane: int, base: int) -> None:
        """Takes the memory that an exact access met as the next guess."""
        if memory is warp.local:
            self._kind = "local"
            self._set_base(base + lane * warp.local_bytes)
            self._bases -= (_ALL_LANES * warp.local_bytes).astype(np.uint64)
            self._bases32 = self._bases.astype(np.uint32)
        elif self._kind != "own" and base % _GUESSED_ALIGN == 0:
            shared = memory in warp.cta.cluster.memories
            self._kind, self._memory = ("peer", None) if shared else ("fixed", memory)
            self._set_base(base)

    def _set_base(self, base: int) -> None:
        self._base = base
        self._bases = np.full(32, base, np.uint64)
        self._bases32 = np.full(32, base & 0xFFFF_FFFF, np.uint32)

    def load(self, warp: Warp, addresses: Array, lanes: Array | None) -> Array:
        """[lanes] for one element, else [lanes, count], of unsigned integers."""
        if lanes is None:
            found = self._rows(warp, addresses)
            if found is not None:
                memory, rows = found
                data, state = memory.view(self.element_bytes, self.count)
                try:
                    values: Array = data[rows]
                    if not memory.tracked or not state[rows].tobytes().strip(READABLE):
                        return values
                except IndexError:
                    pass
        return self._load_exactly(warp, addresses, lanes)

    def store(self, warp: Warp, addresses: Array, lanes: Array | None, values: Array) -> None:
        """``values``: [lanes] or [lanes, count] of unsigned integers of the element's size."""
        if lanes is None:
            found = self._rows(warp, addresses)
            if found is not None and not found[0].guarded:
                memory, rows = found
                data, state = memory.view(self.element_bytes, self.count)
                try:
                    if not memory.watched or not state[rows].tobytes().strip(WRITABLE):
                        data[rows] = values
                        if memory.tracked:
                            state[rows] = _PATTERN[self.element_bytes] * memory.written
                        if memory.written & GENERIC_DIRTY:
                            warp.unfenced.add_rows(memory, self.element_bytes, self.count, rows)
                        return
                except IndexError:
                    pass
        self._store_exactly(warp, addresses, lanes, values)

    def find(self, warp: Warp, lane: int, address: int) -> tuple[Memory, int]:
        """The memory and the offset in it of one lane's access.

        Raises:
            OutOfBounds, Misaligned: with the lane.
        """
        if address % self.size:
            raise Misaligned(
                f"address {address:#x} is no multiple of {self.size}, the access's size",
                lanes=1 << lane,
            )
        try:
            memory, base = self.locate(warp, lane, address, self.size)
        except EmulationError as error:
            error.lanes = error.lanes or 1 << lane
            raise
        return memory, address - base

    def _load_exactly(self, warp: Warp, addresses: Array, lanes: Array | None) -> Array:
        numbers = _ALL_LANES if lanes is None else lanes
        shape = (len(numbers),) if self.count == 1 else (len(numbers), self.count)
        values = np.empty(shape, f"u{self.element_bytes}")
        flat = values.view(np.uint8).reshape(len(numbers), self.size)
        for i, (lane, address) in enumerate(zip(numbers.tolist(), addresses.tolist(), strict=True)):
            memory, offset = self.find(warp, lane, address)
            check_read(memory, offset, self.size, lane)
            flat[i] = memory.data[offset : offset + self.size]
            self._remember(warp, memory, lane, address - offset)
        return values

    def _store_exactly(
        self, warp: Warp, addresses: Array, lanes: Array | None, values: Array
    ) -> None:
        numbers = _ALL_LANES if lanes is None else lanes
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(len(numbers), self.size)
        places = [
            (*self.find(warp, lane, address), lane, address)
            for lane, address in zip(numbers.tolist(), addresses.tolist(), strict=True)
        ]
        for memory, offset, lane, _ in places:
            check_write(memory, offset, self.size, lane)
            if memory.guarded:
                warp.cta.check_grid_dependency(memory, lane)
        for row, (memory, offset, lane, address) in zip(flat, places, strict=True):
            memory.data[offset : offset + self.size] = row
            memory.state[offset : offset + self.size] = memory.written
            if memory.written & GENERIC_DIRTY:
                warp.unfenced.add(memory, offset, self.size, lane)
            self._remember(warp, memory, lane, address - offset)


def check_read(memory: Memory, offset: int, num_bytes: int, lane: int | None = None) -> None:
    """Raises if a byte of the range is not readable in the ordinary way."""
    if not memory.tracked:
        return
    states = memory.state[offset : offset + num_bytes].tobytes()
    if not states.strip(READABLE):
        return
    lanes = 0 if lane is None else 1 << lane
    where = f"{num_bytes} bytes at offset {offset} of {memory.name}"
    if any(state & ASYNC_WRITING for state in states):
        raise DataRace(
            f"a read of {where}, which an asynchronous operation in flight writes", lanes=lanes
        )
    missing = sum(not state & INITIALISED for state in states)
    raise UninitialisedRead(f"a read of {where}: {missing} of them were never written", lanes=lanes)


def check_write(memory: Memory, offset: int, num_bytes: int, lane: int | None = None) -> None:
    """Raises if a byte of the range must not be written in the ordinary way."""
    if memory.read_only:
        refuse_write(memory)
    if not memory.watched:
        return
    states = memory.state[offset : offset + num_bytes].tobytes()
    lanes = 0 if lane is None else 1 << lane
    where = f"{num_bytes} bytes at offset {offset} of {memory.name}"
    for flag, verb in ((ASYNC_WRITING, "writes"), (ASYNC_READING, "reads")):
        if any(state & flag for state in states):
            raise DataRace(
                f"a write of {where}, which an asynchronous operation in flight {verb}",
                lanes=lanes,
            )


_ALL_LANES = np.arange(32)
_GUESSED_ALIGN = 32
"""Of a memory's base, so that rows of every size begin at multiples of the size."""

_ALIGNED, _ALIGNED32 = bytes(32 * 8), bytes(32 * 4)
_TOP_CLEARED = np.full(32, (1 << 63) - 1, np.uint64)
_PATTERN = {
    size: np.array(int.from_bytes(b"\x01" * size, "little"), f"u{size}") for size in (1, 2, 4, 8)
}
