"""A number for each event whose order matters: completions of barriers, fences, operations.

It runs on from launch to launch; only comparisons mean anything.
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def tick() -> int:
    """The time of an event that happens now: later than all others so far."""
    return next(_numbers)
