"""A case on the emulator."""

from __future__ import annotations

import numpy as np

from nibblas.emulator import Device
from tests.emulator.golden.case import Case


def run(case: Case, *, order: str = "round_robin", seed: int = 0) -> np.ndarray:
    """The output's bytes."""
    dev = Device("sm_90", order=order, seed=seed)
    buffers = [dev.from_numpy(array, name=f"in{i}") for i, array in enumerate(case.inputs)]
    buffers.append(dev.from_numpy(np.zeros(case.out_bytes, np.uint8), name="out"))
    maps = [dev.tensor_map_of(spec, buffers[which]) for spec, which in case.maps]
    dev.load_ptx(case.ptx).kernel("k").launch(
        case.grid,
        case.block,
        [*maps, *buffers],
        cluster=(case.cluster, 1, 1),
        smem=case.shared_bytes,
    )
    return buffers[-1].to_numpy()
