"""Planted in the Hopper kernels: barriers, asynchronous copies and MMAs, layouts, order, bounds."""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.faults.sm100 import Replacement, Schedule


@dataclass(frozen=True)
class Fault:
    """A replacement in the text, and how it shows.

    Attributes:
        file: below kernels/sm90. variant: of sm90.VARIANTS.
        shows: the beginnings of reports, or "wrong", of which one is seen.
        schedule: one under which it shows. always: also where only some faults are run.
    """

    name: str
    file: str
    old: str
    new: str
    shows: str
    variant: str = "plain"
    schedule: Schedule = ("round_robin", 0)
    always: bool = False

    @property
    def replacements(self) -> tuple[Replacement, ...]:
        return ((f"sm90/{self.file}", self.old, self.new),)


FAULTS = [
    # Barriers
    Fault(
        "a stage is read before it is full",
        "multiply.cuh",
        "    place.wait_until_full();\n",
        "",
        shows="DataRace UninitialisedRead",
        schedule=("adversarial-delay", 0),
        always=True,
    ),
    Fault(
        "a step is read before its first stage is full",
        "grouped_mm.cu",
        "    place.wait_until_full();\n    const Step at",
        "    const Step at",
        shows="DataRace UninitialisedRead Deadlock NoProgress",
    ),
    Fault(
        "full stages are awaited by the other parity",
        "shared.cuh",
        "wait(full(), round_);",
        "wait(full(), round_ ^ 1);",
        shows="DataRace UninitialisedRead NoProgress Deadlock",
    ),
    Fault(
        "empty stages are awaited by the other parity",
        "shared.cuh",
        "round_ ^ 1);",
        "round_);",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "parities never flip",
        "shared.cuh",
        "    round_ ^= 1;\n",
        "",
        shows="DataRace BarrierError Deadlock NoProgress",
    ),
    Fault(
        "a stage is filled before it is empty",
        "copies.cuh",
        "      place.wait_until_empty();\n",
        "",
        shows="DataRace BarrierError",
    ),
    Fault(
        "the bytes of tokens are not expected",
        "copies.cuh",
        "(token_bytes + units_of_cta(at) * unit_bytes)",
        "(0 * token_bytes + units_of_cta(at) * unit_bytes)",
        shows="BarrierError DataRace Deadlock",
        always=True,
    ),
    Fault(
        "more bytes are expected than come",
        "copies.cuh",
        "(token_bytes + units_of_cta(at) * unit_bytes)",
        "(token_bytes + units_of_cta(at) * unit_bytes + 16)",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "bytes of linear scales are expected of blocked ones",
        "copies.cuh",
        "blocked_ ? kBlockedScalesBytes : kLinearScalesBytes",
        "kLinearScalesBytes",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "the last stage is not released",
        "grouped_mm.cu",
        "place.stage_before());\n  place.release_before_if(true);\n",
        "place.stage_before());\n",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "a warpgroup without a unit releases nothing",
        "grouped_mm.cu",
        "    place.release_before_if(true);\n",
        "",
        shows="Deadlock NoProgress",
        variant="unit",
        always=True,
    ),
    Fault(
        "a stage is released before its MMAs have ended",
        "multiply.cuh",
        "if (piece == 1) place.release",
        "if (piece == 0) place.release",
        shows="DataRace",
        always=True,
    ),
    Fault(
        "a stage is released twice",
        "multiply.cuh",
        "if (piece == 1) place.release",
        "if (piece >= 1 && piece <= 2) place.release",
        shows="DataRace BarrierError Deadlock NoProgress",
    ),
    Fault(
        "the stage itself is released, not the one before",
        "shared.cuh",
        "empty_there_ + slot_before() * kBarrierBytes",
        "empty_there_ + slot_ * kBarrierBytes",
        shows="DataRace BarrierError Deadlock NoProgress",
    ),
    Fault(
        "a stage is released to the own CTA only",
        "shared.cuh",
        "arrives_(threadIdx.x % kWarpLanes < Config::kCluster)",
        "arrives_(threadIdx.x % kWarpLanes == cta_rank())",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "a stage is empty when one CTA has released it",
        "shared.cuh",
        ", kMultiplyWarps * Config::kCluster);",
        ", kMultiplyWarps);",
        shows="DataRace BarrierError",
    ),
    Fault(
        "a CTA exits while the other still arrives at it",
        "grouped_mm.cu",
        "ptx::barrier_cluster();  // others may still arrive here",
        "return;",
        shows="OutOfBounds IllegalOperation UnfinishedWork",
        always=True,
    ),
    Fault(
        "warps are not told of the end",
        "copies.cuh",
        "  ptx::mbarrier_arrive(place.full());\n",
        "",
        shows="Deadlock NoProgress",
    ),
    # Copies
    Fault(
        "tokens go to the own CTA only",
        "copies.cuh",
        "(1 << Config::kCluster) - 1",
        "1 << rank_",
        shows="Deadlock NoProgress",
        always=True,
    ),
    Fault(
        "each CTA copies the same half of the tokens",
        "copies.cuh",
        "half + rank_,",
        "half,",
        shows="wrong",
    ),
    Fault(
        "both halves go to the same place",
        "copies.cuh",
        "rank_ * at.width * kTokenRowBytes",
        "0",
        shows="DataRace wrong UninitialisedRead",
    ),
    Fault(
        "halves of the widest tile are copied",
        "copies.cuh",
        "rank_ * at.width * kTokenRowBytes",
        "rank_ * kMaxTokens * kTokenRowBytes",
        shows="wrong UninitialisedRead DataRace",
        variant="short",
    ),
    Fault(
        "tokens are copied by the widest box",
        "copies.cuh",
        "p_.x_maps[at.width_index]",
        "p_.x_maps[kWidthCount - 1]",
        shows="BarrierError DataRace Deadlock wrong",
        variant="short",
    ),
    Fault(
        "tokens are of a row too late",
        "copies.cuh",
        "static_cast<i32>(at.token_row), half",
        "static_cast<i32>(at.token_row) + 1, half",
        shows="wrong",
        always=True,
    ),
    Fault(
        "all units have the first one's codes",
        "copies.cuh",
        "p_.w_map, k / 2, 16 * half",
        "p_.w_map, k / 2, 0",
        shows="wrong",
    ),
    Fault(
        "all units have the first one's scales",
        "copies.cuh",
        "256 * half, k / kHalfK",
        "0, k / kHalfK",
        shows="wrong",
    ),
    Fault(
        "the odd CTA copies the even one's weights",
        "shared.cuh",
        "return at.first_unit + at.cta_units * cta_rank();",
        "return at.first_unit;",
        shows="wrong",
        variant="unit",
    ),
    # MMAs
    Fault(
        "sums are read while MMAs run",
        "multiply.cuh",
        "  ptx::wgmma_wait_group<0>();\n",
        "",
        shows="DataRace IllegalOperation",
        always=True,
    ),
    Fault(
        "registers are read by MMAs without a fence",
        "multiply.cuh",
        "  ptx::wgmma_fence();\n",
        "",
        shows="DataRace IllegalOperation",
        always=True,
    ),
    Fault(
        "MMAs are not committed",
        "multiply.cuh",
        "  ptx::wgmma_commit_group();\n",
        "",
        shows="DataRace IllegalOperation",
    ),
    Fault(
        "a stage's MMAs are not awaited",
        "multiply.cuh",
        "      ptx::wgmma_wait_group<1>();\n",
        "",
        shows="DataRace IllegalOperation",
    ),
    Fault(
        "tokens are multiplied without the swizzle",
        "multiply.cuh",
        "stage / 16, 0));",
        "stage / 16, 0)) & ~(3ull << 62);",
        shows="wrong IllegalOperation",
        variant="short",
    ),
    Fault(
        "MMAs step by half of their tokens",
        "multiply.cuh",
        "mma % 4 * 32",
        "mma % 4 * 16",
        shows="wrong IllegalOperation",
        variant="short",
    ),
    Fault(
        "the second half of the tokens is where the widest tile's is",
        "multiply.cuh",
        "mma / 4 * kTokens",
        "mma / 4 * kMaxTokens",
        shows="wrong UninitialisedRead DataRace",
        variant="short",
    ),
    # Decoding
    Fault(
        "linear scales of the first stage are the second's too",
        "decode.cuh",
        "blocked ? 0 : 8",
        "0",
        shows="wrong",
        variant="linear",
        always=True,
    ),
    Fault(
        "rows g and g + 8 are exchanged",
        "decode.cuh",
        "{{{low.of[0], high.of[0], low.of[1], high.of[1]}",
        "{{{high.of[0], low.of[0], high.of[1], low.of[1]}",
        shows="wrong",
        variant="short",
    ),
    Fault(
        "lanes of a quad take their bytes in another order",
        "decode.cuh",
        "threadIdx.x % 4 * 0x11",
        "(3 - threadIdx.x % 4) * 0x11",
        shows="wrong",
        variant="short",
    ),
    Fault(
        "blocked scales are of the first quarter",
        "decode.cuh",
        "line * kLineBytes + quarter * 4",
        "line * kLineBytes",
        shows="wrong",
        variant="short",
    ),
    Fault(
        "scales are of the stage's first values",
        "decode.cuh",
        "scales.low.pairs[piece]",
        "scales.low.pairs[0]",
        shows="wrong",
        variant="short",
    ),
    Fault(
        "the third and fourth byte are the first and second",
        "../common/nvfp4_ordered.cuh",
        "ptx::prmt<0x7632>(low, high);",
        "ptx::prmt<0x5410>(low, high);",
        shows="wrong",
        variant="short",
        always=True,
    ),
    Fault(
        "bfloat16: half of the signs are lost",
        "../common/nvfp4_ordered.cuh",
        "bytes >> 3 & 0x11111111u",
        "bytes >> 3 & 0x01010101u",
        shows="wrong",
        variant="bf16",
        always=True,
    ),
    # Steps
    Fault(
        "the last tile has as many tokens as the others",
        "walk.cuh",
        "- tile * part, part)",
        "- tile * part + part, part)",
        shows="wrong DataRace OutOfBounds",
        variant="tiles",
    ),
    Fault(
        "later tiles begin a row late",
        "walk.cuh",
        "static_cast<i64>(tile) * part;",
        "static_cast<i64>(tile) * part + (tile > 0);",
        shows="wrong OutOfBounds",
        variant="tiles",
    ),
    Fault(
        "a width is a token too small",
        "walk.cuh",
        "tiles.tokens > kWidths[i];",
        "tiles.tokens > kWidths[i] + 1;",
        shows="wrong UninitialisedRead",
        variant="tiles",
    ),
    Fault(
        "only the first 32 groups' widths are found",
        "walk.cuh",
        "      found |= widths_here();\n",
        "",
        shows="wrong",
        variant="groups",
    ),
    Fault(
        "odd rounds begin a step late",
        "walk.cuh",
        "clusters - 1 - cluster",
        "clusters - cluster",
        shows="wrong",
    ),
    # Tokens
    Fault(
        "lanes beyond K prepare values",
        "prepare_tokens.cu",
        "if (scale_row < 0 || part >= parts) return;",
        "if (scale_row < 0) return;",
        shows="OutOfBounds DataRace",
        variant="nvfp4",
        always=True,
    ),
    Fault(
        "tokens' scales of all groups follow each other",
        "prepare_tokens.cu",
        "padded_rows(end - begin) / kAtomRows",
        "0",
        shows="wrong",
        variant="nvfp4",
    ),
    # Epilogue
    Fault(
        "sums are turned in a stage that has been released",
        "grouped_mm.cu",
        "  output.write<kTokens>(sums, place.stage_before());\n  place.release_before_if(true);\n",
        "  place.release_before_if(true);\n  output.write<kTokens>(sums, place.stage_before());\n",
        shows="DataRace wrong",
        schedule=("random", 0),
        always=True,
    ),
    Fault(
        "sums are turned in the next stage",
        "grouped_mm.cu",
        "(sums, place.stage_before());",
        "(sums, place.stage());",
        shows="DataRace wrong",
    ),
    Fault(
        "sums are turned where tokens are",
        "epilogue.cuh",
        "return stage + static_cast<u32>(sizeof(Stage::tokens)) +",
        "return stage +",
        shows="DataRace wrong",
    ),
    Fault(
        "warps turn sums in the same place",
        "epilogue.cuh",
        "16 * quarter * kCodesRowBytes;",
        "0 * quarter;",
        shows="DataRace wrong",
        schedule=("random", 0),
    ),
    Fault(
        "halves of a token are exchanged",
        "epilogue.cuh",
        "turned_place(lane() / 2, lane() % 2)",
        "turned_place(lane() / 2, 1 - lane() % 2)",
        shows="wrong",
        variant="short",
    ),
    Fault(
        "rows of no group are written",
        "epilogue.cuh",
        "if (last + lane() / 2 < tokens_) store_turned",
        "store_turned",
        shows="wrong OutOfBounds DataRace",
        variant="short",
        always=True,
    ),
    Fault(
        "rows of no group are written, an element at a time",
        "epilogue.cuh",
        "        if (token + lane() % 4 * 2 + i >= tokens_) continue;\n",
        "",
        shows="wrong OutOfBounds DataRace",
        variant="elements",
    ),
    Fault(
        "columns beyond N are written",
        "epilogue.cuh",
        "    if (warp_column_ >= p_.n) return;",
        "    if (false) return;",
        shows="wrong OutOfBounds DataRace",
        variant="short",
    ),
]
