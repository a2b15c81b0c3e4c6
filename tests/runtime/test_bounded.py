"""The bounded cache."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from nibblas.runtime.bounded import BoundedCache


def test_never_holds_more_than_its_size() -> None:
    cache: BoundedCache[int, int] = BoundedCache(4)
    for key in range(100):
        assert cache.get_or_make(key, partial(pow, key, 2)) == key * key
        assert len(cache) <= 4


def test_the_value_asked_for_longest_ago_goes_first() -> None:
    cache: BoundedCache[str, str] = BoundedCache(2)
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    for key in ("a", "b", "a", "c", "a", "b"):
        cache.get_or_make(key, partial(make, key))
    assert made == ["a", "b", "c", "b"]


def test_a_value_not_asked_for_goes_before_older_ones_that_were() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    for place, key in enumerate("abc"):
        cache.put(key, place)
    assert cache.get("a") == 0
    cache.put("d", 3)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3]
    cache.put("e", 4)  # all have been asked for: the first goes, and each has lost its mark
    assert len(cache) == 3 and cache.get("e") == 4


def test_what_is_put_replaces_and_is_not_the_one_to_go() -> None:
    cache: BoundedCache[str, int] = BoundedCache(1)
    for value in range(3):
        cache.put("a", value)
        assert cache.get("a") == value
    cache.put("b", 7)
    assert cache.get("b") == 7 and cache.get("a") is None


def test_a_hit_compares_its_key_once() -> None:
    class Key:
        compared = 0

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            Key.compared += 1
            return True

    cache: BoundedCache[Key, int] = BoundedCache(4)
    cache.put(Key(), 5)
    Key.compared = 0
    assert cache.get(Key()) == 5
    assert Key.compared == 1


def test_a_value_that_cannot_be_made_is_not_kept() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("key", lambda: 1 // 0)
    assert cache.get_or_make("key", lambda: 3) == 3


def test_threads_share_one_value() -> None:
    cache: BoundedCache[int, object] = BoundedCache(8)
    start = threading.Barrier(8)
    found: list[object] = []

    def ask() -> None:
        start.wait()
        for _ in range(200):
            for key in range(4):
                cache.get_or_make(key, object)
        found.append(cache.get_or_make(0, object))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(cache) == 4


def test_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="maxsize: got 0"):
        BoundedCache(0)
