"""Times the CPU kernels on a few cases, levels and thread counts; results are checked first.

Usage: python lab/cpu/bench.py [case ...] [--threads 1 2] [--levels avx2 portable] [--tries 20]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from nibblas.backends.base import Operands
from nibblas.backends.cpu import problem_record
from nibblas.backends.reference import tokens_of, weights_of
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.runtime import cpu_library

C0_ROWS = (80, 176, 128, 72, 64, 248, 96, 160)
# Small enough for a quiet moment of a busy machine, and for its caches.
CASES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "s1": ((1,), 512, 2048),
    "s3": ((3,), 256, 2048),
    "s64": ((64,), 128, 2048),
    "c1": ((1,) * 8, 1536, 2048),
    "c2": ((4,) * 8, 1536, 2048),
    "c3": ((64,) * 8, 1536, 2048),
    "c4m1": ((1,), 4096, 7168),
    "c4m8": ((8,), 4096, 7168),
    "c4m64": ((64,), 4096, 7168),
    "c4m256": ((256,), 4096, 7168),
    "C0": (C0_ROWS, 4096, 7168),
}
ROTATED_BYTES = 400e6


def operands(rows: tuple[int, ...], n: int, k: int, tokens: str) -> Operands:
    groups, m = len(rows), sum(rows)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def scales(*shape: int) -> torch.Tensor:
        return torch.randint(0x28, 0x48, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)

    w4a4 = tokens == "nvfp4"
    dtype = torch.float16 if tokens == "fp16" else torch.bfloat16
    return Operands(
        x=codes(m, k // 2) if w4a4 else torch.randn(m, k).to(dtype),
        x_scales=scales(m, k // 16) if w4a4 else None,
        x_scale_layout="linear",
        x_scale_start="torch",
        x_global=None,
        w=codes(groups, n, k // 2),
        w_scales=scales(groups, n, k // 16),
        w_scale_layout="linear",
        w_global=None,
        offs=torch.tensor(rows).cumsum(0).to(torch.int32),
        max_m=0,
        alpha=None,
        row_scale=None,
        bias=None,
        out=torch.empty(m, n, dtype=dtype),
    )


def check(product: Operands) -> None:
    """Stops unless the output lies within the error bound around the float64 result."""
    exact = grouped_mm_reference(tokens_of(product), weights_of(product), product.offs)
    assert within_bound(product.out, exact, error_bound(exact, product.out.dtype)).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["c1", "c3", "c4m64"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--levels", nargs="+", default=["avx2"])
    parser.add_argument("--tokens", nargs="+", default=["bf16", "nvfp4"])
    parser.add_argument("--tries", type=int, default=20)
    args = parser.parse_args()
    library = cpu_library.load()
    print(
        f"{'case':8}{'tokens':7}{'level':10}{'threads':>7}{'best ms':>9}{'median':>9}{'GMAC/s':>8}"
    )
    for case in args.cases:
        rows, n, k = CASES[case]
        weight_bytes = len(rows) * n * k * 9 / 16
        for tokens in args.tokens:
            few_tokens = case[0] == "c" and sum(rows) < 64
            copies = 1 + int(ROTATED_BYTES / weight_bytes) if few_tokens else 1
            products = [operands(rows, n, k, tokens) for _ in range(copies)]
            for level in args.levels:
                for threads in args.threads:
                    time_one(library, products, level, threads, args, f"{case:8}{tokens:7}")


def time_one(library, products, level, threads, args, label) -> None:  # type: ignore[no-untyped-def]
    records = [problem_record(product) for product in products]
    library.grouped_mm(records[:1], level, threads)
    check(products[0])
    # One thread: CPU time, which leaves out what other programs took of the core.
    clock = time.thread_time if threads == 1 else time.perf_counter
    seconds = []
    for i in range(args.tries):
        start = clock()
        library.grouped_mm(records[i % len(records) :][:1], level, threads)
        seconds.append(clock() - start)
    product = products[0]
    macs = product.m * product.n * product.k
    best = min(seconds)
    print(
        f"{label}{level:10}{threads:7}{best * 1e3:9.2f}{statistics.median(seconds) * 1e3:9.2f}"
        f"{macs / best / 1e9:8.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
