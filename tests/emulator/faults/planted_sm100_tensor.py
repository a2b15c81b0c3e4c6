"""Planted in the sm_100 kernel: tensor memory, commits and mbarriers."""

from __future__ import annotations

from tests.emulator.faults.sm100_fault import (
    EPILOGUE,
    MAIN,
    MULTIPLY,
    SHARED,
    Fault,
)

_COMMIT_SUMS = (
    "    if (elected) ptx::tcgen05_commit(ptx::shared_address(&control.sums_full[sums.slot()]));\n"
)
_FENCED_WAIT = (
    "    wait(ptx::shared_address(&control.sums_empty[sums.slot()]), sums.round() ^ 1);\n"
)
_ISSUE = """        multiply_stage(place.stage(), atoms, tensor + sums.slot() * Config::kTileN,
                       tensor + kSumColumns + place.slot() * kSlotColumns, k > 0);
        release_slot(place.empty());
"""
_END = """  ptx::tcgen05_fence_before_thread_sync();
  __syncthreads();
  if (warp == kMmaWarp) {
    ptx::tcgen05_fence_after_thread_sync();
"""
_WAIT_SUMS = "    wait(ptx::shared_address(&control.sums_full[turn.slot()]), turn.round());\n"
_LOAD_SUMS = """      ptx::tcgen05_wait_ld(sums);
      if (column + kChunk >= columns) release_sums(sums_empty);
"""
_COMMIT_SUMS_EARLY = """        if (k + kStageK < k_end && k + 2 * kStageK >= k_end) {
          ptx::tcgen05_commit(ptx::shared_address(&control.sums_full[sums.slot()]));
        }
"""

