"""One tcgen05.mma: what it touches, and its two phases. PTX ISA, "tcgen05.mma".

Of a pair of CTAs (.cta_group::2), the even one holds the first half of A's rows, of D's rows and of
B's columns, the odd one the other half; the scales of A lie with its rows, those of all of B with
both. One descriptor serves both CTAs: it names the same offset in the shared memory of each.

instruction_descriptor.py, tcgen05_descriptors.py: what the operands say; tcgen05_layouts.py: where
the elements lie in tensor memory; tensor_pipe.py: order; tcgen05_product.py: arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.machine import instruction_descriptor, tcgen05_descriptors, tcgen05_layouts
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.tcgen05_layouts import Piece
from nibblas.emulator.machine.tcgen05_product import ELEMENT_BYTES, ROW_BYTES, product, used_bytes
from nibblas.emulator.machine.tensor_memory import LANE_SHIFT, LANES, overlap
from nibblas.emulator.machine.tensor_pipe import Region, Work, participants

if TYPE_CHECKING:
    from nibblas.emulator.errors import Site
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.machine.warp import Warp

_NAME = "tcgen05.mma"
_SCALE_ADDRESS = 0x3FFF_FFFF
"""CUTLASS leaves the scale id in an address' two highest bits; they are no part of it."""


@dataclass(frozen=True)
class Form:
    """What the instruction says.

    Attributes:
        kind: "mxf4nvf4". group: of CTAs, 1 or 2. block: values per scale, or 0.
        a_in_tensor_memory: else a descriptor says where A lies. shift: scale-input-d.
        collector: "fill", "use", "lastuse", "discard". arch: the device's.
    """

    kind: str
    group: int
    block: int
    a_in_tensor_memory: bool
    shift: int
    collector: str
    arch: str


@dataclass(frozen=True)
class Operands:
    """What one thread gives the instruction.

    Attributes:
        d: address of D. a, b: shared-memory descriptors; a: or an address of tensor memory.
        idesc: the instruction descriptor. scales: addresses of A's and B's, where there are any.
        accumulates: enable-input-d. disabled: words of disable-output-lane.
    """

    d: int
    a: int
    b: int
    idesc: int
    scales: tuple[int, ...]
    accumulates: bool
    disabled: tuple[int, ...]


