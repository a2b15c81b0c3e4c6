"""Planted in the sm_100 kernel: hazards of public kernels, and descriptors."""

from __future__ import annotations

from tests.emulator.faults.sm100_fault import (
    COPIES,
    DESCRIPTORS,
    EPILOGUE,
    ITEMS,
    MAIN,
    MULTIPLY,
    Fault,
)

_ARM = """      place.wait_until_empty();
      ptx::mbarrier_arrive_expect_tx(place.full(), stage_bytes<kTokens, kWeights>(atoms));
"""
_COMMIT_SUMS = (
    "    if (elected) ptx::tcgen05_commit(ptx::shared_address(&control.sums_full[sums.slot()]));\n"
)
_MULTICAST_COMMIT = "    ptx::tcgen05_commit_multicast(empty, kAllCtas);"
_ARRIVE_AT_PEER = """
    asm volatile(
        "{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a]; }" ::"r"(empty),
        "r"(blockIdx.x % 2 ^ 1)
        : "memory");"""

FAULTS = [
    # The hazards found in the two public kernels.
    Fault(
        "a stage is armed before it is empty",
        COPIES,
        _ARM,
        "\n".join(reversed(_ARM.rstrip().split("\n"))) + "\n",
        always=True,
        shows="BarrierError",
        orders=(
            "round_robin",
            "random",
            "adversarial-delay",
            "adversarial-starve",
        ),
    ),
    Fault(
        "the epilogue is released by an arrival",
        MULTIPLY,
        _COMMIT_SUMS,
        _COMMIT_SUMS.replace("tcgen05_commit", "mbarrier_arrive"),
        always=True,
        shows="DataRace",
    ),
    Fault(
        "the peer's stage is free when MMAs are issued",
        MULTIPLY,
        _MULTICAST_COMMIT,
        "    ptx::tcgen05_commit(empty);" + _ARRIVE_AT_PEER,
        variant="cluster",
        always=True,
        shows="DataRace",
        orders=(
            "round_robin",
            "random",
            "adversarial-delay",
            "adversarial-starve",
        ),
    ),
    Fault(
        "the CTA's own stage is free when MMAs are issued",
        MULTIPLY,
        "    ptx::tcgen05_commit(empty);",
        "    ptx::mbarrier_arrive(empty);",
        shows="DataRace",
    ),
    Fault(
        "a flag is cleared while others poll it",
        MAIN,
        "  if (warp < kEpilogueWarps) {\n    write_outputs(p, control);",
        """  __shared__ volatile u32 ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == kMmaWarp * kWarpLanes) ready = 1;
  if (warp < kEpilogueWarps) {
    while (ready == 0) {
    }
    if (warp == 0) ready = 0;
    write_outputs(p, control);""",
        always=True,
        shows="NoProgress",
        orders=(
            "round_robin",
            "random",
            "adversarial-delay",
            "adversarial-starve",
        ),
    ),
    Fault(
        "a CTA leaves while commits of its peer are on their way",
        COPIES,
        "  drain(p, place);\n",
        "",
        variant="cluster",
        always=True,
        shows="UnfinishedWork",
    ),
    Fault(
        "a CTA leaves while its own commits are on their way",
        COPIES,
        "  drain(p, place);\n",
        "",
        shows="UnfinishedWork",
        orders=("adversarial-delay",),
        schedule=("adversarial-delay", 0),
    ),
    Fault(
        "one slot is not drained",
        COPIES,
        "i < p.stages; ++i, place.advance()) place.wait_until_empty()",
        "i < p.stages - 1; ++i, place.advance()) place.wait_until_empty()",
        variant="cluster",
        shows="UnfinishedWork",
    ),
    Fault(
        "barriers are initialised again for the next item",
        COPIES,
        "    const Item item = items.item();\n    for (i32 k = 0; k < item.k; k += kStageK, place",
        "    const Item item = items.item();\n"
        "    ptx::mbarrier_init(place.full(), kFullArrivals);\n"
        "    for (i32 k = 0; k < item.k; k += kStageK, place",
        always=True,
        shows="BarrierError",
    ),
    Fault(
        "tensor memory is taken to begin at 0",
        MULTIPLY,
        "  const u32 tensor = control.tensor;",
        "  const u32 tensor = 0;",
        more=((EPILOGUE, "control.tensor + (", "0 + ("),),
        always=True,
        shows="OutOfBounds",
    ),
    Fault(
        "shared memory is aligned to 128 bytes",
        MAIN,
        "extern __shared__ __align__(1024)",
        "extern __shared__ __align__(128)",
        shared_begin=1152,
        always=True,
        shows="IllegalOperation",
    ),
    Fault(
        "values beyond the last whole stage of K are dropped",
        ITEMS,
        "    item.k = static_cast<i32>(product.k);",
        "    item.k = static_cast<i32>(product.k) / kStageK * kStageK;",
        always=True,
        shows="wrong",
    ),
    Fault(
        "columns beyond the last whole tile of N are dropped",
        ITEMS,
        "    item.n = product.n;",
        "    item.n = product.n / Config::kTileN * Config::kTileN;",
        always=True,
        shows="wrong",
    ),
    # Descriptors.
    Fault(
        "operand: stride of 512",
        DESCRIPTORS,
        "shared_descriptor(1024, 2)",
        "shared_descriptor(512, 2)",
        always=True,
        shows="IllegalOperation",
    ),
    Fault(
        "operand: stride of 2048",
        DESCRIPTORS,
        "shared_descriptor(1024, 2)",
        "shared_descriptor(2048, 2)",
        shows="DataRace",
    ),
    Fault(
        "operand: no swizzle",
        DESCRIPTORS,
        "shared_descriptor(1024, 2)",
        "shared_descriptor(1024, 0)",
        shows="IllegalOperation",
    ),
    Fault(
        "operand: 64-byte swizzle",
        DESCRIPTORS,
        "shared_descriptor(1024, 2)",
        "shared_descriptor(1024, 4)",
        shows="wrong",
    ),
    Fault(
        "operand: 32-byte swizzle",
        DESCRIPTORS,
        "shared_descriptor(1024, 2)",
        "shared_descriptor(1024, 6)",
        shows="wrong",
    ),
    Fault(
        "scales: stride of 256",
        DESCRIPTORS,
        "shared_descriptor(128, 0)",
        "shared_descriptor(256, 0)",
        always=True,
        shows="DataRace",
    ),
    Fault(
        "scales: 128-byte swizzle",
        DESCRIPTORS,
        "shared_descriptor(128, 0)",
        "shared_descriptor(128, 2)",
        shows="IllegalOperation",
    ),
    Fault(
        "descriptors of version 0",
        DESCRIPTORS,
        "kVersion = 1;",
        "kVersion = 0;",
        shows="IllegalOperation",
    ),
    Fault(
        "a base offset of 1",
        DESCRIPTORS,
        "kVersion << 46 |",
        "kVersion << 46 | 1ull << 49 |",
        shows="wrong",
    ),
    Fault(
        "addresses in bytes",
        DESCRIPTORS,
        "(shared_address & 0x3FFFF) >> 4;",
        "(shared_address & 0x3FFF);",
        shows="DataRace",
    ),
    Fault(
        "K steps of 64 bytes",
        DESCRIPTORS,
        "kOperandStepBytes = kMmaK / 2",
        "kOperandStepBytes = kMmaK",
        shows="wrong",
    ),
    Fault(
        "instruction: A is no E2M1",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "0 << 7 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: B is no E2M1",
        DESCRIPTORS,
        "| kE2m1 << 10 |",
        "|",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: A negated",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 13 |",
        shows="wrong",
    ),
    Fault(
        "instruction: B negated",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 14 |",
        shows="wrong",
    ),
    Fault(
        "instruction: A MN-major",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 15 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: B MN-major",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 16 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: N in units of 16",
        DESCRIPTORS,
        "n >> 3 << 17",
        "n >> 4 << 17",
        shows="UninitialisedRead",
    ),
    Fault(
        "instruction: M in units of 64",
        DESCRIPTORS,
        "m >> 7 << 27",
        "m >> 6 << 27",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: UE8M0 scales",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 23 |",
        shows="wrong",
    ),
    Fault(
        "instruction: id of A's scales",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 29 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: id of B's scales",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 4 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: sparse",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 2 |",
        shows="IllegalOperation",
    ),
    Fault(
        "instruction: K of 96",
        DESCRIPTORS,
        "kE2m1 << 7 |",
        "kE2m1 << 7 | 1u << 31 |",
        shows="IllegalOperation",
    ),
]
