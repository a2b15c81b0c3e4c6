"""A fault in the sm_100 kernel's own text."""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.faults.sm100 import Replacement, Schedule

COPIES, MULTIPLY, EPILOGUE = "copies.cuh", "multiply.cuh", "epilogue.cuh"
SHARED, ITEMS, GATHER, MAIN = "shared.cuh", "items.cuh", "gather.cuh", "grouped_mm.cu"
MASK = "mask.cuh"
DESCRIPTORS = "common/tcgen05_descriptors.h"


@dataclass(frozen=True)
class Fault:
    """Replacements in the text, and how they show.

    Attributes:
        file: below kernels/sm100, or a path below kernels/; ``more`` likewise.
        variant: of sm100.VARIANTS. shows: the beginning of the report, or "wrong".
        orders: those under which it shows, for one seed of eight at least; () for all.
        schedule: one under which it shows. always: also where only some faults are run.
    """

    name: str
    file: str
    old: str
    new: str
    shows: str = ""
    variant: str = "one"
    schedule: Schedule = ("round_robin", 0)
    orders: tuple[str, ...] = ()
    more: tuple[Replacement, ...] = ()
    shared_begin: int = 1024
    always: bool = False

    @property
    def replacements(self) -> tuple[Replacement, ...]:
        own = (self.file, self.old, self.new)
        return tuple((_path(file), old, new) for file, old, new in (own, *self.more))


def _path(file: str) -> str:
    return file if "/" in file else f"sm100/{file}"
