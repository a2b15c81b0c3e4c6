"""What the cost model takes for granted about a GPU: one set of constants per machine, as data.

Frozen before the kernels that are planned with them: a wrong prediction is a finding about the
model or the kernel, not a reason to turn a constant. docs/model.md prints the table and says what
reproduces published times.

Sources:
    [D] data sheets and tuning guides of NVIDIA: multiprocessors, clocks, dense rates.
    [H] measured by this project on one H200, driver 580.
    [P] public measurements, not by this project: arXiv:2512.02189 (B200 and H200), arXiv:2507.10789
        (consumer Blackwell and H100), SemiAnalysis' "Dissecting Nvidia Blackwell" of March 2026
        (128 B per cycle of shared memory behind an MMA, bytes in flight against bandwidth), and
        worklogs of the NVFP4 kernels of the GPU MODE competition (launch gaps, turns of the loop).
    [I] inferred from the above: from whole kernels' times, or taken over from a sister machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple


class FlopPerCycle(NamedTuple):
    """Dense floating-point operations per cycle and multiprocessor, a multiply-add being two."""

    fp16: int
    fp8: int
    nvfp4: int | None  # None: no such unit


class Span(NamedTuple):
    """What is published of a field whose value is one choice among several."""

    field: str
    least: float
    greatest: float


@dataclass(frozen=True)
class Machine:
    """One GPU. Times in microseconds; None: nobody has published it, the term is left out.

    Attributes:
        sms: multiprocessors. clock_ghz: under the load of a memory-bound kernel. [D] [P]
        short_tb_per_s, long_tb_per_s: DRAM reads of a call of tens, of hundreds of microseconds.
            [P], H200 [H]
        ingest_bytes_per_cycle: landing in one multiprocessor's shared memory. [P]
        small_latency_us, tile_latency_us: of a bulk copy from DRAM: of up to 2 KB, of 32 KB. [P],
            H200 [H]
        turn_us: least time between two turns of a loop whose every turn waits for an mbarrier and
            gives one back. [I]
        gap_us, eager_gap_us: between a kernel's end and the next one's start, in a CUDA graph, and
            launched one by one; the model takes the graph. [P], H200 [H]
        prologue_us: barriers, tensor memory, the table of groups. [I]
        first_latency_us: from the first copy to the first multiplication. [I]
        tail_us: from the last multiplication to the kernel's end: epilogue, drain, exit. [I]
        flop_per_cycle: [D]
        spans: of the fields that are known less well than their values look.
    """

    title: str
    sms: int
    clock_ghz: float
    short_tb_per_s: float
    long_tb_per_s: float
    ingest_bytes_per_cycle: float
    small_latency_us: float | None
    tile_latency_us: float | None
    turn_us: float | None
    gap_us: float | None
    eager_gap_us: float | None
    prologue_us: float | None
    first_latency_us: float | None
    tail_us: float
    flop_per_cycle: FlopPerCycle
    spans: tuple[Span, ...] = ()


_B200 = Machine(
    title="B200",
    sms=148,
    clock_ghz=1.9,
    short_tb_per_s=6.3,
    long_tb_per_s=7.2,
    ingest_bytes_per_cycle=64,
    small_latency_us=0.46,
    tile_latency_us=0.9,
    turn_us=0.13,
    gap_us=1.0,
    eager_gap_us=2.05,
    prologue_us=0.5,
    first_latency_us=0.9,
    tail_us=2.1,
    flop_per_cycle=FlopPerCycle(8192, 16384, 32768),
    spans=(Span("turn_us", 0.13, 0.25), Span("tail_us", 1.4, 2.1)),
)

_RTX_PRO_6000 = Machine(
    title="RTX PRO 6000",
    sms=188,
    clock_ghz=2.5,
    short_tb_per_s=1.55,
    long_tb_per_s=1.65,
    ingest_bytes_per_cycle=24,
    small_latency_us=0.35,
    tile_latency_us=None,
    turn_us=0.21,
    gap_us=0.45,
    eager_gap_us=2.05,
    prologue_us=0.4,
    first_latency_us=0.8,
    tail_us=1.0,
    flop_per_cycle=FlopPerCycle(1024, 2048, 4059),
    spans=(Span("ingest_bytes_per_cycle", 18, 30),),
)

_H200 = Machine(
    title="H200",
    sms=132,
    clock_ghz=1.75,
    short_tb_per_s=4.30,
    long_tb_per_s=4.29,
    ingest_bytes_per_cycle=64,
    small_latency_us=0.6,
    tile_latency_us=0.75,
    turn_us=0.25,
    gap_us=1.5,
    eager_gap_us=1.65,
    prologue_us=0.5,
    first_latency_us=0.8,
    tail_us=1.0,
    flop_per_cycle=FlopPerCycle(4096, 8192, None),
    spans=(Span("gap_us", 1.0, 1.5),),
)

#: By the name that ``plan.arch.gpu`` knows them by.
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "b200": _B200,
        "b300": replace(
            _B200,
            title="B300",
            clock_ghz=1.95,
            turn_us=0.25,
            gap_us=0.7,
            spans=(Span("tail_us", 1.4, 2.1),),
        ),
        "rtx_pro_6000": _RTX_PRO_6000,
        "rtx_5090": replace(
            _RTX_PRO_6000,
            title="RTX 5090",
            sms=170,
            clock_ghz=2.8,
            short_tb_per_s=1.54,
            long_tb_per_s=1.60,
            small_latency_us=0.47,
            tile_latency_us=1.5,
            flop_per_cycle=FlopPerCycle(512, 2048, 4059),
        ),
        "gb10": Machine(
            title="GB10",
            sms=48,
            clock_ghz=2.2,
            short_tb_per_s=0.23,
            long_tb_per_s=0.23,
            ingest_bytes_per_cycle=30,
            small_latency_us=None,
            tile_latency_us=None,
            turn_us=None,
            gap_us=None,
            eager_gap_us=None,
            prologue_us=None,
            first_latency_us=None,
            tail_us=1.0,
            flop_per_cycle=FlopPerCycle(512, 2048, 4059),
        ),
        "h200": _H200,
        "h100": replace(
            _H200,
            title="H100",
            clock_ghz=1.5,
            short_tb_per_s=2.77,
            long_tb_per_s=3.1,
            tile_latency_us=0.76,
            gap_us=1.24,
            eager_gap_us=None,
            spans=(),
        ),
    }
)
