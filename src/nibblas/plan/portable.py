"""Configurations of the portable GPU kernel (kernels/portable), and which one takes a problem.

A configuration states each fact once: it renders the kernel's C++ ``Config`` and computes the
shared-memory map, whose size the compiled kernel exports for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nibblas.errors import bad_value
from nibblas.plan.problem import Activations, Problem

#: NVRTC targets by compute capability; "f" binaries serve a whole family, "a" one architecture.
TARGETS: Mapping[tuple[int, int], str] = MappingProxyType(
    {
        (8, 0): "sm_80",
        (8, 6): "sm_86",
        (8, 9): "sm_89",
        (9, 0): "sm_90a",
        (10, 0): "sm_100f",
        (10, 3): "sm_100f",
        (12, 0): "sm_120f",
        (12, 1): "sm_120f",
    }
)

#: Targets whose multiprocessors hold two CTAs of four stages: 227 KB of shared memory and more.
LARGE_SHARED_TARGETS = ("sm_90a", "sm_100f")

#: Targets whose multiprocessors hold two CTAs of three stages: 163 KB of shared memory.
MEDIUM_SHARED_TARGETS = ("sm_80",)

PARAMS_BYTES = 38 * 8
_WARPS = 8
_TILE_ROWS = 16 * _WARPS


@dataclass(frozen=True)
class PortableConfig:
    """One compiled variant of ``nibblas_portable_grouped_mm``.

    Attributes:
        activations: "fp16", "bf16" or "nvfp4" tokens.
        tokens: tokens per block, a multiple of 8; a group with more takes several blocks.
        stage_k: values along K per pipeline stage, a multiple of 128.
        stages: stages of the ring.
        ctas_per_sm: CTAs that share a multiprocessor; caps registers.
        aligned: for operands whose every 16-byte piece of a row is aligned and whose K is a
            multiple of ``stage_k``; the other variant takes anything.
        built_for: NVRTC target whose shared memory the ring is sized to.
    """

    activations: Activations
    tokens: int
    stage_k: int
    stages: int
    ctas_per_sm: int
    aligned: bool
    built_for: str

    source_name = "portable/grouped_mm.cu"
    entry = "nibblas_portable_grouped_mm"
    threads = 32 * _WARPS

    def __str__(self) -> str:
        return (
            f"portable {self.activations}, {_TILE_ROWS} rows x {self.tokens} tokens x "
            f"{self.stage_k}, {self.stages} stages, {'aligned' if self.aligned else 'any rows'}, "
            f"{self.built_for}"
        )

    @property
    def stage_bytes(self) -> int:
        """Bytes of one ``Stage``: weights, their scales, tokens, their scales."""
        blocks = self.stage_k // 16
        weights = _TILE_ROWS * (self.stage_k // 2 + blocks)
        if self.activations == "nvfp4":
            return weights + self.tokens * (self.stage_k // 2 + blocks)
        return weights + self.tokens * self.stage_k * 2 + round_up(blocks, 16)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes

    def target(self, compute_capability: tuple[int, int]) -> str:
        """The NVRTC target to compile for; ValueError where it is not the one sized for."""
        if target_of(compute_capability) != self.built_for:
            found = ".".join(map(str, compute_capability))
            raise bad_value(
                "compute_capability", given=found, wanted=f"a device that {self.built_for} serves"
            )
        return self.built_for

    def render(self) -> str:
        """Text of the kernel's "config.h"."""
        constants = {
            "kWarps": _WARPS,
            "kTokens": self.tokens,
            "kStageK": self.stage_k,
            "kStages": self.stages,
            "kCtasPerSm": self.ctas_per_sm,
            "kSharedBytes": self.shared_bytes,
        }
        lines = [f"  static constexpr int {name} = {value};" for name, value in constants.items()]
        switches = {"kNvfp4Tokens": self.activations == "nvfp4", "kAligned": self.aligned}
        lines += [
            f"  static constexpr bool {name} = {str(value).lower()};"
            for name, value in switches.items()
        ]
        return "\n".join(
            [
                f"#define NIBBLAS_CONFIG_BF16 {int(self.activations == 'bf16')}",
                f"#define NIBBLAS_CONFIG_ALIGNED {int(self.aligned)}",
                "namespace nibblas {",
                "struct Config {",
                *lines,
                "};",
                "}  // namespace nibblas",
                "",
            ]
        )

    def exported_sizes(self) -> dict[str, int]:
        """Symbols of the compiled kernel and what they must hold."""
        return {"nibblas_shared_bytes": self.shared_bytes, "nibblas_parameter_bytes": PARAMS_BYTES}


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def target_of(compute_capability: tuple[int, int]) -> str | None:
    """The NVRTC target for a device; None where the kernel cannot run."""
    return TARGETS.get(compute_capability)


def config_for(
    activations: Activations, tokens: int, target: str, *, aligned: bool
) -> PortableConfig:
    """The configuration for blocks of ``tokens`` tokens, sized to the target's shared memory."""
    two_ctas = target in LARGE_SHARED_TARGETS or target in MEDIUM_SHARED_TARGETS
    return PortableConfig(
        activations,
        tokens,
        stage_k=256 if tokens <= 16 else 128,
        stages=4 if target in LARGE_SHARED_TARGETS else 3,
        ctas_per_sm=2 if two_ctas and tokens <= 16 else 1,  # 64 tokens' sums need the registers
        aligned=aligned,
        built_for=target,
    )


def choose_config(problem: Problem, target: str) -> PortableConfig:
    """Few tokens a group: blocks of 16; more: of 64. All give a row the same bits.

    Whether rows are aligned shows in addresses only; the backend settles it at the call.
    """
    tokens = 16 if problem.rows <= 24 * problem.groups else 64
    config = config_for(problem.activations, tokens, target, aligned=True)
    if any(shape.k % config.stage_k for shape in problem.shapes):
        config = replace(config, aligned=False)
    return config


def all_configs() -> list[PortableConfig]:
    """Every configuration that ``choose_config`` can return, for prebuilding."""
    kinds: tuple[Activations, ...] = ("fp16", "bf16", "nvfp4")
    targets = dict.fromkeys(TARGETS.values())
    return [
        config_for(kind, tokens, target, aligned=aligned)
        for target in targets
        for kind in kinds
        for tokens in (16, 64)
        for aligned in (True, False)
    ]
