"""A bounded cache."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


_MISSING = object()
_caches: WeakSet[BoundedCache[Any, Any]] = WeakSet()


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
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._values.clear()

    def _touch(self, key: Key) -> None:
        """Moves the key to the young end, unless another thread is at it: a hit never waits."""
        if self._lock.acquire(blocking=False):
            try:
                if key in self._values:
                    self._values.move_to_end(key)
            finally:
                self._lock.release()

    def _forget_lock(self) -> None:
        """In a forked child: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The key's value. ``make`` runs unlocked: two threads may both make, one value is kept."""
        value = self._values.get(key, _MISSING)
        if value is not _MISSING:
            self._touch(key)
            return cast(Value, value)
        made = make()
        with self._lock:
            value = self._values.setdefault(key, made)
            self._values.move_to_end(key)
            if len(self._values) > self.maxsize:
                self._values.popitem(last=False)
        return value


def _forget_locks() -> None:
    for cache in list(_caches):
        cache._forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
