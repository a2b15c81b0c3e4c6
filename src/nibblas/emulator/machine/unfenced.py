"""The proxy rule for shared memory: what ordinary stores wrote and no fence has passed on yet.

wgmma and bulk copies read shared memory through the async proxy. An ordinary store leaves its
bytes GENERIC_DIRTY; ``fence.proxy.async`` cleans the bytes that the executing threads stored
themselves, no others. An operation that reads a dirty byte is a DataRace (claims.py). So

    st.shared; fence.proxy.async; bar.sync; one thread issues the copy        right
    st.shared; bar.sync; one thread fences and issues the copy                 reported

The second is right with ``Device(rules="hardware")``: ThunderKittens relies on it, and the PTX
memory model seems to allow it (a proxy fence anywhere between the store and the copy).
PTX ISA, "Async proxy", "fence.proxy". Only kernels with such operations keep these records.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.machine.memory import GENERIC_DIRTY, Array, Memory

_DIRTY = {
    size: np.array(int.from_bytes(bytes([GENERIC_DIRTY]) * size, "little"), f"u{size}")
    for size in (1, 2, 4, 8)
}


class UnfencedWrites:
    """Places that a warp's lanes have stored to, each kept once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, bytes], tuple[Memory, Array, Array]] = {}
        self._single: dict[tuple[int, int, int, int], Memory] = {}

    def add_rows(self, memory: Memory, element_bytes: int, count: int, rows: Array) -> None:
        """A store of all 32 lanes; ``rows`` of ``memory.view``, by lane."""
        self._rows[id(memory), element_bytes, count, rows.tobytes()] = (memory, rows, ALL_LANES)

    def add(self, memory: Memory, offset: int, num_bytes: int, lane: int) -> None:
        """A store of one lane."""
        self._single[id(memory), offset, num_bytes, lane] = memory

    def fence(self, mask: Array) -> None:
        """These lanes have executed fence.proxy.async."""
        left = {}
        for key, (memory, rows, whose) in self._rows.items():
            _, element_bytes, count, _ = key
            state = memory.view(element_bytes, count)[1]
            chosen = rows[mask & whose]
            state[chosen] &= ~_DIRTY[element_bytes]
            if (whose & ~mask).any():
                left[key] = (memory, rows, whose & ~mask)
        self._rows = left
        kept = {}
        for single, memory in self._single.items():
            _, offset, num_bytes, lane = single
            if mask[lane]:
                memory.state[offset : offset + num_bytes] &= 0xFF ^ GENERIC_DIRTY
            else:
                kept[single] = memory
        self._single = kept


ALL_LANES = np.ones(32, bool)
