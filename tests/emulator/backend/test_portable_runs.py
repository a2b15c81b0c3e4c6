"""How the portable kernel shares the work of many groups: its search reads 128 groups at a time.

A run that begins or ends in the wrong place leaves rows out, and `out` keeps what it held, or gives
them another group's weights.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends import registry
from nibblas.backends.base import Operands
from nibblas.emulator import emulating
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.portable import FEW_TOKENS, config_for
from nibblas.plan.problem import Problem, even_rows, uniform_shapes
from tests.api.problems import assert_right, offs_of, random_array, random_tokens
from tests.emulator.backend.stale import written_late
from tests.emulator.backend.unchecked import UNTOUCHED, unchecked

pytestmark = pytest.mark.usefixtures("nvrtc")

GROUPS = 300
"""Two whole readings and a part of one."""


def sizes(seed: int, most: int) -> list[int]:
    """Tokens of the groups: some groups of the first and the last reading have any."""
    numbers = random.Random(seed)
    rows = [0] * GROUPS
    for g in (0, 3, 4, 7, 70, 126, 127, 256, 258, 299):
        rows[g] = numbers.randint(1, most)
    return rows


def run(product: Operands, groups: int) -> None:
    n, k = product.n, product.k
    shapes = uniform_shapes(even_rows(len(product.out), groups), n, k)
    problem = Problem(shapes, "fp16", "fp32", form=product.form, rows_known=False)
    backend = registry.get("emulated")
    backend.run([product], backend.plan(problem))


@pytest.mark.parametrize(("arch", "num_sms"), [("sm_80", 3), ("sm_90", 3)])
def test_packed(arch: str, num_sms: int) -> None:
    """With TMA and without; runs that begin in either reading with tokens."""
    ends = list(itertools.accumulate(sizes(1, 9)))
    w = random_array((GROUPS, 32, 256), 2, global_shape=(GROUPS,))
    x = random_tokens(ends[-1], 256, 3, torch.float16)
    out = torch.full((ends[-1], 32), float("nan"))
    with emulating(arch, order="random", seed=4, num_sms=num_sms):
        nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
    assert_right(out, x, w, offs_of(ends))


def test_scales_of_tokens_that_begin_at_each_group() -> None:
    """A run learns how many rows of blocked scales lie before its first group."""
    ends = list(itertools.accumulate(sizes(5, 4)))
    w = random_array((GROUPS, 32, 256), 6, layout="blocked")
    x = random_array((ends[-1], 256), 7, ends=ends, rule="torch", global_shape=(GROUPS,))
    out = torch.full((ends[-1], 32), float("nan"))
    with emulating("sm_90", num_sms=3):
        nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
    assert_right(out, x, w, offs_of(ends))


def test_masked() -> None:
    rows = torch.tensor(sizes(8, 2), dtype=torch.int32)
    w = random_array((GROUPS, 32, 256), 9, global_shape=(GROUPS,))
    x = random_tokens(2 * GROUPS, 256, 10, torch.float16).view(GROUPS, 2, 256)
    out = torch.full((GROUPS, 2, 32), float("nan"))
    with emulating("sm_90", num_sms=3):
        nibblas.grouped_mm_masked(x, w, rows, out=out, backend="emulated")
    held = torch.arange(2) < rows[:, None]
    assert bool(out[~held].isnan().all())
    exact = grouped_mm_reference(x[held], w, rows.cumsum(0, dtype=torch.int32))
    assert bool(within_bound(out[held], exact, error_bound(exact, out.dtype)).all())


@pytest.mark.parametrize("masked", [False, True])
def test_hostile_offsets(masked: bool) -> None:
    """What a reading has seen holds for the next one; nothing outside the operands is touched."""
    numbers = random.Random(11)
    entries = [numbers.choice([-(2**31), -5, 0, 0, 0]) for _ in range(GROUPS)]
    for g, entry in {5: 2, 127: 2**31 - 1, 130: 1, 255: 4, 256: 6, 290: 9}.items():
        entries[g] = entry
    if not masked:
        entries[127], entries[299] = 3, 2**31 - 1  # else one group takes all rows
    max_m, rows = (2, 2 * GROUPS) if masked else (0, 12)
    product = unchecked(
        random_tokens(rows, 256, 13, torch.float16), weights(), entries, max_m=max_m
    )
    with emulating("sm_90", num_sms=3):
        run(product, GROUPS)
    written = (product.out != UNTOUCHED).any(1)
    if masked:
        held = torch.arange(2) < torch.tensor(entries).clamp(0, 2)[:, None]
        assert torch.equal(written, held.flatten())
        return
    assert max(entries) > rows
    ends = list(itertools.accumulate((min(max(entry, 0), rows) for entry in entries), max))
    assert bool(written.all())
    assert_right(product.out, product.x, weights(), offs_of(ends))


@pytest.mark.parametrize("num_groups", [6, GROUPS])
@pytest.mark.parametrize("stale", ["hostile", "empty"])
def test_offsets_that_the_launch_before_writes_last(num_groups: int, stale: str) -> None:
    """A run found before that launch has ended is looked for again if they have changed."""
    numbers = random.Random(14)
    held = [*sizes(15, 3)[:5], *sizes(15, 3)[5 - num_groups :]]
    entries = list(itertools.accumulate(held))
    before = {
        "hostile": [numbers.choice([-(2**31), 3, 2**31 - 1]) for _ in entries],
        "empty": [0] * num_groups,
    }[stale]
    w = random_array((num_groups, 32, 256), 16)
    product = unchecked(random_tokens(entries[-1], 256, 17, torch.float16), w, entries)
    assert product.offs is not None
    scout = config_for("fp16", FEW_TOKENS, "sm_90a", aligned=True).warps  # the warp after these
    order = emulating("sm_90", order="adversarial-starve", seed=scout, num_sms=3)
    with order as emulated, written_late(product.offs, before):
        run(product, num_groups)
    assert ("bulk prefetches" in emulated.reports[-1].events) == (stale == "hostile")
    assert_right(product.out, product.x, w, offs_of(entries))


def weights() -> NVFP4Array:
    return random_array((GROUPS, 32, 256), 12)
