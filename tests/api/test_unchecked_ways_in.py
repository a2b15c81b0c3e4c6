"""Operands that reach the operators past the public functions' checks, and side effects of out=."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch.utils import _pytree as pytree

import nibblas
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.runtime.bounded import BoundedCache
from nibblas.validation import memory
from nibblas.validation.memory import byte_span
from tests.api.problems import offs_of, random_array, small

OPTIONS = (None, False, "default")


class Experts(torch.nn.Module):
    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, w: nibblas.NVFP4Array) -> None:
        super().__init__()
        self.register_buffer("codes", w.codes)
        self.register_buffer("scales", w.scales)

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return nibblas.grouped_mm(x, nibblas.NVFP4Array(self.codes, self.scales), offs)


def test_an_exported_program_refuses_what_it_was_not_exported_for():
    x, w, offs = small()
    program = torch.export.export(Experts(w), (x, offs)).module()
    plain = nibblas.NVFP4Array(w.codes, w.scales)
    assert torch.equal(program(x, offs), nibblas.grouped_mm(x, plain, offs))
    for bad, message in (
        ((x, offs.long()), "offs: got torch.int64"),
        ((x, offs_of([3, 0, 5, 0])[::2]), "offs: got strides"),
        ((x.t().contiguous().t(), offs), "x: got strides"),
        ((x.float(), offs), "x: got torch.float32"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            program(*bad)


def test_the_operator_refuses_an_out_that_is_too_small():
    x, w, offs = small()
    scales = w.scales.view(torch.uint8)
    product = (x, None, "linear", "torch", None, w.codes, scales, "linear", w.global_scale, offs)
    with pytest.raises(ValueError, match=r"^out: got shape \(1, 1\); want \(5, 32\)"):
        torch.ops.nibblas.grouped_mm_out(*product, 0, None, None, None, torch.zeros(1, 1), *OPTIONS)


def halves_global(t):
    return t.half() if t.dtype == torch.float32 else t


def first_rows_of_scales(t):
    return t[:, :1] if t.dtype == torch.float8_e4m3fn else t


@pytest.mark.parametrize(
    ("change", "message"),
    [(halves_global, "w.global_scale: got torch.float16"), (first_rows_of_scales, "w.scales: got")],
)
def test_an_array_that_a_tree_map_has_broken_is_refused(change, message):
    x, w, offs = small()
    broken = pytree.tree_map(change, w)
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        nibblas.grouped_mm(x, broken, offs)


@pytest.mark.parametrize("form", ["packed", "list"])
def test_writing_out_is_seen_by_autograd(form):
    x, w, offs = small()
    factor, out = torch.randn(5, 32, requires_grad=True), torch.randn(5, 32)
    loss = (factor * out).sum()
    if form == "packed":
        nibblas.grouped_mm(x, w, offs, out=out)
    else:
        nibblas.grouped_mm_list([x], [w.group(0)], out=[out])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_in_inference_mode():
    x, w, offs = small()
    with torch.inference_mode():
        out = torch.empty(5, 32)
        nibblas.grouped_mm(x, w, offs, out=out)
    assert torch.equal(out, nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32))


def test_group_refuses_places_outside_the_stack():
    w = random_array((2, 32, 64), 1, global_shape=(2, 2))
    for g in (-1, 2):
        with pytest.raises(ValueError, match=rf"^g: got {g}; want 0..1"):
            w.group(g)


@pytest.mark.parametrize(
    ("scale", "alpha", "row_scale"), [(1e30, 1e30, 1e-30), (1e38, 1.0, 1e-10), (1e-30, 1e30, 1.0)]
)
def test_the_bound_knows_of_factors_that_overflow_on_the_way(scale, alpha, row_scale):
    x, w, offs = small()
    w = nibblas.NVFP4Array(w.codes, w.scales, global_scale=scale)
    factors = {"alpha": torch.full((2,), alpha), "row_scale": torch.full((5,), row_scale)}
    y = nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32, **factors)
    exact = grouped_mm_reference(x, w, offs, **factors)
    assert bool(within_bound(y, exact, error_bound(exact, torch.float32)).all())


def test_checking_a_long_list_takes_no_pairwise_comparisons(monkeypatch):
    spans = []
    monkeypatch.setattr(memory, "byte_span", lambda t: spans.append(t) or byte_span(t))
    a, b = [torch.zeros(1, 16).half()] * 200, [random_array((8, 16), 1)] * 200
    assert len(nibblas.grouped_mm_list(a, b)) == 200
    assert len(spans) <= 200 * 11, "each tensor's range once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_lock_of_its_parents_threads():
    cache: BoundedCache[int, int] = BoundedCache(4)
    cache.get_or_make(1, lambda: 1)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert cache.get_or_make(1, lambda: 2) == 1  # a hit does not wait either
    child = os.fork()
    if child == 0:
        os._exit(cache.get_or_make(2, lambda: 7))
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_masked_without_rows_still_checks_contents_and_backend():
    _, w, _ = small()
    x = torch.zeros(2, 0, 64).half()
    assert nibblas.grouped_mm_masked(x, w, offs_of([0, 0])).shape == (2, 0, 32)
    with pytest.raises(ValueError, match=r"^masked_m: got 7"):
        nibblas.grouped_mm_masked(x, w, offs_of([7, 0]))
    with pytest.raises(nibblas.UnsupportedProblemError):
        nibblas.grouped_mm_masked(x, w, offs_of([0, 0]), backend="portable")
