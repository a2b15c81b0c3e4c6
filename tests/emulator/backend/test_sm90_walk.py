"""Steps of the Hopper kernel, found by its own text on the emulator: each row meets each unit once.

Nothing is multiplied, so sizes can be many; every cut is walked, whichever is the best.
"""

from __future__ import annotations

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
        steps: [cut][CTA] steps as Step has them: (token_row, group, first_unit, units, cta_units,
            tokens, width_index, width).
        best: (tokens, units) of the best cut.
    """

    steps: list[list[np.ndarray]]
    best: tuple[int, int]


@cache
def ptx_of(shape: str) -> str:
    made = SHAPES[shape]("fp16")
    config = WalkConfig("fp16", made.widths, made.cluster, made.stages, made.multiply_groups)
    with TemporaryDirectory() as folder:
        root = Path(shutil.copytree(KERNELS, Path(folder) / "kernels"))
        shutil.copy(Path(__file__).with_name("sm90_walk.cu"), root / config.source_name)
        source = KernelSource.of(config, "sm_90a", root=root)
    return compile_ptx(
        source.text, name=source.name, target=source.target, headers=dict(source.headers)
    )


def walked(
    shape: str, entries: Sequence[int], *, rows: int, n: int, k: int = 512, max_m: int = 0
) -> Walked:
    """By CTAS CTAs. ``entries``: what offs holds, whatever it is."""
    config = SHAPES[shape]("fp16")
    device = Device("sm_90")
    cuts = len(config.cuts) + 1
    steps = device.empty((cuts, CTAS, ROOM, 8), np.int32, name="steps")
    counts = device.empty((cuts, CTAS), np.int32, name="counts")
    best = device.empty(2, np.int32, name="best")
    offs = device.from_numpy(np.array(entries, np.int32), name="offs")
    product = Product(offs=offs.address, groups=len(entries), rows=rows, n=n, k=k, max_m=max_m)
    packed = bytes(product).ljust(config.params_bytes, b"\0")
    packed += struct.pack("=4q", steps.address, counts.address, best.address, ROOM)
    packed += bytes(-len(packed) % 64)
    device.load_ptx(ptx_of(shape)).kernel("walk").launch(
        CTAS, 32, [np.frombuffer(packed, np.uint8)]
    )
    found, lengths = steps.to_numpy(), counts.to_numpy()
    assert lengths.max() <= ROOM
    tokens, units = best.to_numpy().tolist()
    return Walked(
        [[found[i, cta, : lengths[i, cta]] for cta in range(CTAS)] for i in range(cuts)],
        (tokens, units),
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
    by_cluster = by_cta[:: config.cluster]
    for rank in range(1, config.cluster):
        for one, other in zip(by_cluster, by_cta[rank :: config.cluster], strict=True):
            assert np.array_equal(one, other), "CTAs of a cluster take the same steps"
    units = 2 * -(-n // 128)
    met = np.zeros((rows, units), np.int32)
    for row, group, first, count, of_cta, tokens, index, width in np.concatenate(by_cluster):
        begin, end = ranges[group]
        assert begin <= row < row + tokens <= end
        assert 0 < tokens <= width == config.widths[index]
        assert tokens <= cut[0]
        assert of_cta == cut[1] and 0 < count <= of_cta * config.cluster
        met[row : row + tokens, first : first + count] += 1
    wanted = np.zeros(rows, np.int32)
    for begin, end in ranges:
        wanted[begin:end] = 1
    assert (met == wanted[:, None]).all()
    widths = in_order(by_cluster)[:, 7].tolist()
    assert widths == sorted(widths, reverse=True), "widest first"


def in_order(by_cluster: list[np.ndarray]) -> np.ndarray:
    """All steps as they are dealt, to and fro: the last of a round is the first of the next."""
    lengths = [len(steps) for steps in by_cluster]
    assert max(lengths) - min(lengths) <= 1
    return np.array(
        [
            by_cluster[at][turn]
            for turn in range(max(lengths))
            for at in (range(len(lengths)) if turn % 2 == 0 else reversed(range(len(lengths))))
            if turn < lengths[at]
        ]
    ).reshape(-1, 8)


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
    order = in_order(walked("many", [rows], rows=rows, n=n).steps[-1])
    tiles, blocks = len(np.unique(order[:, 0])), len(np.unique(order[:, 2]))
    assert tiles > 16 and blocks > 16, "many of both"
    for first in range(len(order) - 64):
        at_once = order[first : first + 64]
        assert len(np.unique(at_once[:, 0])) <= 8
        assert len(np.unique(at_once[:, 2])) <= 18
