"""A bounded cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """At most ``maxsize`` values; the one that was asked for longest ago goes first.

    Safe to share among threads.
    """

    def __init__(self, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize: got {maxsize}; want at least 1")
        self.maxsize = maxsize
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The key's value. ``make`` runs unlocked: two threads may both make, one value is kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            value = self._values.setdefault(key, made)
            self._values.move_to_end(key)
            if len(self._values) > self.maxsize:
                self._values.popitem(last=False)
        return value
