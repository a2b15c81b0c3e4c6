"""Where the operator's tests run: every backend of this machine, on the device it computes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import nibblas
from nibblas import NVFP4Array


@dataclass(frozen=True)
class Target:
    backend: str
    device: str

    def __str__(self) -> str:
        return self.backend

    def put(self, value: Any) -> Any:
        """A tensor, array, list or dict of them on the target's device; contiguous."""
        if isinstance(value, (torch.Tensor, NVFP4Array)):
            return value.to(self.device)
        if isinstance(value, dict):
            return {name: self.put(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.put(item) for item in value]
        return value

    def grouped_mm(self, x: Any, w: Any, offs: Any, **keywords: Any) -> torch.Tensor:
        """The packed product of CPU operands, computed on the target, back on the CPU."""
        operands = self.put([x, w, offs])
        y = nibblas.grouped_mm(*operands, backend=self.backend, **self.put(keywords))
        return y.cpu()


TARGETS = [Target("reference", "cpu"), Target("cpu", "cpu")]
if torch.cuda.is_available():
    TARGETS.append(Target("portable", "cuda"))
