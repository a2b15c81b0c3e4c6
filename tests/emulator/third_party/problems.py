"""Products for kernels of others: operands whose every partial sum is exact, so results are bits.

Codes are drawn from the whole of E2M1, scales from 0.5 to 3.75 with all significands: products are
multiples of 2^-10, and their sums stay below 2^14 while K <= 4096, so float32 holds every one of
them in any order. ``expected`` is then a single rounding of the exact sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nibblas.emulator.formats import FORMATS, bf16_of

Array = npt.NDArray[Any]


def rounded(exact: Array, out: str) -> Array:
    """Float64 sums as the output holds them: "float16", "float32", or "bfloat16" as uint16."""
    single = exact.astype(np.float32)
    assert (single == exact).all(), "the sums are not exact in float32"
    return bf16_of(single) if out == "bfloat16" else single.astype(out)


def blocked(scales: Array) -> Array:
    """Scale bytes [rows, blocks] in atoms of 128 x 4, padded with zeros: uint8 [bytes].

    Source: CUTLASS, "Scale Factor Layouts" (media/docs/cpp/blackwell_functionality.md).
    """
    rows, blocks = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), np.uint8)
    padded[:rows, :blocks] = scales
    atoms = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return np.ascontiguousarray(atoms.transpose(0, 3, 2, 1, 4)).reshape(-1)


@dataclass(frozen=True)
class Scaled:
    """A block-scaled operand.

    Attributes:
        codes: of the elements, uint8 [rows, k]. scales: codes, uint8 [rows, k / vector].
    """

    codes: Array
    scales: Array
    element: str
    scale: str

    @staticmethod
    def random(
        rng: np.random.Generator,
        rows: int,
        k: int,
        *,
        element: str = "e2m1",
        scale: str = "e4m3",
        vector: int = 16,
    ) -> Scaled:
        if element == "e2m1":
            codes = rng.integers(0, 16, (rows, k), np.uint8)
        else:  # E4M3 of 0.5 to 3.75, both signs
            codes = rng.integers(6 << 3, 9 << 3, (rows, k), np.uint8)
            codes |= rng.integers(0, 2, codes.shape, np.uint8) << 7
        low, high = (126, 129) if scale == "ue8m0" else (6 << 3, 9 << 3)
        scales = rng.integers(low, high, (rows, k // vector), np.uint8)
        return Scaled(codes, scales, element, scale)

    @property
    def values(self) -> Array:
        """Float64 [rows, k]."""
        vector = self.codes.shape[1] // self.scales.shape[1]
        scales = FORMATS[self.scale].decode(self.scales)
        return FORMATS[self.element].decode(self.codes) * np.repeat(scales, vector, axis=1)

    @property
    def packed(self) -> Array:
        """Bytes as they lie in memory, row by row: of E2M1 two codes each, the first one low."""
        if self.element != "e2m1":
            return self.codes
        return self.codes[:, ::2] | self.codes[:, 1::2] << 4


@dataclass(frozen=True)
class ScaledProduct:
    """c [m, n] = a [m, k] @ b [n, k]^T."""

    a: Scaled
    b: Scaled

    @staticmethod
    def random(m: int, n: int, k: int, *, seed: int = 1, **formats: Any) -> ScaledProduct:
        rng = np.random.default_rng(seed)
        return ScaledProduct(
            Scaled.random(rng, m, k, **formats), Scaled.random(rng, n, k, **formats)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k)"""
        return self.a.codes.shape[0], *self.b.codes.shape

    def expected(self, out: str = "float16") -> Array:
        """[m, n]; see ``rounded``."""
        return rounded(self.a.values @ self.b.values.T, out)


@dataclass(frozen=True)
class HalfProduct:
    """c [m, n] = a [m, k] @ b [n, k]^T of float16 or bfloat16 operands, small integers.

    ``a`` and ``b`` are float16 arrays; ``stored`` gives the bits in either type.
    """

    a: Array
    b: Array

    @staticmethod
    def random(m: int, n: int, k: int, *, seed: int = 1) -> HalfProduct:
        rng = np.random.default_rng(seed)
        return HalfProduct(
            rng.integers(-8, 9, (m, k)).astype(np.float16),
            rng.integers(-8, 9, (n, k)).astype(np.float16),
        )

    @staticmethod
    def stored(values: Array, kind: str) -> Array:
        return bf16_of(values.astype(np.float32)) if kind == "bfloat16" else values

    def expected(self, out: str = "float16") -> Array:
        """[m, n]; see ``rounded``."""
        return rounded(self.a.astype(np.float64) @ self.b.astype(np.float64).T, out)
