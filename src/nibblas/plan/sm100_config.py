"""One configuration of the datacenter Blackwell kernels (kernels/sm100): what it occupies, and how
it is compiled and launched. ``plan/sm100.py`` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from nibblas.errors import bad_value
from nibblas.plan.kernel_schedule import KernelSchedule

Order = Literal["runs", "interleaved", "token_tiles", "phases"]
"""Of items of work; kernels/sm100/items.cuh draws them."""

TOKENS_ON_M_SOURCE = "sm100/grouped_mm.cu"
SWAPPED_SOURCE = "sm100/swapped.cu"

TARGETS: Mapping[tuple[int, int], str] = MappingProxyType({(10, 0): "sm_100f", (10, 3): "sm_100f"})

TILE_M = 128
STAGE_K = 256
MAX_TILE_TOKENS = 256
"""Of the swapped kernel: the most columns that one MMA has."""
MAX_GROUPS = 1024
"""Of a packed or masked product."""
MAX_GROUPS_OF_TWO = 512
"""The same where two CTAs share a multiprocessor."""

SHARED_BYTES = 227 << 10
"""Most that one CTA can have; two on a multiprocessor have 1 KB less than half of 228 each."""
_SHARED_BYTES_OF_TWO = (228 << 10) // 2 - (1 << 10)

#: Products that one launch takes: 4 KB hold a packed product and the usual competition cases need
#: 16; the most that a launch's 32,764 bytes of parameters hold is 56.
CAPACITIES = (1, 16, 56)

_TENSOR_MAP_BYTES = 128
_PRODUCT_BYTES = 38 * 8
ENTRY_BYTES = 576
PARAMS_HEADER_BYTES = 64
assert ENTRY_BYTES - 64 < 2 * _TENSOR_MAP_BYTES + _PRODUCT_BYTES + 8 <= ENTRY_BYTES


@dataclass(frozen=True)
class Sm100Config:
    """One variant of ``nibblas_sm100_grouped_mm``, and how a launch of it is laid out.

    The kernel is compiled for all fields but ``stages``, which is a parameter.

    Attributes:
        tile_n: weight rows per CTA, 128 or 256.
        cluster: CTAs along N that share their tokens: 1, 2 or 4.
        producers: warps that copy operands: 1, or 2 for tokens and weights apart; 4 that load them
            where ``tensor_copies`` is off.
        accumulators: sets of sums in tensor memory, 1 or 2.
        multicast_scales: token scales are copied once per cluster, as tokens are.
        prefetches: a producer brings the next item's first stages into L2.
        bulk_scales: both scales are blocked and aligned: atoms are copied whole. Else two more
            warps gather them from any layout.
        tensor_copies: codes come through TMA, which needs rows at multiples of 16 bytes.
        order: of items of work: "runs" are contiguous, the others strided.
        capacity: products of one launch, of ``CAPACITIES``.
        stages: of the ring.
        swapped: weights stand on the tensor core's M side, 128 rows a CTA, tokens on its N side; a
            cluster of 2 multiplies as a pair. Else tokens are on M.
        tile_tokens: of an item at most. Swapped: 16, 32 or a multiple of 64, up to 256, and
            only a multiple of 128 where groups have more and their blocked scales are copied.
        programmatic: a launch may begin before its predecessor on the queue has ended
            (programmatic dependent launch); the swapped kernel waits for it by itself.
    """

    tile_n: int
    cluster: int
    producers: int
    accumulators: int
    multicast_scales: bool
    prefetches: bool
    bulk_scales: bool
    tensor_copies: bool
    order: Order
    capacity: int
    stages: int
    swapped: bool = False
    tile_tokens: int = TILE_M
    programmatic: bool = False

    @property
    def source_name(self) -> str:
        return SWAPPED_SOURCE if self.swapped else TOKENS_ON_M_SOURCE

    @property
    def entry(self) -> str:
        return "nibblas_sm100_swapped" if self.swapped else "nibblas_sm100_grouped_mm"

    @property
    def epilogue_warps(self) -> int:
        return 8 if self.swapped else 4

    @property
    def threads(self) -> int:
        """The epilogue's warps, the MMA warp, the producers, and warps that gather scales."""
        return 32 * (self.epilogue_warps + 1 + self.producers + (0 if self.bulk_scales else 2))

    @property
    def cluster_columns(self) -> int:
        """Columns of an item of work."""
        return self.tile_n * self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage: codes and scales of both operands, those in units of 128 rows."""
        x_rows = self.tile_tokens // self.cluster if self.swapped else TILE_M
        row_atoms = -(-self.tile_tokens // 128) + self.tile_n // 128
        return (x_rows + self.tile_n) * (STAGE_K // 2) + row_atoms * 128 * (STAGE_K // 16)

    @property
    def box_rows(self) -> int:
        """Rows of tokens that one copy brings; swapped, a quarter of what the CTA has of a tile."""
        rows = self.tile_tokens // self.cluster
        return max(8, rows // 4) if self.swapped else rows

    @property
    def staging_bytes(self) -> int:
        """What the swapped kernel's epilogue sorts its outputs in: 2 KB a warp."""
        return self.epilogue_warps * 2048 if self.swapped else 0

    @property
    def control_bytes(self) -> int:
        """Bytes of ``Control``: barriers, the address of tensor memory, the scheduler's scratch."""
        warps = self.threads // 32
        scratch = _rounded_up(4 * (4 * warps + 2), 8) + 48
        barriers = 8 * (2 * self.max_stages + 2 * self.accumulators)
        return _rounded_up(_rounded_up(barriers + 4, 8) + scratch, 16)

    @property
    def max_stages(self) -> int:
        """That there are barriers for."""
        return 8 if self.swapped else 6

    @property
    def ctas_per_sm(self) -> int:
        return 2 if 2 * self.tensor_columns <= 512 and self._fits(_SHARED_BYTES_OF_TWO, 1) else 1

    @property
    def group_capacity(self) -> int:
        """Groups of a packed product that the table in shared memory holds."""
        most = _SHARED_BYTES_OF_TWO if self.ctas_per_sm == 2 else SHARED_BYTES
        room = most - self._ring_bytes
        return min(MAX_GROUPS, room // self.bytes_per_group)

    @property
    def bytes_per_group(self) -> int:
        """Two numbers in the table of groups; three where a tile is not 128 tokens."""
        return 12 if self.swapped else 8

    @property
    def shared_bytes(self) -> int:
        """Stages, staging, ``Control``, and the table of groups."""
        return self._ring_bytes + self.bytes_per_group * self.group_capacity

    @property
    def scale_slots(self) -> int:
        """Places for a stage's scales in tensor memory."""
        if not self.swapped:
            return self.stages
        return min(self.stages, 4 if self.tile_tokens <= 128 else 2)

    @property
    def sum_columns(self) -> int:
        """Columns of tensor memory for sums; in the swapped kernel all that scales leave."""
        if self.swapped:
            return self.tensor_columns - self.scale_slots * self.slot_columns
        return self.accumulators * self.tile_n

    @property
    def slot_columns(self) -> int:
        """Columns of tensor memory for a stage's scales; swapped, of up to 256 tokens."""
        row_atoms = 1 + (MAX_TILE_TOKENS if self.swapped else self.tile_n) // 128
        return (STAGE_K // 16) * row_atoms

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory to allocate, a power of two."""
        if self.swapped:
            return 512
        used = self.sum_columns + self.stages * self.slot_columns
        return 1 << (used - 1).bit_length()

    @property
    def params_bytes(self) -> int:
        return PARAMS_HEADER_BYTES + self.capacity * ENTRY_BYTES

    def schedule(self, sms: int) -> KernelSchedule:
        """What the cost model takes the kernel for on a device with so many multiprocessors."""
        clusters = sms * self.ctas_per_sm // self.cluster
        return KernelSchedule(
            tile_tokens=self.tile_tokens,
            token_step=16 if self.swapped else TILE_M,
            tile_rows=self.tile_n,
            block_k=STAGE_K,
            stages=self.stages,
            ctas=max(1, clusters) * self.cluster,
            ctas_per_sm=self.ctas_per_sm,
            cluster=self.cluster,
            order=self.order,
            mma="tcgen05",
            pair=self.swapped and self.cluster == 2,
            overlapped=self.accumulators > 1,
            programmatic=self.programmatic,
        )

    @property
    def _ring_bytes(self) -> int:
        return self.stages * self.stage_bytes + self.staging_bytes + self.control_bytes

    def _fits(self, most: int, groups: int) -> bool:
        return self._ring_bytes + self.bytes_per_group * groups <= most

    def __str__(self) -> str:
        codes = "copied by TMA" if self.tensor_copies else "loaded"
        scales = "copied in bulk" if self.bulk_scales else "gathered"
        return f"{self.outline}, codes {codes}, scales {scales}"

    @property
    def outline(self) -> str:
        """What holds for any operands, in words: ``adapted`` settles the rest launch by launch."""
        sums = "1 set" if self.accumulators == 1 else f"{self.accumulators} sets"
        tile = f"{TILE_M}x{self.tile_n}x{STAGE_K}, cluster {self.cluster}"
        if self.swapped:
            pair = "pairs" if self.cluster == 2 else "single CTAs"
            tile = f"{self.cluster_columns}x{self.tile_tokens}x{STAGE_K} swapped, {pair}"
        early = ", programmatic" if self.programmatic else ""
        return f"sm100 {tile}, {self.stages} stages, {sums} of sums, {self.order}{early}"

    def target(self, compute_capability: tuple[int, int]) -> str:
        """The NVRTC target to compile for; ValueError: the device has no tcgen05."""
        target = TARGETS.get(compute_capability)
        if target is None:
            found = ".".join(map(str, compute_capability))
            wanted = "one of " + ", ".join(".".join(map(str, known)) for known in TARGETS)
            raise bad_value("compute_capability", given=found, wanted=wanted)
        return target

    def render(self) -> str:
        """Text of the kernel's "config.h"."""
        largest = replace(self, tile_tokens=MAX_TILE_TOKENS) if self.swapped else self
        numbers = {
            "kTileN": self.tile_n,
            "kCluster": self.cluster,
            "kProducers": self.producers,
            "kAccumulators": self.accumulators,
            "kProducts": self.capacity,
            "kThreads": self.threads,
            "kStageBytes": largest.stage_bytes,
            "kStagingBytes": self.staging_bytes,
            "kControlBytes": self.control_bytes,
            "kSlotColumns": self.slot_columns,
        }
        if not self.swapped:  # there it depends on the launch's tile
            numbers["kSumColumns"] = self.sum_columns
        switches = {
            "kSwapped": self.swapped,
            "kMulticastScales": self.multicast_scales,
            "kPrefetches": self.prefetches,
            "kBulkScales": self.bulk_scales,
            "kTensorCopies": self.tensor_copies,
        }
        order = "k" + "".join(word.capitalize() for word in self.order.split("_"))
        lines = [f"  static constexpr int {name} = {value};" for name, value in numbers.items()]
        lines += [
            f"  static constexpr bool {name} = {str(value).lower()};"
            for name, value in switches.items()
        ]
        return "\n".join(
            [
                "#pragma once",
                "namespace nibblas {",
                "enum class Order : int { kRuns, kInterleaved, kTokenTiles, kPhases };",
                "struct Config {",
                *lines,
                f"  static constexpr Order kOrder = Order::{order};",
                "};",
                "}  // namespace nibblas",
                "",
            ]
        )

    def exported_sizes(self) -> dict[str, int]:
        """Symbols of the compiled kernel and what they must hold."""
        largest = replace(self, tile_tokens=MAX_TILE_TOKENS) if self.swapped else self
        return {
            "nibblas_stage_bytes": largest.stage_bytes,
            "nibblas_parameter_bytes": self.params_bytes,
        }


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
