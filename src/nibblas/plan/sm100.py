"""Configurations of the datacenter Blackwell kernel (kernels/sm100), and which one takes a product.

Two presets, each a set of configurations with the rules by which two public kernels of the NVFP4
grouped-GEMM competition on B200 choose them:

    fused_persistent  128 x 128 tiles, clusters of 1, 2 or 4 along N that share their tokens, 4 to 6
                      stages, two sets of sums, contiguous runs of tiles
    wide_deep         128 x 256 tiles in clusters of 4 for wide products, else 128 x 128 tiles with
                      6 or 3 stages; one producer for tokens and one for weights
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from nibblas.errors import bad_value
from nibblas.plan.kernel_schedule import KernelSchedule
from nibblas.plan.problem import GroupShape

Preset = Literal["fused_persistent", "wide_deep"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

Order = Literal["runs", "interleaved", "token_tiles"]
"""Of items of work; kernels/sm100/items.cuh draws them."""

DEFAULT_PRESET: Preset = "fused_persistent"

TARGETS: Mapping[tuple[int, int], str] = MappingProxyType({(10, 0): "sm_100f", (10, 3): "sm_100f"})

TILE_M = 128
STAGE_K = 256
MAX_STAGES = 6
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

    source_name = "sm100/grouped_mm.cu"
    entry = "nibblas_sm100_grouped_mm"

    @property
    def threads(self) -> int:
        """Four epilogue warps, the MMA warp, the producers, and warps that gather scales."""
        return 32 * (5 + self.producers + (0 if self.bulk_scales else 2))

    @property
    def cluster_columns(self) -> int:
        """Columns of an item of work."""
        return self.tile_n * self.cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of one ``Stage``: codes and scales of both operands."""
        return (TILE_M + self.tile_n) * (STAGE_K // 2 + STAGE_K // 16)

    @property
    def control_bytes(self) -> int:
        """Bytes of ``Control``: barriers, the address of tensor memory, the scheduler's scratch."""
        warps = self.threads // 32
        scratch = _rounded_up(4 * (4 * warps + 2), 8) + 48
        barriers = 8 * (2 * MAX_STAGES + 2 * self.accumulators)
        return _rounded_up(_rounded_up(barriers + 4, 8) + scratch, 16)

    @property
    def ctas_per_sm(self) -> int:
        return 2 if 2 * self.tensor_columns <= 512 and self._fits(_SHARED_BYTES_OF_TWO, 1) else 1

    @property
    def group_capacity(self) -> int:
        """Groups of a packed product that the table in shared memory holds."""
        most = _SHARED_BYTES_OF_TWO if self.ctas_per_sm == 2 else SHARED_BYTES
        room = most - self.stages * self.stage_bytes - self.control_bytes
        return min(MAX_GROUPS, room // 8)

    @property
    def shared_bytes(self) -> int:
        """Stages, ``Control``, and two numbers per group."""
        return self.stages * self.stage_bytes + self.control_bytes + 8 * self.group_capacity

    @property
    def sum_columns(self) -> int:
        return self.accumulators * self.tile_n

    @property
    def slot_columns(self) -> int:
        """Columns of tensor memory for a stage's scales."""
        return (STAGE_K // 16) * (1 + self.tile_n // 128)

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory to allocate, a power of two."""
        used = self.sum_columns + self.stages * self.slot_columns
        return 1 << (used - 1).bit_length()

    @property
    def params_bytes(self) -> int:
        return PARAMS_HEADER_BYTES + self.capacity * ENTRY_BYTES

    def schedule(self, sms: int) -> KernelSchedule:
        """What the cost model takes the kernel for on a device with so many multiprocessors."""
        clusters = sms * self.ctas_per_sm // self.cluster
        return KernelSchedule(
            tile_tokens=TILE_M,
            token_step=TILE_M,
            tile_rows=self.tile_n,
            block_k=STAGE_K,
            stages=self.stages,
            ctas=max(1, clusters) * self.cluster,
            ctas_per_sm=self.ctas_per_sm,
            cluster=self.cluster,
            order=self.order,
            mma="tcgen05",
            overlapped=self.accumulators > 1,
        )

    def _fits(self, most: int, groups: int) -> bool:
        return self.stages * self.stage_bytes + self.control_bytes + 8 * groups <= most

    def __str__(self) -> str:
        codes = "copied by TMA" if self.tensor_copies else "loaded"
        scales = "copied in bulk" if self.bulk_scales else "gathered"
        return f"{self.outline}, codes {codes}, scales {scales}"

    @property
    def outline(self) -> str:
        """What holds for any operands, in words: ``adapted`` settles the rest launch by launch."""
        sums = "1 set" if self.accumulators == 1 else f"{self.accumulators} sets"
        return (
            f"sm100 {TILE_M}x{self.tile_n}x{STAGE_K}, cluster {self.cluster}, "
            f"{self.stages} stages, {sums} of sums, {self.order}"
        )

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
        numbers = {
            "kTileN": self.tile_n,
            "kCluster": self.cluster,
            "kProducers": self.producers,
            "kAccumulators": self.accumulators,
            "kProducts": self.capacity,
            "kThreads": self.threads,
            "kStageBytes": self.stage_bytes,
            "kControlBytes": self.control_bytes,
            "kSumColumns": self.sum_columns,
            "kSlotColumns": self.slot_columns,
        }
        switches = {
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
                "enum class Order : int { kRuns, kInterleaved, kTokenTiles };",
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
        return {
            "nibblas_stage_bytes": self.stage_bytes,
            "nibblas_parameter_bytes": self.params_bytes,
        }


def _fused(cluster: int, stages: int) -> Sm100Config:
    return Sm100Config(
        tile_n=128,
        cluster=cluster,
        producers=1,
        accumulators=2,
        multicast_scales=cluster > 1,
        prefetches=True,
        bulk_scales=True,
        tensor_copies=True,
        capacity=1,
        stages=stages,
        order="runs",
    )


def _wide() -> Sm100Config:
    return Sm100Config(
        tile_n=256,
        cluster=4,
        producers=2,
        accumulators=1,
        multicast_scales=False,
        prefetches=False,
        bulk_scales=True,
        tensor_copies=True,
        capacity=1,
        stages=4,
        order="token_tiles",
    )


def _deep(stages: int) -> Sm100Config:
    return replace(_wide(), tile_n=128, cluster=1, stages=stages, order="interleaved")


def choose_fused(shapes: Sequence[GroupShape]) -> Sm100Config:
    """fused_persistent's configuration for products that share a launch.

    The cluster: 4 where every K is at least 4096, 2 from 1024 on, and no more than divides every
    group's tiles along N. The stages: 6 where even the group with the least arithmetic intensity,
    2MNK / (0.5 (MK + NK) + 2MN), has more than 150 operations per byte, 5 above 100, else 4.
    """
    busy = [s for s in shapes if s.m and s.n] or list(shapes)
    least_k = min(s.k for s in busy)
    cluster = 4 if least_k >= 4096 else 2 if least_k >= 1024 else 1
    while any(-(-s.n // 128) % cluster for s in busy):
        cluster //= 2
    intensity = min(map(_intensity, busy))
    return _fused(cluster, 6 if intensity > 150 else 5 if intensity > 100 else 4)


def _intensity(s: GroupShape) -> float:
    """Operations per byte as fused_persistent counts them: no scales, 2 bytes per output."""
    moved = 0.5 * (s.m * s.k + s.n * s.k) + 2 * s.m * s.n
    return 2 * s.m * s.n * s.k / moved if moved else 0.0


def is_wide(s: GroupShape) -> bool:
    """Whether wide_deep gives a group 256-wide tiles."""
    return s.n >= 4096 and s.k >= 2048 and s.n % 256 == 0


def choose_wide_deep(shapes: Iterable[GroupShape], sms: int) -> Sm100Config:
    """wide_deep's configuration for products that are all wide or all not.

    Narrow ones take 3 stages, of which two CTAs share a multiprocessor, when there are more than
    two waves of items for the 6-stage variant.
    """
    busy = list(shapes)
    if all(map(is_wide, busy)):
        return _wide()
    items = sum(-(-s.m // TILE_M) * -(-s.n // 128) for s in busy)
    deep, shallow = _deep(6), _deep(3)
    more_fit = shallow.ctas_per_sm > deep.ctas_per_sm and len(busy) <= MAX_GROUPS_OF_TWO
    return shallow if more_fit and items > 2 * sms * deep.ctas_per_sm else deep


def preset_named(name: str | None, argument: str) -> Preset:
    """The preset of that name, the default one for None; ValueError names ``argument``."""
    if name is None:
        return DEFAULT_PRESET
    for preset in PRESETS:
        if preset == name:
            return preset
    raise bad_value(argument, given=repr(name), wanted=f"one of {', '.join(map(repr, PRESETS))}")


def choose_configs(
    shapes: Sequence[GroupShape], preset: Preset, sms: int
) -> tuple[Sm100Config, ...]:
    """The configurations of a problem's launches: two where wide_deep finds groups of both kinds.

    Layouts and capacity: as for aligned blocked operands of one product; ``adapted`` settles them.
    """
    if preset == "fused_persistent":
        return (choose_fused(shapes),)
    kinds = [[s for s in shapes if is_wide(s) == wide] for wide in (True, False)]
    return tuple(choose_wide_deep(kind, sms) for kind in kinds if kind)


def adapted(
    config: Sm100Config, *, products: int, bulk_scales: bool, tensor_copies: bool
) -> Sm100Config:
    """The variant for operands of that kind.

    Where codes cannot come through TMA, four warps load them, and every CTA for itself.
    """
    capacity = next(c for c in CAPACITIES if c >= products)
    config = replace(config, capacity=capacity)
    if not tensor_copies:
        return replace(
            config,
            tile_n=128,
            cluster=1,
            producers=4,
            accumulators=2,
            multicast_scales=False,
            prefetches=False,
            bulk_scales=False,
            tensor_copies=False,
            order="runs",
            stages=4,
        )
    if not bulk_scales:
        return replace(config, multicast_scales=False, bulk_scales=False)
    return config


def all_configs() -> Iterator[Sm100Config]:
    """Every compiled variant that the presets and ``adapted`` can ask for, for prebuilding."""
    bases = [*(_fused(cluster, 4) for cluster in (1, 2, 4)), _wide(), _deep(6)]
    kinds = ((True, True), (False, True), (False, False))
    seen: set[str] = set()
    for base in bases:
        for bulk_scales, tensor_copies in kinds:
            for capacity in CAPACITIES:
                config = adapted(
                    base, products=capacity, bulk_scales=bulk_scales, tensor_copies=tensor_copies
                )
                if config.render() not in seen:
                    seen.add(config.render())
                    yield config


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
