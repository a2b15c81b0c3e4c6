"""A case on the emulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nibblas.emulator import Device, UnsupportedInstruction
from nibblas.emulator.device import Kernel
from nibblas.emulator.machine.tensor_map import encode
from tests.emulator.golden.case import Case


@dataclass(frozen=True)
class Answer:
    """The output's bytes, and the lines that were left out because they are not modelled."""

    output: np.ndarray
    left_out: tuple[str, ...]


def run(case: Case, *, order: str = "round_robin", seed: int = 0) -> Answer:
    """Runs a case without the lines whose instruction the emulator refuses."""
    dev = Device("sm_90", order=order, seed=seed)
    buffers = [dev.from_numpy(array, name=f"in{i}") for i, array in enumerate(case.inputs)]
    buffers.append(dev.from_numpy(np.zeros(case.out_bytes, np.uint8), name="out"))
    maps = [encode(spec, buffers[which].address) for spec, which in case.maps]
    kernel, left_out = modelled(dev, case.ptx)
    kernel.launch(
        case.grid,
        case.block,
        [*maps, *buffers],
        cluster=(case.cluster, 1, 1),
        smem=case.shared_bytes,
    )
    return Answer(buffers[-1].to_numpy(), left_out)


def modelled(dev: Device, text: str) -> tuple[Kernel, tuple[str, ...]]:
    """The entry ``k`` without the lines that the emulator refuses, and these."""
    lines = text.splitlines()
    left_out: list[str] = []
    while True:
        try:
            return dev.load_ptx("\n".join(lines)).kernel("k"), tuple(left_out)
        except UnsupportedInstruction as error:
            left_out.append(lines[error.line - 1].strip())
            lines[error.line - 1] = ""
