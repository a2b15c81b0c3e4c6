"""A bounded cache."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_caches: WeakSet[BoundedCache[Any, Any]] = WeakSet()


class _Entry(Generic[Value]):
    """A value, and whether it was asked for since room was last made."""

    __slots__ = ("asked", "value")

    def __init__(self, value: Value) -> None:
        self.value, self.asked = value, False


class BoundedCache(Generic[Key, Value]):
    """At most ``maxsize`` values; room is made by second chance.

    The value that came first goes, unless it was asked for since: then it counts as new, and the
    next one is looked at. So a hit only sets a mark: it hashes the key once and takes no lock.

    Safe to share among threads.
    """

    def __init__(self, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize: got {maxsize}; want at least 1")
        self.maxsize = maxsize
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()

    def get(self, key: Key) -> Value | None:
        """The key's value; None where there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.asked = True
        return entry.value

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The key's value. ``make`` runs unlocked: two threads may both make, one value is kept."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.asked = True
            return entry.value
        made = _Entry(make())
        with self._lock:
            entry = self._entries.setdefault(key, made)
            self._make_room(key)
        return entry.value

    def put(self, key: Key, value: Value) -> None:
        """Keeps the value, in place of another that the key may have."""
        with self._lock:
            self._entries[key] = _Entry(value)
            self._make_room(key)

    def _make_room(self, kept: Key) -> None:
        """Drops values that nobody asked for, from the first on, but never the one just kept.

        Every value looked at loses its mark, so two rounds are enough.
        """
        while len(self._entries) > self.maxsize:
            key, entry = self._entries.popitem(last=False)
            if entry.asked or key == kept:
                entry.asked = False
                self._entries[key] = entry

    def _forget_lock(self) -> None:
        """In a forked child: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()


def _forget_locks() -> None:
    for cache in list(_caches):
        cache._forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
