"""Times configurations of the Hopper kernel against each other, in CUDA graphs, weights rotating.

    python lab/sm90/variants.py OUT.jsonl [--cases S1,D1] [--kinds fp16] ['few' 'many,stages=2' ...]

A configuration is "few", "some", "one_wave" or "many", or none of them for the planner's choice,
and fields that differ. Every one is checked against the float64 reference before it is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import nibblas
import nibblas.backends.sm90 as backend
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.problem import Problem
from nibblas.plan.sm90 import Sm90Config, choose_config

sys.path.append(str(Path(__file__).resolve().parents[2]))
from lab.portable.first_speed import CASES as FEW_TOKENS
from lab.portable.first_speed import time_graph

CASES = {
    "S1": ([80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168),
    "S2": ([40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048),
    "S3": ([192, 320], 3072, 4096),
    "S4": ([128, 384], 4096, 1536),
    **FEW_TOKENS,
    "P1": ([1024] * 8, 4096, 7168),
    "P2": ([256] * 128, 1536, 2048),
}


SHAPES = {
    "few": Sm90Config.few,
    "some": Sm90Config.some,
    "one_wave": Sm90Config.one_wave,
    "many": Sm90Config,
}


def operands(sizes: list[int], n: int, k: int, kind: str) -> tuple[object, nibblas.NVFP4Array]:
    groups, rows = len(sizes), sum(sizes)
    codes = torch.randint(0, 256, (groups, n, k // 2), dtype=torch.uint8)
    scales = torch.randint(0x28, 0x50, (groups, n, k // 16), dtype=torch.uint8)
    w = nibblas.NVFP4Array(codes, scales)
    x_codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
    x = nibblas.NVFP4Array(x_codes, torch.randint(0x28, 0x50, (rows, k // 16), dtype=torch.uint8))
    return (x if kind == "nvfp4" else x.dequantize(getattr(torch, kind))), w


def right(out: torch.Tensor, x: object, w: nibblas.NVFP4Array, sizes: list[int]) -> bool:
    """Whether one busy group's rows, the group with most tokens, are within the error bound."""
    group = sizes.index(max(sizes))
    first = sum(sizes[:group])
    rows = slice(first, first + min(sizes[group], 160))
    one = nibblas.NVFP4Array(w.codes[group : group + 1], w.scales[group : group + 1])
    offs = torch.tensor([rows.stop - rows.start], dtype=torch.int32)
    some = (
        x[rows]
        if isinstance(x, torch.Tensor)
        else nibblas.NVFP4Array(x.codes[rows], x.scales[rows])
    )
    exact = grouped_mm_reference(some, one, offs)
    return bool(within_bound(out[rows], exact, error_bound(exact, out.dtype)).all())


def chooser(text: str) -> Callable[[Problem], Sm90Config]:
    """Of a configuration as the command line has it."""
    which, _, changes = text.partition(",")
    fields = eval(f"dict({changes})")

    def choose(problem: Problem) -> Sm90Config:
        config = SHAPES[which](problem.activations) if which else choose_config(problem)
        return dataclasses.replace(config, **fields)

    return choose


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("configs", nargs="*", default=[""])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--kinds", default="float16")
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    torch.set_default_device("cuda")
    for name in asked.cases.split(","):
        sizes, n, k = CASES[name]
        offs = torch.tensor(sizes).cumsum(0).int()
        copies = max(2, -(-400_000_000 // (len(sizes) * n * k * 9 // 16)))
        for kind in asked.kinds.split(","):
            sets = [operands(sizes, n, k, kind) for _ in range(copies)]
            outs = [torch.empty(sum(sizes), n, dtype=torch.half) for _ in sets]
            for config in asked.configs:
                backend.choose_config = chooser(config)
                nibblas.ops.forget_plans()
                run = functools.partial(nibblas.grouped_mm, offs=offs, backend="sm90")
                line = {"case": name, "kind": kind, "config": config}
                x, w = sets[0]
                outs[0].fill_(float("nan"))
                run(x=x, w=w, out=outs[0])
                torch.cuda.synchronize()
                line["right"] = right(outs[0], x, w, sizes)
                calls = [
                    functools.partial(run, x=x, w=w, out=out)
                    for (x, w), out in zip(sets, outs, strict=True)
                ]
                median, low, high = time_graph(calls * max(1, 24 // copies), asked.repeats)
                line |= {"median_us": median * 1e6, "p10_us": low * 1e6, "p90_us": high * 1e6}
                print(json.dumps(line), flush=True)
                with asked.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            del sets, outs


if __name__ == "__main__":
    sys.exit(main())
