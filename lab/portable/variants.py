"""Times configurations of the portable kernel against each other on D1 and D2, compiled there.

Usage: python lab/portable/variants.py [OUT.jsonl]
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import first_speed
import torch

import nibblas
from nibblas.backends import portable
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.portable import PortableConfig

# (tokens, stage_k, stages, CTAs per multiprocessor)
VARIANTS = [
    (16, 256, 4, 2),
    (16, 256, 3, 2),
    (8, 256, 4, 2),
]


def main() -> None:
    torch.set_default_device("cuda")
    lines = []
    for name, (sizes, n, k) in first_speed.CASES.items():
        offs = torch.tensor(sizes).cumsum(0).int()
        weight_bytes = sum(n * k * 9 // 16 for m in sizes if m)
        copies = max(2, -(-600_000_000 // (len(sizes) * n * k * 9 // 16)))
        sets = [first_speed.operands(sizes, n, k, "fp16") for _ in range(copies)]
        outs = [torch.empty(sum(sizes), n, dtype=torch.half) for _ in sets]
        exact = grouped_mm_reference(*sets[0], offs)
        bound = error_bound(exact, torch.half)
        for tokens, stage_k, stages, ctas in VARIANTS:
            config = PortableConfig("fp16", tokens, stage_k, stages, ctas, True, "sm_90a")
            portable.choose_config = lambda problem, target, config=config: config
            nibblas.ops.forget_plans()
            run = functools.partial(nibblas.grouped_mm, offs=offs, backend="portable")
            calls = [
                functools.partial(run, x=x, w=w, out=out)
                for (x, w), out in zip(sets, outs, strict=True)
            ]
            calls[0]()
            if not bool(within_bound(outs[0], exact, bound).all()):
                print(name, config, "wrong")
                continue
            median, low, high = first_speed.time_graph(calls * 4)
            line = {
                "case": name,
                "config": str(config),
                "ctas_per_sm": ctas,
                "median_us": round(median * 1e6, 1),
                "p10_us": round(low * 1e6, 1),
                "p90_us": round(high * 1e6, 1),
                "weights_tb_per_s": round(weight_bytes / median / 1e12, 3),
            }
            print(json.dumps(line), flush=True)
            lines.append(line)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
