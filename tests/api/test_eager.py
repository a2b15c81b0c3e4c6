"""Calls that take the short way: what they skip, what they still check, what they never reuse."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nibblas
from nibblas import eager, ops
from tests.api.problems import (
    assert_right,
    offs_of,
    quantized_small,
    random_array,
    random_tokens,
    small,
)

pytestmark = pytest.mark.usefixtures("nothing_prepared")


FULL = {"alpha": torch.rand(2), "row_scale": torch.rand(5), "bias": torch.rand(32)}


@pytest.mark.parametrize("problem", [small, quantized_small])
@pytest.mark.parametrize("factors", [{}, FULL], ids=["plain", "epilogue"])
@pytest.mark.parametrize("into", [False, True], ids=["new", "out"])
def test_the_second_call_skips_checks_and_operator(problem, factors, into, long_ways):
    x, w, offs = problem()
    out = torch.empty(5, 32) if into else None
    first = nibblas.grouped_mm(x, w, offs, out=out, **factors).clone()
    if into:
        out.fill_(torch.nan)
    second = nibblas.grouped_mm(x, w, offs, out=out, **factors)
    assert long_ways == ["packed_product"]
    assert torch.equal(first, second)
    assert_right(second, x, w, offs, **factors)
    assert (second is out) == into


@pytest.mark.parametrize("into", [False, True], ids=["new", "out"])
def test_the_masked_form_has_a_short_way_too(into, long_ways):
    w = random_array((2, 32, 64), 1)
    x = torch.randn(2, 5, 64).bfloat16()
    used, out = offs_of([3, 5]), torch.zeros(2, 5, 32) if into else None
    first = nibblas.grouped_mm_masked(x, w, used, out=out).clone()
    second = nibblas.grouped_mm_masked(x, w, used, out=out)
    assert long_ways == ["masked_product"]
    assert second.shape == (2, 5, 32)
    assert torch.equal(first[0, :3], second[0, :3]) and torch.equal(first[1], second[1])
    with pytest.raises(ValueError, match="masked_m: got 6 at group 1"):
        nibblas.grouped_mm_masked(x, w, offs_of([3, 6]), out=out)


def test_a_warm_call_is_few_calls_and_makes_no_tensor():
    """Python and C calls are what the host's part is made of, and they do not depend on load.

    48 on Python 3.11.
    """
    x, w, offs = small()
    out = torch.empty(5, 32)
    with torch.inference_mode():
        for _ in range(2):
            nibblas.grouped_mm(x, w, offs, out=out)
        made = calls_of(lambda: nibblas.grouped_mm(x, w, offs, out=out))
    assert "run" in made and len(made) <= 60, made
    of_tensors = {name for name in made if hasattr(torch.Tensor, name)}
    assert of_tensors <= {"data_ptr", "stride", "is_neg", "is_inference", "tolist"}
    assert not {"empty", "new_empty", "__call__"} & set(made)


def calls_of(function: Callable[[], Any]) -> list[str]:
    """Names of the Python and C functions that a call reaches."""
    made: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            made.append(frame.f_code.co_name)
        elif event == "c_call":
            made.append(argument.__name__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return made


# The environment.


def test_variables_set_after_a_warm_call_count(monkeypatch: pytest.MonkeyPatch):
    x, w, offs = small()
    for _ in range(2):
        y = nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32)
    monkeypatch.setenv("NIBBLAS_BACKEND", "nobody")
    with pytest.raises(ValueError, match="^NIBBLAS_BACKEND: got 'nobody'"):
        nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32)
    monkeypatch.setenv("NIBBLAS_BACKEND", "")
    assert torch.equal(nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32), y)
    monkeypatch.delenv("NIBBLAS_BACKEND")
    monkeypatch.setenv("NIBBLAS_CPU_LEVEL", "nothing")
    with pytest.raises(ValueError, match="^NIBBLAS_CPU_LEVEL: got 'nothing'"):
        nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32)


# What must see the operator.


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_operator():
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    with Seen() as seen:
        nibblas.grouped_mm(x, w, offs)
    assert "nibblas.grouped_mm.default" in seen.operators


def test_a_function_mode_sees_the_operator():
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        nibblas.grouped_mm(x, w, offs)
    assert "nibblas.grouped_mm" in seen


def test_the_profiler_sees_the_operator():
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        nibblas.grouped_mm(x, w, offs)
    assert "nibblas::grouped_mm" in {event.key for event in profile.key_averages()}


class Watched(torch.Tensor):
    """A subclass that does nothing but exist."""


def test_a_subclass_sees_the_operator(long_ways):
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    y = nibblas.grouped_mm(x.as_subclass(Watched), w, offs)
    assert type(y) is Watched
    assert len(long_ways) == 2


def over_a_batch(x: torch.Tensor, w: Any, offs: torch.Tensor) -> Any:
    return torch.vmap(lambda t: nibblas.grouped_mm(t, w, offs))(torch.stack([x, 2 * x]))


def with_a_tangent(x: torch.Tensor, w: Any, offs: torch.Tensor) -> Any:
    return torch.func.jvp(lambda t: nibblas.grouped_mm(t, w, offs), (x,), (x,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", [over_a_batch, with_a_tangent])
def test_transforms_give_what_they_gave_before_a_warm_call(transform: Callable[..., Any]):
    problem = small()
    before = transform(*problem)
    for _ in range(2):
        nibblas.grouped_mm(*problem)
    after = transform(*problem)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not torch.equal(nibblas.grouped_mm(*problem), after[1])


@pytest.mark.filterwarnings("ignore")
def test_a_jit_trace_does_not_record_a_result_as_a_constant():
    """TorchScript's tracer cannot take the operators; that must show on the short way too."""
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    with pytest.raises(RuntimeError):
        torch.jit.trace(lambda t: nibblas.grouped_mm(t, w, offs), x)