FAULTS = [
    # Tensor memory: columns, lanes, accumulation.
    Fault(
        "scale column of x: always the first",
        MULTIPLY,
        "kInstruction, scales + i * kScaleColumns,",
        "kInstruction, scales,",
        always=True,
        shows="wrong",
    ),
    Fault(
        "scale column of w: of one row atom",
        MULTIPLY,
        "w_columns + i * kRowAtoms * kScaleColumns",
        "w_columns + i * kScaleColumns",
        variant="wide",
        shows="wrong",
    ),
    Fault(
        "scale columns of x and w exchanged",
        MULTIPLY,
        "kInstruction, scales + i * kScaleColumns,\n"
        "                           w_columns + i * kRowAtoms * kScaleColumns",
        "kInstruction, w_columns + i * kScaleColumns,\n"
        "                           scales + i * kScaleColumns",
        shows="wrong",
    ),
    Fault(
        "scales of both slots in the same columns",
        MULTIPLY,
        "tensor + kSumColumns + place.slot() * kSlotColumns",
        "tensor + kSumColumns",
        shows="DataRace",
    ),
    Fault(
        "scales in the columns of the sums",
        MULTIPLY,
        "tensor + kSumColumns + place.slot()",
        "tensor + place.slot()",
        shows="IllegalOperation",
    ),
    Fault(
        "a scale atom is copied from the next",
        MULTIPLY,
        "const u64 atom = i * kAtomBytes >> 4;",
        "const u64 atom = (i ^ 1) * kAtomBytes >> 4;",
        shows="wrong",
    ),
    Fault(
        "the second row atom of w is copied from the first",
        MULTIPLY,
        "w_scales + atom + (j * kRowAtomBytes >> 4)",
        "w_scales + atom",
        variant="wide",
        shows="wrong",
    ),
    Fault(
        "both sets of sums in the same columns",
        MULTIPLY,
        "tensor + sums.slot() * Config::kTileN,",
        "tensor,",
        variant="cluster",
        more=((EPILOGUE, "tensor + turn.slot() * Config::kTileN + column", "tensor + column"),),
        shows="DataRace",
    ),
    Fault(
        "sums of the next item are read",
        EPILOGUE,
        "tensor + turn.slot() * Config::kTileN",
        "tensor + (turn.slot() ^ 1) * Config::kTileN",
        variant="cluster",
        shows="DataRace UninitialisedRead",
    ),
    Fault(
        "each warp reads the first warp's lanes",
        EPILOGUE,
        "static_cast<u32>(warp * kWarpLanes) << 16",
        "0u << 16",
        shows="IllegalOperation",
    ),
    Fault(
        "sums are never begun anew",
        MULTIPLY,
        "accumulates || i > 0",
        "true",
        shows="UninitialisedRead",
    ),
    Fault(
        "sums are begun anew at every stage",
        MULTIPLY,
        "accumulates || i > 0",
        "i > 0",
        shows="wrong",
    ),
    Fault(
        "sums are begun anew at every MMA",
        MULTIPLY,
        "accumulates || i > 0",
        "accumulates",
        shows="wrong",
    ),
    Fault(
        "half of the columns are allocated",
        MAIN,
        "ptx::shared_address(&control.tensor), p.tensor_columns",
        "ptx::shared_address(&control.tensor), p.tensor_columns / 2",
        more=(
            (
                MAIN,
                "dealloc(control.tensor, p.tensor_columns)",
                "dealloc(control.tensor, p.tensor_columns / 2)",
            ),
        ),
        shows="OutOfBounds",
    ),
    Fault(
        "no deallocation",
        MAIN,
        "    ptx::tcgen05_dealloc(control.tensor, p.tensor_columns);\n",
        "",
        shows="UnfinishedWork",
    ),
    Fault(
        "deallocation of half",
        MAIN,
        "dealloc(control.tensor, p.tensor_columns)",
        "dealloc(control.tensor, p.tensor_columns / 2)",
        shows="OutOfBounds",
    ),
    Fault(
        "deallocation before the epilogue is done",
        MAIN,
        _END,
        _END.replace("  __syncthreads();\n", ""),
        always=True,
        shows="DataRace",
    ),
    Fault(
        "allocation after the permit is given up",
        MAIN,
        "    ptx::tcgen05_alloc(ptx::shared_address(&control.tensor), p.tensor_columns);\n"
        "    ptx::tcgen05_relinquish_alloc_permit();\n",
        "    ptx::tcgen05_relinquish_alloc_permit();\n"
        "    ptx::tcgen05_alloc(ptx::shared_address(&control.tensor), p.tensor_columns);\n",
        shows="IllegalOperation",
    ),
    # Commits and barriers.
    Fault(
        "sums are never committed",
        MULTIPLY,
        _COMMIT_SUMS,
        "",
        shows="Deadlock",
    ),
    Fault(
        "sums are committed before they are multiplied",
        MULTIPLY,
        _FENCED_WAIT,
        _FENCED_WAIT + _COMMIT_SUMS,
        more=(
            (
                MULTIPLY,
                "      __syncwarp();\n    }\n" + _COMMIT_SUMS,
                "      __syncwarp();\n    }\n",
            ),
        ),
        shows="UninitialisedRead DataRace",
    ),
    Fault(
        "the epilogue is released before the last stage",
        MULTIPLY,
        _ISSUE,
        _ISSUE + _COMMIT_SUMS_EARLY,
        more=(
            (
                MULTIPLY,
                "      __syncwarp();\n    }\n" + _COMMIT_SUMS,
                "      __syncwarp();\n    }\n",
            ),
        ),
        always=True,
        shows="DataRace",
    ),
    Fault(
        "sums are committed twice",
        MULTIPLY,
        _COMMIT_SUMS,
        2 * _COMMIT_SUMS,
        shows="DataRace",
    ),
    Fault(
        "slots are never committed",
        MULTIPLY,
        "        release_slot(place.empty());\n",
        "",
        shows="Deadlock",
    ),
    Fault(
        "a slot is committed before its MMAs",
        MULTIPLY,
        _ISSUE,
        "        release_slot(place.empty());\n"
        + _ISSUE.replace("        release_slot(place.empty());\n", ""),
        always=True,
        shows="DataRace",
    ),
    Fault(
        "commit mask without the peer",
        MULTIPLY,
        "(empty, kAllCtas)",
        "(empty, 1 << blockIdx.x % 2)",
        variant="cluster",
        always=True,
        shows="Deadlock",
    ),
    Fault(
        "commit mask without itself",
        MULTIPLY,
        "(empty, kAllCtas)",
        "(empty, 2 >> blockIdx.x % 2)",
        variant="cluster",
        shows="Deadlock",
    ),
    Fault(
        "commit mask of a CTA that is not there",
        MULTIPLY,
        "(empty, kAllCtas)",
        "(empty, 7)",
        variant="cluster",
        shows="IllegalOperation",
    ),
    Fault(
        "commits of the peer are not counted",
        MAIN,
        "control.empty[slot]), Config::kCluster)",
        "control.empty[slot]), 1)",
        variant="cluster",
        shows="DataRace BarrierError",
    ),
    Fault(
        "one commit too many is expected",
        MAIN,
        "control.empty[slot]), Config::kCluster)",
        "control.empty[slot]), 1 + Config::kCluster)",
        shows="Deadlock",
    ),
    Fault(
        "one producer is not counted",
        SHARED,
        "kFullArrivals = Config::kProducers",
        "kFullArrivals = -1 + Config::kProducers",
        variant="wide",
        shows="BarrierError DataRace",
    ),
    Fault(
        "an epilogue warp is not counted",
        MAIN,
        "sums_empty[i]), kEpilogueWarps)",
        "sums_empty[i]), kEpilogueWarps - 1)",
        shows="DataRace",
        orders=(
            "random",
            "adversarial-delay",
            "adversarial-at-once",
            "adversarial-starve",
        ),
        schedule=("random", 0),
    ),
    Fault(
        "warps without tokens do not say so",
        EPILOGUE,
        "    if (columns == 0) release_sums(sums_empty);\n",
        "",
        shows="Deadlock",
    ),
    Fault(
        "full is not waited for",
        SHARED,
        "{ wait(full(), turn_.round()); }",
        "{}",
        shows="UninitialisedRead DataRace",
    ),
    Fault(
        "full: wrong parity",
        SHARED,
        "wait(full(), turn_.round())",
        "wait(full(), turn_.round() ^ 1)",
        shows="UninitialisedRead Deadlock",
    ),
    Fault(
        "empty is not waited for",
        SHARED,
        "{ wait(empty(), turn_.round() ^ 1); }",
        "{}",
        always=True,
        shows="BarrierError DataRace",
    ),
    Fault(
        "empty: wrong parity",
        SHARED,
        "wait(empty(), turn_.round() ^ 1)",
        "wait(empty(), turn_.round())",
        shows="Deadlock",
    ),
    Fault(
        "parities never flip",
        SHARED,
        "    round_ ^= 1;\n",
        "",
        shows="BarrierError DataRace",
    ),
    Fault(
        "one slot too many",
        SHARED,
        "if (++slot_ < count_)",
        "if (++slot_ <= count_)",
        shows="BarrierError",
    ),
    Fault(
        "sums_full is not waited for",
        EPILOGUE,
        _WAIT_SUMS,
        "",
        always=True,
        shows="UninitialisedRead",
    ),
    Fault(
        "sums_full: wrong parity",
        EPILOGUE,
        _WAIT_SUMS,
        _WAIT_SUMS.replace("turn.round()", "turn.round() ^ 1"),
        shows="UninitialisedRead DataRace",
    ),
    Fault(
        "sums_empty is not waited for",
        MULTIPLY,
        _FENCED_WAIT,
        "",
        always=True,
        shows="DataRace",
    ),
    Fault(
        "sums_empty: wrong parity",
        MULTIPLY,
        "sums.round() ^ 1",
        "sums.round()",
        shows="Deadlock",
    ),
    Fault(
        "sums are released before they are read",
        EPILOGUE,
        "#pragma unroll 1\n    for (i32 column = 0; column < columns; column += kChunk) {\n",
        "    release_sums(sums_empty);\n"
        "#pragma unroll 1\n"
        "    for (i32 column = 0; column < columns; column += kChunk) {\n",
        more=(
            (EPILOGUE, "      if (column + kChunk >= columns) release_sums(sums_empty);\n", ""),
            (EPILOGUE, "    if (columns == 0) release_sums(sums_empty);\n", ""),
        ),
        shows="DataRace",
    ),
    Fault(
        "no wait::ld",
        EPILOGUE,
        "      ptx::tcgen05_wait_ld(sums);\n",
        "",
        always=True,
        shows="DataRace",
    ),
    Fault(
        "sums are released before wait::ld",
        EPILOGUE,
        _LOAD_SUMS,
        "\n".join(reversed(_LOAD_SUMS.rstrip().split("\n"))) + "\n",
        shows="DataRace",
    ),
]
