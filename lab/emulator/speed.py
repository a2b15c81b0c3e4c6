"""How fast the emulator is on this machine.

    python lab/emulator/speed.py [--profile]

Times a Triton GEMM of one 128 x 128 x 512 problem (four CTAs of mma.sync or wgmma), the portable
kernel on four groups, one tile of a Gluon NVFP4 GEMM on a pair of CTAs and two groups on the sm_100
kernel; compilation and decoding are not counted. --profile: where the time goes.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import nibblas  # noqa: E402
from nibblas.emulator import Device, Report, emulating  # noqa: E402
from tests.api.problems import offs_of, random_array, random_tokens  # noqa: E402
from tests.emulator.third_party import triton_launch  # noqa: E402
from tests.emulator.third_party.problems import ScaledProduct, blocked  # noqa: E402
from tests.emulator.third_party.test_triton import numbers  # noqa: E402


def gemm(arch: str) -> Report:
    dev = Device(arch)
    a, b = numbers(128, 512, dtype=np.float16), numbers(512, 128, dtype=np.float16)
    c = dev.empty((128, 128), np.float16)
    return triton_launch.launch(
        dev, "matmul", (2, 2, 1), dev.from_numpy(a), dev.from_numpy(b), c, 128, 128, 512
    )


def portable(kind: torch.dtype | str) -> Report:
    """G = 4, M = 0, 1, 17, 64, N = 256, K = 512."""
    ends = [0, 1, 18, 82]
    w = random_array((4, 256, 512), 1, layout="blocked")
    x = random_array((82, 512), 2) if isinstance(kind, str) else random_tokens(82, 512, 2, kind)
    with emulating() as emulation:
        nibblas.grouped_mm(x, w, offs_of(ends), backend="emulated")
    return emulation.reports[-1]


def pair() -> Report:
    """One tile of 256 x 128, K = 1024, of the kernel in gluon_kernels.py."""
    dev, problem = Device("sm_100", rules="hardware"), ScaledProduct.random(256, 128, 1024)
    operands = [problem.a, problem.b]
    data = [x.packed for x in operands] + [blocked(x.scales) for x in operands]
    c = dev.empty((256, 128), "float16")
    arguments = [*map(dev.from_numpy, data), c, 256, 128, 1024]
    return triton_launch.launch(dev, "nvfp4_pair", (1, 1, 1), *arguments)


def sm100() -> Report:
    """G = 2, M = 1, 130, N = 256, K = 1024."""
    ends = [1, 131]
    w = random_array((2, 256, 1024), 1, layout="blocked")
    x = random_array((131, 1024), 2, ends=ends, rule="torch")
    with emulating("sm_100") as emulation:
        nibblas.grouped_mm(x, w, offs_of(ends), backend="emulated")
    return emulation.reports[-1]


RUNS = {
    "Triton GEMM 128x128x512, sm_80 (mma.sync)": lambda: gemm("sm_80"),
    "Triton GEMM 128x128x512, sm_90 (wgmma)": lambda: gemm("sm_90"),
    "portable kernel, fp16 tokens, M 0 1 17 64": lambda: portable(torch.float16),
    "portable kernel, nvfp4 tokens, M 0 1 17 64": lambda: portable("nvfp4"),
    "Gluon NVFP4 GEMM 256x128x1024, a pair of CTAs": pair,
    "sm_100 kernel, M 1 130, N 256, K 1024": sm100,
}


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, run in RUNS.items():
        run()
        begin = time.process_time()
        report = run()
        seconds = time.process_time() - begin
        rate = report.total_instructions / report.seconds / 1000
        print(
            f"{name}: {report.total_instructions} warp instructions, {report.seconds:.2f} s, "
            f"{rate:.0f} thousand a second; {seconds:.2f} s of processor time in all"
        )
    if "--profile" in sys.argv:
        with cProfile.Profile() as profile:
            portable(torch.float16)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
