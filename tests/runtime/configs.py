"""Kernels of the tests' own, small enough to compile in a fraction of a second."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from nibblas.runtime.compile import Compiled, compile_cubin
from nibblas.runtime.source import KernelSource

KERNELS = Path(__file__).resolve().parent / "kernels"

TARGETS = {
    (8, 0): "sm_80",
    (8, 6): "sm_86",
    (8, 9): "sm_89",
    (9, 0): "sm_90a",
    (10, 0): "sm_100f",
    (12, 0): "sm_120f",
}

PARAMS = struct.Struct("<QQQ")
"""``tiny::Params``: x, out, length."""


@dataclass(frozen=True)
class ScaleConfig:
    """Multiplies by ``factor``; ``reported`` is what the host believes of the kernel's sizes."""

    factor: int = 3
    shared_bytes: int = 512
    reported: dict[str, int] = field(default_factory=dict, compare=False)

    source_name = "tiny/scale.cu"
    entry = "tiny_scale"

    def target(self, compute_capability: tuple[int, int]) -> str:
        return target_of(compute_capability)

    def render(self) -> str:
        return (
            "namespace tiny {\n"
            f"constexpr unsigned kFactor = {self.factor};\n"
            f"constexpr unsigned kSharedBytes = {self.shared_bytes};\n"
            "}\n"
        )

    def exported_sizes(self) -> dict[str, int]:
        sizes = {"nibblas_shared_bytes": self.shared_bytes, "nibblas_parameter_bytes": PARAMS.size}
        return {**sizes, **self.reported}


@dataclass(frozen=True)
class PlainConfig:
    """A kernel in one file, with no configuration."""

    entry: str
    shared_bytes: int = 0

    @property
    def source_name(self) -> str:
        return f"{self.entry}.cu"

    def target(self, compute_capability: tuple[int, int]) -> str:
        return target_of(compute_capability)

    def render(self) -> str:
        return ""

    def exported_sizes(self) -> dict[str, int]:
        return {}


def target_of(compute_capability: tuple[int, int]) -> str:
    if compute_capability not in TARGETS:
        raise ValueError(f"compute_capability: got {compute_capability}; want one of {[*TARGETS]}")
    return TARGETS[compute_capability]


def source_of(
    config: ScaleConfig | PlainConfig, target: str = "sm_90a", root: Path = KERNELS
) -> KernelSource:
    return KernelSource.of(config, target, root=root)


def compile_source(source: KernelSource, *options: str, log_folder: Path | None = None) -> Compiled:
    return compile_cubin(
        source.text,
        name=source.name,
        target=source.target,
        headers=dict(source.headers),
        options=options,
        log_folder=log_folder,
    )
