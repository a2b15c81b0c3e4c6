"""Random numbers that are the same in every release of numpy: raw Philox bits, reduced by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Draw:
    """A stream that follows from its seeds alone."""

    def __init__(self, *seeds: int) -> None:
        key = 0
        for seed in seeds:
            key = key * 1_000_003 + seed + 1
        self._bits = np.random.Philox(key=key % 2**128)

    def integers(self, low: int, high: int, shape: Any, dtype: Any = np.int64) -> np.ndarray:
        """From [low, high), by remainder: a slight bias does not matter here."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        raw = self._bits.random_raw(math.prod(shape)).reshape(shape)
        if high - low < 1 << 64:
            raw = raw % np.uint64(high - low)
        return (raw.astype(np.uint64) + np.uint64(low % (1 << 64))).astype(dtype)

    def halvings(self, most: int, shape: Any) -> np.ndarray:
        """0 with probability 1/2, 1 with 1/4, ..., at most ``most``."""
        raw = self.integers(0, 1 << most, shape, np.int64) | 1 << most
        return np.log2((raw & -raw).astype(np.float64)).astype(np.int64)

    def shuffled(self, rows: list[Any]) -> list[Any]:
        order = np.argsort(self.integers(0, 1 << 62, len(rows)), kind="stable")
        return [rows[i] for i in order]
