"""What the emulator raises: text that it cannot take, and faults of a kernel that runs.

Every fault names where it happened (``Site``): kernel, CTA, warp, lanes, the PTX instruction and
the source line that the compiler gave it.
"""

from __future__ import annotations

from dataclasses import dataclass


class PtxError(ValueError):
    """PTX text that cannot be read.

    Attributes:
        line: of the PTX text, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        self.line = line
        super().__init__(f"PTX line {line}: {message}")


class UnsupportedInstruction(PtxError):
    """An opcode, modifier or operand that no handler accepts. The emulator never guesses."""


class LaunchError(ValueError):
    """Launch parameters that the device or the kernel does not allow."""


@dataclass(frozen=True)
class Site:
    """Where an instruction ran.

    Attributes:
        kernel: entry's name. cta: blockIdx. warp: of the CTA.
        lanes: bit i is set for each lane concerned.
        instruction: its PTX text. ptx_line: its line in the PTX text.
        source: "file:line" of the nearest ``.loc``; empty: the text has none.
    """

    kernel: str
    cta: tuple[int, int, int]
    warp: int
    lanes: int
    instruction: str
    ptx_line: int
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return (
            f"{self.kernel} CTA {self.cta} warp {self.warp} lanes {lane_ranges(self.lanes)} "
            f"at PTX line {self.ptx_line}{where}: {self.instruction}"
        )


def lane_ranges(mask: int) -> str:
    """0b1110_0001 -> "0,5-7"; lanes that a mask's bits name."""
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    ranges: list[list[int]] = []
    for lane in lanes:
        if ranges and ranges[-1][1] == lane - 1:
            ranges[-1][1] = lane
        else:
            ranges.append([lane, lane])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges) or "none"


class EmulationError(RuntimeError):
    """A kernel did something that hardware does not define, or that it answers with garbage.

    Handlers raise it with the detail alone; the scheduler adds the site before it leaves
    ``launch``.

    Attributes:
        detail: what happened and what was expected.
        lanes: bits of the lanes concerned; 0: all that were active.
        site: where; None only while the error is still on its way out.
    """

    def __init__(self, detail: str, *, lanes: int = 0, site: Site | None = None) -> None:
        self.detail, self.lanes, self.site = detail, lanes, site
        super().__init__(detail)

    def __str__(self) -> str:
        return f"{self.detail}\n  {self.site}" if self.site else self.detail


class OutOfBounds(EmulationError):
    """An access outside every allocation, or outside the window of its state space."""


class Misaligned(EmulationError):
    """An address that is no multiple of what the access needs."""


class UninitialisedRead(EmulationError):
    """A read of bytes that nothing has written."""


class IllegalOperation(EmulationError):
    """Operands that the PTX ISA leaves undefined or forbids."""


class DataRace(EmulationError):
    """Two accesses to one byte that nothing orders."""


class BarrierError(EmulationError):
    """A barrier used against its rules: counts, phases, participants."""


class Deadlock(EmulationError):
    """Nothing can run and nothing is in flight. The detail lists who waits for what."""


class NoProgress(EmulationError):
    """The watchdog's limit of instructions was reached."""


class UnfinishedWork(EmulationError):
    """A kernel ended with asynchronous work still in flight that reads or writes its memory."""
