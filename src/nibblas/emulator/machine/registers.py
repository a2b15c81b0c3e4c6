"""The register pool of a CTA, as far as setmaxnreg shows it. PTX ISA, "setmaxnreg".

How many registers a thread has at launch is ptxas's decision. Assumed: ``.maxnreg``, else the most
that fit for the CTA's threads on a multiprocessor of its own, in steps of 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.machine.warp import Warp

_REGISTERS = 65536
_MOST = 256


class RegisterPool:
    """Registers per thread of each warp, and what is free in the CTA. ``queue``: who waits."""

    def __init__(self, cta: Cta) -> None:
        threads = 32 * cta.num_warps
        declared = cta.machine.program.function.directives.get("maxnreg")
        self.at_launch = min(_MOST, _REGISTERS // threads) // 8 * 8
        if declared:
            self.at_launch = min(self.at_launch, -(-declared[0] // 8) * 8)
        self.queue = WaitQueue()
        self.free = 0
        self._of: dict[Warp, int] = {}
        self._asking: dict[Warp, int] = {}

    def of(self, warp: Warp) -> int:
        return self._of.get(warp, self.at_launch)

    def decrease(self, warp: Warp, count: int) -> None:
        """Gives registers back."""
        now = self.of(warp)
        if count > now:
            raise IllegalOperation(f"setmaxnreg.dec to {count}; a thread has {now}")
        self._of[warp] = count
        self.free += 32 * (now - count)
        self._grant()

    def increase(self, warp: Warp, count: int) -> bool:
        """Takes registers; False: the warp must wait until ``has(warp, count)``."""
        now = self.of(warp)
        if count < now:
            raise IllegalOperation(f"setmaxnreg.inc to {count}; a thread has {now}")
        self._asking[warp] = count
        self._grant()
        return self.has(warp, count)

    def has(self, warp: Warp, count: int) -> bool:
        return self.of(warp) == count

    def _grant(self) -> None:
        """First come, first served."""
        for warp, count in list(self._asking.items()):
            wanted = 32 * (count - self.of(warp))
            if wanted > self.free:
                break
            self.free -= wanted
            self._of[warp] = count
            del self._asking[warp]
        self.queue.notify()