def test_values_that_torch_negates_lazily():
    x, w, _ = small()
    one_group = nibblas.NVFP4Array(w.codes[:1], w.scales[:1])
    ends, out = offs_of([5]), torch.empty(5, 32)
    alpha = torch.tensor([0.5])
    for _ in range(2):
        nibblas.grouped_mm(x, one_group, ends, out=out, alpha=alpha)
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg() and float(negated) == -2
    y = nibblas.grouped_mm(x, one_group, ends, out=torch.empty(5, 32), alpha=negated)
    assert torch.equal(y, -4 * out)


def test_a_default_device_is_no_reason_for_the_long_way(long_ways):
    x, w, offs = small()
    with torch.device("cpu"):
        for _ in range(3):
            nibblas.grouped_mm(x, w, offs)
    assert len(long_ways) == 1


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiling_after_eager_calls(compiler: str):
    x, w, offs = small()
    for _ in range(2):
        want = nibblas.grouped_mm(x, w, offs)
    compiled = torch.compile(nibblas.grouped_mm, fullgraph=True, backend=compiler)
    assert torch.equal(compiled(x, w, offs), want)
    assert torch.equal(nibblas.grouped_mm(x, w, offs), want)


# Arrays, threads, processes.


def resized(codes: torch.Tensor) -> None:
    codes.resize_(2, 16, 32)


def grown(codes: torch.Tensor) -> None:
    codes.resize_(4, 64, 64)


def pointed_elsewhere(codes: torch.Tensor) -> None:
    other: Any = torch.zeros(1, 16, 32, dtype=torch.uint8)
    codes.set_(other)


def given_other_data(codes: torch.Tensor) -> None:
    codes.data = torch.zeros(1, 1, 8, dtype=torch.uint8)


def transposed(codes: torch.Tensor) -> None:
    codes.transpose_(0, 1)


