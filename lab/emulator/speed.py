"""How fast the emulator is on this machine.

    python lab/emulator/speed.py [--profile]

Times a Triton GEMM of one 128 x 128 x 512 problem (four CTAs of mma.sync or wgmma) and the portable
kernel on four groups; compilation and decoding are not counted. --profile: where the time goes.
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
from tests.emulator.third_party.test_triton import launch, numbers  # noqa: E402


def gemm(arch: str) -> Report:
    dev = Device(arch)
    a, b = numbers(128, 512, dtype=np.float16), numbers(512, 128, dtype=np.float16)
    c = dev.empty((128, 128), np.float16)
    return launch(dev, "matmul", (2, 2, 1), dev.from_numpy(a), dev.from_numpy(b), c, 128, 128, 512)


def portable(kind: torch.dtype | str) -> Report:
    """G = 4, M = 0, 1, 17, 64, N = 256, K = 512."""
    ends = [0, 1, 18, 82]
    w = random_array((4, 256, 512), 1, layout="blocked")
    x = random_array((82, 512), 2) if isinstance(kind, str) else random_tokens(82, 512, 2, kind)
    with emulating() as emulation:
        nibblas.grouped_mm(x, w, offs_of(ends), backend="emulated")
    return emulation.reports[-1]


RUNS = {
    "Triton GEMM 128x128x512, sm_80 (mma.sync)": lambda: gemm("sm_80"),
    "Triton GEMM 128x128x512, sm_90 (wgmma)": lambda: gemm("sm_90"),
    "portable kernel, fp16 tokens, M 0 1 17 64": lambda: portable(torch.float16),
    "portable kernel, nvfp4 tokens, M 0 1 17 64": lambda: portable("nvfp4"),
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
