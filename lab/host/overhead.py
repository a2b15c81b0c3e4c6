"""Times the host's part of a warm eager call on both routes, with a breakdown.

Usage: python lab/host/overhead.py [--out-of-place] [--w4a4] [--grad-mode] [--beside]

--beside: only what a call on the CPU adds beside the library's function, which then does nothing;
the least of many short runs, so that it can be told on a busy machine.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

import nibblas
from nibblas import calls, eager, ops
from nibblas.backends import portable
from nibblas.backends.base import Operands
from nibblas.backends.cpu import problem_record
from nibblas.runtime import cpu_library
from nibblas.runtime.cpu_library import CpuLibrary
from nibblas.runtime.driver import LaunchSpec, use_driver
from nibblas.runtime.launcher import Launcher
from nibblas.runtime.recording import RecordingDriver

grouped_mm_out = torch.ops.nibblas.grouped_mm_out

GROUPS, ROWS, N, K = 8, 8, 16, 64
"""Small, so that the CPU kernel takes microseconds; the host's part does not depend on sizes."""


class NullDriver(RecordingDriver):
    """Launches as CudaDriver does, but what it calls is getauxval, which knows no such entry: 0."""

    def __init__(self) -> None:
        super().__init__()
        function = ctypes.cast(ctypes.CDLL(None).getauxval, ctypes.c_void_p)
        self.launcher = Launcher(function.value or 0)

    def launch(self, spec: LaunchSpec) -> None:
        assert self.launcher.launch(spec) == 0

    def bind(self, spec: LaunchSpec) -> Callable[[bytes, int], Any]:
        return self.launcher.bind(spec)


def microseconds(
    call: Callable[[], Any], calls: int = 100, repeats: int = 400
) -> tuple[float, float]:
    """Minimum and median over ``repeats`` of the mean of ``calls`` calls."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return min(times), statistics.median(times)


def show(name: str, call: Callable[[], Any]) -> None:
    low, median = microseconds(call)
    print(f"  {name:44s} min {low:7.2f} us   median {median:7.2f} us")


def operands(quantized: bool) -> tuple[Any, nibblas.NVFP4Array, torch.Tensor, torch.Tensor]:
    w = nibblas.quantize(torch.randn(GROUPS, N, K))
    tokens = torch.randn(ROWS, K)
    x = nibblas.quantize(tokens) if quantized else tokens.bfloat16()
    offs = torch.arange(1, GROUPS + 1, dtype=torch.int32)
    return x, w, offs, torch.empty(ROWS, N, dtype=torch.bfloat16)


def null_library() -> CpuLibrary:
    """The CPU library, but what it calls is getauxval, which knows no such entry: 0."""
    library = cpu_library.load()
    function = ctypes.CDLL(None).getauxval
    function.restype = ctypes.c_int32
    function.argtypes = library.native.nibblas_cpu_grouped_mm.argtypes
    return replace(library, native=SimpleNamespace(nibblas_cpu_grouped_mm=function))


def least(call: Callable[[], Any]) -> float:
    return microseconds(call, calls=20, repeats=4000)[0]


def least_of_product(x: Any, w: nibblas.NVFP4Array, offs: torch.Tensor, out: Any) -> float:
    nibblas.grouped_mm(x, w, offs, out=out)
    return least(lambda: nibblas.grouped_mm(x, w, offs, out=out))


def show_what_calls_add() -> None:
    """Beside the library's function: with out= and without, for tokens of both kinds."""
    library = null_library()
    load, cpu_library.load = cpu_library.load, lambda: library
    ops.forget_plans()
    try:
        function, record = library.native.nibblas_cpu_grouped_mm, bytes(cpu_library.PROBLEM.size)
        alone = least(lambda: function(record, 1, 0, 1, 0))
        print(f"a foreign call that does nothing: {alone:.2f} us, taken off below")
        for name, quantized in (("bfloat16", False), ("NVFP4", True)):
            x, w, offs, out = operands(quantized)
            given = least_of_product(x, w, offs, out) - alone
            new = least_of_product(x, w, offs, None) - alone
            print(f"{name:8} tokens: with out= {given:5.2f} us, with a new output {new:5.2f} us")
    finally:
        cpu_library.load = load
        ops.forget_plans()


def flat(x: Any, w: nibblas.NVFP4Array, offs: torch.Tensor, out: torch.Tensor) -> Operands:
    return Operands.of(calls.packed_product(x, w, offs, calls.Epilogue()), out)


def time_route(backend: str, arguments: Any, *, out_of_place: bool) -> None:
    x, w, offs, out = arguments
    target = None if out_of_place else out
    product = calls.packed_product(x, w, offs, calls.Epilogue())
    options = (backend, False, "default")

    def public() -> torch.Tensor:
        return nibblas.grouped_mm(x, w, offs, out=target, backend=backend)

    public()
    show("grouped_mm", public)
    how = (None, backend, None, False, "default")
    call = ("packed", x, w, offs, out, None, None, None, how)
    show("  eager.run: all but the public function", lambda: eager.run(call))
    key, addresses = eager._describe(call)
    prepared_call = ops.prepared_calls.get(key)
    if prepared_call is not None:
        show("    is anything watching", eager._is_watched)
        show("    key and addresses", lambda: eager._describe(call))
        show("    look-up", lambda: ops.prepared_calls.get(key))
        show("    overlap, record, launch", lambda: prepared_call.run(addresses))
        show("      record and launch", lambda: prepared_call._run_at(addresses))
    show("  for comparison: the operator", lambda: grouped_mm_out(*product, out, *options))


def time_cpu(arguments: Any, *, out_of_place: bool) -> None:
    print("cpu")
    time_route("cpu", arguments, out_of_place=out_of_place)
    library = cpu_library.load()
    level = library.levels[library.choose_level(None)]
    record = problem_record(flat(*arguments))
    native, region = library.native.nibblas_cpu_grouped_mm, library.parallel_region
    show("  the library's function alone", lambda: native(record, 1, level, 1, region))


def time_cuda(arguments: Any, *, out_of_place: bool) -> None:
    print("cuda, a driver that does nothing")
    ops.forget_plans()
    problem_of = ops.problem_of
    # The tensors are the CPU's; the planner is told otherwise.
    ops.problem_of = lambda *a, **b: replace(problem_of(*a, **b), device="cuda")
    try:
        with use_driver(NullDriver()) as driver:
            time_route("portable", arguments, out_of_place=out_of_place)
            parameters = portable.params_of(flat(*arguments))
            spec = LaunchSpec(1, "kernel", 0, (8, 1, 1), (256, 1, 1), 1024, 0, parameters)
            bound = driver.bind(spec)
            show("  the driver's launch alone", lambda: bound(parameters, 0))
    finally:
        ops.problem_of = problem_of
        ops.forget_plans()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out-of-place", action="store_true", help="without out=")
    parser.add_argument("--w4a4", action="store_true", help="NVFP4 tokens")
    parser.add_argument("--grad-mode", action="store_true", help="outside inference mode")
    parser.add_argument("--beside", action="store_true", help="what the CPU's calls add, no more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with nullcontext() if options.grad_mode else torch.inference_mode():
        if options.beside:
            show_what_calls_add()
            return
        arguments = operands(options.w4a4)
        for time_one in (time_cpu, time_cuda):
            time_one(arguments, out_of_place=options.out_of_place)


if __name__ == "__main__":
    main()