@pytest.mark.parametrize(
    "change", [resized, grown, pointed_elsewhere, given_other_data, transposed]
)
def test_an_array_whose_own_tensors_are_changed_in_place_is_read_as_it_was(change):
    """What was checked is what is read; the memory stays as long as the array does."""
    x, w, offs = small()
    for _ in range(2):
        want = nibblas.grouped_mm(x, w, offs)
    change(w.codes)
    assert torch.equal(nibblas.grouped_mm(x, w, offs), want)
    other, twin = random_array((2, 32, 64), 1), random_array((2, 32, 64), 1)
    with pytest.raises((TypeError, ValueError)):
        nibblas.grouped_mm(x[:4], w, offs_of([3, 4]))  # not made before: looked at as it is now
    for array in (other, twin):
        assert torch.equal(nibblas.grouped_mm(x, array, offs), want)


def test_a_used_array_is_copied_and_pickled_like_a_new_one():
    x, w, offs = small()
    for _ in range(2):
        want = nibblas.grouped_mm(x, w, offs)
    for twin in (copy.copy(w), copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert "_pinned" not in vars(twin)
        assert torch.equal(nibblas.grouped_mm(x, twin, offs), want)


def test_contents_written_in_place_are_seen():
    x, w, offs = small()
    for _ in range(2):
        nibblas.grouped_mm(x, w, offs)
    w.codes.zero_()
    x.add_(1)
    assert not nibblas.grouped_mm(x, w, offs).any()


def test_arrays_of_one_shape_share_what_is_kept(long_ways):
    x, _, offs = small()
    for seed in range(20):
        w = random_array((2, 32, 64), seed)
        assert_right(nibblas.grouped_mm(x, w, offs), x, w, offs)
    assert len(long_ways) == 1
    assert len(ops.prepared_calls) == 1


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops.prepared_calls, "maxsize", 8)
    w = random_array((2, 32, 64), 1)
    for rows in [*range(1, 30), *range(1, 30)]:
        x, offs = random_tokens(rows, 64, rows, torch.bfloat16), offs_of([rows // 2, rows])
        assert_right(nibblas.grouped_mm(x, w, offs), x, w, offs)
        assert len(ops.prepared_calls) <= 8


def test_cleared_caches_are_filled_again(long_ways):
    x, w, offs = small()
    for _ in range(3):
        y = nibblas.grouped_mm(x, w, offs)
        ops.forget_plans()
        assert_right(y, x, w, offs)
    assert len(long_ways) == 3


def test_threads_do_not_mix_their_calls():
    w = random_array((2, 32, 64), 1)
    wrong: list[int] = []

    def work(thread: int) -> None:
        x, offs = random_tokens(5, 64, thread, torch.bfloat16), offs_of([thread % 6, 5])
        want = nibblas.grouped_mm(x, w, offs, backend="reference")
        for _ in range(200):
            out = torch.full((5, 32), torch.nan).bfloat16()
            nibblas.grouped_mm(x, w, offs, out=out)
            if not torch.allclose(out.float(), want.float(), rtol=0.02, atol=1e-2):
                wrong.append(thread)

    threads = [threading.Thread(target=work, args=[index]) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_takes_the_short_way():
    x, w, offs = small()
    for _ in range(2):
        want = nibblas.grouped_mm(x, w, offs, backend="reference")
    one_thread = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(2):
            want = nibblas.grouped_mm(x, w, offs)
        child = os.fork()
        if child == 0:
            same = torch.equal(nibblas.grouped_mm(x, w, offs), want)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(one_thread)


def test_the_reference_backend_is_never_prepared(long_ways):
    x, w, offs = small()
    for _ in range(3):
        nibblas.grouped_mm(x, w, offs, backend="reference")
    assert len(long_ways) == 3
    assert not len(ops.prepared_calls)


def test_empty_problems_take_the_long_way_and_are_right():
    _, w, _ = small()
    x = torch.zeros(0, 64).bfloat16()
    for _ in range(3):
        assert nibblas.grouped_mm(x, w, offs_of([0, 0])).shape == (0, 32)


def test_running_reports_what_it_has_not_done():
    x, w, offs = small()
    call = ("packed", x, w, offs, None, None, None, None, (None, None, None, False, "default"))
    assert eager.run(call) is None
    nibblas.grouped_mm(x, w, offs)
    assert eager.run(call) is not None
