"""Steps of the Hopper kernel, found by its own text on the emulator: each row meets each unit once.

Nothing is multiplied, so sizes can be many; every cut is walked, whichever is the best.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from nibblas.emulator import Device
from nibblas.plan.sm90 import Sm90Config
from nibblas.runtime.compile import compile_ptx
from nibblas.runtime.source import KERNELS, KernelSource
from tests.backends.sm100_records import Product
from tests.emulator.backend.sm90 import SHAPES

pytestmark = pytest.mark.usefixtures("nvrtc")

CTAS, ROOM = 6, 1024


@dataclass(frozen=True)
class WalkConfig(Sm90Config):
    """The kernel's own configuration, for a kernel that only walks."""

    source_name = "sm90/walk_test.cu"
    entry = "walk"


@dataclass(frozen=True)
class Walked:
    """Steps of every cut, and of the best one as the last.

    Attributes:
        steps: [cut][CTA] steps as Step has them: (token_row, group, first_unit, units, tokens,
            width_index, width).
        best: (tokens, units) of the best cut.
    """

    steps: list[list[np.ndarray]]
    best: tuple[int, int]


@cache
def ptx_of(shape: str) -> str:
    made = SHAPES[shape]("fp16")
    config = WalkConfig("fp16", made.widths, made.stages, made.multiply_groups)
    with TemporaryDirectory() as folder:
        root = Path(shutil.copytree(KERNELS, Path(folder) / "kernels"))
        shutil.copy(Path(__file__).with_name("sm90_walk.cu"), root / config.source_name)
        source = KernelSource.of(config, "sm_90a", root=root)
    return compile_ptx(
        source.text, name=source.name, target=source.target, headers=dict(source.headers)
    )


def walked(
    shape: str,
    entries: Sequence[int],
    *,
    rows: int,
    n: int,
    k: int = 512,
    max_m: int = 0,
    only_best: bool = False,
) -> Walked:
    """By CTAS CTAs. ``entries``: what offs holds, whatever it is. No steps of the other cuts with
    ``only_best``."""
    config = SHAPES[shape]("fp16")
    device = Device("sm_90")
    cuts = len(config.cuts) + 1
    steps = device.empty((cuts, CTAS, ROOM, 7), np.int32, name="steps")
    counts = device.from_numpy(np.zeros((cuts, CTAS), np.int32), name="counts")
    best = device.empty(2, np.int32, name="best")
    offs = device.from_numpy(np.array(entries, np.int32), name="offs")
    product = Product(offs=offs.address, groups=len(entries), rows=rows, n=n, k=k, max_m=max_m)
    first = cuts - 1 if only_best else 0
    words = (steps.address, counts.address, best.address, ROOM, first)
    launch(device, shape, "walk", CTAS, product, words)
    found, lengths = steps.to_numpy(), counts.to_numpy()
    assert lengths.max() <= ROOM
    tokens, units = best.to_numpy().tolist()
    return Walked(
        [[found[i, cta, : lengths[i, cta]] for cta in range(CTAS)] for i in range(cuts)],
        (tokens, units),
    )


def launch(
    device: Device, shape: str, kernel: str, ctas: int, product: Product, words: Sequence[int]
) -> None:
    """Of warps that are given the kernel's own parameter, whose maps are empty, and words."""
    packed = bytes(product).ljust(SHAPES[shape]("fp16").params_bytes, b"\0")
    packed += struct.pack(f"={len(words)}q", *words)
    packed += bytes(-len(packed) % 64)
    device.load_ptx(ptx_of(shape)).kernel(kernel).launch(
        ctas, 32, [np.frombuffer(packed, np.uint8)]
    )


def check(shape: str, result: Walked, ranges: Sequence[tuple[int, int]], rows: int, n: int) -> None:
    """``ranges``: of rows, of each group."""
    config = SHAPES[shape]("fp16")
    assert result.best in config.cuts
    for cut, by_cta in zip([*config.cuts, result.best], result.steps, strict=True):
        check_cut(config, cut, by_cta, ranges, rows, n)


