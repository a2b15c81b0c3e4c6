"""The Hopper kernel on a real GPU: what only a device can show.

Values, layouts, strides and forms are tested for every backend in tests/api and on the emulator;
here are sizes that fill the device, device offsets, graphs, bits, queues and random problems.
NIBBLAS_RANDOM_PROBLEMS says how many of the last; 100 unless it is set.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

import nibblas
from nibblas.backends import sm90
from nibblas.check.problems import ProblemSpec, draw
from nibblas.check.targets import Target
from nibblas.check.verdict import judge, truth_of
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.sm90 import Sm90Config
from tests.api.problems import offs_of, random_array, random_tokens

HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HAS_HOPPER, reason="needs a GPU of compute capability 9.0")

RANDOM_PROBLEMS = int(os.environ.get("NIBBLAS_RANDOM_PROBLEMS", "100"))
KINDS = [torch.float16, torch.bfloat16, "nvfp4"]
SHAPES = {
    "few": Sm90Config.few,
    "some": Sm90Config.some,
    "one wave": Sm90Config.one_wave,
    "many": Sm90Config,
}


@pytest.fixture
def on_gpu():
    with torch.device("cuda"):
        yield


def run(x, w, offs, *, backend="sm90", **keywords):
    return nibblas.grouped_mm(x, w, offs, backend=backend, **keywords)


def check(y, x, w, ends, **epilogue):
    exact = grouped_mm_reference(x, w, offs_of(ends), **epilogue)
    ok = within_bound(y, exact, error_bound(exact, y.dtype))[: ends[-1]]
    assert bool(ok.all()), f"{int((~ok).sum())} outputs beyond the bound"


def tokens_of(kind, rows, k, seed, *, ends=None, rule="torch"):
    if kind != "nvfp4":
        return random_tokens(rows, k, seed, kind)
    if ends is None:
        return random_array((rows, k), seed)
    return random_array((rows, k), seed, ends=ends, rule=rule, global_shape=(len(ends),))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["linear", "blocked"])
@pytest.mark.parametrize(("n", "k"), [(992, 2048), (4096, 512), (128, 7168)])
def test_many_groups_of_all_sizes(kind, layout, n, k):
    sizes = [0, 1, 7, 8, 9, 16, 17, 63, 64, 65, 0, 130, 1, 1, 300, 129]
    ends = torch.tensor(sizes, device="cpu").cumsum(0).tolist()
    w = random_array((len(sizes), n, k), 1, layout=layout, global_shape=(len(sizes), 2))
    x = tokens_of(kind, ends[-1] + 5, k, 2, ends=ends)
    alpha = torch.rand(len(sizes)) + 0.5
    out = torch.full((ends[-1] + 5, n), float("nan"), dtype=torch.bfloat16)
    check(run(x, w, offs_of(ends), alpha=alpha, out=out), x, w, ends, alpha=alpha)
    assert bool(out[ends[-1] :].isnan().all()), "rows of no group"


def rows_of(x, m):
    if isinstance(x, torch.Tensor):
        return x[:m]
    return nibblas.NVFP4Array(x.codes[:m], x.scales[:m], global_scale=x.global_scale)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [192, 1024])
def test_a_row_has_the_same_bits_in_groups_of_any_size(kind, k):
    w, x = random_array((1, 416, k), 3, layout="blocked"), tokens_of(kind, 1000, k, 4)
    all_rows = run(x, w, offs_of([1000]), out_dtype=torch.float32)
    for m in (1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 600):
        y = run(rows_of(x, m), w, offs_of([m]), out_dtype=torch.float32)
        assert torch.equal(y, all_rows[:m]), f"M = {m}"


@pytest.fixture(params=SHAPES)
def shape(request, monkeypatch):
    """The configuration, whatever the planner chooses."""
    nibblas.ops.forget_plans()
    make = SHAPES[request.param]
    monkeypatch.setattr(sm90, "choose_config", lambda problem: make(problem.activations))
    yield request.param
    nibblas.ops.forget_plans()


BITS: dict[Any, Any] = {}
"""By kind of tokens: the outputs of the first configuration."""


@pytest.mark.usefixtures("on_gpu", "shape")
@pytest.mark.parametrize("kind", KINDS)
def test_all_configurations_give_the_same_bits(kind):
    """Tiles cut in several, rounds to and fro, more groups than a warp has lanes."""
    sizes = [0, 1, 8, 9, 64, 65, 128, 129, 0, 256, 257, 700, *[3] * 40]
    ends = torch.tensor(sizes, device="cpu").cumsum(0).tolist()
    w = random_array((len(sizes), 1120, 576), 21, layout="blocked")
    x = tokens_of(kind, ends[-1], 576, 22, ends=ends)
    y = run(x, w, offs_of(ends), out_dtype=torch.float32)
    check(y, x, w, ends)
    assert torch.equal(y, BITS.setdefault(kind, y))


@pytest.mark.usefixtures("on_gpu", "shape")
def test_1024_groups():
    sizes = [int(m) for m in torch.randint(0, 4, (1024,), device="cpu")]
    ends = torch.tensor(sizes, device="cpu").cumsum(0).tolist()
    w = random_array((1024, 96, 64), 23, layout="blocked")
    x = tokens_of(torch.float16, ends[-1], 64, 24)
    check(run(x, w, offs_of(ends)), x, w, ends)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS[:2])
def test_tokens_that_tma_cannot_copy_have_the_same_bits(kind):
    w, x = random_array((2, 416, 576), 25, layout="blocked"), tokens_of(kind, 90, 576, 26)
    wide = torch.full((90, 581), float("nan"), dtype=kind)
    wide[:, 3:579] = x
    offs = offs_of([17, 90])
    assert torch.equal(run(wide[:, 3:579], w, offs), run(x, w, offs))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_repeats_are_bit_equal(kind):
    """Persistent CTAs, several sizes of groups, with nothing between the launches."""
    ends = [3, 3, 240, 241, 560, 577, 890, 1000]
    w, x = random_array((8, 2048, 1024), 5, layout="blocked"), tokens_of(kind, 1000, 1024, 6)
    first = run(x, w, offs_of(ends))
    again = [run(x, w, offs_of(ends)) for _ in range(50)]
    assert all(torch.equal(y, first) for y in again)


HOSTILE = [[-5, 3, 9], [9, 3, 1], [2**31 - 1, 0, 4], [-(2**31), 2**31 - 1, -1], [4, 100, 5]]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("entries", HOSTILE)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [torch.float16, "nvfp4"])
def test_hostile_offsets_are_clamped_and_write_only_rows_of_out(entries, masked, kind):
    w, guard = random_array((3, 64, 64), 7, layout="blocked"), torch.full((50, 64), 7.0)
    out, offs = guard[20:29], torch.tensor(entries, dtype=torch.int32)
    if masked:
        x = random_array((3, 3, 64), 8, layout="blocked")
        if kind != "nvfp4":
            x = random_tokens(9, 64, 8, kind).view(3, 3, 64)
        nibblas.grouped_mm_masked(x, w, offs, out=out.view(3, 3, 64), backend="sm90")
    else:
        run(tokens_of(kind, 9, 64, 8, ends=[2, 4, 9]), w, offs, out=out)
    torch.cuda.synchronize()
    assert bool((guard[:20] == 7.0).all() and (guard[29:] == 7.0).all())
    previous = 0
    for g, entry in enumerate(entries):
        if masked:
            begin, end = 3 * g, 3 * g + min(max(entry, 0), 3)
            assert bool((out[end : 3 * g + 3] == 7.0).all())
        else:
            begin, end = previous, min(max(entry, previous), 9)
            previous = end
        assert bool((out[begin:end] != 7.0).any(1).all())


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", [torch.bfloat16, "nvfp4"])
def test_a_captured_graph_follows_new_offsets(kind):
    """Its memory for prepared tokens is its own: eager calls between replays do not touch it."""
    w, x = random_array((3, 256, 512), 9, layout="blocked"), tokens_of(kind, 200, 512, 10)
    offs, out = offs_of([1, 2, 3]), torch.zeros(200, 256, dtype=torch.bfloat16)
    run(x, w, offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, w, offs, out=out)
    for ends in ([200, 200, 200], [0, 70, 190], [0, 0, 0], [5, 110, 200]):
        out.fill_(float("nan"))
        offs.copy_(offs_of(ends))
        run(tokens_of(kind, 200, 512, 11), w, offs)
        graph.replay()
        torch.cuda.synchronize()
        if ends[-1]:
            check(out, x, w, ends)
        assert bool(out[ends[-1] :].isnan().all())


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_call_does_not_synchronise(kind):
    w, x = random_array((3, 256, 512), 9, layout="blocked"), tokens_of(kind, 20, 512, 10)
    offs = offs_of([4, 9, 20])
    out = torch.zeros(20, 256, dtype=torch.bfloat16)
    run(x, w, offs, out=out)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(x, w, offs, out=out)
        run(x, w, offs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(out, x, w, [4, 9, 20])


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", [torch.float16, "nvfp4"])
def test_calls_on_two_queues_do_not_share_prepared_tokens(kind):
    w = random_array((2, 512, 4096), 1, layout="blocked")
    offs, xs = offs_of([90, 640]), [tokens_of(kind, 640, 4096, seed) for seed in (2, 3)]
    want = [run(x, w, offs) for x in xs]
    queues = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(10):
        for i, queue in enumerate(queues):
            with torch.cuda.stream(queue):
                results[i].append(run(xs[i], w, offs))
    torch.cuda.synchronize()
    for i in range(2):
        assert all(torch.equal(y, want[i]) for y in results[i])


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_a_list(kind):
    sizes = [(30, 96, 256), (1, 32, 1024), (170, 416, 512)]
    a = [tokens_of(kind, m, k, m) for m, _, k in sizes]
    b = [random_array((n, k), n, layout="blocked") for _, n, k in sizes]
    for x, w, y in zip(a, b, nibblas.grouped_mm_list(a, b, backend="sm90"), strict=True):
        stacked = nibblas.NVFP4Array(
            w.codes[None], w.scales[None], global_scale=w.global_scale, scale_layout="blocked"
        )
        check(y, x, stacked, [len(y)])


def fitted(spec: ProblemSpec) -> ProblemSpec:
    """The problem with N and K rounded up to what Hopper's kernel takes."""
    step_k = 256 if spec.w_layout == "linear" else 64
    return replace(spec, n=rounded_up(spec.n, 32 * spec.segments), k=rounded_up(spec.k, step_k))


def rounded_up(sizes: tuple[int, ...], step: int) -> tuple[int, ...]:
    return tuple(-(-size // step) * step for size in sizes)


@pytest.mark.parametrize("backend", ["sm90", "portable"])
def test_random_problems(backend):
    target, failed = Target(backend, device="cuda"), []
    for index in range(RANDOM_PROBLEMS):
        spec = draw(90, index)
        verdict = judge(truth_of(fitted(spec) if backend == "sm90" else spec), target)
        assert verdict.refused is None, (spec, verdict.refused)
        if not verdict.passed:
            failed.append((spec, verdict.violations))
    assert failed == []
