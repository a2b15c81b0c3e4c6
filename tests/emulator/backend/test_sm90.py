"""The shipped Hopper kernel by the shipped launch code, emulated, against the oracle.

Small sizes; every form, layout and kind of token. Bytes of padding are NaN, memory for prepared
tokens is NaN until it is written; what lies outside the operands is an error of the emulator.
EVERY_CASE=1 runs every shape under every order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Any, Literal

import pytest
import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends.base import Operands
from nibblas.emulator import ORDERS
from nibblas.plan.problem import Activations
from nibblas.plan.sm90 import GROUP_THREADS, Sm90Config
from tests.api.problems import assert_right, offs_of, random_array, random_tokens
from tests.emulator.backend.sm90 import (
    MULTIPLY,
    PORTABLE,
    PREPARE,
    SHAPES,
    OneCut,
    OneUnit,
    launched,
    launches_for,
    on_hopper,
    rows_of,
    tokens,
)
from tests.emulator.backend.stale import written_late
from tests.emulator.backend.unchecked import assert_clamped, unchecked

pytestmark = pytest.mark.usefixtures("nvrtc")

EVERY_CASE = bool(os.environ.get("EVERY_CASE"))
each_kind = pytest.mark.parametrize("kind", ["fp16", "bf16", "nvfp4"])


def run(x: Any, w: NVFP4Array, ends: list[int], **keywords: Any) -> torch.Tensor:
    return nibblas.grouped_mm(x, w, offs_of(ends), backend="emulated", **keywords)


def ends_of(sizes: Iterable[int]) -> list[int]:
    return list(accumulate(sizes))


@each_kind
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_groups_of_all_sizes_with_everything(kind: str, layout: str) -> None:
    """Empty groups, one row, more rows than are turned at a time; rows of no group, which are NaN;
    N with a tail of 96."""
    ends = [0, 1, 1, 42, 43]
    n, k = 96, 256 if layout == "linear" else 192
    w = random_array((5, n, k), 1, layout=layout, global_shape=(5, 2))
    x = tokens(kind, 45, k, 2, ends=ends, rule="torch" if layout == "blocked" else None)
    if kind != "nvfp4":
        x[43:] = float("nan")
    factors = {
        "alpha": torch.linspace(0.5, 2, 5),
        "row_scale": torch.linspace(0.25, 1, 45),
        "bias": torch.linspace(-1, 1, 5 * n).view(5, n),
    }
    dtype = {"fp16": torch.float16, "bf16": torch.float32}.get(kind, torch.bfloat16)
    out = torch.full((45, n), float("nan"), dtype=dtype)
    with on_hopper(seed=1) as emulation:
        run(x, w, ends, out=out, **factors)
    assert launched(emulation) == launches_for(kind)
    assert_right(out, x, w, offs_of(ends), **factors)
    assert bool(out[43:].isnan().all())


BORDERS = [1, 8, 9, 64, 65, 128, 129, 256, 257] if EVERY_CASE else [1, 9, 65, 257]
"""Group sizes at the ends of widths, and those of which a shape cuts tiles."""


@cache
def at_borders(shape: str, ctas: int, order: str, all_widths: bool) -> torch.Tensor:
    """N with a tail of 32, half a stage at the end of K; some groups between are empty."""
    x, w, ends = operands_at_borders()
    keywords: dict[str, Any] = {"shape": shape, "num_sms": ctas, "all_widths": all_widths}
    with on_hopper(order=order, **keywords) as emulation:
        y = run(x, w, ends, out_dtype=torch.float32)
    assert launched(emulation) == [MULTIPLY]
    return y


@cache
def operands_at_borders() -> tuple[torch.Tensor, NVFP4Array, list[int]]:
    ends = ends_of([0, *BORDERS[:3], 0, *BORDERS[3:]])
    k = 192 if EVERY_CASE else 64
    w = random_array((len(ends), 32, k), 3, layout="blocked")
    return random_tokens(ends[-1], k, 4, torch.float16), w, ends


@pytest.mark.parametrize("order", ORDERS if EVERY_CASE else ["random"])
@pytest.mark.parametrize("ctas", [4, 1])
def test_all_shapes_give_equal_bits_at_the_borders_of_widths(ctas: int, order: str) -> None:
    """And all grids, which are cut otherwise. Of all the widths that ship, and at all borders, only
    under EVERY_CASE."""
    first = at_borders("few", 4, "random", EVERY_CASE)
    x, w, ends = operands_at_borders()
    assert_right(first, x, w, offs_of(ends))
    for shape in SHAPES:
        assert torch.equal(at_borders(shape, ctas, order, EVERY_CASE), first), shape


@each_kind
def test_a_row_has_the_same_bits_in_groups_of_any_size(kind: str) -> None:
    """By the configuration that is chosen for each size."""
    w, x = random_array((1, 32, 128), 7, layout="blocked"), tokens(kind, 257, 128, 8, ends=[257])
    rows: list[torch.Tensor] = []
    for m in (1, 8, 17, 64, 257):
        with on_hopper() as emulation:
            rows.append(run(rows_of(x, m), w, [m], out_dtype=torch.float32))
        assert launched(emulation) == launches_for(kind)
    assert all(torch.equal(y, rows[-1][: len(y)]) for y in rows)
    assert_right(rows[-1], x, w, offs_of([257]))


@pytest.mark.parametrize("kind", ["fp16", "nvfp4"])
def test_masked(kind: str) -> None:
    w = random_array((3, 96, 128), 9, layout="blocked")
    used = torch.tensor([0, 3, 5], dtype=torch.int32)
    if kind == "nvfp4":
        x: Any = random_array((3, 5, 128), 10, layout="blocked")
    else:
        x = random_tokens(15, 128, 10, torch.float16).view(3, 5, 128)
    out = torch.full((3, 5, 96), float("nan"))
    with on_hopper() as emulation:
        nibblas.grouped_mm_masked(x, w, used, out=out, backend="emulated")
    assert launched(emulation) == launches_for(kind)
    for g, m in enumerate(used.tolist()):
        own = NVFP4Array(w.codes[g : g + 1], w.scales[g : g + 1], global_scale=w.global_scale,
                         scale_layout="blocked")  # fmt: skip
        mine = x[g] if kind != "nvfp4" else NVFP4Array(
            x.codes[g], x.scales[g], global_scale=x.global_scale, scale_layout="blocked"
        )  # fmt: skip
        if m:
            assert_right(out[g, :m], rows_of_group(mine, m), own, offs_of([m]))
        assert bool(out[g, m:].isnan().all())


def rows_of_group(x: Any, m: int) -> Any:
    """Blocked scales of a group are of 128 rows whatever m."""
    if isinstance(x, NVFP4Array):
        return NVFP4Array(x.codes[:m], x.scales, global_scale=x.global_scale,
                          scale_layout="blocked")  # fmt: skip
    return x[:m]


def test_list() -> None:
    sizes = [(3, 96, 256), (1, 32, 64), (17, 160, 128)]
    a = [random_tokens(m, k, m, torch.float16) for m, _, k in sizes]
    b = [random_array((n, k), n, layout="blocked") for _, n, k in sizes]
    with on_hopper() as emulation:
        ys = nibblas.grouped_mm_list(a, b, backend="emulated")
    assert launched(emulation) == [MULTIPLY] * 3
    for x, w, y in zip(a, b, ys, strict=True):
        stacked = NVFP4Array(
            w.codes[None], w.scales[None], global_scale=w.global_scale, scale_layout="blocked"
        )
        assert_right(y, x, stacked, offs_of([len(x)]))


MANY_GROUPS = {
    "more than a warp has lanes": [0, 3, 0, 0, 0, 17, 1] * 6,
    "as many as there may be": [1 if g % 97 == 0 else 0 for g in range(1023)] + [65],
    "all at the end": [0] * 40 + [5, 70],
    "more tiles than CTAs": [40, 0, 100, 9],
}


@pytest.mark.parametrize(("shape", "ctas"), [("few", 6), ("many", 3), ("some", 6)])
@pytest.mark.parametrize("name", MANY_GROUPS)
def test_several_rounds_of_several_ctas(name: str, shape: str, ctas: int) -> None:
    """To and fro over steps of groups that a warp's lanes look at one chunk after the other."""
    ends = ends_of(MANY_GROUPS[name])
    n = 160 if name == "more tiles than CTAs" else 32
    w = random_array((len(ends), n, 64), 11, layout="blocked")
    x = random_tokens(ends[-1], 64, 12, torch.half)
    with on_hopper(num_sms=ctas, shape=shape, order="round_robin") as emulation:
        y = run(x, w, ends)
    assert launched(emulation) == [MULTIPLY]
    assert_right(y, x, w, offs_of(ends))


