"""Orders: which warp runs next and for how long, and when asynchronous operations take effect.

The PTX memory model leaves both open. A correct kernel gives the same results under every order;
a missing wait, fence or arrival shows under at least one. Everything an order does follows from
its name and seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from nibblas.errors import bad_value

if TYPE_CHECKING:
    from nibblas.emulator.machine.asynchronous import AsyncOp
    from nibblas.emulator.machine.warp import Warp

_SLICE = 2048
"""Instructions that a warp runs before another is looked at, where the order does not vary it."""


class Order(Protocol):
    """The decisions of one launch."""

    def pick(self, ready: Sequence[Warp]) -> tuple[int, int]:
        """(index of the warp that runs, instructions it may run). ``ready`` is not empty."""
        ...

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        """The operations that do their next phase now.

        Args:
            startable: those whose predecessors are done, oldest first; not empty.
            idle: no warp can run: at least one must be returned.
        """
        ...


class RoundRobin:
    """Warps in turn; after each turn the oldest operation does a phase."""

    def __init__(self, seed: int = 0) -> None:
        del seed  # nothing is left to chance
        self._turn = 0

    def pick(self, ready: Sequence[Warp]) -> tuple[int, int]:
        turn, self._turn = self._turn, self._turn + 1
        return turn % len(ready), _SLICE

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        return [startable[0]]


class Random:
    """Warps, lengths of turns and completions drawn from the seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def pick(self, ready: Sequence[Warp]) -> tuple[int, int]:
        index = self._random.randrange(len(ready))
        return index, self._random.choice((1, 8, 64, 512, _SLICE))

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        if not idle and self._random.random() < 0.5:
            return []
        return [startable[self._random.randrange(len(startable))]]


class DelayAll(RoundRobin):
    """No operation takes effect before every warp stands still; then the newest does."""

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        return [startable[-1]] if idle else []


class CompleteAtOnce(RoundRobin):
    """Every operation takes effect at the first moment allowed."""

    def pick(self, ready: Sequence[Warp]) -> tuple[int, int]:
        return super().pick(ready)[0], 1

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        return list(startable)


class StarveOne:
    """One warp, chosen by the seed, runs only when no other can, a block at a time.

    Seeds below the number of warps w starve that warp of every CTA; from (1 + r) w on, only in the
    CTA of rank r of every cluster, so that its peers run ahead of it.

    Operations take effect at the first moment, so that those who wait for them come before it too.
    """

    def __init__(self, seed: int = 0) -> None:
        self._victim = seed
        self._turn = 0

    def pick(self, ready: Sequence[Warp]) -> tuple[int, int]:
        self._turn += 1
        others = [i for i, warp in enumerate(ready) if not self._starves(warp)]
        if others:
            return others[self._turn % len(others)], _SLICE
        return self._turn % len(ready), 1

    def _starves(self, warp: Warp) -> bool:
        cta = warp.cta
        number, victim = divmod(self._victim, cta.num_warps)
        if warp.index != victim:
            return False
        return number == 0 or cta.rank == (number - 1) % len(cta.cluster.ctas)

    def complete(self, startable: Sequence[AsyncOp], *, idle: bool) -> list[AsyncOp]:
        return list(startable)


ORDERS: dict[str, Callable[[int], Order]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "adversarial-delay": DelayAll,
    "adversarial-at-once": CompleteAtOnce,
    "adversarial-starve": StarveOne,
}
"""Orders by name; each takes the seed."""


def make_order(name: str, seed: int) -> Order:
    """A fresh order; ValueError for an unknown name."""
    if name not in ORDERS:
        raise bad_value("order", given=repr(name), wanted=f"one of {', '.join(ORDERS)}")
    return ORDERS[name](seed)
