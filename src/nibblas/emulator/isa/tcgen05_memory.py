"""Tensor memory: allocation, and loads and stores of warps. PTX ISA, "tcgen05.alloc",
"tcgen05.ld", "tcgen05.st", "tcgen05.wait".

machine/tensor_allocation.py hands columns out; machine/tensor_fragments.py says which cell a
register of a lane is; machine/tensor_pipe.py checks what meets what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from nibblas.emulator.errors import DataRace, IllegalOperation, Site
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import Path, check_write
from nibblas.emulator.machine.clock import tick
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.tensor_fragments import (
    MOST_REGISTERS,
    SHAPES,
    Fragment,
    fragment,
    gather,
    scatter,
)
from nibblas.emulator.machine.tensor_memory import LANE_SHIFT, WARP_LANES
from nibblas.emulator.machine.tensor_order import Access, Transfer
from nibblas.emulator.machine.tensor_pipe import participants
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Reg, Vector

tcgen05_memory = Family("tcgen05_memory")

ARCHITECTURES = ("sm_100", "sm_103")
"""Devices with tensor memory."""

_ALL_LANES = 0xFFFF_FFFF
GROUP = "group:cta_group::1|cta_group::2"

_ANCHOR = "tcgen05-instructions-tcgen05-"
_ALLOC = _ANCHOR + "alloc-dealloc-relinquish-alloc-permit"


def check_architecture(build: Build) -> None:
    """Raises UnsupportedInstruction on devices that have no tensor memory."""
    if build.arch not in ARCHITECTURES:
        raise build.refusal(f"{build.arch} has no tcgen05; want one of {', '.join(ARCHITECTURES)}")


def shared_bits(address: Any) -> Any:
    """What devices take of a generic address, a number or an array, where they want a shared one.

    ThunderKittens gives tcgen05.alloc 64 bits; others give tcgen05.commit the 32 bits of a shared
    address and no state space.
    """
    return address & 0xFFFF_FFFF


def group_of(build: Build) -> int:
    """1 or 2, from ``.cta_group``."""
    return int(build.get("group")[-1])


def uniform(values: Array, what: str) -> int:
    """A number that all lanes of a warp must give alike."""
    if (values != values[0]).any():
        raise IllegalOperation(f"{what} differs between the lanes of a warp")
    return int(values[0])


def whole_warp(warp: Warp) -> None:
    if not warp.mask.all():
        raise IllegalOperation("an instruction of all 32 lanes; some have exited")


@tcgen05_memory.instruction(
    f"tcgen05 alloc {GROUP} sync aligned [space:shared::cta] b32",
    section="tcgen05.alloc",
    anchor=_ALLOC,
    converges=True,
)
def alloc(build: Build) -> Step:
    """``[dst], nCols``: the address goes to shared memory, as an ordinary store writes it."""
    check_architecture(build)
    build.count(2)
    group, address, columns = group_of(build), build.address(0), build.source(1, "u32")
    by_text, own = Path(build.get("space", "generic"), 4), Path("shared::cta", 4)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        whole_warp(warp)
        cta = warp.cta
        allocator = cta.cluster.tensor_allocator(participants(cta, group, "tcgen05.alloc"))
        places, path = address(warp), by_text
        if cta.machine.rules == "hardware":
            places, path = shared_bits(places), own
        memory, offset = path.find(warp, 0, uniform(places, "the destination of tcgen05.alloc"))
        if memory is not cta.shared:
            raise IllegalOperation("tcgen05.alloc writes to shared memory of its own CTA only")
        check_write(memory, offset, 4, 0)
        count = uniform(warp.r[columns], "the number of columns of tcgen05.alloc")
        request = allocator.alloc(cta, count, warp.site(instruction))

        def finish(_: bool = True) -> None:
            path.store(warp, places, warp.lanes, np.full(32, request.first, np.uint32))

        if request.done:
            finish()
            return
        warp.wait(
            allocator.queue,
            ready=lambda: request.done,
            describe=lambda: f"{count} columns: {allocator.missing(cta)}",
            resume=finish,
        )

    return step


@tcgen05_memory.instruction(
    f"tcgen05 dealloc {GROUP} sync aligned b32",
    section="tcgen05.dealloc",
    anchor=_ALLOC,
    converges=True,
)
def dealloc(build: Build) -> Step:
    """``taddr, nCols``: of one allocation, all of it."""
    check_architecture(build)
    build.count(2)
    group, address, columns = group_of(build), build.source(0, "b32"), build.source(1, "u32")
    instruction = build.instruction

    def step(warp: Warp) -> None:
        whole_warp(warp)
        cta = warp.cta
        allocator = cta.cluster.tensor_allocator(participants(cta, group, "tcgen05.dealloc"))
        request = allocator.dealloc(
            warp,
            uniform(warp.r[address], "the address of tcgen05.dealloc"),
            uniform(warp.r[columns], "the number of columns of tcgen05.dealloc"),
            warp.site(instruction),
        )
        if not request.done:
            warp.wait(
                allocator.queue,
                ready=lambda: request.done,
                describe=lambda: "the peer CTA has not executed tcgen05.dealloc",
            )

    return step


@tcgen05_memory.instruction(
    f"tcgen05 relinquish_alloc_permit {GROUP} sync aligned",
    section="tcgen05.relinquish_alloc_permit",
    anchor=_ALLOC,
    converges=True,
)
def relinquish_alloc_permit(build: Build) -> Step:
    check_architecture(build)
    build.count(0)
    group, instruction = group_of(build), build.instruction

    def step(warp: Warp) -> None:
        whole_warp(warp)
        ctas = participants(warp.cta, group, "tcgen05.relinquish_alloc_permit")
        warp.cta.cluster.tensor_allocator(ctas).relinquish(warp.cta, warp.site(instruction))

    return step


_NUM = "num:x1|x2|x4|x8|x16|x32|x64|x128"
_SHAPES = ("shape:16x64b|16x128b|16x256b|32x32b", "shape:16x32bx2")


@tcgen05_memory.instruction(
    *(f"tcgen05 ld sync aligned {shape} {_NUM} [pack::16b] b32" for shape in _SHAPES),
    section="tcgen05.ld",
    anchor=_ANCHOR + "ld",
    converges=True,
)
def load(build: Build) -> Step:
    """``r, [taddr] {, immHalfSplitoff}``.

    The registers hold the result at once: a use of them waits for it (PTX ISA, "Register
    dependencies, same thread"). Nothing else may be taken for done before ``tcgen05.wait::ld``.
    """
    place, cells = _transfer(build, 1, 2, paired=build.has("pack::16b"))
    names, slots = _registers(build, 0, cells, written=True)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        lane, column, transfer = place(warp, "ld", warp.site(instruction))
        values = gather(warp.cta.tensor_memory.data, lane, column, cells)
        registers = warp.r
        for name, slot, value in zip(names, slots, values, strict=True):
            registers[slot] = value
            transfer.registers.append((name, slot, value))
        warp.tensor.loads.append(transfer)
        warp.cta.machine.bytes["tcgen05.ld"] += 4 * values.size

    return step


@tcgen05_memory.instruction(
    *(f"tcgen05 st sync aligned {shape} {_NUM} [unpack::16b] b32" for shape in _SHAPES),
    section="tcgen05.st",
    anchor=_ANCHOR + "st",
    converges=True,
)
def store(build: Build) -> Step:
    """``[taddr] {, immHalfSplitoff}, r``. Unpacked halves leave zeros above them."""
    place, cells = _transfer(build, 0, 1, paired=build.has("unpack::16b"))
    _, slots = _registers(build, len(build.operands) - 1, cells, written=False)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        lane, column, transfer = place(warp, "st", warp.site(instruction))
        values = np.stack([warp.r[slot] for slot in slots])
        scatter(warp.cta.tensor_memory.data, lane, column, cells, values)
        warp.tensor.stores.append(transfer)
        warp.cta.machine.bytes["tcgen05.st"] += 4 * values.size

    return step


Place = Callable[[Warp, Literal["ld", "st"], Site], tuple[int, int, Transfer]]


def _transfer(build: Build, at: int, split_at: int, *, paired: bool) -> tuple[Place, Fragment]:
    """Where an ld or st goes.

    Returns:
        a callable that checks and claims the cells: (lane, column of the first; the transfer);
        the cells from there on.
    """
    check_architecture(build)
    shape, repetitions = build.get("shape"), int(build.get("num")[1:])
    halves = shape == "16x32bx2"
    build.count(2 + halves)
    if SHAPES[shape] * repetitions > MOST_REGISTERS:
        raise build.refusal(f".{shape} has no .x{repetitions}")
    split = build.integer(split_at) if halves else 0
    address = build.address(at)
    cells = fragment(shape, repetitions, split, paired=paired)

    def place(warp: Warp, kind: Literal["ld", "st"], site: Site) -> tuple[int, int, Transfer]:
        whole_warp(warp)
        what = f"tcgen05.{kind}"
        start = uniform(address(warp), f"the address of {what}")
        lane, column = _lane_of(warp, start >> LANE_SHIFT, cells.lanes, what), start & 0xFFFF
        access = Access(kind, what, site, warp, _ALL_LANES)
        pipe, memory = warp.cta.tensor_pipe, warp.cta.tensor_memory
        claims = []
        for piece in cells.pieces:
            first = column + piece
            where = slice(lane, lane + cells.lanes), slice(first, first + cells.columns)
            claims.append(pipe.touch(memory, where, access))
        return lane, column, Transfer(access, claims)

    return place, cells


def _lane_of(warp: Warp, lane: int, lanes: int, what: str) -> int:
    """The first lane of an access.

    A warp reaches the quarter of the lanes that its number names. Devices take the quarter from
    there and only the place in it from the address, which DeepGEMM relies on.
    """
    quarter = warp.index % 4 * WARP_LANES
    if lane % lanes:
        raise IllegalOperation(f"{what} at lane {lane}; want a multiple of {lanes}, its lanes")
    if warp.cta.machine.rules == "ptx" and not quarter <= lane < quarter + WARP_LANES:
        raise IllegalOperation(
            f"{what} of warp {warp.index} at lane {lane}: it reaches lanes {quarter} to "
            f'{quarter + WARP_LANES - 1} only. PTX ISA, "Access restrictions"'
        )
    return quarter + lane % WARP_LANES


def _registers(
    build: Build, index: int, cells: Fragment, *, written: bool
) -> tuple[list[str], list[int]]:
    """Names and slots of the registers of an ld or st."""
    operand = build.operands[index]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != len(cells.row):
        raise build.refusal(f"got {len(items)} registers; want {len(cells.row)}")
    find = build.dest if written else build.source
    names = [item.name if isinstance(item, Reg) else str(item) for item in items]
    return names, [find(item, "b32") for item in items]


@tcgen05_memory.instruction(
    "tcgen05 what:wait::ld|wait::st sync aligned",
    section="tcgen05.wait",
    anchor=_ANCHOR + "wait",
    converges=True,
)
def wait(build: Build) -> Step:
    """What the warp's earlier ld or st claimed is free again."""
    check_architecture(build)
    build.count(0)
    loads = build.get("what") == "wait::ld"

    def step(warp: Warp) -> None:
        whole_warp(warp)
        threads = warp.tensor
        waited = threads.loads if loads else threads.stores
        for transfer in waited:
            _check_registers(warp, transfer)
            threads.waited(transfer, tick())
        waited.clear()

    return step


def _check_registers(warp: Warp, transfer: Transfer) -> None:
    for name, slot, value in transfer.registers:
        if warp.r[slot] is not value:
            raise DataRace(
                f"{name} was written while a tcgen05.ld that brings it was in flight, issued by "
                f"{transfer.access.site}: want tcgen05.wait::ld before. PTX ISA, "
                '"Register dependencies, same thread"'
            )
