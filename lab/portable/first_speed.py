"""Times the portable kernel on the few-tokens cases D1 and D2, in a CUDA graph, weights rotating.

Usage: python lab/portable/first_speed.py [OUT.jsonl]
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch

import nibblas
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound

D1 = [int(digit) for digit in "28840071542101774864572567487173"]


def d2_sizes() -> list[int]:
    draw = random.Random(2)
    sizes = [0] * 128
    for _ in range(64):
        for expert in draw.sample(range(128), 8):
            sizes[expert] += 1
    return sizes


CASES = {"D1": (D1, 4096, 7168), "D2": (d2_sizes(), 1536, 2048)}


def operands(sizes: list[int], n: int, k: int, kind: str) -> tuple[object, nibblas.NVFP4Array]:
    groups, rows = len(sizes), sum(sizes)
    codes = torch.randint(0, 256, (groups, n, k // 2), dtype=torch.uint8)
    scales = torch.randint(0x28, 0x50, (groups, n, k // 16), dtype=torch.uint8)
    w = nibblas.NVFP4Array(codes, scales)
    if kind == "nvfp4":
        x = nibblas.NVFP4Array(
            torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8),
            torch.randint(0x28, 0x50, (rows, k // 16), dtype=torch.uint8),
        )
        return x, w
    return torch.randn(rows, k).to({"fp16": torch.half, "bf16": torch.bfloat16}[kind]), w


def time_graph(calls: list, repeats: int = 30) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of seconds per call, all calls in one graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    deciles = statistics.quantiles(times, n=10)
    return statistics.median(times), deciles[0], deciles[-1]


def eager_cost(call, calls: int = 2000) -> float:
    """Host seconds per call, warm; the queue never fills up at these sizes."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    costs = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(calls // 5):
            call()
        costs.append((time.perf_counter() - begin) / (calls // 5))
        torch.cuda.synchronize()
    return statistics.median(costs)


def main() -> None:
    torch.set_default_device("cuda")
    lines = []
    for name, (sizes, n, k) in CASES.items():
        offs = torch.tensor(sizes).cumsum(0).int()
        weight_bytes = sum(n * k * 9 // 16 for m in sizes if m)
        copies = max(2, -(-600_000_000 // (len(sizes) * n * k * 9 // 16)))
        for kind in ("fp16", "bf16", "nvfp4"):
            sets = [operands(sizes, n, k, kind) for _ in range(copies)]
            outs = [torch.empty(sum(sizes), n, dtype=torch.bfloat16) for _ in sets]
            x, w = sets[0]
            nibblas.grouped_mm(x, w, offs, out=outs[0], backend="portable")
            exact = grouped_mm_reference(x, w, offs)
            if not bool(within_bound(outs[0], exact, error_bound(exact, torch.bfloat16)).all()):
                raise SystemExit(f"{name} {kind}: wrong result, no time is given")
            run = functools.partial(nibblas.grouped_mm, offs=offs, backend="portable")
            calls = [
                functools.partial(run, x=x, w=w, out=out)
                for (x, w), out in zip(sets, outs, strict=True)
            ]
            median, low, high = time_graph(calls * 4)
            line = {
                "case": name,
                "kind": kind,
                "median_us": median * 1e6,
                "p10_us": low * 1e6,
                "p90_us": high * 1e6,
                "weights_tb_per_s": weight_bytes / median / 1e12,
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
            }
            print(json.dumps(line), flush=True)
            lines.append(line)
    x, w = operands([4, 4], 128, 256, "fp16")
    out, offs = torch.empty(8, 128, dtype=torch.half), torch.tensor([4, 8]).int()
    with torch.inference_mode():
        cost = eager_cost(lambda: nibblas.grouped_mm(x, w, offs, out=out, backend="portable"))
        free = eager_cost(lambda: nibblas.grouped_mm(x, w, offs, out=out))
    line = {"case": "eager", "host_us": cost * 1e6, "host_us_backend_not_named": free * 1e6}
    print(json.dumps(line))
    lines.append(line)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
