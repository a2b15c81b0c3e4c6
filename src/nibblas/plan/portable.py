"""Configurations of the portable GPU kernel (kernels/portable), and which one takes a problem.

A configuration states each fact once: it renders the kernel's C++ ``Config`` and computes the
shared-memory map, whose size the compiled kernel exports for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nibblas.errors import bad_value
from nibblas.plan.kernel_schedule import Instructions, KernelSchedule
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

#: Shared memory of a multiprocessor, bytes; CUDA C++ Programming Guide, "Technical Specifications
#: per Compute Capability". A CTA takes 1 KB more than it asks for.
SHARED_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "sm_80": 164 << 10,
        "sm_86": 100 << 10,
        "sm_89": 100 << 10,
        "sm_90a": 228 << 10,
        "sm_100f": 228 << 10,
        "sm_120f": 100 << 10,
    }
)
_RESERVED_BYTES = 1 << 10
_RUN_BYTES = 40  # of the kernel's Run

#: Stages of the ring: one is multiplied, one is prepared, the others arrive.
MIN_STAGES, MAX_STAGES = 3, 4

#: Targets that load weights through TMA. sm_120f has TMA too, but no room for its long stages, and
#: little bandwidth to feed.
TENSOR_COPY_TARGETS = ("sm_90a", "sm_100f")

#: Targets that have programmatic launches.
PROGRAMMATIC_TARGETS = ("sm_90a", "sm_100f", "sm_120f")

#: Tokens of a block.
FEW_TOKENS, MANY_TOKENS = 16, 64

PARAMS_BYTES = 38 * 8
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64

#: Warp instructions for 256 values along K, counted in sm_90a code by
#: lab/model/count_instructions.py; other shapes and targets differ by up to a tenth. For a set of
#: weight rows, whatever the tokens; for a set and 8 tokens; of the token warps for 8 tokens; of a
#: weights warp, and of it for each set by cp.async or each box of four sets through TMA.
MULTIPLY: Mapping[Activations, int] = MappingProxyType({"fp16": 278, "bf16": 358, "nvfp4": 278})
MULTIPLY_8_TOKENS = 20
LOAD_8_TOKENS: Mapping[Activations, int] = MappingProxyType(
    {"fp16": 191, "bf16": 191, "nvfp4": 475}
)
LOAD_WEIGHTS, LOAD_SET, LOAD_BOX = 71, 24, 23


@dataclass(frozen=True)
class PortableConfig:
    """One compiled variant of ``nibblas_portable_grouped_mm``.

    Attributes:
        activations: "fp16", "bf16" or "nvfp4" tokens.
        tokens: tokens per block, a multiple of 8; a group with more takes several blocks.
        stage_k: values along K per pipeline stage, a multiple of 128.
        stages: stages of the ring.
        ctas_per_sm: CTAs that share a multiprocessor; caps registers.
        aligned: for operands whose every 16-byte piece of a row is aligned, whose K is a multiple
            of ``stage_k`` and N one of ``row_multiple``; the other variant takes anything.
        built_for: NVRTC target whose shared memory the ring is sized to.
        warps: warps that multiply.
        sets_per_warp: sets of 16 weight rows that each of them takes at a time, 1 or 2.
        weight_warps, token_warps: warps that load; more than one for weights only through TMA.
    """

    activations: Activations
    tokens: int
    stage_k: int
    stages: int
    ctas_per_sm: int
    aligned: bool
    built_for: str
    warps: int = 8
    sets_per_warp: int = 1
    weight_warps: int = 1
    token_warps: int = 1

    source_name = "portable/grouped_mm.cu"
    entry = "nibblas_portable_grouped_mm"

    @property
    def tensor_copies(self) -> bool:
        """Whether weights come through TMA."""
        return self.aligned and self.built_for in TENSOR_COPY_TARGETS

    @property
    def programmatic(self) -> bool:
        """Whether a launch may begin before the one before it has ended: sm_90 and newer."""
        return self.built_for in PROGRAMMATIC_TARGETS

    @property
    def row_multiple(self) -> int:
        """What N must be a multiple of."""
        return 32 if self.tensor_copies else 1

    @property
    def params_bytes(self) -> int:
        """Size of the kernel's parameter: numbers and addresses, and two tensor maps."""
        if not self.tensor_copies:
            return PARAMS_BYTES
        return round_up(PARAMS_BYTES, TENSOR_MAP_ALIGNMENT) + 2 * TENSOR_MAP_BYTES

    @property
    def threads(self) -> int:
        """Of all roles."""
        return 32 * (self.warps + self.weight_warps + self.token_warps)

    @property
    def visit_rows(self) -> int:
        """Weight rows that a CTA takes at a time."""
        return 16 * self.warps * self.sets_per_warp

    def __str__(self) -> str:
        return (
            f"portable {self.activations}, {self.visit_rows} rows x {self.tokens} tokens x "
            f"{self.stage_k}, {self.stages} stages, {'aligned' if self.aligned else 'any rows'}, "
            f"{self.built_for}"
        )

    @property
    def stage_bytes(self) -> int:
        """Bytes of one ``Stage``: weights and their scales, and tokens as 16-bit values."""
        weights = self.visit_rows * (self.stage_k // 2 + self.stage_k // 16)
        return round_up(weights + self.tokens * self.stage_k * 2, 1024)

    @property
    def shared_bytes(self) -> int:
        """The ring: its stages, two barriers of 8 bytes for each, and the CTA's run."""
        return round_up(self.stages * (self.stage_bytes + 16) + _RUN_BYTES, 1024)

    @property
    def instructions(self) -> Instructions:
        """Of a CTA in a turn of its loops."""
        sets = self.warps * self.sets_per_warp
        load_set = LOAD_BOX / 4 if self.tensor_copies else LOAD_SET
        fixed = sets * (MULTIPLY[self.activations] + load_set) + self.weight_warps * LOAD_WEIGHTS
        per_tile = sets * MULTIPLY_8_TOKENS + LOAD_8_TOKENS[self.activations]
        return Instructions(fixed * self.stage_k / 256, per_tile * self.stage_k / 256, 8)

    def schedule(self, sms: int) -> KernelSchedule:
        """What the cost model takes the kernel for on a device with so many multiprocessors."""
        return KernelSchedule(
            tile_tokens=self.tokens,
            token_step=8,
            tile_rows=self.visit_rows,
            block_k=self.stage_k,
            stages=self.stages,
            ctas=sms * self.ctas_per_sm,
            ctas_per_sm=self.ctas_per_sm,
            order="even",
            mma="mma.sync",
            reads_fp16=True,
            instructions=self.instructions,
        )

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
            "kWarps": self.warps,
            "kSetsPerWarp": self.sets_per_warp,
            "kWeightWarps": self.weight_warps,
            "kTokenWarps": self.token_warps,
            "kThreads": self.threads,
            "kTokens": self.tokens,
            "kStageK": self.stage_k,
            "kStages": self.stages,
            "kCtasPerSm": self.ctas_per_sm,
            "kSharedBytes": self.shared_bytes,
        }
        lines = [f"  static constexpr int {name} = {value};" for name, value in constants.items()]
        switches = {
            "kNvfp4Tokens": self.activations == "nvfp4",
            "kAligned": self.aligned,
            "kTensorCopies": self.tensor_copies,
            "kProgrammatic": self.programmatic,
        }
        lines += [
            f"  static constexpr bool {name} = {str(value).lower()};"
            for name, value in switches.items()
        ]
        return "\n".join(
            [
                "#pragma once",
                f"#define NIBBLAS_CONFIG_BF16 {int(self.activations == 'bf16')}",
                f"#define NIBBLAS_CONFIG_NVFP4 {int(self.activations == 'nvfp4')}",
                f"#define NIBBLAS_CONFIG_ALIGNED {int(self.aligned)}",
                f"#define NIBBLAS_CONFIG_TENSOR_COPIES {int(self.tensor_copies)}",
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
        return {
            "nibblas_shared_bytes": self.shared_bytes,
            "nibblas_parameter_bytes": self.params_bytes,
        }


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def target_of(compute_capability: tuple[int, int]) -> str | None:
    """The NVRTC target for a device; None where the kernel cannot run."""
    return TARGETS.get(compute_capability)


def config_for(
    activations: Activations, tokens: int, target: str, *, aligned: bool
) -> PortableConfig:
    """The configuration for blocks of ``tokens`` tokens, sized to the target's shared memory.

    With at most 16 tokens two CTAs share a multiprocessor, unless weights come through TMA; 64
    tokens' sums need all its registers. Where warps load weights themselves, long stages would not
    leave them the registers.
    """
    config = PortableConfig(
        activations,
        tokens,
        stage_k=256 if target in TENSOR_COPY_TARGETS else 128,
        stages=MAX_STAGES,
        ctas_per_sm=2 if tokens <= 16 else 1,
        aligned=aligned,
        built_for=target,
        token_warps=2 if tokens > 16 else 1,
    )
    if tokens <= 16 and config.tensor_copies:
        # A stage of tokens serves 384 rows: measured against narrower shapes in lab/portable.
        config = replace(
            config, warps=12, sets_per_warp=2, weight_warps=2, token_warps=2, ctas_per_sm=1
        )
    budget = SHARED_BYTES[target] // config.ctas_per_sm - _RESERVED_BYTES
    while config.shared_bytes > budget:
        config = replace(config, stages=config.stages - 1)
    assert config.stages >= MIN_STAGES
    return config


def for_any_rows(config: PortableConfig) -> PortableConfig:
    """The configuration that takes the same blocks of tokens of any operands."""
    return config_for(config.activations, config.tokens, config.built_for, aligned=False)


def choose_config(problem: Problem, target: str) -> PortableConfig:
    """Few tokens a group: blocks of 16; more: of 64. All give a row the same bits.

    Whether rows are aligned shows in addresses only; the backend settles it at the call.
    """
    tokens = FEW_TOKENS if problem.rows <= 24 * problem.groups else MANY_TOKENS
    config = config_for(problem.activations, tokens, target, aligned=True)
    if any(shape.k % config.stage_k for shape in problem.shapes):
        config = for_any_rows(config)
    return config


def all_configs() -> list[PortableConfig]:
    """Every configuration that ``choose_config`` can return, for prebuilding."""
    kinds: tuple[Activations, ...] = ("fp16", "bf16", "nvfp4")
    targets = dict.fromkeys(TARGETS.values())
    return [
        config_for(kind, tokens, target, aligned=aligned)
        for target in targets
        for kind in kinds
        for tokens in (FEW_TOKENS, MANY_TOKENS)
        for aligned in (True, False)
    ]