@pytest.mark.parametrize("multiply_groups", [2, 3])
@pytest.mark.parametrize("cut", [OneCut, OneUnit])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_blocks_that_begin_within_an_atom(
    layout: str, cut: type[Sm90Config], multiply_groups: int
) -> None:
    """Of 7 units, the last of which has 32 rows: blocks of 3 span two atoms of blocked scales from
    the first one's beginning or its middle; a unit alone is the first half of one or the second."""
    ends, k = [3, 20], 256 if layout == "linear" else 192
    w = random_array((2, 416, k), 23, layout=layout)
    x = random_tokens(20, k, 24, torch.half)

    def config(kind: Activations) -> Sm90Config:
        return cut(kind, (8, 24), stages=2, multiply_groups=multiply_groups)

    with on_hopper(config=config) as emulation:
        y = run(x, w, ends)
    assert launched(emulation) == [MULTIPLY]
    assert_right(y, x, w, offs_of(ends))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("strides", ["rows", "odd rows", "shifted", "columns apart", "transposed"])
def test_outputs_of_all_types_and_strides(dtype: torch.dtype, strides: str) -> None:
    """Rows that begin at multiples of 16 bytes are written 16 bytes at a time, if of 16 bits."""
    n, ends = 32, [2, 43]
    w, x = random_array((2, n, 64), 13, layout="blocked"), random_tokens(43, 64, 14, torch.half)
    if strides == "transposed":
        memory = torch.full((n, 47), 7.0, dtype=dtype)
        out, beside = memory[:, :43].t(), [memory[:, 43:]]
    elif strides == "columns apart":
        memory = torch.full((43, 2 * n), 7.0, dtype=dtype)
        out, beside = memory[:, ::2], [memory[:, 1::2]]
    else:
        before = 8 if strides == "rows" else 1
        memory = torch.full(
            (43, n + before + (3 if strides == "odd rows" else 8)), 7.0, dtype=dtype
        )
        out, beside = memory[:, before : n + before], [memory[:, :before], memory[:, n + before :]]
    with on_hopper():
        run(x, w, ends, out=out)
    assert_right(out, x, w, offs_of(ends))
    assert all(bool((rest == 7).all()) for rest in beside), "nothing beside the outputs"


