"""wgmma in flight: four warps that multiply together, and registers that wait for their result.

An operation takes effect when all four warps of the warpgroup have executed the instruction, in the
order of execution. It may read its operands as soon as one of them has: they must be there for each
of the four, and are claimed from the first. Until ``wgmma.wait_group`` each accumulator register
holds an ``InFlight``: a later wgmma may accumulate on it and a plain ``mov`` may rename it, as
compilers do; every other use is reported, and so is a store to it or to a register of A.

``wgmma.fence`` remembers what the registers hold. An operand that holds something else has been
written since: a fence is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from nibblas.emulator.errors import DataRace, IllegalOperation
from nibblas.emulator.machine.waiting import WaitQueue

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.asynchronous import AsyncOp
    from nibblas.emulator.machine.claims import Claim
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.machine.memory import Array
    from nibblas.emulator.machine.warp import Warp

WARPS = 4


class InFlight:
    """What an accumulator register holds until its wgmma has been waited for.

    Attributes:
        name: of the register. multiply: the operation. value: uint32 [32], once it is done.
        replaced: a later wgmma of the warp has taken or overwritten it.
    """

    def __init__(self, name: str, multiply: Multiply) -> None:
        self.name, self.multiply = name, multiply
        self.value: Array | None = None
        self.replaced = False

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise DataRace(
            f"{self.name} is an accumulator of a wgmma in flight; want wgmma.wait_group first. "
            f"Issued by {self.multiply.site}"
        )

    __array_ufunc__ = __array_function__ = __array__ = __getitem__ = __len__ = refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()


class Part:
    """What one warp gives to an operation and gets from it.

    Attributes:
        sources: what its accumulators held before. results: by register.
        a: (name, slot, value) of the registers of A.
    """

    __slots__ = ("a", "results", "slots", "sources")

    def __init__(
        self,
        slots: list[int],
        sources: list[Any],
        results: list[InFlight],
        a: list[tuple[str, int, Array]],
    ) -> None:
        self.slots, self.sources, self.results, self.a = slots, sources, results, a


class Multiply:
    """One wgmma.mma_async of a warpgroup.

    Attributes:
        key: what must be the same in its four warps. parts: by warp of the warpgroup.
        op: in flight, once all four have come.
        places: operands in shared memory, offsets or None. claims: on those.
    """

    def __init__(self, key: tuple[Any, ...], site: Site) -> None:
        self.key, self.site = key, site
        self.parts: dict[int, Part] = {}
        self.op: AsyncOp | None = None
        self.places: list[Array | None] = []
        self.claims: list[Claim] = []

    @property
    def done(self) -> bool:
        return self.op is not None and self.op.done

    @property
    def missing(self) -> list[int]:
        return [i for i in range(WARPS) if i not in self.parts]


class Warpgroup:
    """Four warps. ``queue``: notified when an operation of theirs begins or moves on."""

    def __init__(self, cta: Cta, number: int) -> None:
        self.queue = WaitQueue()
        self.last: AsyncOp | None = None
        self._operations: list[Multiply] = []
        self._executed = [0] * WARPS
        present = len(cta.warps[WARPS * number : WARPS * number + WARPS])
        if present < WARPS:
            raise IllegalOperation(f"a wgmma of {present} warps: a warpgroup has {WARPS}")

    def join(self, warp: Warp, key: tuple[Any, ...], site: Site) -> Multiply:
        """The operation that a warp's next wgmma is part of."""
        index = warp.index % WARPS
        number = self._executed[index]
        self._executed[index] += 1
        if number == len(self._operations):
            self._operations.append(Multiply(key, site))
        multiply = self._operations[number]
        if multiply.key != key:
            raise IllegalOperation(
                "the warps of a warpgroup execute different wgmma: another warp has executed "
                f"{multiply.site}"
            )
        return multiply


class WarpState:
    """The wgmma of one warp: open ones, committed groups, and what its last fence saw."""

    def __init__(self) -> None:
        self.open: list[tuple[Multiply, Part]] = []
        self.groups: list[list[tuple[Multiply, Part]]] = []
        self._fenced: dict[int, Any] | None = None

    def fence(self, warp: Warp) -> None:
        self._fenced = {id(value): value for value in warp.r}

    def check_fenced(self, name: str, value: Any) -> None:
        """Raises if a register was written since the last wgmma.fence."""
        if self._fenced is None or id(value) not in self._fenced:
            raise DataRace(
                f"wgmma uses {name}, which was written "
                + ("and " if self._fenced is None else "after the last wgmma.fence: ")
                + "no wgmma.fence orders the two"
            )

    def retire(self, warp: Warp, kept: int) -> None:
        """All but the latest ``kept`` groups are done: their registers hold the results."""
        retired = self.groups[: len(self.groups) - kept]
        self.groups = self.groups[len(self.groups) - kept :]
        finished = [entry for group in retired for entry in group]
        if not finished:
            return
        held = self._resolve(warp)
        for multiply, part in finished:
            for claim in multiply.claims:
                claim.release()
            for result in part.results:
                if not result.replaced and id(result) not in held:
                    raise DataRace(
                        f"{result.name} was written while a wgmma that accumulates in it was in "
                        f"flight, issued by {multiply.site}"
                    )
            for name, slot, value in part.a:
                if warp.r[slot] is not value:
                    raise DataRace(
                        f"{name} was written while a wgmma that reads A from it was in flight, "
                        f"issued by {multiply.site}"
                    )

    def _resolve(self, warp: Warp) -> set[int]:
        """Puts results into registers; returns which results some register held."""
        pending = {id(m) for group in self.groups for m, _ in group} | {id(m) for m, _ in self.open}
        held = set()
        registers: list[Any] = warp.r
        for slot, value in enumerate(registers):
            if type(value) is InFlight and id(value.multiply) not in pending:
                held.add(id(value))
                registers[slot] = value.value
                if self._fenced is not None:
                    self._fenced[id(value.value)] = value.value
        return held


def wait_for_groups(warp: Warp, group: Warpgroup, state: WarpState, kept: int) -> None:
    """Stops the warp until all but its latest ``kept`` groups are done."""
    kept = min(kept, len(state.groups))
    due = [multiply for done in state.groups[: len(state.groups) - kept] for multiply, _ in done]

    def finish(_: bool = True) -> None:
        state.retire(warp, kept)

    if all(multiply.done for multiply in due):
        finish()
        return

    def describe() -> str:
        first = next(multiply for multiply in due if not multiply.done)
        if first.missing:
            absent = [warp.index // WARPS * WARPS + number for number in first.missing]
            return f"wgmma.wait_group {kept}: warps {absent} have not executed {first.site}"
        return f"wgmma.wait_group {kept}: {first.op}"

    warp.wait(
        group.queue,
        ready=lambda: all(multiply.done for multiply in due),
        describe=describe,
        resume=finish,
    )
