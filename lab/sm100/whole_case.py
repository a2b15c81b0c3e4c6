"""A case of the public problem, whole, on the emulated sm_100 kernel: every bit must be right.

    python lab/sm100/whole_case.py [C0 | C1 | C2 | C3] [--preset wide_deep] [--order random]

C3, the smallest, takes a minute or two on two cores. The report counts what the kernel moved.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from nibblas import env  # noqa: E402
from nibblas.competition import BENCHMARKS, custom_kernel, generate_input  # noqa: E402
from nibblas.emulator import ORDERS, emulating  # noqa: E402
from nibblas.plan.sm100 import PRESETS  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    names = [case.name for case in BENCHMARKS]
    parser.add_argument("case", nargs="?", default="C3", choices=names)
    parser.add_argument("--preset", default=PRESETS[0], choices=PRESETS)
    parser.add_argument("--order", default="round_robin", choices=tuple(ORDERS))
    chosen = parser.parse_args()
    case = BENCHMARKS[names.index(chosen.case)]
    expected = custom_kernel(generate_input(**case.generator_arguments()), backend="cpu")
    data = generate_input(**case.generator_arguments())
    begin, cpu = time.perf_counter(), time.process_time()
    with env.sm100_preset(chosen.preset), emulating("sm_100", order=chosen.order, seed=1) as runs:
        found = custom_kernel(data, backend="emulated")
    equal = all(torch.equal(c, right) for c, right in zip(found, expected, strict=True))
    print(*runs.reports, sep="\n")
    verdict = "every bit is right" if equal else "WRONG"
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    print(
        f"{case.name}, {chosen.preset}, {chosen.order}: {verdict}; {seconds:.0f} s, "
        f"{cpu_seconds:.0f} s of processor time"
    )
    sys.exit(not equal)


if __name__ == "__main__":
    main()
