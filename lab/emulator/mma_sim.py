"""Compares the sums of block-scaled products with MMA-Sim's, bit for bit.

    python lab/emulator/mma_sim.py PATH [--rounds 12]

PATH: a checkout of https://github.com/microsoft/MMA-Sim (needs torch). Random codes, scales and
accumulators, far apart in size, zeros, infinities and NaNs among them. Exit code 1: some differ.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from nibblas.emulator.block_scaled import multiply_add_fp4, multiply_add_scaled  # noqa: E402
from nibblas.emulator.dot import accumulation, expanded, multiply_add  # noqa: E402
from nibblas.emulator.formats import FORMATS  # noqa: E402

SIZE = 8
NAN = 0x7FFF_FFFF
SCALES = {"ue4m3": torch.float8_e4m3fn, "ue8m0": torch.float8_e8m0fnu}
ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def accumulators(rng: np.random.Generator) -> np.ndarray:
    c = rng.standard_normal((SIZE, SIZE)) * 2.0 ** rng.integers(-60, 60, (SIZE, SIZE))
    c[0], c[1] = 0.0, -0.0
    return c.astype(np.float32)


def differing(found: np.ndarray, expected: list[list[Any]]) -> int:
    """Elements that are not equal in every bit; NaNs must be canonical, zeros may have any sign.

    MMA-Sim cuts by way of Python's integers, so that all its zeros are positive.
    """
    values = np.array([[x.item() for x in row] for row in expected], np.float64).astype(np.float32)
    bits = np.where(np.isnan(values), np.uint32(NAN), values.view(np.uint32))
    zeros = (found == 0) & (values == 0)
    return int(((found.view(np.uint32) != bits) & ~zeros).sum())


def fp4(sim: Any, rng: np.random.Generator, scale: str, count: int, low: int, high: int) -> int:
    a, b = (rng.integers(0, 16, (SIZE, 64)).astype(np.uint8) for _ in range(2))
    if rng.integers(0, 2):
        a[:, 16:32] = 0
    sfa, sfb = (rng.integers(low, high, (SIZE, count)).astype(np.uint8) for _ in range(2))
    c = accumulators(rng)
    packed = [x[:, ::2] | x[:, 1::2] << 4 for x in (a, b)]
    found = multiply_add_fp4(packed[0], packed[1], c, sfa, sfb, scale)
    values = FORMATS["e2m1"].values.astype(np.float32)
    kind = SCALES[scale]
    expected = [
        [
            sim.nv_fused_dot_add_with_block_scale(
                torch.tensor(values[a[i]]),
                torch.tensor(values[b[j]]),
                torch.tensor(c[i, j]),
                torch.tensor(sfa[i]).view(kind),
                torch.tensor(sfb[j]).view(kind),
                35,
            )
            for j in range(SIZE)
        ]
        for i in range(SIZE)
    ]
    return differing(found, expected)


def fp8(sim: Any, rng: np.random.Generator, element: str, *, scaled: bool) -> int:
    codes = np.arange(256, dtype=np.uint8)
    if rng.integers(0, 2):  # else infinities and NaNs, too
        codes = codes[np.isfinite(FORMATS[element].values)]
    a, b = rng.choice(codes, (32, SIZE)), rng.choice(codes, (32, SIZE))
    sfa, sfb = (rng.integers(60, 190, SIZE).astype(np.uint8) for _ in range(2))
    c, model = accumulators(rng), accumulation("sm_100", element)
    left, right = expanded(a, element), expanded(b, element)
    if scaled:
        found = multiply_add_scaled(left, right, c, sfa, sfb, model)
    else:
        found = multiply_add(left, right, c, model)
    columns = [[torch.tensor(x[:, i]).view(ELEMENTS[element]) for i in range(SIZE)] for x in (a, b)]
    scales = [torch.tensor(x).view(torch.float8_e8m0fnu) for x in (sfa, sfb)]
    expected = [
        [
            sim.nv_fused_dot_add(
                columns[0][i],
                columns[1][j],
                torch.tensor(c[j, i]),
                25,
                "f32",
                *([scales[0][i], scales[1][j]] if scaled else []),
            )
            for i in range(SIZE)
        ]
        for j in range(SIZE)
    ]
    return differing(found, expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.path))
    sim = importlib.import_module("mmasim.simulator.arithmetic")
    rng = np.random.default_rng(0)
    failed = 0
    with np.errstate(all="ignore"):
        cases: dict[str, Callable[[], int]] = {
            "e2m1, 16 per .ue4m3": lambda: fp4(sim, rng, "ue4m3", 4, 0, 256),
            "e2m1, 16 per .ue8m0": lambda: fp4(sim, rng, "ue8m0", 4, 60, 190),
            "e2m1, 32 per .ue8m0": lambda: fp4(sim, rng, "ue8m0", 2, 0, 256),
            "e4m3, 32 per .ue8m0": lambda: fp8(sim, rng, "e4m3", scaled=True),
            "e5m2, 32 per .ue8m0": lambda: fp8(sim, rng, "e5m2", scaled=True),
            "e4m3": lambda: fp8(sim, rng, "e4m3", scaled=False),
            "e5m2": lambda: fp8(sim, rng, "e5m2", scaled=False),
        }
        for name, one in cases.items():
            wrong = sum(one() for _ in range(arguments.rounds))
            failed += wrong
            print(f"{name}: {wrong} of {arguments.rounds * SIZE * SIZE} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