@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_scales_of_tokens_start_where_the_rule_says(rule: Literal["torch", "flashinfer"]) -> None:
    """Groups over several atoms of 128 rows; codes at odd addresses, in rows of an odd stride."""
    ends = [3, 3, 132, 133]
    w = random_array((4, 32, 64), 15, layout="blocked")
    x = tokens("nvfp4", 133, 64, 16, ends=ends, rule=rule)
    memory = torch.zeros(133, 37, dtype=torch.uint8)
    codes = memory[:, 3:35]
    codes.copy_(x.codes.view(torch.uint8))
    moved = NVFP4Array(codes, x.scales, global_scale=x.global_scale,
                       scale_layout="blocked", group_start=rule)  # fmt: skip
    with on_hopper() as emulation:
        y = run(moved, w, ends)
    assert launched(emulation) == [PREPARE, MULTIPLY]
    assert_right(y, x, w, offs_of(ends))


@pytest.mark.parametrize(
    ("columns", "first", "launches"),
    [
        (80, 8, [MULTIPLY]),
        (65, 0, [PREPARE, MULTIPLY]),
        (80, 1, [PREPARE, MULTIPLY]),
    ],
    ids=["aligned", "odd stride", "odd address"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_tokens_at_any_address(
    dtype: torch.dtype, columns: int, first: int, launches: list[str]
) -> None:
    """Read in place where TMA can; beside them is NaN."""
    w, wide = random_array((2, 32, 64), 17, layout="blocked"), random_tokens(9, columns, 18, dtype)
    x = wide[:, first : first + 64]
    values = x.clone()
    wide[:] = float("nan")
    x.copy_(values)
    with on_hopper() as emulation:
        y = run(x, w, [2, 9])
    assert launched(emulation) == launches
    assert_right(y, x, w, offs_of([2, 9]))


@pytest.mark.parametrize("address", [0, 1])
def test_one_row(address: int) -> None:
    """Whose stride means nothing."""
    w, wide = random_array((1, 32, 64), 17, layout="blocked"), random_tokens(1, 65, 18, torch.half)
    x = wide[:, address : address + 64]
    with on_hopper() as emulation:
        y = run(x, w, [1])
    assert launched(emulation) == ([PREPARE, MULTIPLY] if address else [MULTIPLY])
    assert_right(y, x, w, offs_of([1]))


def test_weights_off_alignment_take_the_portable_kernel() -> None:
    w, x = random_array((2, 32, 64), 19, layout="blocked"), random_tokens(9, 64, 20, torch.half)
    codes = torch.empty(2 * 32 * 32 + 1, dtype=torch.uint8)[1:].view(2, 32, 32)
    codes.copy_(w.codes.view(torch.uint8))
    shifted = NVFP4Array(codes, w.scales, global_scale=w.global_scale, scale_layout="blocked")
    with on_hopper() as emulation:
        y = run(x, shifted, [2, 9])
    assert launched(emulation) == [PORTABLE]
    assert_right(y, x, w, offs_of([2, 9]))


HOSTILE = [[-5, 3, 9], [9, 3, 1], [2**31 - 1, 0, 4], [-(2**31), 2**31 - 1, -1], [4, 100, 5]]


@pytest.mark.parametrize("entries", HOSTILE)
@pytest.mark.parametrize("masked", [False, True])
def test_hostile_offsets_are_clamped(entries: list[int], masked: bool) -> None:
    """Past the checks, as contents on a device come: nothing outside the operands is touched."""
    kind = "nvfp4" if sum(map(abs, entries)) % 2 else "fp16"
    w = random_array((3, 32, 64), 21, layout="blocked")
    x = tokens(kind, 9, 64, 22, ends=[2, 4, 9], rule="torch")
    product = unchecked(x, w, entries, max_m=3 if masked else 0)
    with on_hopper() as emulation:
        run_unchecked(product)
    assert launched(emulation) == launches_for(kind)
    assert_clamped(product)


def run_unchecked(product: Operands) -> None:
    backend = nibblas.backends.registry.get("emulated")
    problem = nibblas.ops.problem_of(
        [product], product.form, batch_invariant=False, read_sizes=False
    )
    backend.run([product], backend.plan(problem))


STALE = {
    "hostile": lambda ends: [(-(2**31), 3, 2**31 - 1)[g % 3] for g in range(len(ends))],
    "empty": lambda ends: [0] * len(ends),
    "a row more at the end": lambda ends: [*ends[:-1], ends[-1] + 1],
    "a row less in the second group": lambda ends: [ends[0], ends[1] - 1, *ends[2:]],
    "the same": lambda ends: ends,
}
"""What offs holds until the launch before has written it, of what it will hold."""

LATE_CTAS = 3
READING_WARP = Sm90Config.few("fp16").multiply_groups * GROUP_THREADS // 32 + 1
"""Compares offs with what the producer, the warp before it, has found, when it has waited."""


@pytest.mark.parametrize("num_groups", [6, 40])
@pytest.mark.parametrize("stale", STALE)
def test_offsets_that_the_launch_before_writes_last(stale: str, num_groups: int) -> None:
    """Steps found before that launch has ended are found again, by every CTA, if they have changed;
    offs is read by who finds them and by who compares."""
    loaded, unchanged = loaded_late(num_groups, stale), loaded_late(num_groups, "the same")
    assert loaded - unchanged == (stale != "the same") * LATE_CTAS * num_groups * 4


@cache
def loaded_late(num_groups: int, stale: str) -> int:
    """Bytes that a launch has loaded one by one, whose outputs are right; its producers have read
    offs before it is written."""
    ends = ends_of([0, 9, 1, *[0] * (num_groups - 5), 30, 5])
    rows = ends[-1]
    w = random_array((num_groups, 160, 128), 25, layout="blocked")
    product = unchecked(random_tokens(rows + 1, 128, 26, torch.half), w, ends)
    assert product.offs is not None
    order = on_hopper(shape="few", num_sms=LATE_CTAS, order="adversarial-starve", seed=READING_WARP)
    with order as emulation, written_late(product.offs, STALE[stale](ends), but_for=1):
        run_unchecked(product)
    assert_right(product.out[:rows], product.x[:rows], w, offs_of(ends))
    assert_clamped(product)
    return emulation.reports[-1].bytes_by_path["load global"]
