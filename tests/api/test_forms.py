"""The masked and list forms against the packed form, bit for bit, on every backend."""

from __future__ import annotations

import pytest
import torch

import nibblas
from tests.api.problems import offs_of, random_array, random_tokens
from tests.api.targets import TARGETS


@pytest.fixture(autouse=True)
def on_target(request):
    """All tensors of a test are made on its target's device."""
    with torch.device(request.getfixturevalue("target").device):
        yield


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("layout", [None, "linear", "blocked"])
def test_masked_equals_packed_and_leaves_unused_rows_alone(target, layout):
    used, max_m, n, k = [0, 5, 1, 3], 5, 23, 80
    w = random_array((4, n, k), 1, layout="blocked", global_shape=(4,))
    alpha = torch.tensor([1.0, -2.0, 0.5, 3.0])
    row_scale = torch.rand(4, max_m)
    if layout is None:
        x = random_tokens(4 * max_m, k, 2, torch.float16).view(4, max_m, k)
    else:
        x = random_array((4, max_m, k), 2, layout=layout, global_shape=(4,))
    out = torch.full((4, max_m, n), float("nan"), dtype=torch.float32)
    nibblas.grouped_mm_masked(
        x, w, offs_of(used), out=out, alpha=alpha, row_scale=row_scale, backend=target.backend
    )
    for g, m in enumerate(used):
        one = x[g, :m] if layout is None else linear_rows(x, g, m)
        want = nibblas.grouped_mm(
            one,
            stack_of(w, g),
            offs_of([m]),
            alpha=alpha[g : g + 1],
            row_scale=row_scale[g, :m].contiguous(),
            out_dtype=torch.float32,
            backend=target.backend,
        )
        assert torch.equal(out[g, :m], want)
        assert out[g, m:].isnan().all()


def linear_rows(x, g, m):
    one = x.group(g)
    return nibblas.NVFP4Array(one.codes[:m], one.linear_scales()[:m], global_scale=one.global_scale)


def stack_of(w, g):
    return nibblas.NVFP4Array(
        w.codes[g : g + 1],
        w.scales[g : g + 1],
        global_scale=w.global_scale[g : g + 1],
        scale_layout=w.scale_layout,
    )


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_masked_without_out_and_without_rows(target):
    w = random_array((2, 9, 32), 3)
    x = random_tokens(6, 32, 4, torch.bfloat16).view(2, 3, 32)
    y = nibblas.grouped_mm_masked(x, w, offs_of([3, 2]), backend=target.backend)
    assert y.shape == (2, 3, 9)
    assert torch.equal(y[0], nibblas.grouped_mm(x[0], stack_of_linear(w, 0), offs_of([3])))
    empty = nibblas.grouped_mm_masked(
        x[:, :0].contiguous(), w, offs_of([0, 0]), backend=target.backend
    )
    assert empty.shape == (2, 0, 9)


def stack_of_linear(w, g):
    return nibblas.NVFP4Array(w.codes[g : g + 1], w.scales[g : g + 1], global_scale=w.global_scale)


SHAPES = [(3, 20, 64), (0, 5, 16), (1, 129, 48), (17, 1, 208)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("quantized", [False, True])
def test_list_of_different_shapes_equals_packed_one_by_one(target, quantized):
    b = [
        random_array((n, k), i, layout=("linear", "blocked")[i % 2])
        for i, (_, n, k) in enumerate(SHAPES)
    ]
    if quantized:
        a = [
            random_array((m, k), 10 + i, layout=("blocked", "linear")[i % 2])
            for i, (m, _, k) in enumerate(SHAPES)
        ]
    else:
        a = [random_tokens(m, k, 10 + i, torch.bfloat16) for i, (m, _, k) in enumerate(SHAPES)]
    alpha = torch.tensor([1.0, 2.0, -0.25, 7.0])
    bias = [torch.randn(n) for _, n, _ in SHAPES]
    row_scale = [torch.rand(m) for m, _, _ in SHAPES]
    ys = nibblas.grouped_mm_list(
        a, b, alpha=alpha, bias=bias, row_scale=row_scale, backend=target.backend
    )
    for i, y in enumerate(ys):
        stack = nibblas.NVFP4Array(
            b[i].codes[None], b[i].scales[None], global_scale=b[i].global_scale,
            scale_layout=b[i].scale_layout,
        )  # fmt: skip
        want = nibblas.grouped_mm(
            a[i],
            stack,
            offs_of([SHAPES[i][0]]),
            alpha=alpha[i : i + 1],
            bias=bias[i],
            row_scale=row_scale[i],
            backend=target.backend,
        )
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, want)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_list_writes_into_outs_of_any_stride(target):
    a = [random_tokens(4, 32, 1, torch.float16), random_tokens(2, 64, 2, torch.float16)]
    b = [random_array((6, 32), 3), random_array((7, 64), 4)]
    outs = [torch.full((6, 4), float("nan")).T, torch.full((2, 14), float("nan"))[:, ::2]]
    returned = nibblas.grouped_mm_list(a, b, out=outs, backend=target.backend)
    plain = nibblas.grouped_mm_list(a, b, out_dtype=torch.float32, backend=target.backend)
    for y, out, want in zip(returned, outs, plain, strict=True):
        assert y is out and torch.equal(out, want)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_gate_and_up_keep_their_own_global_scales(target):
    gate, up = random_array((2, 8, 32), 5), random_array((2, 8, 32), 6)
    scales = torch.tensor([[1.0, 10.0], [0.5, 4.0]])
    fused = nibblas.NVFP4Array(
        torch.cat([gate.codes, up.codes], 1),
        torch.cat([gate.scales.view(torch.uint8), up.scales.view(torch.uint8)], 1),
        global_scale=scales,
    )
    x, offs = random_tokens(5, 32, 7, torch.bfloat16), offs_of([2, 5])
    y = nibblas.grouped_mm(x, fused, offs, out_dtype=torch.float32, backend=target.backend)
    for half, part, column in ((slice(0, 8), gate, 0), (slice(8, 16), up, 1)):
        alone = nibblas.NVFP4Array(part.codes, part.scales, global_scale=scales[:, column])
        want = nibblas.grouped_mm(x, alone, offs, out_dtype=torch.float32, backend=target.backend)
        assert torch.equal(y[:, half], want)
