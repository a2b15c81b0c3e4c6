"""Barriers in the shared memory of a hung block: where they are, and what their words say.

NVIDIA does not document an mbarrier's bits. They are read here off what NVRTC 13.5 makes of
``mbarrier.init`` with a count of ``n`` and of waits for a parity:

    sm_90 and newer   stored: (2**20 - n) << 43 | (2**20 - n) << 1
                      bits 43-62 2**20 - pending, bits 1-20 2**20 - n, bit 63 the phase's parity
    sm_80 to sm_89    stored: (2**31 - n) << 32 | 2**30 - n
                      bits 32-62 2**31 - pending, bits 0-29 2**30 - n, bit 63 the phase's parity

So the last arrival carries into the parity. Transaction bytes, which sm_90 counts too, are in
between, at bits 21-42: they are shown as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHARED_WORDS = "words of shared memory behind the stages:"
"""What the debugger says before it prints them."""

_WINDOW_BEGIN = 0x400
"""On sm_90 and newer the first KB of a block's shared memory is the system's."""
_MOST_WORDS = 32
_MOST_ARRIVALS = 1024
"""Of a barrier of ours: no block has more threads."""


@dataclass(frozen=True)
class Words:
    """64-bit words of shared memory among which a kernel's barriers are.

    Attributes:
        address: of the first, in the block's shared memory.
        wide: of sm_90 or newer, whose barriers count bytes.
    """

    address: int
    count: int
    wide: bool = True


@dataclass(frozen=True)
class Barrier:
    """What a word says if it is a barrier; ``tx``: its bits for transaction bytes."""

    parity: int
    pending: int
    expected: int
    tx: int

    def __str__(self) -> str:
        tx = f", transaction bits {self.tx:#x}" if self.tx else ""
        return f"parity {self.parity}, lacks {self.pending} of {self.expected} arrivals{tx}"


def barrier_words(config: object, target: str) -> Words:
    """Behind the ring of stages, where our kernels that have one keep their barriers.

    Args:
        target: that the kernel is compiled for: "sm_90a".
    """
    begin = getattr(config, "stages", 0) * getattr(config, "stage_bytes", 0)
    behind = (getattr(config, "shared_bytes", 0) - begin) // 8
    wide = not target.startswith("sm_8")
    return Words(begin + (_WINDOW_BEGIN if wide else 0), max(1, min(_MOST_WORDS, behind)), wide)


def barrier_of(word: int, *, wide: bool) -> Barrier | None:
    """The barrier that a word is; None where it can be none."""
    parity = word >> 63
    if wide:
        pending, expected = 2**20 - (word >> 43 & 0xFFFFF), 2**20 - (word >> 1 & 0xFFFFF)
        tx = word >> 21 & (2**22 - 1)
    else:
        pending, expected, tx = 2**31 - (word >> 32 & 0x7FFFFFFF), 2**30 - (word & 0x3FFFFFFF), 0
    if not 1 <= pending <= expected <= _MOST_ARRIVALS or (wide and word & 1):
        return None
    return Barrier(parity, pending, expected, tx)


def described(lines: Sequence[str], words: Words) -> Iterator[str]:
    """A line for each barrier among the words that the debugger has printed."""
    if SHARED_WORDS not in lines:
        return
    printed = lines[lines.index(SHARED_WORDS) + 1 :][:1]
    for i, text in enumerate(re.findall(r"0x[0-9a-f]+", "".join(printed))):
        barrier = barrier_of(int(text, 16), wide=words.wide)
        if barrier is not None:
            address = words.address + 8 * i
            yield f"word {i} behind the stages, at {address:#x}: barrier, {barrier}"
