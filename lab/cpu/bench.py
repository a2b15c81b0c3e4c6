"""Times the CPU kernels beside torch, interleaved; every result is checked before any is timed.

    PYTHONPATH=src python lab/cpu/bench.py c1 c2 --threads 2 --levels amx avx512 --json out.jsonl

Contenders, one after the other in every round, on weights that rotate over more bytes than caches
hold: each level with each kind of tokens; "mm", torch's bfloat16 product per group on weights that
were decoded before; "decode+mm", the same with the decoding inside (a few rounds only). A line has
medians with 10th and 90th percentile, the ratio to "mm", and the ratio to the floor: the time to
read the weights once at the rate of torch's sum, or the product's FLOP at --gflops.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nibblas.backends.base import Operands
from nibblas.backends.cpu import problem_record
from nibblas.backends.reference import tokens_of, weights_of
from nibblas.formats.reference import Exact, error_bound, grouped_mm_reference, within_bound
from nibblas.runtime import cpu_library

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
ROTATED_BYTES = 400e6
DECODING_ROUNDS = 3
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "nvfp4": torch.bfloat16}
CODE_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

Run = Callable[[int], None]


class Case:
    """One problem, with as many sets of weights as `ROTATED_BYTES` want."""

    def __init__(self, name: str, rotated_bytes: float) -> None:
        self.rows: list[int] = CASES[name]["rows"]
        self.n: int = CASES[name]["n"]
        self.k: int = CASES[name]["k"]
        self.m = sum(self.rows)
        self.values = len(self.rows) * self.n * self.k
        used = sum(m > 0 for m in self.rows) * self.n * self.k
        self.weight_bytes = used * 9 / 16
        self.flop = 2 * self.m * self.n * self.k
        self.offs = torch.tensor(self.rows).cumsum(0).to(torch.int32)
        copies = 1 + int(rotated_bytes / self.weight_bytes)
        shape = (len(self.rows), self.n)
        self.w = _copies(_codes(*shape, self.k // 2), copies)
        self.w_scales = _copies(_scales(*shape, self.k // 16), copies)

    def operands(self, tokens: str) -> list[Operands]:
        """The product of one x with every set of weights."""
        w4a4 = tokens == "nvfp4"
        x = _codes(self.m, self.k // 2) if w4a4 else torch.randn(self.m, self.k).to(TYPES[tokens])
        x_scales = _scales(self.m, self.k // 16) if w4a4 else None
        out = torch.empty(self.m, self.n, dtype=TYPES[tokens])
        return [
            Operands(
                x=x,
                x_scales=x_scales,
                x_scale_layout="linear",
                x_scale_start="torch",
                x_global=None,
                w=w,
                w_scales=scales,
                w_scale_layout="linear",
                w_global=None,
                offs=self.offs,
                max_m=0,
                alpha=None,
                row_scale=None,
                bias=None,
                out=out,
            )
            for w, scales in zip(self.w, self.w_scales, strict=True)
        ]


def _copies(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The same numbers in `count` places of memory."""
    return [tensor, *(tensor.clone() for _ in range(count - 1))]


