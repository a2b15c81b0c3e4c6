"""Times cases with rests between replays, and keeps the marks of the last launch of each.

    PYTHONPATH=ROOT python lab/sm90/marks/marks.py ROOT OUT.npz S1,S4/nvfp4

ROOT: a copy of src, with marks (instrument.py) or without, whose cubins lab/sm90/versus/pre.py has
made. A replay follows 20 ms of rest, as a rival's turn would give, so the clock is what it is in
the bench: medians repeat to 0.3 %. read.py says what the marks say.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "versus"))
from common import CASES
from worker import Gpu

REPLAYS, REST_S = 12, 0.02


def found_marks(cuda: ctypes.CDLL) -> np.ndarray | None:
    """Of whichever module has any; cleared."""
    from nibblas.runtime.driver import current_driver

    driver, found = current_driver(), None
    for module in driver._modules:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        handle, name = ctypes.c_void_p(module), b"nibblas_marks"
        where = ctypes.byref(address), ctypes.byref(size)
        if cuda.cuModuleGetGlobal_v2(*where, handle, name):
            continue
        marks = np.frombuffer(driver.copy_to_host(0, address.value, size.value), np.uint32)
        if marks.any():
            found = marks.copy()
        cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(0), size)
    return found


def replay_us(graph: torch.cuda.CUDAGraph, warm: torch.cuda.CUDAGraph, launches: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    warm.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def main() -> None:
    root, out, cases = sys.argv[1:4]
    cuda, gpu = ctypes.CDLL("libcuda.so.1"), Gpu(Path(root).resolve(), {})
    kept: dict[str, np.ndarray] = {}
    for case in cases.split(","):
        name, _, kind = case.partition("/")
        gpu.case(name, kind or "fp16", *CASES[name], "fp16")
        right = gpu.variant("planned", "")["right"]
        warm, graph, launches = gpu.graphs["planned"]
        times = []
        for _ in range(REPLAYS):
            times.append(replay_us(graph, warm, launches))
            time.sleep(REST_S)
        marks = found_marks(cuda)
        if marks is not None:
            kept[case.replace("/", "_")] = marks
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(
            f"{case:10} {statistics.median(times):8.2f} us ({spread}), right: {right}", flush=True
        )
    np.savez_compressed(out, **kept)


if __name__ == "__main__":
    main()