class Multiplication:
    """One operation of one thread.

    Attributes:
        ctas: one, or the pair. descriptor: what idesc says. rows: of A and D in each CTA.
        split: layout B.
        a_places, b_places: offsets in shared memory, int64 [rows of a CTA, bytes used].
        a_pieces: where A lies in tensor memory. d_pieces: where D lies, by CTA, enabled lanes only.
    """

    def __init__(self, cta: Cta, form: Form, operands: Operands) -> None:
        self.form, self.operands = form, operands
        descriptor = instruction_descriptor.decode(
            operands.idesc, form.kind, cta_group=form.group, block=form.block
        )
        self.descriptor, group = descriptor, form.group
        self.ctas = participants(cta, group, _NAME)
        self.rows = descriptor.m // group
        self.split = tcgen05_layouts.is_split(descriptor.m, group)
        lane = operands.d >> LANE_SHIFT
        pieces = tcgen05_layouts.accumulator(descriptor.m, descriptor.n, group, lane)
        self.d_pieces = [
            _enabled(pieces, operands.disabled[4 * i : 4 * i + 4]) for i in range(len(self.ctas))
        ]
        self.a_pieces: list[Piece] = []
        self.a_places: Array | None = None
        if form.a_in_tensor_memory:
            a_lane = operands.a >> LANE_SHIFT
            self.a_pieces = tcgen05_layouts.multiplicand(descriptor.m, group, a_lane)
            if a_lane != lane:
                raise IllegalOperation(
                    f"A begins on lane {a_lane}, D on lane {lane}; want the same "
                    '(PTX ISA, "Data Path Layout Organization")'
                )
        else:
            self.a_places = self._places("A", operands.a, self.rows)
        self.b_places = self._places("B", operands.b, descriptor.n // group)
        self._left: list[Array] = []
        self._right: list[Array] = []
        self._scales: list[list[tuple[Array, Array]]] = []

    def issue(self, warp: Warp, lane: int, site: Site) -> None:
        """Checks and claims everything, and puts the operation in flight."""
        self._use_collector()
        d, operands = self.descriptor, self.operands
        shared = [(cta.shared, self.b_places) for cta in self.ctas]
        if self.a_places is not None:
            shared += [(cta.shared, self.a_places) for cta in self.ctas]
        accumulator = [
            (cta.tensor_memory, piece.cells(operands.d & 0xFFFF))
            for cta, pieces in zip(self.ctas, self.d_pieces, strict=True)
            for piece in pieces
        ]
        reads = self._regions_read()
        _check_apart(reads, accumulator)
        work = Work(
            "mma",
            _NAME,
            self.form.group,
            [self._read, self._finish],
            shared=shared,
            reads=reads,
            updates=accumulator if operands.accumulates else [],
            writes=[] if operands.accumulates else accumulator,
            pipeline=(operands.d, d.m, d.n, d.k),
        )
        warp.cta.tensor_pipe.issue(warp, lane, site, work)

    def _places(self, name: str, bits: int, rows: int) -> Array:
        """Offsets of an operand's bytes in shared memory; ``bits``: its descriptor."""
        d = self.descriptor
        kind, element, mn_major = d.kind, d.a, d.a_mn_major
        if name == "B":
            element, mn_major = d.b, d.b_mn_major
        try:
            fields = tcgen05_descriptors.decode(bits)
            if self.ctas[0].machine.rules == "ptx":
                tcgen05_descriptors.check_base_offset(fields)
            found = tcgen05_descriptors.operand_offsets(
                fields, rows, ELEMENT_BYTES.get(element, 1), mn_major
            )
        except IllegalOperation as error:
            raise IllegalOperation(f"{name} of {_NAME}.kind::{kind}: {error.detail}") from None
        used = used_bytes(kind, element)
        by_row: Array = found.transpose(1, 0, 2).reshape(rows, ROW_BYTES)
        return by_row if len(used) == ROW_BYTES else by_row[:, used]

    def _regions_read(self) -> list[Region]:
        """Scales, and A where it is in tensor memory."""
        operands = self.operands
        found = [
            (cta.tensor_memory, piece.cells(operands.a & 0xFFFF))
            for cta in self.ctas
            for piece in self.a_pieces
        ]
        if not operands.scales:
            return found
        for address, rows in zip(self._scale_columns(), self._scale_rows(), strict=True):
            found += [
                (cta.tensor_memory, cells)
                for cta in self.ctas
                for cells in tcgen05_layouts.scale_cells(rows, address)
            ]
        return found

    def _scale_columns(self) -> list[int]:
        """First columns of A's and B's scales."""
        columns = []
        for name, address in zip("AB", self.operands.scales, strict=True):
            address &= _SCALE_ADDRESS
            if address >> LANE_SHIFT:
                raise IllegalOperation(
                    f"the scales of {name} begin on lane {address >> LANE_SHIFT}; want lane 0: "
                    'they are in all quarters of the lanes (PTX ISA, "Block Scaling for '
                    'tcgen05.mma.sync")'
                )
            columns.append(address)
        return columns

    def _scale_rows(self) -> tuple[int, int]:
        """Rows of A, columns of B, whose scales a half of the lanes has."""
        n = self.descriptor.n
        if self.split and n not in (128, 256):
            raise IllegalOperation(
                f"N = {n} with block scaling, M = 128 and cta_group::2: where the scales of B lie "
                "is known for N = 128 and 256 only (CUTLASS, tmem_sf_frg, ...Duplicated2by2)"
            )
        return self.rows, n // 2 if self.split else n

    def _use_collector(self) -> None:
        """PTX ISA, "tcgen05.mma", collector_usage: what may be used must have been filled."""
        form, operands, d = self.form, self.operands, self.descriptor
        buffer = self.ctas[0].tensor_memory
        given = (operands.a, form.a_in_tensor_memory, d.kind, d.m, d.a, d.a_mn_major)
        if form.collector in ("use", "lastuse") and buffer.collector != given:
            held = "nothing" if buffer.collector is None else "another A"
            raise IllegalOperation(
                f".collector::a::{form.collector}, but the collector buffer holds {held}: want "
                ".collector::a::fill of the same A before it, and only .use between them (PTX ISA, "
                "tcgen05.mma)"
            )
        buffer.collector = given if form.collector in ("fill", "use") else None

    def _read(self) -> None:
        """First phase: multiplicands and scales."""
        d, operands = self.descriptor, self.operands
        used_a, used_b = used_bytes(d.kind, d.a), used_bytes(d.kind, d.b)
        self._right = [_gather(cta.shared, self.b_places, used_b) for cta in self.ctas]
        for cta in self.ctas:
            if self.a_places is None:
                column = operands.a & 0xFFFF
                raw = tcgen05_layouts.read_rows(cta.tensor_memory, self.a_pieces, column, self.rows)
            else:
                raw = _gather(cta.shared, self.a_places, used_a)
            self._left.append(raw)
        if operands.scales:
            self._scales = [self._read_scales(cta) for cta in self.ctas]

    def _read_scales(self, cta: Cta) -> list[tuple[Array, Array]]:
        """(of A, of B) for the lower and the upper half of the lanes."""
        d, memory = self.descriptor, cta.tensor_memory
        count = d.k // self.form.block
        columns, rows = self._scale_columns(), self._scale_rows()
        sfa = tcgen05_layouts.read_scales(
            memory, columns[0], rows[0], d.sfa_id, count, halves=False
        )
        sfb = tcgen05_layouts.read_scales(
            memory, columns[1], rows[1], d.sfb_id, count, halves=self.split
        )
        return list(zip(sfa, sfb, strict=True))

    def _finish(self) -> None:
        """Second phase: accumulators in, product, results out."""
        right = np.concatenate(self._right)
        for index, cta in enumerate(self.ctas):
            cells = cta.tensor_memory.data
            column = self.operands.d & 0xFFFF
            pieces = self.d_pieces[index]
            c = np.zeros((self.rows, self.descriptor.n), np.uint32)
            if self.operands.accumulates:
                for piece in pieces:
                    c[piece.part] = cells[piece.cells(column)]
            total = self._product(index, right, c)
            for piece in pieces:
                cells[piece.cells(column)] = total[piece.part]

    def _product(self, index: int, right: Array, c: Array) -> Array:
        """D of one CTA. uint32 [rows, N]"""
        left, packed = self._left[index], not self.form.a_in_tensor_memory
        scales = self._scales[index] if self._scales else None
        if scales is None or not self.split:
            given = scales[0] if scales else None
            return product(
                self.form.arch, self.descriptor, left, right, c, given,
                a_packed=packed, shift=self.form.shift,
            )  # fmt: skip
        halves = [
            product(self.form.arch, self.descriptor, left, b, start, given, a_packed=packed)
            for b, start, given in zip(
                np.split(right, 2), np.split(c, 2, axis=1), scales, strict=True
            )
        ]
        return np.concatenate(halves, axis=1)


def _check_apart(reads: Sequence[Region], writes: Sequence[Region]) -> None:
    """Raises IllegalOperation if A or scales in tensor memory share cells with D."""
    for memory, cells in reads:
        for other, target in writes:
            if memory is other and overlap(cells, target):
                columns, across = cells[1], target[1]
                raise IllegalOperation(
                    f"{_NAME} reads columns {columns.start} to {columns.stop - 1} of {memory.name} "
                    f"and writes columns {across.start} to {across.stop - 1}: A, scales and D must "
                    "not share cells"
                )


def _gather(shared: Memory, places: Array, used: Array) -> Array:
    """Bytes of rows from shared memory. uint8 [rows, 32]; bytes that are not used: 0"""
    found = shared.data[places]
    if len(used) == ROW_BYTES:
        return found
    whole = np.zeros((len(places), ROW_BYTES), np.uint8)
    whole[:, used] = found
    return whole


def _enabled(pieces: Sequence[Piece], words: Sequence[int]) -> list[Piece]:
    """Pieces without the lanes whose bits are set in disable-output-lane."""
    if not any(words):
        return list(pieces)
    bits = np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little")
    found = []
    for piece in pieces:
        begin = None
        for lane in range(piece.lane, piece.lane + piece.rows + 1):
            on = lane < min(LANES, piece.lane + piece.rows) and not bits[lane]
            if on and begin is None:
                begin = lane
            elif not on and begin is not None:
                row = piece.row + begin - piece.lane
                found.append(replace(piece, lane=begin, row=row, rows=lane - begin))
                begin = None
    return found
