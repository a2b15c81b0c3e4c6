"""Configurations of the Hopper kernel (kernels/sm90), and which products it takes.

A configuration states each fact once: it renders the kernel's C++ ``Config`` and computes the
shared-memory map, whose size the compiled kernel exports for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nibblas.errors import bad_value
from nibblas.plan.kernel_schedule import Instructions, KernelSchedule
from nibblas.plan.problem import Activations, Problem

TARGETS: Mapping[tuple[int, int], str] = MappingProxyType({(9, 0): "sm_90a"})

STAGE_K = 128
"""Values along K of a stage; rows of 64 fill a line of the 128-byte swizzle."""
K_MULTIPLE = 64
N_MULTIPLE = 32
MAX_TILE_TOKENS = 128
TOKEN_STEP = 16
UNIT_ROWS = 64
MAX_GROUPS = 1024

TOKEN_BOXES = (128, 64, 32, 16)
"""Rows of the boxes that a tile of tokens is copied in."""

GROUP_THREADS = 128
_GROUP_WARPS = 4

UNIT_INSTRUCTIONS = 215
"""Of a warp for a stage of a unit: what decoding takes, whatever the tokens."""

_SCALES_BYTES = UNIT_ROWS * 16
_TURNED_BYTES = 16 * (16 + 4) * 4 + 2 * 16 * 4
_TENSOR_MAP_BYTES = 128
_PRODUCT_BYTES = 38 * 8
PARAMS_HEADER_BYTES = -(-_PRODUCT_BYTES // 64) * 64


@dataclass(frozen=True)
class Sm90Config:
    """One compiled variant of ``nibblas_sm90_grouped_mm``.

    Attributes:
        activations: "fp16", "bf16", or "nvfp4": fp16 values that were decoded before.
        cluster: CTAs that share their tokens, 1 or 2.
        multiply_groups: warpgroups that multiply, 64 weight rows each: 2 or 3.
        stages: of the ring.
    """

    activations: Activations
    cluster: int = 1
    multiply_groups: int = 3
    stages: int = 4

    source_name = "sm90/grouped_mm.cu"
    entry = "nibblas_sm90_grouped_mm"
    params_bytes = PARAMS_HEADER_BYTES + (len(TOKEN_BOXES) + 2) * _TENSOR_MAP_BYTES

    @property
    def cta_units(self) -> int:
        """Units of weight rows that a CTA multiplies at a time."""
        return self.multiply_groups

    @property
    def threads(self) -> int:
        """Multiplying warpgroups, and one of which a warp copies."""
        return GROUP_THREADS * (self.multiply_groups + 1)

    @property
    def step_units(self) -> int:
        """Units of a step of a cluster."""
        return self.cta_units * self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of one ``Stage``: tokens as 16-bit values, codes, and scales of linear layout."""
        unit = UNIT_ROWS * STAGE_K // 2 + _SCALES_BYTES
        return MAX_TILE_TOKENS * STAGE_K * 2 + self.cta_units * unit

    @property
    def shared_bytes(self) -> int:
        """The ring, room for turning outputs round, the groups' ends, steps and barriers."""
        used = (
            4 * MAX_GROUPS
            + self.stages * (self.stage_bytes + 48)
            + _GROUP_WARPS * self.multiply_groups * _TURNED_BYTES
        )
        return -(-used // 1024) * 1024

    def schedule(self, sms: int) -> KernelSchedule:
        """What the cost model takes the kernel for on a device with so many multiprocessors."""
        return KernelSchedule(
            tile_tokens=MAX_TILE_TOKENS,
            token_step=TOKEN_STEP,
            tile_rows=self.cta_units * UNIT_ROWS,
            block_k=STAGE_K,
            stages=self.stages,
            ctas=sms // self.cluster * self.cluster,
            cluster=self.cluster,
            order="token_tiles",
            mma="wgmma",
            reads_fp16=True,
            overlapped=False,
            instructions=Instructions(
                fixed=_GROUP_WARPS * self.multiply_groups * UNIT_INSTRUCTIONS,
                per_token_tile=0,
                tile=TOKEN_STEP,
            ),
        )

    def most_steps(self, rows: int, n: int, groups: int) -> int:
        """Steps of all clusters together, however the rows fall into groups."""
        tiles = rows // MAX_TILE_TOKENS + min(rows, groups)
        units = 2 * -(-n // (2 * UNIT_ROWS))
        return tiles * units

    def __str__(self) -> str:
        return (
            f"sm90 {self.activations}, up to {MAX_TILE_TOKENS} tokens x "
            f"{self.step_units * UNIT_ROWS} rows x {STAGE_K}, clusters of {self.cluster}, "
            f"{self.stages} stages"
        )

    def target(self, compute_capability: tuple[int, int]) -> str:
        """The NVRTC target to compile for; ValueError where the kernel cannot run."""
        if compute_capability not in TARGETS:
            found = ".".join(map(str, compute_capability))
            raise bad_value("compute_capability", given=found, wanted="9.0")
        return TARGETS[compute_capability]

    def render(self) -> str:
        """Text of the kernel's "config.h"."""
        decoded = str(self.activations == "nvfp4").lower()
        return "\n".join(
            [
                "#pragma once",
                f"#define NIBBLAS_CONFIG_BF16 {int(self.activations == 'bf16')}",
                "namespace nibblas {",
                "struct Config {",
                f"  static constexpr bool kDecodedTokens = {decoded};",
                f"  static constexpr int kCluster = {self.cluster};",
                f"  static constexpr int kMultiplyGroups = {self.multiply_groups};",
                f"  static constexpr int kStages = {self.stages};",
                f"  static constexpr int kThreads = {self.threads};",
                f"  static constexpr int kSharedBytes = {self.shared_bytes};",
                "};",
                "}  // namespace nibblas",
                "",
            ]
        )

    def exported_sizes(self) -> dict[str, int]:
        """Symbols of the compiled kernel and what they must hold."""
        return {
            "nibblas_shared_bytes": self.shared_bytes,
            "nibblas_parameter_bytes": self.params_bytes,
        }


#: From so many tokens a group on, what two CTAs save of L2's bandwidth is more than what it costs
#: them to wait for each other (lab/sm90).
PAIR_TOKENS = 512


def choose_config(problem: Problem) -> Sm90Config:
    """A CTA by itself, or pairs that share their tokens. Both give a row the same bits."""
    many = problem.rows >= PAIR_TOKENS * problem.groups
    return Sm90Config(problem.activations, cluster=2 if many else 1)


def all_configs() -> list[Sm90Config]:
    """Every configuration that ``choose_config`` can return, for prebuilding."""
    kinds: tuple[Activations, ...] = ("fp16", "bf16", "nvfp4")
    return [Sm90Config(kind, cluster) for kind in kinds for cluster in (1, 2)]
