"""Configurations of the Hopper kernel (kernels/sm90), and which products it takes.

A configuration states each fact once: it renders the kernel's C++ ``Config`` and computes the
shared-memory map, whose size the compiled kernel exports for comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
UNIT_ROWS = 64
MAX_GROUPS = 1024

GROUP_THREADS = 128
_GROUP_WARPS = 4

FEW_WIDTHS = (8, 16, 24, 32, 48, 64)
ONE_WAVE_WIDTHS = (64, 80, 96, 112, 128)
SOME_WIDTHS = (64, 96, 128, 176)
MANY_WIDTHS = (64, 128, 176, 256)
"""Tokens that a tile is rounded up to, a loop of wgmma each."""

DECODE_CYCLES = {2: 46.0, 3: 47.0}
"""By the warpgroups of a CTA: of each for 16 values along K of a unit, whatever the tokens."""
BF16_CYCLES = 8.0
"""More, since a bfloat16 code is two bytes to look up."""
TOKEN_CYCLES = {2: 0.285, 3: 0.2}
"""For each token more, which decoding does not overlap."""
TENSOR_CYCLES = 0.5
"""For each token where the tensor cores are what takes longest. All four fitted (lab/sm90)."""
ALONE_COST = 1.3
"""Of a warpgroup whose CTA has no other at work, against that of one of two."""
STEP_CYCLES = 600.0
STEP_TOKEN_CYCLES = 18.0
"""What a step costs beside its multiplications, and more for each token: its outputs."""

_SCALES_BYTES = UNIT_ROWS * 16
_BARRIER_BYTES = 8
_TURNS = 2
_STEP_BYTES = 32
_SHARED_ALIGNMENT = 1024
_TENSOR_MAP_BYTES = 128
_PRODUCT_BYTES = 38 * 8
PARAMS_HEADER_BYTES = -(-_PRODUCT_BYTES // 64) * 64


@dataclass(frozen=True)
class Sm90Config:
    """One compiled variant of ``nibblas_sm90_grouped_mm``.

    Attributes:
        activations: "fp16", "bf16", or "nvfp4": fp16 values that were decoded before.
        widths: tokens that a tile is rounded up to, ascending.
        stages: of the ring.
        multiply_groups: warpgroups that multiply, 64 weight rows each: 2, or 3 of up to 128 tokens.
    """

    activations: Activations
    widths: tuple[int, ...] = MANY_WIDTHS
    stages: int = 3
    multiply_groups: int = 2

    source_name = "sm90/grouped_mm.cu"
    entry = "nibblas_sm90_grouped_mm"

    @classmethod
    def few(cls, activations: Activations) -> Sm90Config:
        """For few tokens a group: weights streamed through a long ring."""
        return cls(activations, FEW_WIDTHS, stages=6, multiply_groups=3)

    @classmethod
    def some(cls, activations: Activations) -> Sm90Config:
        """For groups that are rarely cut into tiles of up to 176 tokens, in several rounds."""
        return cls(activations, SOME_WIDTHS, stages=4)

    @classmethod
    def one_wave(cls, activations: Activations) -> Sm90Config:
        """For work that all multiprocessors take at once, in small tiles."""
        return cls(activations, ONE_WAVE_WIDTHS, stages=5)

    @property
    def max_tokens(self) -> int:
        """Of a tile."""
        return self.widths[-1]

    @property
    def params_bytes(self) -> int:
        """Of the kernel's parameter."""
        return PARAMS_HEADER_BYTES + (len(self.widths) + 2) * _TENSOR_MAP_BYTES

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Ways to cut a launch, of which the device takes the fastest: (most tokens of a tile,
        units of a CTA)."""
        whole = [w for w in (8, 16, 32, 64, 96, 128, 176) if self.widths[0] <= w < self.max_tokens]
        whole.append(self.max_tokens)
        units = self.multiply_groups
        return (
            *((w, units) for w in reversed(whole)),
            (self.max_tokens, 1),
            (min(128, whole[-2]), 1),
        )

    @property
    def decode_cycles(self) -> float:
        """Of a warpgroup for 16 values along K of a unit, whatever the tokens."""
        more = BF16_CYCLES if self.activations == "bf16" else 0.0
        return DECODE_CYCLES[self.multiply_groups] + more

    def width_cycles(self, width: int) -> float:
        """The same with so many tokens; kernels/sm90/walk.cuh has the formula too."""
        return max(
            self.decode_cycles + TOKEN_CYCLES[self.multiply_groups] * width, TENSOR_CYCLES * width
        )

    @property
    def threads(self) -> int:
        """Multiplying warpgroups, and one of which a warp copies."""
        return GROUP_THREADS * (self.multiply_groups + 1)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one ``Stage``: tokens as 16-bit values, codes, and scales of linear layout."""
        unit = UNIT_ROWS * STAGE_K // 2 + _SCALES_BYTES
        return self.max_tokens * STAGE_K * 2 + self.multiply_groups * unit

    @property
    def shared_bytes(self) -> int:
        """Of ``Shared``: the ring, the groups' ends, steps, barriers and a word."""
        stage = self.stage_bytes + 2 * _BARRIER_BYTES
        turn = _STEP_BYTES + 2 * _BARRIER_BYTES
        used = self.stages * stage + 4 * MAX_GROUPS + _TURNS * turn + 4
        return -(-used // _SHARED_ALIGNMENT) * _SHARED_ALIGNMENT

    def schedule(self, sms: int) -> KernelSchedule:
        """What the cost model takes the kernel for on a device with so many multiprocessors."""
        return KernelSchedule(
            tile_tokens=self.max_tokens,
            token_step=8,
            tile_rows=self.multiply_groups * UNIT_ROWS,
            block_k=STAGE_K,
            stages=self.stages,
            ctas=sms,
            order="strided",
            mma="wgmma",
            reads_fp16=True,
            overlapped=False,
            instructions=Instructions(
                fixed=_GROUP_WARPS * self.multiply_groups * 230,
                per_token_tile=0,
                tile=8,
            ),
        )

    def most_steps(self, rows: int, n: int, groups: int) -> int:
        """Steps of all CTAs together, however the rows fall into groups."""
        tiles = rows // self.widths[0] + min(rows, groups)
        return tiles * -(-n // UNIT_ROWS)

    def __str__(self) -> str:
        return (
            f"sm90 {self.activations}, up to {self.max_tokens} tokens x "
            f"{self.multiply_groups * UNIT_ROWS} rows x {STAGE_K}, {self.stages} stages"
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
        cuts = [f"{{{tokens}, {units}, 1.0f / {tokens}}}" for tokens, units in self.cuts]
        return "\n".join(
            [
                "#pragma once",
                f"#define NIBBLAS_CONFIG_BF16 {int(self.activations == 'bf16')}",
                f"#define NIBBLAS_CONFIG_WIDTHS {_listed(self.widths)}",
                f"#define NIBBLAS_CONFIG_CUTS {_listed(cuts)}",
                "namespace nibblas {",
                "struct Config {",
                f"  static constexpr bool kDecodedTokens = {decoded};",
                f"  static constexpr int kMultiplyGroups = {self.multiply_groups};",
                f"  static constexpr int kStages = {self.stages};",
                f"  static constexpr float kDecodeCycles = {self.decode_cycles}f;",
                f"  static constexpr float kTokenCycles = {TOKEN_CYCLES[self.multiply_groups]}f;",
                f"  static constexpr float kTensorCycles = {TENSOR_CYCLES}f;",
                f"  static constexpr float kAloneCost = {ALONE_COST}f;",
                f"  static constexpr float kStepCycles = {STEP_CYCLES}f;",
                f"  static constexpr float kStepTokenCycles = {STEP_TOKEN_CYCLES}f;",
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


FEW_TOKENS = 24
"""Up to so many tokens a group, on average, streaming weights is what takes longest."""
SOME_TOKENS = 160
"""Up to so many, tiles of 176 tokens are rarely cut."""
WAVE_STEPS = 132
"""Steps that the multiprocessors of an H100 or H200 take at once."""


def choose_config(problem: Problem) -> Sm90Config:
    """By the average group. All give a row the same bits."""
    rows, groups = problem.rows, problem.groups
    if rows <= FEW_TOKENS * groups:
        return Sm90Config.few(problem.activations)
    one_wave = Sm90Config.one_wave(problem.activations)
    tiles = groups * -(-rows // (groups * one_wave.max_tokens))
    blocks = -(-max(shape.n for shape in problem.shapes) // (one_wave.multiply_groups * UNIT_ROWS))
    if tiles * blocks <= WAVE_STEPS:
        return one_wave
    # In two rounds or fewer, a tile more that is cut is a round more.
    if rows <= SOME_TOKENS * groups and groups * blocks > 2 * WAVE_STEPS:
        return Sm90Config.some(problem.activations)
    return Sm90Config(problem.activations)


def all_configs() -> list[Sm90Config]:
    """Every configuration that ``choose_config`` can return, for prebuilding."""
    kinds: tuple[Activations, ...] = ("fp16", "bf16", "nvfp4")
    shapes = (Sm90Config.few, Sm90Config.some, Sm90Config.one_wave, Sm90Config)
    return [shape(kind) for kind in kinds for shape in shapes]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
