"""The portable kernel on a real GPU: what only a device can show.

Values, layouts, strides and forms are tested for every backend in tests/api; here are device
offsets, graphs, bits across configurations, large sizes, and that a warm call waits for nothing.
"""

from __future__ import annotations

import functools

import pytest
import torch

import nibblas
from nibblas import competition
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from tests.api.problems import offs_of, random_array, random_tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def on_gpu():
    with torch.device("cuda"):
        yield


def run(x, w, offs, **keywords):
    return nibblas.grouped_mm(x, w, offs, backend="portable", **keywords)


def check(y, x, w, ends, **epilogue):
    exact = grouped_mm_reference(x, w, offs_of(ends), **epilogue)
    ok = within_bound(y, exact, error_bound(exact, y.dtype))[: ends[-1]]
    assert bool(ok.all()), f"{int((~ok).sum())} outputs beyond the bound"


@pytest.mark.parametrize("activations", [torch.float16, torch.bfloat16, "nvfp4"])
@pytest.mark.parametrize(("n", "k"), [(1000, 2064), (4096, 512), (128, 7168)])
def test_many_groups_of_all_sizes(activations, n, k):
    sizes = [0, 1, 7, 8, 9, 16, 17, 63, 64, 65, 0, 130, 1, 1, 300]
    ends = torch.tensor(sizes, device="cpu").cumsum(0).tolist()
    w = random_array((len(sizes), n, k), 1, layout="blocked", global_shape=(len(sizes), 2))
    if activations == "nvfp4":
        x = random_array((ends[-1] + 5, k), 2, ends=ends, rule="torch", global_shape=(len(sizes),))
    else:
        x = random_tokens(ends[-1] + 5, k, 2, activations)
    alpha = torch.rand(len(sizes)) + 0.5
    check(run(x, w, offs_of(ends), alpha=alpha), x, w, ends, alpha=alpha)


@pytest.mark.parametrize("activations", [torch.float16, torch.bfloat16, "nvfp4"])
def test_a_row_has_the_same_bits_in_every_configuration(activations):
    """Blocks of 16 tokens and of 64 are different kernels; a row must not tell them apart."""
    w = random_array((1, 300, 1040), 3)
    if activations == "nvfp4":
        x = random_array((257, 1040), 4)
        rows = {m: nibblas.NVFP4Array(x.codes[:m], x.scales[:m]) for m in (1, 8, 16, 17, 64, 257)}
    else:
        tokens = random_tokens(257, 1040, 4, activations)
        rows = {m: tokens[:m] for m in (1, 8, 16, 17, 64, 257)}
    results = {m: run(x, w, offs_of([m]), out_dtype=torch.float32) for m, x in rows.items()}
    for m, y in results.items():
        assert torch.equal(y, results[257][:m]), f"M = {m}"


def test_repeats_are_bit_equal():
    w, x = random_array((8, 640, 1024), 5), random_tokens(100, 1024, 6, torch.bfloat16)
    offs = offs_of([3, 3, 40, 41, 60, 77, 90, 100])
    first = run(x, w, offs)
    for _ in range(20):
        assert torch.equal(run(x, w, offs), first)


HOSTILE = [
    [-5, 3, 9],
    [9, 3, 1],
    [2**31 - 1, 0, 4],
    [-(2**31), 2**31 - 1, -1],
    [4, 100, 5],
]


@pytest.mark.parametrize("entries", HOSTILE)
@pytest.mark.parametrize("masked", [False, True])
def test_hostile_offsets_are_clamped_and_write_only_rows_of_out(entries, masked):
    w = random_array((3, 70, 64), 7)
    guard = torch.full((50, 70), 7.0)
    out = guard[20:29]
    offs = torch.tensor(entries, dtype=torch.int32)
    if masked:
        x = random_tokens(9, 64, 8, torch.float16).view(3, 3, 64)
        nibblas.grouped_mm_masked(x, w, offs, out=out.view(3, 3, 70), backend="portable")
    else:
        run(random_tokens(9, 64, 8, torch.float16), w, offs, out=out)
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


def test_a_captured_graph_follows_new_offsets():
    w, x = random_array((3, 256, 512), 9), random_tokens(20, 512, 10, torch.bfloat16)
    offs, out = offs_of([1, 2, 3]), torch.zeros(20, 256, dtype=torch.bfloat16)
    run(x, w, offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, w, offs, out=out)
    for ends in ([20, 20, 20], [0, 7, 19], [0, 0, 0], [5, 11, 20]):
        out.fill_(float("nan"))
        offs.copy_(offs_of(ends))
        graph.replay()
        torch.cuda.synchronize()
        check(out, x, w, ends)
        assert bool(out[ends[-1] :].isnan().all())


