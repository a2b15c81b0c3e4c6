"""The shipped Hopper kernel by the shipped launch code, emulated, against the oracle.

Small sizes; every form, layout and kind of token. Bytes of padding are NaN, memory for prepared
tokens is NaN until it is written; what lies outside the operands is an error of the emulator.
EVERY_CASE=1 runs every size under every order.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest
import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends.base import Operands
from nibblas.emulator import ORDERS
from tests.api.problems import assert_right, offs_of, random_array, random_tokens
from tests.emulator.backend.sm90 import MULTIPLY, PREPARE, launched, on_hopper, rows_of, tokens

pytestmark = pytest.mark.usefixtures("nvrtc")

EVERY_CASE = bool(os.environ.get("EVERY_CASE"))
each_kind = pytest.mark.parametrize("kind", ["fp16", "bf16", "nvfp4"])


BOTH = [PREPARE, MULTIPLY]


def run(x: Any, w: NVFP4Array, ends: list[int], **keywords: Any) -> torch.Tensor:
    return nibblas.grouped_mm(x, w, offs_of(ends), backend="emulated", **keywords)


@each_kind
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_groups_of_all_sizes_with_everything(kind: str, layout: str) -> None:
    """Empty groups, one row, more than a box of tokens; rows of no group; N with a tail of 32."""
    ends = [0, 1, 1, 34, 35]
    n, k = 96, 256 if layout == "linear" else 192
    w = random_array((5, n, k), 1, layout=layout, global_shape=(5, 2))
    x = tokens(kind, 37, k, 2, ends=ends, rule="torch" if layout == "blocked" else None)
    factors = {
        "alpha": torch.linspace(0.5, 2, 5),
        "row_scale": torch.linspace(0.25, 1, 37),
        "bias": torch.linspace(-1, 1, 5 * n).view(5, n),
    }
    out = torch.full((37, n), float("nan"))
    with on_hopper(seed=1, cluster=2 if kind == "fp16" else 1) as emulation:
        run(x, w, ends, out=out, **factors)
    assert launched(emulation) == BOTH
    assert_right(out, x, w, offs_of(ends), **factors)
    assert bool(out[35:].isnan().all())


SIZES = [(32, 64, 3), (96, 192, 20), (416, 64, 17), (128, 320, 40), (96, 128, 130), (64, 64, 257)]
FEW_CASES = [
    (*size, 1 + i % 2, ("adversarial-delay", "round_robin")[i % 3 == 0])
    for i, size in enumerate(SIZES)
]
ALL_CASES = [(*size, cluster, order) for size in SIZES for cluster in (1, 2) for order in ORDERS]


@pytest.mark.parametrize(
    ("n", "k", "m", "cluster", "order"), ALL_CASES if EVERY_CASE else FEW_CASES
)
def test_sizes(n: int, k: int, m: int, cluster: int, order: str) -> None:
    w, x = random_array((1, n, k), 3, layout="blocked"), random_tokens(m, k, 4, torch.float16)
    with on_hopper(cluster=cluster, order=order, seed=5) as emulation:
        y = run(x, w, [m])
    assert launched(emulation) == BOTH
    assert_right(y, x, w, offs_of([m]))


@each_kind
def test_a_row_has_the_same_bits_in_groups_of_any_size(kind: str) -> None:
    """And those of the portable kernel, which groups of few tokens are left to."""
    w, x = random_array((1, 32, 128), 7, layout="blocked"), tokens(kind, 257, 128, 8, ends=[257])
    rows: list[torch.Tensor] = []
    for m in (1, 8, 16, 17, 64, 257):
        with on_hopper(cluster=2 if kind == "fp16" and m == 64 else 1) as emulation:
            rows.append(run(rows_of(x, m), w, [m], out_dtype=torch.float32))
        assert launched(emulation) == BOTH
    assert all(torch.equal(y, rows[-1][: len(y)]) for y in rows)
    with on_hopper(chosen="portable") as emulation:
        other = run(rows_of(x, 17), w, [17], out_dtype=torch.float32)
    assert launched(emulation) == ["nibblas_portable_grouped_mm"]
    assert torch.equal(rows[-1][:17], other)


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
    assert launched(emulation) == BOTH
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
    assert launched(emulation) == BOTH * 3
    for x, w, y in zip(a, b, ys, strict=True):
        stacked = NVFP4Array(
            w.codes[None], w.scales[None], global_scale=w.global_scale, scale_layout="blocked"
        )
        assert_right(y, x, stacked, offs_of([len(x)]))


def test_several_steps_of_several_clusters() -> None:
    """Rows enough for tiles of more than one group, four clusters of two, every one busy."""
    ends = [40, 40, 75]
    w, x = random_array((3, 416, 64), 11, layout="blocked"), random_tokens(75, 64, 12, torch.half)
    with on_hopper(num_sms=8, cluster=2) as emulation:
        y = run(x, w, ends)
    assert launched(emulation) == BOTH
    assert_right(y, x, w, offs_of(ends))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("strides", ["rows", "columns apart", "transposed"])
def test_outputs_of_all_types_and_strides(dtype: torch.dtype, strides: str) -> None:
    n, ends = 32, [2, 19]
    w, x = random_array((2, n, 64), 13, layout="blocked"), random_tokens(19, 64, 14, torch.half)
    if strides == "transposed":
        memory = torch.full((n, 23), 7.0, dtype=dtype)
        out, beside = memory[:, :19].t(), memory[:, 19:]
    elif strides == "rows":
        memory = torch.full((19, n + 5), 7.0, dtype=dtype)
        out, beside = memory[:, :n], memory[:, n:]
    else:
        memory = torch.full((19, 2 * n), 7.0, dtype=dtype)
        out, beside = memory[:, ::2], memory[:, 1::2]
    with on_hopper():
        run(x, w, ends, out=out)
    assert_right(out, x, w, offs_of(ends))
    assert bool((beside == 7).all()), "nothing beside the outputs"


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
    assert launched(emulation) == BOTH
    assert_right(y, x, w, offs_of(ends))


def test_16_bit_tokens_at_any_address() -> None:
    w, wide = random_array((2, 32, 64), 17, layout="blocked"), random_tokens(9, 65, 18, torch.half)
    with on_hopper() as emulation:
        y = run(wide[:, 1:], w, [2, 9])
    assert launched(emulation) == BOTH
    assert_right(y, wide[:, 1:], w, offs_of([2, 9]))


def test_weights_off_alignment_take_the_portable_kernel() -> None:
    w, x = random_array((2, 32, 64), 19, layout="blocked"), random_tokens(9, 64, 20, torch.half)
    codes = torch.empty(2 * 32 * 32 + 1, dtype=torch.uint8)[1:].view(2, 32, 32)
    codes.copy_(w.codes.view(torch.uint8))
    shifted = NVFP4Array(codes, w.scales, global_scale=w.global_scale, scale_layout="blocked")
    with on_hopper() as emulation:
        y = run(x, shifted, [2, 9])
    assert launched(emulation) == ["nibblas_portable_grouped_mm"]
    assert_right(y, x, w, offs_of([2, 9]))


HOSTILE = [[-5, 3, 9], [9, 3, 1], [2**31 - 1, 0, 4], [-(2**31), 2**31 - 1, -1], [4, 100, 5]]


@pytest.mark.parametrize("entries", HOSTILE)
@pytest.mark.parametrize("masked", [False, True])
def test_hostile_offsets_are_clamped(entries: list[int], masked: bool) -> None:
    """Past the checks, as contents on a device come: nothing outside the operands is touched."""
    kind = "nvfp4" if sum(map(abs, entries)) % 2 else "fp16"
    w, out = random_array((3, 32, 64), 21, layout="blocked"), torch.full((9, 32), 7.0)
    x = tokens(kind, 9, 64, 22, ends=[2, 4, 9], rule="torch")
    product = Operands(
        x=x.codes.view(torch.uint8) if kind == "nvfp4" else x,
        x_scales=x.scales.view(torch.uint8) if kind == "nvfp4" else None,
        x_scale_layout="blocked" if kind == "nvfp4" else "linear",
        x_scale_start="stacked" if masked else "torch",
        x_global=None,
        w=w.codes.view(torch.uint8),
        w_scales=w.scales.view(torch.uint8),
        w_scale_layout="blocked",
        w_global=w.global_scale,
        offs=torch.tensor(entries, dtype=torch.int32),
        max_m=3 if masked else 0,
        alpha=None,
        row_scale=None,
        bias=None,
        out=out,
    )
    with on_hopper() as emulation:
        backend = nibblas.backends.registry.get("emulated")
        problem = nibblas.ops.problem_of(
            [product], product.form, batch_invariant=False, read_sizes=False
        )
        backend.run([product], backend.plan(problem))
    assert launched(emulation) == BOTH
    previous = 0
    for g, entry in enumerate(entries):
        if masked:
            begin, end = 3 * g, 3 * g + min(max(entry, 0), 3)
            assert bool((out[end : 3 * g + 3] == 7).all())
        else:
            begin, end = previous, min(max(entry, previous), 9)
            previous = end
        assert bool((out[begin:end] != 7).any(1).all())
    if not masked:
        assert bool((out[previous:] == 7).all())
