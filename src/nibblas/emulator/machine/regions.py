"""Byte ranges of asynchronous copies: where lanes' addresses lie, and whether they can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import (
    DataRace,
    EmulationError,
    Misaligned,
    OutOfBounds,
    UninitialisedRead,
)
from nibblas.emulator.machine.access import LOCATE
from nibblas.emulator.machine.memory import ASYNC_WRITING, INITIALISED, Array, Memory

if TYPE_CHECKING:
    from nibblas.emulator.machine.warp import Warp

Run = tuple[Memory, Array, Array]
"""A memory, offsets in it, and the positions of those among the addresses that were asked for."""


def runs_of(
    warp: Warp, space: str, addresses: Array, lanes: Array, size: int, lengths: Array | None = None
) -> list[Run]:
    """The memories that the lanes' ranges lie in.

    Args:
        addresses: of these lanes, [n], multiples of ``size``.
        lengths: bytes that each lane touches, [n]; None: ``size``.

    Raises:
        OutOfBounds, Misaligned: with the lane.
    """
    found: list[Run] = []
    wanted, left = addresses.astype(np.int64), np.arange(len(lanes))
    lengths = np.full(len(lanes), size) if lengths is None else lengths
    askew = np.flatnonzero(wanted % size)
    if askew.size:
        raise Misaligned(
            f"address {int(wanted[askew[0]]):#x} is no multiple of {size}, the copy's size",
            lanes=1 << int(lanes[askew[0]]),
        )
    while left.size:
        first = int(left[0])
        address, lane = int(wanted[first]), int(lanes[first])
        try:
            memory, base = LOCATE[space](warp, lane, address, int(lengths[first]))
        except EmulationError as error:
            error.lanes = error.lanes or 1 << lane
            raise
        offsets = wanted[left] - base
        inside = (offsets >= 0) & (offsets + lengths[left] <= memory.num_bytes)
        found.append((memory, offsets[inside], left[inside]))
        left = left[~inside]
    return found


def check_source(memory: Memory, where: slice | Array, what: str, *, alone: bool = True) -> None:
    """Raises if bytes that an operation reads now hold nothing, or something else writes them.

    For memory whose readers are not kept account of. ``alone``: off for reductions, which may
    meet each other.
    """
    if not memory.tracked:
        return
    states = memory.state[where]
    if alone and (states & ASYNC_WRITING).any():
        raise DataRace(f"{what} reads {memory.name} where an operation in flight writes it")
    if not (states & INITIALISED).all():
        missing = int(((states & INITIALISED) == 0).sum())
        raise UninitialisedRead(
            f"{what} reads {memory.name}: {missing} bytes of it were never written"
        )


def check_aligned(what: str, address: int, multiple: int) -> None:
    if address % multiple:
        raise Misaligned(f"{what} {address:#x}; want a multiple of {multiple}")


def check_range(memory: Memory, offset: int, num_bytes: int, what: str) -> slice:
    """The range as a slice; OutOfBounds if the memory does not hold it."""
    if offset < 0 or offset + num_bytes > memory.num_bytes:
        raise OutOfBounds(
            f"{what}: {num_bytes} bytes at offset {offset} of {memory.name}, which has "
            f"{memory.num_bytes}"
        )
    return slice(offset, offset + num_bytes)