def test_calls_read_what_was_written_just_before_them():
    """Launches begin early: tokens come from the call before, offs from a kernel between."""
    w, alpha = random_array((4, 512, 512), 5), torch.full((4,), 1 / 400)
    splits = [offs_of(ends) for ends in ([3, 3, 10, 16], [0, 9, 9, 16], [16, 16, 16, 16])]
    offs = torch.zeros(4, dtype=torch.int32)
    rows = [random_tokens(16, 512, 6, torch.float16), *torch.empty(12, 16, 512).half()]

    def call(i):
        torch.add(splits[i % 3], 0, out=offs)
        run(rows[i], w, offs, alpha=alpha, out=rows[i + 1])

    for i in range(12):
        call(i)
        torch.cuda.synchronize()
    expected = [row.clone() for row in rows]
    assert bool(expected[-1].isfinite().all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(12):
            call(i)
    for _ in range(20):
        for row in rows[1:]:
            row.fill_(torch.nan)
        graph.replay()
        for found, wanted in zip(rows, expected, strict=True):
            assert torch.equal(found, wanted)


def test_a_warm_call_does_not_synchronise():
    w, x = random_array((3, 256, 512), 9), random_tokens(20, 512, 10, torch.bfloat16)
    offs, out = offs_of([4, 9, 20]), torch.zeros(20, 256, dtype=torch.bfloat16)
    run(x, w, offs, out=out)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(x, w, offs, out=out)
        run(x, w, offs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_runs_on_the_callers_current_queue():
    w, x, offs = (
        random_array((2, 512, 4096), 1),
        random_tokens(64, 4096, 2, torch.half),
        offs_of([9, 64]),
    )
    want = run(x, w, offs)
    side = torch.cuda.Stream()
    source = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        source.copy_(x)
        y = run(source, w, offs)
    torch.cuda.synchronize()
    assert torch.equal(y, want)


def test_compiles_whole_and_differentiates():
    w, offs = random_array((2, 64, 128), 1), offs_of([2, 5])
    x = random_tokens(5, 128, 2, torch.bfloat16)
    function = lambda x: nibblas.grouped_mm(x * 2, w, offs).float().square().sum()  # noqa: E731
    grads = []
    for f in (function, torch.compile(function, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        f(leaf).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_strict_validation_is_refused_during_capture_and_reads_device_contents_else():
    w, x = random_array((2, 32, 64), 1), random_tokens(5, 64, 2, torch.bfloat16)
    with pytest.raises(ValueError, match=r"^offs: got 9 at group 1"):
        run(x, w, offs_of([3, 9]), validate="strict")
    offs, out = offs_of([3, 5]), torch.zeros(5, 32, dtype=torch.bfloat16)
    run(x, w, offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.graph(graph),
        pytest.raises(ValueError, match=r"^validate: got 'strict' during CUDA graph"),
    ):
        run(x, w, offs, out=out, validate="strict")


def test_operands_on_different_devices_are_refused():
    w, x = random_array((2, 32, 64), 1), random_tokens(5, 64, 2, torch.bfloat16)
    for bad, name in (
        ((x.cpu(), w, offs_of([3, 5])), "w"),
        ((x, w, offs_of([3, 5]).cpu()), "offs"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got device"):
            nibblas.grouped_mm(*bad)


def test_beyond_two_to_the_31_elements():
    """Weights, tokens and outputs whose element offsets do not fit 32 bits."""
    groups, n, k = 70, 8192, 8192
    codes = torch.randint(0, 256, (1, n, k // 2), dtype=torch.uint8).expand(groups, n, k // 2)
    codes = codes.contiguous()
    scales = torch.full((groups, n, k // 16), 0x38, dtype=torch.uint8)
    w = nibblas.NVFP4Array(codes, scales)
    rows = 300_000
    x = torch.zeros(rows, k, dtype=torch.float16)
    x[-4:] = torch.randn(4, k).half()
    offs = torch.tensor([0] * (groups - 2) + [rows - 2, rows], dtype=torch.int32)
    y = run(x, w, offs)
    last = nibblas.NVFP4Array(codes[-2:], scales[-2:])
    check(y[-4:], x[-4:], last, [2, 4])
    assert not bool(y[:-4].any())


def test_competition_cases_are_bit_exact():
    kernel = functools.partial(competition.custom_kernel, backend="portable")
    results = competition.run_tests("cuda", kernel=kernel)
    assert len(results) == 10
    assert all(result.verdict.bit_exact for result in results)
