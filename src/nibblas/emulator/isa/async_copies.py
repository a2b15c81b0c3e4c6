"""cp.async: copies of 4, 8 or 16 bytes from global to shared memory. PTX ISA, "cp.async".

One operation in flight per warp instruction. The bytes are claimed from the copy to the wait of
the thread (``wait_group``, ``wait_all``) or to a wait for the mbarrier that tracks the copy;
until then every access to them is a DataRace. Copies belong to the generic proxy.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.claims import claim_write
from nibblas.emulator.machine.groups import Copy, wait_for
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.regions import check_source, runs_of
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Imm, Not, Reg

async_copies = Family("async_copies")

_TAIL = "[L2::cache_hint] [prefetch:L2::64B|L2::128B|L2::256B]"


@async_copies.instruction(
    f"cp async cop:ca|cg to:shared|shared::cta global {_TAIL}",
    section="cp.async",
    anchor="data-movement-and-conversion-instructions-cp-async",
)
def cp_async(build: Build) -> Step:
    """``[dst], [src], cp-size {, src-size | ignore-src} {, cache-policy}``."""
    hinted = int(build.has("L2::cache_hint"))
    count = build.count(3 + hinted, 4 + hinted)
    size = build.integer(2)
    if size not in ((16,) if build.get("cop") == "cg" else (4, 8, 16)):
        raise build.refusal(f"a copy of {size} bytes")
    valid, skipped = None, None
    if count == 4 + hinted:
        if _is_predicate(build, 3):
            skipped = build.predicate(3)
        else:
            valid = build.source(3, "u32")
    to, source = build.address(0), build.address(1)
    step_bytes = np.arange(size)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        lanes = np.flatnonzero(warp.mask)
        lengths = np.full(len(lanes), size)
        if valid is not None:
            lengths = warp.r[valid][lanes].astype(np.int64)
            if (lengths > size).any():
                raise IllegalOperation(f"a src-size of {lengths.max()}; cp-size is {size}")
        elif skipped is not None:
            slot, negated = skipped
            lengths = np.where(warp.r[slot][lanes] ^ negated, 0, size)
        data = np.zeros((len(lanes), size), np.uint8)
        reading = np.flatnonzero(lengths)
        sources = _sources(warp, size, source(warp)[lanes], lanes, lengths, reading)
        targets = [
            (memory, offsets[:, None] + step_bytes, which)
            for memory, offsets, which in runs_of(warp, "shared", to(warp)[lanes], lanes, size)
        ]
        site = warp.site(instruction)
        claims = [claim_write(m, where, "cp.async", site) for m, where, _ in targets]
        queue = warp.copies.queue

        def read() -> None:
            for memory, where, which, inside in sources:
                data[which] = np.where(inside, memory.data[where], np.uint8(0))

        def write() -> None:
            for (memory, where, which), claim in zip(targets, claims, strict=True):
                memory.data[where] = data[which]
                claim.land()
            queue.notify()

        op = AsyncOp("cp.async", site, [read, write])
        warp.cta.machine.scheduler.asynchronous.issue(op)
        warp.cta.machine.bytes["cp.async"] += size * len(lanes)
        warp.copies.add(Copy(op, [], list(claims)), warp.mask)

    return step


def _is_predicate(build: Build, index: int) -> bool:
    operand = build.operands[index]
    if isinstance(operand, Imm):
        return False
    if isinstance(operand, Not):
        return True
    if not isinstance(operand, Reg):
        return False
    return build.slots.is_predicate(build.slots.register(operand.name, build.instruction.line))


def _sources(
    warp: Warp, size: int, addresses: Array, lanes: Array, lengths: Array, reading: Array
) -> list[tuple[Memory, Array, Array, Array]]:
    """(memory, offsets [n, size], positions, bytes that are read [n, size]) by memory."""
    found = []
    step_bytes = np.arange(size)
    runs = runs_of(warp, "global", addresses[reading], lanes[reading], size, lengths[reading])
    for memory, offsets, which in runs:
        position = reading[which]
        inside = step_bytes < lengths[position][:, None]
        where = np.where(inside, offsets[:, None] + step_bytes, offsets[:, None])
        check_source(memory, where, "cp.async")
        found.append((memory, where, position, inside))
    return found


@async_copies.instruction(
    "cp async commit_group",
    section="cp.async.commit_group",
    anchor="data-movement-and-conversion-instructions-cp-async-commit-group",
)
def commit_group(build: Build) -> Step:
    build.count(0)
    instruction = build.instruction

    def step(warp: Warp) -> None:
        warp.copies.commit(warp.mask, warp.site(instruction))

    return step


@async_copies.instruction(
    "cp async wait_group",
    section="cp.async.wait_group",
    anchor="data-movement-and-conversion-instructions-cp-async-wait-group",
    ends_block=True,
)
def wait_group(build: Build) -> Step:
    build.count(1)
    pending = build.integer(0)

    def step(warp: Warp) -> None:
        mask, groups = warp.mask, warp.copies
        wait_for(
            warp,
            groups,
            groups.due(mask, pending),
            f"cp.async.wait_group {pending}",
            then=lambda: groups.forget(mask, pending),
        )

    return step


@async_copies.instruction(
    "cp async wait_all",
    section="cp.async.wait_all",
    anchor="data-movement-and-conversion-instructions-cp-async-wait-group",
    ends_block=True,
)
def wait_all(build: Build) -> Step:
    build.count(0)

    def step(warp: Warp) -> None:
        mask, groups = warp.mask, warp.copies

        def forget() -> None:
            groups.forget(mask, 0)
            groups.drop_open(mask)

        wait_for(warp, groups, groups.issued(mask), "cp.async.wait_all", then=forget)

    return step
