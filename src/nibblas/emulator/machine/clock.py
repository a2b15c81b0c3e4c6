"""What is known of what: events in order, and which of them a warp has waited for.

Every event has a number, its time; times run on from launch to launch, and only comparisons mean
anything. A warp, and the tensor core as far as a warp's operations go, are parties; ``Known`` says
up to which time the events of each party are ordered before something. Barriers gather what those
that arrive know and hand it to those that wait (happens-before, as vector clocks keep it).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

_times = itertools.count(1)
_parties = itertools.count()


def tick() -> int:
    """The time of an event that happens now: later than all others so far."""
    return next(_times)


def new_party() -> int:
    """The number of a party that no other has."""
    return next(_parties)


class Known:
    """Events that are ordered before something; never changed.

    Attributes:
        floor: all events before that time. times: by party, all of its events before that time.
    """

    __slots__ = ("floor", "times")

    def __init__(self, floor: int, times: Mapping[int, int]) -> None:
        self.floor, self.times = floor, times

    def covers(self, party: int, time: int) -> bool:
        return time < self.floor or time < self.times.get(party, 0)

    def __or__(self, other: Known) -> Known:
        """Both together."""
        if other is self or other is NOTHING:
            return self
        if self is NOTHING:
            return other
        times = dict(self.times)
        for party, time in other.times.items():
            if time > times.get(party, 0):
                times[party] = time
        return Known(max(self.floor, other.floor), times)

    def up_to_now(self, party: int) -> Known:
        """This, and all that a party has done so far."""
        return Known(self.floor, {**self.times, party: tick()})


NOTHING = Known(0, {})


def everything() -> Known:
    """All events so far."""
    return Known(tick(), {})
