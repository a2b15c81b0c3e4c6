"""The configuration of the kernel that makes tokens ready for Hopper's (kernels/sm90)."""

from __future__ import annotations

from dataclasses import dataclass

from nibblas.errors import bad_value
from nibblas.plan.problem import Activations
from nibblas.plan.sm90 import TARGETS

_PRODUCT_BYTES = 38 * 8
_WARP_VALUES = 32 * 8
"""Of a row, that a warp takes."""


@dataclass(frozen=True)
class Sm90PrepareConfig:
    """One compiled variant of ``nibblas_sm90_prepare_tokens``.

    Attributes:
        nvfp4: tokens are NVFP4, and decoded; else 16-bit values, whichever.
        threads: of a CTA.
    """

    nvfp4: bool
    threads: int = 128

    source_name = "sm90/prepare_tokens.cu"
    entry = "nibblas_sm90_prepare_tokens"
    shared_bytes = 0
    prepared_word = _PRODUCT_BYTES // 8
    """Word of 8 bytes in the parameter where the address of the prepared tokens stands."""
    params_bytes = _PRODUCT_BYTES + 8

    @classmethod
    def of(cls, activations: Activations) -> Sm90PrepareConfig:
        return cls(activations == "nvfp4")

    def __str__(self) -> str:
        return f"sm90 tokens prepared, {'NVFP4' if self.nvfp4 else '16-bit'}"

    def ctas(self, rows: int, k: int) -> int:
        """CTAs of a launch: a warp for 256 values of a row."""
        return -(-rows * -(-k // _WARP_VALUES) * 32 // self.threads)

    def target(self, compute_capability: tuple[int, int]) -> str:
        """The NVRTC target to compile for; ValueError where the kernel is not wanted."""
        if compute_capability not in TARGETS:
            found = ".".join(map(str, compute_capability))
            raise bad_value("compute_capability", given=found, wanted="9.0")
        return TARGETS[compute_capability]

    def render(self) -> str:
        """Text of the kernel's "config.h"."""
        return "\n".join(
            [
                "#pragma once",
                f"#define NIBBLAS_CONFIG_NVFP4 {int(self.nvfp4)}",
                "namespace nibblas {",
                "struct Config {",
                f"  static constexpr int kThreads = {self.threads};",
                "};",
                "}  // namespace nibblas",
                "",
            ]
        )

    def exported_sizes(self) -> dict[str, int]:
        """Symbols of the compiled kernel and what they must hold."""
        return {"nibblas_parameter_bytes": self.params_bytes}


def all_configs() -> list[Sm90PrepareConfig]:
    """For prebuilding."""
    return [Sm90PrepareConfig(False), Sm90PrepareConfig(True)]
