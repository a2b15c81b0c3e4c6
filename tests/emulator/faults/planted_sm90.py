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


_EARLY = """      ptx::wgmma_wait_group<1>();
      // All of the stage before has been multiplied.
      if (word == 0) place.release_before_if(k > 0);
"""
_END = (
    "  if constexpr (Config::kCluster > 1) ptx::barrier_cluster();"
    "  // others may still arrive here\n"
)

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
        "a stage is filled before it is empty",
        "copies.cuh",
        "      place.wait_until_empty();\n",
        "",
        shows="DataRace BarrierError",
    ),
    Fault(
        "the bytes of tokens are not expected",
        "copies.cuh",
        "units * unit_bytes + token_bytes",
        "units * unit_bytes",
        shows="BarrierError DataRace Deadlock",
    ),
    Fault(
        "more bytes are expected than come",
        "copies.cuh",
        "units * unit_bytes + token_bytes",
        "units * unit_bytes + token_bytes + 16",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "the last stage is not released",
        "multiply.cuh",
        "  place.release_before_if(true);\n",
        "",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "a warpgroup without a unit releases nothing",
        "grouped_mm.cu",
        "    place.release_before_if(true);\n",
        "",
        shows="Deadlock NoProgress",
    ),
    Fault(
        "a stage is released before its MMAs have ended",
        "multiply.cuh",
        _EARLY,
        "".join(_EARLY.splitlines(keepends=True)[i] for i in (1, 2, 0)),
        shows="DataRace",
        always=True,
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
        _END,
        "",
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
    Fault(
        "tokens are copied before they are prepared",
        "copies.cuh",
        "    if (first) ptx::griddepcontrol_wait();\n    copy_tokens",
        "    copy_tokens",
        shows="DataRace UninitialisedRead OutOfBounds wrong",
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
        "the second box of tokens is a row too early",
        "copies.cuh",
        "      row += box_rows;",
        "      row += box_rows - 1;",
        shows="wrong",
        variant="boxes",
        always=True,
    ),
    Fault(
        "each CTA copies the same half of the tokens",
        "copies.cuh",
        "k + rank_ * kHalfK, row",
        "k, row",
        shows="wrong",
    ),
    Fault(
        "the odd CTA copies the even one's weights",
        "copies.cuh",
        "i32 unit = at.first_unit + rank_;",
        "i32 unit = at.first_unit;",
        shows="wrong",
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
    # Decoding
    Fault(
        "codes are read without the swizzle",
        "decode.cuh",
        "(t ^ row / 2 % 4) * 16",
        "t * 16",
        shows="wrong",
        variant="short",
        always=True,
    ),
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
    # Tokens
    Fault(
        "tokens are read past K",
        "prepare_tokens.cu",
        "k < p.k ? read_pairs(p, row, scale_row, k) : Pairs{}",
        "read_pairs(p, row, scale_row, k)",
        shows="OutOfBounds",
        variant="short",
        always=True,
    ),
    Fault(
        "tokens' scales of all groups follow each other",
        "prepare_tokens.cu",
        "padded_rows(end - begin) / kAtomRows",
        "0",
        shows="wrong",
        variant="nvfp4",
        always=True,
    ),
    # Epilogue
    Fault(
        "rows of no group are written",
        "epilogue.cuh",
        "if (token + lane() / 2 < at_.tokens) store(token);",
        "store(token);",
        shows="wrong OutOfBounds",
        variant="short",
    ),
]
