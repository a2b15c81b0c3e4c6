"""Small problems that reach every way through the kernel; the GPU lane runs them under sanitizers.

Each is checked against the oracle as well: a sanitizer sees wrong accesses, not wrong sums.
"""

from __future__ import annotations

import pytest
import torch

import nibblas
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan import portable
from tests.api.problems import offs_of, random_array, random_tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

KINDS = ("fp16", "bf16", "nvfp4")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FEW_TOKENS, MANY_TOKENS = [3, 3, 20], [70, 70, 135]
"""Ends of three groups, the second empty: blocks of few tokens, and several blocks of many."""
ALIGNED_K, ODD_K = 768, 272
"""A multiple of every stage; one whose rows are 16-byte aligned for some operands only."""
ROWS, WHOLE_ROWS = 150, 160
"""Of the weights: a whole tile of 128 and a part; what tensor copies (sm_90 and newer) take."""


@pytest.fixture(autouse=True)
def on_gpu():
    with torch.device("cuda"):
        yield


def tokens_of(kind, rows, k, *, ends=None, rule=None):
    if kind == "nvfp4":
        return random_array((rows, k), 2, ends=ends, rule=rule)
    return random_tokens(rows, k, 2, DTYPES[kind])


def check(y, x, w, ends, **epilogue):
    exact = grouped_mm_reference(x, w, offs_of(ends), **epilogue)
    ok = within_bound(y, exact, error_bound(exact, y.dtype))[: ends[-1]]
    assert bool(ok.all()), f"{int((~ok).sum())} outputs beyond the bound"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [FEW_TOKENS, MANY_TOKENS], ids=["few", "many"])
@pytest.mark.parametrize("k", [ALIGNED_K, ODD_K])
def test_linear_scales(kind, ends, k):
    x, w = tokens_of(kind, ends[-1] + 3, k), random_array((3, ROWS, k), 1)
    check(nibblas.grouped_mm(x, w, offs_of(ends), backend="portable"), x, w, ends)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [FEW_TOKENS, MANY_TOKENS], ids=["few", "many"])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_aligned_rows(kind, ends, layout):
    """Weights through tensor copies where there are any."""
    w = random_array((3, WHOLE_ROWS, ALIGNED_K), 1, layout=layout)
    x = tokens_of(kind, ends[-1], ALIGNED_K)
    check(nibblas.grouped_mm(x, w, offs_of(ends), backend="portable"), x, w, ends)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [FEW_TOKENS, MANY_TOKENS], ids=["few", "many"])
@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_blocked_scales_and_the_whole_epilogue(kind, ends, rule):
    rule = rule if kind == "nvfp4" else None
    x = tokens_of(kind, ends[-1] + 3, ODD_K, ends=ends, rule=rule)
    w = random_array((3, ROWS, ODD_K), 1, layout="blocked", global_shape=(3, 2))
    epilogue = {
        "alpha": torch.rand(3) + 0.5,
        "row_scale": torch.rand(ends[-1] + 3),
        "bias": torch.randn(3, ROWS),
    }
    out = torch.empty(ROWS, ends[-1] + 3).T  # neighbours in a column, not in a row
    nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="portable", **epilogue)
    check(out, x, w, ends, **epilogue)


def test_unaligned_rows():
    """Every row of tokens and codes starts at an odd place."""
    codes = random_array((2, ROWS, ODD_K), 1)
    bytes_ = torch.zeros(2, ROWS, ODD_K // 2 + 1, dtype=torch.uint8)
    bytes_[..., 1:] = codes.codes
    w = nibblas.NVFP4Array(bytes_[..., 1:], codes.scales)
    x = torch.zeros(20, ODD_K + 1, dtype=torch.float16)[:, 1:]
    x.copy_(random_tokens(20, ODD_K, 2, torch.float16))
    check(nibblas.grouped_mm(x, w, offs_of([7, 20]), backend="portable"), x, w, [7, 20])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [[-5, 100, 9], [2**31 - 1, -(2**31), 4]])
@pytest.mark.parametrize("masked", [False, True], ids=["packed", "masked"])
def test_hostile_offsets(kind, entries, masked):
    """Clamped: groups that reach beyond the tokens end with them."""
    w, x = random_array((3, ROWS, ODD_K), 1), tokens_of(kind, 18, ODD_K)
    offs = torch.tensor(entries, dtype=torch.int32)
    guard = torch.full((38, ROWS), 7.0)
    out = guard[10:28]
    if masked:
        if kind == "nvfp4":
            x = nibblas.NVFP4Array(x.codes.view(3, 6, -1), x.scales.view(3, 6, -1))
        else:
            x = x.view(3, 6, -1)
        nibblas.grouped_mm_masked(x, w, offs, out=out.view(3, 6, ROWS), backend="portable")
    else:
        nibblas.grouped_mm(x, w, offs, out=out, backend="portable")
    torch.cuda.synchronize()
    assert bool((guard[:10] == 7.0).all() and (guard[28:] == 7.0).all())
    assert bool((out != 7.0).any())


def test_the_lane_watches_kernels_of_this_name():
    """compute-sanitizer is told to look at kernels with "nibblas" in their names."""
    assert all("nibblas" in config.entry for config in portable.all_configs())
