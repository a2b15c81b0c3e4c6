"""The public problem's test and benchmark sizes, and the edge sizes that it leaves out.

Source of ``TESTS`` and ``BENCHMARKS``: task.yml of gpu-mode/reference-kernels,
problems/nvidia/nvfp4_group_gemm, commit ae67948 (January 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from nibblas.errors import bad_value
from nibblas.formats.scale_layout import BLOCK

PUBLIC_SEED = 1111


class GeneratorArguments(TypedDict):
    """Keyword arguments of the generators."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    g: int
    seed: int


@dataclass(frozen=True)
class Case:
    """Sizes of one grouped product, ``C_i[m_i, n_i] = A_i[m_i, k_i] @ B_i[n_i, k_i].T``.

    Raises:
        ValueError: m, n or k does not have g entries.
    """

    name: str
    g: int
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    """Values, not bytes; each a multiple of 16."""
    seed: int = PUBLIC_SEED

    def __post_init__(self) -> None:
        check_group_sizes(self.m, self.n, self.k, self.g)

    @property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        """(m, n, k) of every group."""
        return tuple(zip(self.m, self.n, self.k, strict=True))

    @property
    def flop(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return sum(2 * m * n * k for m, n, k in self.sizes)

    @property
    def bytes_moved(self) -> int:
        """Bytes of A, B, their scales and the fp16 C, each once."""
        return sum((m + n) * (k // 2 + k // BLOCK) + 2 * m * n for m, n, k in self.sizes)

    def reseeded(self, seed: int) -> Case:
        """The same sizes with another seed."""
        return replace(self, seed=seed)

    def generator_arguments(self) -> GeneratorArguments:
        """What ``generate_input`` and ``generate_full_range`` take."""
        return {"m": self.m, "n": self.n, "k": self.k, "g": self.g, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class BenchmarkCase(Case):
    """A case with the published lower bound of its time on a B200."""

    speed_of_light_us: float
    """Microseconds; about max(bytes_moved / 7.68 TB/s, flop / 6.9 PFLOP/s)."""


def check_group_sizes(m: Sequence[int], n: Sequence[int], k: Sequence[int], g: int) -> None:
    """Raise ValueError unless m, n and k hold g sizes each and every k is a multiple of 16."""
    for argument, sizes in (("m", m), ("n", n), ("k", k)):
        if len(sizes) != g:
            raise bad_value(argument, given=f"{len(sizes)} sizes", wanted=f"g = {g}")
        if any(size < 0 for size in sizes):
            raise bad_value(argument, given=tuple(sizes), wanted="no negative size")
    if any(size == 0 or size % BLOCK for size in k):
        raise bad_value("k", given=tuple(k), wanted=f"positive multiples of {BLOCK}")


def _cases(prefix: str, rows: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[Case, ...]:
    return tuple(Case(f"{prefix}{i}", len(m), m, n, k) for i, (m, n, k) in enumerate(rows))


TESTS = _cases(
    "T",
    (
        ((96, 128), (128, 256), (256, 512)),
        ((256, 72), (512, 384), (256, 256)),
        ((128, 128), (128, 256), (512, 256)),
        ((80, 128, 256), (384, 256, 128), (256, 512, 256)),
        ((64, 72, 96), (128, 384, 512), (512, 512, 256)),
        ((64, 256, 128), (768, 128, 256), (512, 256, 512)),
        ((128, 128, 64), (256, 512, 512), (768, 256, 768)),
        ((128, 128, 128, 128), (128, 128, 128, 128), (512, 256, 512, 256)),
        ((40, 56, 384, 512), (512, 384, 256, 128), (256, 256, 256, 256)),
        ((512, 384, 256, 128), (256, 256, 256, 256), (512, 768, 512, 768)),
    ),
)
"""The ten public correctness cases."""

BENCHMARKS = (
    BenchmarkCase(
        name="C0",
        g=8,
        m=(80, 176, 128, 72, 64, 248, 96, 160),
        n=(4096,) * 8,
        k=(7168,) * 8,
        speed_of_light_us=18.833,
    ),
    BenchmarkCase(
        name="C1",
        g=8,
        m=(40, 76, 168, 72, 164, 148, 196, 160),
        n=(7168,) * 8,
        k=(2048,) * 8,
        speed_of_light_us=10.667,
    ),
    BenchmarkCase(
        name="C2", g=2, m=(192, 320), n=(3072,) * 2, k=(4096,) * 2, speed_of_light_us=2.406
    ),
    BenchmarkCase(
        name="C3", g=2, m=(128, 384), n=(4096,) * 2, k=(1536,) * 2, speed_of_light_us=1.525
    ),
)
"""The four public benchmark cases; the ranking is the geometric mean of their times."""

EDGE_CASES = _cases(
    "E",
    (
        ((0, 5, 128), (128, 128, 128), (256, 256, 256)),
        ((1, 1, 4), (128, 8, 1), (64, 16, 128)),
        ((3, 130, 17), (40, 128, 129), (80, 96, 112)),
        ((257, 0, 127), (24, 136, 255), (272, 48, 304)),
        ((0, 0), (128, 256), (256, 512)),
    ),
)
"""Sizes that the public cases lack: empty and one-row groups, odd N, K % 64 = 16, 32 and 48."""