def check_cut(
    config: Sm90Config,
    cut: tuple[int, int],
    by_cta: list[np.ndarray],
    ranges: Sequence[tuple[int, int]],
    rows: int,
    n: int,
) -> None:
    met = np.zeros((rows, -(-n // 64)), np.int32)
    for row, group, first, count, tokens, index, width in np.concatenate(by_cta):
        begin, end = ranges[group]
        assert begin <= row < row + tokens <= end
        assert 0 < tokens <= width == config.widths[index]
        assert tokens <= cut[0]
        assert 0 <= first < first + count <= met.shape[1] and count <= cut[1]
        met[row : row + tokens, first : first + count] += 1
    wanted = np.zeros(rows, np.int32)
    for begin, end in ranges:
        wanted[begin:end] = 1
    assert (met == wanted[:, None]).all()
    widths = in_order(by_cta)[:, 6].tolist()
    assert widths == sorted(widths, reverse=True), "widest first"


def in_order(by_cta: list[np.ndarray]) -> np.ndarray:
    """All steps as they are dealt, to and fro: the last of a round is the first of the next."""
    lengths = [len(steps) for steps in by_cta]
    assert max(lengths) - min(lengths) <= 1
    return np.array(
        [
            by_cta[at][turn]
            for turn in range(max(lengths))
            for at in (range(len(lengths)) if turn % 2 == 0 else reversed(range(len(lengths))))
            if turn < lengths[at]
        ]
    ).reshape(-1, 7)


SIZES = {
    "borders": [1, 8, 9, 0, 64, 65, 128, 129, 256, 257],
    "one": [1],
    "none": [0, 0, 0],
    "many groups": [0, 3, 17, 1, 70] * 14,
    "1024 groups": [3 if g % 29 == 0 else 0 for g in range(1023)] + [90],
    "a large one": [2, 1000, 5],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("n", [32, 416])
def test_every_row_meets_every_unit_once(shape: str, name: str, n: int) -> None:
    ends = np.cumsum(SIZES[name])
    rows = int(ends[-1]) + 3
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    result = walked(shape, ends.tolist(), rows=rows, n=n if len(ends) < 1000 else 32)
    check(shape, result, ranges, rows, n if len(ends) < 1000 else 32)


@pytest.mark.parametrize("shape", SHAPES)
def test_masked_groups(shape: str) -> None:
    used, most = [0, 3, 40, 200, -7, 40], 40
    ranges = [(g * most, g * most + min(max(m, 0), most)) for g, m in enumerate(used)]
    rows = most * len(used)
    check(shape, walked(shape, used, rows=rows, n=160, max_m=most), ranges, rows, 160)


@pytest.mark.parametrize("entries", [[-5, 3, 9], [9, 3, 1], [2**31 - 1, 0, 4], [4, 100, 5], [4, 2]])
def test_hostile_offsets_are_clamped_and_made_monotone(entries: list[int]) -> None:
    ends = np.maximum.accumulate(np.clip(entries, 0, 9))
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    check("few", walked("few", entries, rows=9, n=96), ranges, 9, 96)


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_of_groups_of_all_sizes(shape: str) -> None:
    """Divided without a division below 2^20 rows, whose results are cut off: near whole tiles, and
    near whole tokens of a tile, they must not be one off."""
    cuts = SHAPES[shape]("fp16").cuts
    sizes = np.array(sizes_at_borders(cuts), np.int64)
    assert (sizes < QUICK_BELOW).sum() > 1000 and (sizes > QUICK_BELOW).sum() > 10
    found = tiles_found(shape, sizes)
    for (most, _), (count, tokens, width) in zip(cuts, found, strict=True):
        wanted = np.where(sizes > most, -(-sizes // most), np.minimum(sizes, 1))
        assert np.array_equal(count, wanted)
        wanted = np.where(wanted > 1, -(-sizes // np.maximum(wanted, 1)), sizes)
        assert np.array_equal(tokens, wanted)
        assert np.array_equal(width, np.searchsorted(SHAPES[shape]("fp16").widths, tokens))


QUICK_BELOW = 2**20
"""Rows of a group, from which on walk.cuh divides exactly."""


def sizes_at_borders(cuts: Sequence[tuple[int, int]]) -> list[int]:
    """Of groups: whole tiles, a row less and a row more, near powers of two; and any others."""
    sizes = {0, 1, 2**31 - 1}
    for most, _ in cuts:
        for about in (most, 3 * most, 1000, 2**16, QUICK_BELOW, 2**24, 2**31 - 2 * most):
            for rows in (about // most * most, -(-about // most) * most):
                sizes |= {rows - 1, rows, rows + 1}
    numbers = random.Random(1)
    while len(sizes) % 32 or len(sizes) < 2048:
        # A divisor's multiple is where a quotient that is cut off too low would show.
        tokens, count = numbers.randint(1, 256), numbers.randint(1, QUICK_BELOW // 256)
        sizes.add(tokens * count)
    return sorted(sizes)


def tiles_found(shape: str, sizes: np.ndarray) -> np.ndarray:
    """[cut][count, tokens, width][size]"""
    device, cuts = Device("sm_90"), len(SHAPES[shape]("fp16").cuts)
    given = device.from_numpy(sizes.astype(np.int32), name="sizes")
    tiles = device.empty((cuts, len(sizes), 3), np.int32, name="tiles")
    masked = Product(groups=len(sizes), rows=2**31 - 1, max_m=1)
    launch(device, shape, "tiles", len(sizes) // 32, masked, (given.address, tiles.address))
    found: np.ndarray = tiles.to_numpy().transpose(0, 2, 1)
    return found


@pytest.mark.parametrize("more", [1, 0, -1])
def test_a_group_of_many_rows(more: int) -> None:
    """That are divided exactly: whole tiles, a row more and a row less, before a small group."""
    (tokens, _), *_ = cuts = SHAPES["many"]("fp16").cuts
    large = (QUICK_BELOW // tokens + 5) * tokens + more
    result = walked("many", [large, large + 3], rows=large + 3, n=64, only_best=True)
    assert result.best in cuts and result.best[0] == tokens
    ranges = [(0, large), (large, large + 3)]
    check_cut(SHAPES["many"]("fp16"), result.best, result.steps[-1], ranges, large + 3, 64)


@pytest.mark.parametrize("shape", SHAPES)
def test_shared_memory_is_what_the_kernel_uses(shape: str) -> None:
    used = Device("sm_90").load_ptx(ptx_of(shape)).variable("used_shared_bytes").to_numpy()
    assert int(used.view(np.uint64)[0]) == SHAPES[shape]("fp16").shared_bytes


@pytest.mark.parametrize("shape", SHAPES)
def test_the_best_cut_leaves_no_cta_idle_and_weights_are_not_decoded_too_often(shape: str) -> None:
    """Fewer steps than CTAs: a unit each. Many: all of a CTA's units, and tiles of many tokens."""
    config = SHAPES[shape]("fp16")
    assert walked(shape, [8], rows=8, n=64 * CTAS).best[1] == 1
    many = walked(shape, [400, 800], rows=800, n=64 * 4 * CTAS)
    assert many.best[1] == config.multiply_groups
    assert many.best[0] >= config.max_tokens // 2


def test_steps_that_are_taken_at_once_share_tiles_and_blocks() -> None:
    """Of a large group: else each round would read all of its tokens, or all of its weights."""
    rows, n = 5000, 4096
    order = in_order(walked("many", [rows], rows=rows, n=n, only_best=True).steps[-1])
    tiles, blocks = len(np.unique(order[:, 0])), len(np.unique(order[:, 2]))
    assert tiles > 16 and blocks > 16, "many of both"
    for first in range(len(order) - 64):
        at_once = order[first : first + 64]
        assert len(np.unique(at_once[:, 0])) <= 8
        assert len(np.unique(at_once[:, 2])) <= 18