def _codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def _scales(*shape: int) -> torch.Tensor:
    return torch.randint(0x28, 0x48, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def check(product: Operands, exact: Exact) -> None:
    """Stops unless the output lies within the error bound around the float64 result."""
    assert within_bound(product.out, exact, error_bound(exact, product.out.dtype)).all()


def our_runs(
    case: Case, levels: list[str], kinds: list[str], threads: int, invariant: bool
) -> dict[str, Run]:
    library = cpu_library.load()
    orders = (False, True) if invariant else (False,)
    apart = max(1, len(case.w) // (len(kinds) * len(levels) * len(orders)))

    def run_of(records: list[bytes], level: str, start: int) -> Run:
        return lambda i: library.grouped_mm([records[(start + i) % len(records)]], level, threads)

    runs: dict[str, Run] = {}
    for tokens in kinds:
        products = case.operands(tokens)
        first = products[0]
        exact = grouped_mm_reference(tokens_of(first), weights_of(first), first.offs)
        for level, one_order in itertools.product(levels, orders):
            records = [problem_record(product, one_order) for product in products]
            # No two read the same copy in a round, and none a copy that another has just read.
            run = run_of(records, level, len(runs) * apart)
            runs[f"{level} {tokens}{' 1' * one_order}"] = run
            first.out.fill_(float("nan"))
            run(0)
            check(first, exact)
        run.__dict__["operands"] = products  # the records hold their addresses
    return runs


def torch_runs(case: Case, rotated_bytes: float) -> dict[str, Run]:
    copies = 1 + int(rotated_bytes / (2 * case.values))
    groups = [g for g, m in enumerate(case.rows) if m > 0]
    ends = case.offs.tolist()
    x = torch.randn(case.m, case.k).bfloat16()
    out = torch.empty(case.m, case.n, dtype=torch.bfloat16)
    decoded = _copies(torch.randn(len(case.rows), case.n, case.k).bfloat16(), copies)

    def multiply(weights: torch.Tensor) -> None:
        for g in groups:
            rows = slice(ends[g] - case.rows[g], ends[g])
            torch.mm(x[rows], weights[g].T, out=out[rows])

    def decode_and_multiply(i: int) -> None:
        w, scales = case.w[i % len(case.w)], case.w_scales[i % len(case.w)]
        codes = torch.stack([w & 0xF, w >> 4], dim=-1).flatten(-2)
        values = CODE_VALUES.bfloat16()[codes.int()].unflatten(-1, (-1, 16))
        multiply((values * scales.bfloat16().unsqueeze(-1)).flatten(-2))

    return {"mm": lambda i: multiply(decoded[i % copies]), "decode+mm": decode_and_multiply}


def time_interleaved(runs: dict[str, Run], tries: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(tries + 1):
        for name, run in runs.items():
            if name == "decode+mm" and i > DECODING_ROUNDS:
                continue
            start = time.perf_counter()
            run(i)
            if i > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def read_bytes_per_s() -> float:
    """Rate of torch's sum over 800 MB, the median of five."""
    values = torch.ones(200_000_000)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - start)
    return values.numel() * 4 / statistics.median(seconds)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def lines_of(case: Case, seconds: dict[str, list[float]], floor: float) -> list[dict[str, object]]:
    rival = statistics.median(seconds["mm"])
    lines: list[dict[str, object]] = []
    for name, times in seconds.items():
        ordered = sorted(times)
        median = statistics.median(ordered)
        lines.append(
            {
                "contender": name,
                "ms": round(median * 1e3, 3),
                "p10": round(ordered[len(ordered) // 10] * 1e3, 3),
                "p90": round(ordered[len(ordered) * 9 // 10] * 1e3, 3),
                "ratio_to_mm": round(median / rival, 3),
                "ratio_to_floor": round(median / floor, 2),
                "gflops": round(case.flop / median / 1e9, 1),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=["c1", "c2", "c3", "c4m1"], metavar="case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--levels", nargs="+", default=None, help="all that run here by default")
    parser.add_argument("--tokens", nargs="+", default=["nvfp4", "bf16"], choices=TYPES)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--gflops", type=float, default=1740, help="of the floor")
    parser.add_argument("--cached", action="store_true", help="one set of weights, no rotation")
    parser.add_argument("--decoding", action="store_true", help="time decode+mm, which is slow")
    parser.add_argument("--invariant", action="store_true", help="batch_invariant as well: ' 1'")
    parser.add_argument("--json", type=Path, help="appends lines here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    levels = args.levels or list(cpu_library.load().levels)
    read = read_bytes_per_s()
    machine = {
        "processor": processor(),
        "threads": args.threads,
        "torch": torch.__version__,
        "commit": commit(),
        "read_gb_per_s": round(read / 1e9, 1),
    }
    print(json.dumps(machine), flush=True)
    print(
        f"{'case':9}{'contender':16}{'ms':>9}{'p10':>9}{'p90':>9}{'/ mm':>8}{'/ floor':>9}", end=""
    )
    print(f"{'GFLOP/s':>9}")
    for name in args.cases:
        rotated = 0.0 if args.cached else ROTATED_BYTES
        case = Case(name, rotated)
        floor = max(case.weight_bytes / read, case.flop / (args.gflops * 1e9))
        runs = our_runs(case, levels, args.tokens, args.threads, args.invariant)
        runs |= torch_runs(case, rotated)
        if not args.decoding:
            del runs["decode+mm"]
        for line in lines_of(case, time_interleaved(runs, args.tries), floor):
            print(
                f"{name:9}{line['contender']:16}{line['ms']:9}{line['p10']:9}{line['p90']:9}"
                f"{line['ratio_to_mm']:8}{line['ratio_to_floor']:9}{line['gflops']:9}",
                flush=True,
            )
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps({"case": name, **line, **machine}) + "\n")


if __name__ == "__main__":
    main()
