"""The exported submission on the emulated device.

``PYTHONPATH=src python -m tests.competition.submissions`` runs all ten public tests with both
presets; the test suite runs some of them.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from nibblas.competition import TESTS, TaskData, run_tests
from nibblas.competition.export import submission_text
from nibblas.competition.task import Kernel, data_tensors
from nibblas.emulator.driver import EmulatedDriver, Emulation, Span
from nibblas.plan.sm100 import PRESETS, Preset
from nibblas.runtime.tensormap import TensorMapSpec
from nibblas.validation.memory import byte_span


def load_submission(preset: Preset, folder: Path) -> Any:
    """The file as a module of its own, under a name that nothing else has."""
    path = folder / f"submission_{preset}.py"
    path.write_text(submission_text(preset))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class EmulatedGpu(EmulatedDriver):
    """The emulated driver in the place of the file's ``gpu``; it counts the maps it encodes."""

    def __init__(self, *, num_sms: int = 16) -> None:
        super().__init__("sm_100")
        self.emulation = Emulation("sm_100", num_sms=num_sms, unwritten_shared="error")
        self.maps = 0

    @property
    def launches(self) -> int:
        return len(self.emulation.reports)

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """The file has a TensorMapSpec of its own, without what checks one."""
        self.maps += 1
        return super().encode_tensor_map(TensorMapSpec(**vars(spec)), address)


def emulated_kernel(submission: Any) -> Kernel:
    """``custom_kernel`` of a file whose ``gpu`` is an EmulatedGpu, on CPU tensors.

    Inputs are read-only, outputs may not be read before they are written, the linear scales are out
    of bounds.
    """

    def kernel(data: TaskData) -> list[Tensor]:
        outputs = [c for _, _, c in data[0]]
        linear = [scales for pair in data[1] for scales in pair]
        spans = []
        for tensor in data_tensors(data):
            if any(tensor is each for each in linear):
                continue
            begin, end = byte_span(tensor)
            is_out = any(tensor is each for each in outputs)
            name = "c" if is_out else "input"
            spans.append(Span(name, begin, end, readable=not is_out, writable=is_out))
        with submission.gpu.tensors(spans):
            result: list[Tensor] = submission.custom_kernel(data)
        return result

    return kernel


def main() -> None:
    """Prints a verdict per test."""
    with tempfile.TemporaryDirectory() as folder:
        for preset in PRESETS:
            submission = load_submission(preset, Path(folder))
            submission.gpu = EmulatedGpu()
            for case in TESTS:
                (result,) = run_tests("cpu", emulated_kernel(submission), cases=[case])
                print(
                    f"{preset} {case.name}: {result.verdict} ({result.seconds:.0f} s)", flush=True
                )


if __name__ == "__main__":
    main()
