"""tcgen05.cp, shared memory to tensor memory, and tcgen05.shift. PTX ISA, "Tensor Memory Data
Movement Instructions".

Each active lane issues one of its own; usually one lane is active. With ``.cta_group::2`` both CTAs
of the pair do the same, each from its own shared memory to its own tensor memory.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.bulk import by_lane
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.isa.tcgen05_memory import GROUP, check_architecture, group_of
from nibblas.emulator.machine.asynchronous import Phase
from nibblas.emulator.machine.cta import Cta
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.tcgen05_descriptors import decode
from nibblas.emulator.machine.tensor_copies import (
    EXPANSIONS,
    SHAPES,
    SHIFT_COLUMNS,
    SHIFT_ROWS,
    CopyShape,
    source_offsets,
)
from nibblas.emulator.machine.tensor_memory import LANE_SHIFT, WARP_LANES, Cells
from nibblas.emulator.machine.tensor_order import Kind
from nibblas.emulator.machine.tensor_pipe import Region, Work, participants
from nibblas.emulator.machine.warp import Warp

tcgen05_copies = Family("tcgen05_copies")

_FORMATS = "[to:b8x16] [from:b6x16_p32|b4x16_p64]"
_ANCHOR = "tcgen05-instructions-tcgen05-"


@tcgen05_copies.instruction(
    f"tcgen05 cp {GROUP} shape:128x256b|4x256b|128x128b {_FORMATS}",
    f"tcgen05 cp {GROUP} shape:64x128b multicast:warpx2::02_13|warpx2::01_23 {_FORMATS}",
    f"tcgen05 cp {GROUP} shape:32x128b multicast:warpx4 {_FORMATS}",
    section="tcgen05.cp",
    anchor=_ANCHOR + "cp",
)
def copy(build: Build) -> Step:
    """``[taddr], s-desc``."""
    check_architecture(build)
    build.count(2)
    if build.has("to") != build.has("from"):
        raise build.refusal("a format of the source needs .b8x16, and the reverse")
    group, address, source = group_of(build), build.address(0), build.source(1, "b64")
    name = ".".join(filter(None, (build.get("shape"), build.get("multicast"))))
    shape = SHAPES[name]
    expand, used = EXPANSIONS.get(build.get("from"), (None, 16))
    kind: Kind = "cp.4x256b" if build.get("shape") == "4x256b" else "cp"
    what, instruction = f"tcgen05.cp.{name}", build.instruction

    def one(warp: Warp, lane: int) -> None:
        ctas = participants(warp.cta, group, what)
        start = int(address(warp)[lane])
        places = source_offsets(
            decode(int(warp.r[source][lane])),
            shape.rows,
            shape.row_bytes,
            may_overlap=warp.cta.machine.rules == "hardware",
        )
        read_places = places[:, np.arange(shape.row_bytes) % 16 < used]
        shared: list[tuple[Memory, Array]] = []
        writes: list[Region] = []
        phases: list[Phase] = []
        for cta in ctas:
            target = _targets(cta, start, shape, what)
            shared.append((cta.shared, read_places))
            writes += [(cta.tensor_memory, where) for where in target]
            data: list[Array] = []

            def read(cta: Cta = cta, data: list[Array] = data) -> None:
                raw = cta.shared.data[places]
                data.append(raw if expand is None else expand(raw))

            def write(
                cta: Cta = cta, data: list[Array] = data, target: list[Cells] = target
            ) -> None:
                _write(cta, target, data.pop(), shape)

            phases += [read, write]
        work = Work(kind, what, group, phases, shared=shared, writes=writes)
        warp.cta.tensor_pipe.issue(warp, lane, warp.site(instruction, 1 << lane), work)
        warp.cta.machine.bytes["tcgen05.cp"] += shape.rows * shape.row_bytes * len(ctas)

    return by_lane(one)


def _targets(cta: Cta, start: int, shape: CopyShape, what: str) -> list[Cells]:
    """The cells that a cp writes: one rectangle, or one for each lane."""
    lane = start >> LANE_SHIFT
    if shape.lane_step == 1:
        if lane:
            raise IllegalOperation(f"{what} at lane {lane}: it writes all 128 lanes; want lane 0")
        lanes = [0]
    else:
        if lane >= shape.lane_step:
            raise IllegalOperation(f"{what} at lane {lane}; want one below {shape.lane_step}")
        lanes = [lane + shape.lane_step * i for i in range(shape.rows)]
    memory, height = cta.tensor_memory, len(shape.row_of) // len(lanes)
    column = start & (1 << LANE_SHIFT) - 1
    return [
        memory.cells(first << LANE_SHIFT | column, height, shape.columns, what) for first in lanes
    ]


def _write(cta: Cta, target: list[Cells], data: Array, shape: CopyShape) -> None:
    """``data``: uint8 [rows, row bytes]."""
    words = np.ascontiguousarray(data).view("<u4")[shape.row_of]
    height = len(words) // len(target)
    for number, where in enumerate(target):
        cta.tensor_memory.data[where] = words[number * height : (number + 1) * height]


@tcgen05_copies.instruction(
    f"tcgen05 shift {GROUP} down",
    f"tcgen05 shift down {GROUP}",
    section="tcgen05.shift",
    anchor=_ANCHOR + "shift",
)
def shift(build: Build) -> Step:
    """``[taddr]``: 32 bytes of rows 0 to 30 of 32 lanes move to rows 1 to 31.

    The text says "downwards across all the rows, except the last, by one row"; that down means
    towards higher lanes is our reading.
    """
    check_architecture(build)
    build.count(1)
    group, address, instruction = group_of(build), build.address(0), build.instruction
    what = "tcgen05.shift"

    def one(warp: Warp, lane: int) -> None:
        ctas = participants(warp.cta, group, what)
        start = int(address(warp)[lane])
        first = start >> LANE_SHIFT
        if first % WARP_LANES:
            raise IllegalOperation(f"{what} at lane {first}; want a multiple of {WARP_LANES}")
        reads: list[Region] = []
        updates: list[Region] = []
        phases: list[Phase] = []
        for cta in ctas:
            memory = cta.tensor_memory
            lanes, columns = memory.cells(start, WARP_LANES, SHIFT_COLUMNS, what)
            reads.append((memory, (slice(lanes.start, lanes.start + 1), columns)))
            moved = slice(lanes.start + 1, lanes.start + 1 + SHIFT_ROWS), columns
            updates.append((memory, moved))

            def move(
                data: Array = memory.data,
                source: Cells = (slice(lanes.start, lanes.start + SHIFT_ROWS), columns),
                target: Cells = moved,
            ) -> None:
                data[target] = data[source].copy()

            phases.append(move)
        work = Work("shift", what, group, phases, reads=reads, updates=updates)
        warp.cta.tensor_pipe.issue(warp, lane, warp.site(instruction, 1 << lane), work)

    return by_lane(one)
