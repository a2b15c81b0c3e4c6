"""Tensor memory: allocation, and loads and stores of warps. PTX ISA, "tcgen05.alloc",
"tcgen05.ld", "tcgen05.st", "tcgen05.wait".

machine/tensor_allocation.py hands columns out; machine/tensor_fragments.py says which cell a
register of a lane is; machine/tensor_pipe.py checks what meets what.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import Path, check_write
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.tensor_pipe import participants
from nibblas.emulator.machine.warp import Warp

tcgen05_memory = Family("tcgen05_memory")

ARCHITECTURES = ("sm_100", "sm_103")
"""Devices with tensor memory."""

GROUP = "group:cta_group::1|cta_group::2"

_ANCHOR = "tcgen05-instructions-tcgen05-"
_ALLOC = _ANCHOR + "alloc-dealloc-relinquish-alloc-permit"


def check_architecture(build: Build) -> None:
    """Raises UnsupportedInstruction on devices that have no tensor memory."""
    if build.arch not in ARCHITECTURES:
        raise build.refusal(f"{build.arch} has no tcgen05; want one of {', '.join(ARCHITECTURES)}")


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
    path = Path(build.get("space", "generic"), 4)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        whole_warp(warp)
        cta = warp.cta
        allocator = cta.cluster.tensor_allocator(participants(cta, group, "tcgen05.alloc"))
        places = address(warp)
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
            cta,
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
