"""mbarrier instructions. PTX ISA, "mbarrier".

Arrivals take effect at once, remote ones included. The orderings (``.release``, ``.acquire``,
``.relaxed``, scopes) change nothing here: see memory.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import Path
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.claims import Claim
from nibblas.emulator.machine.mbarrier import MBarrier, find_barrier, init_barrier, invalidate
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Address, Sink

mbarriers = Family("mbarriers")

_SPACE = "[space:shared|shared::cta]"
_ANY_SPACE = "[space:shared|shared::cta|shared::cluster]"
_SECTION = "parallel-synchronization-and-communication-instructions-mbarrier-"


def places(
    build: Build, operand: int, *, space: str | None = None, own: bool = False
) -> Callable[[Warp], list[tuple[Memory, int, Array]]]:
    """A callable: (memory, offset, lanes) of each barrier that active lanes name.

    ``own``: a generic address must be in the CTA's shared memory.
    """
    path = Path(space or build.get("space", "generic"), 8)
    addresses = build.address(operand)

    def find(warp: Warp) -> list[tuple[Memory, int, Array]]:
        lanes = np.flatnonzero(warp.mask)
        wanted = addresses(warp)[lanes]
        found = []
        for address in dict.fromkeys(wanted.tolist()):
            whose = lanes[wanted == address]
            memory, offset = path.find(warp, int(whose[0]), address)
            if own and memory is not warp.cta.shared:
                raise IllegalOperation(
                    f"the barrier is in {memory.name}; want the CTA's own shared memory"
                )
            found.append((memory, offset, whose))
        return found

    return find


@mbarriers.instruction(
    f"mbarrier init {_SPACE} b64",
    section="mbarrier.init",
    anchor=_SECTION + "init",
)
def init(build: Build) -> Step:
    build.count(2)
    find, count = places(build, 0, own=True), build.source(1, "u32")
    instruction = build.instruction

    def step(warp: Warp) -> None:
        for memory, offset, lanes in find(warp):
            for lane in lanes:
                site = warp.site(instruction, 1 << int(lane))
                init_barrier(memory, offset, int(warp.r[count][lane]), site)

    return step


@mbarriers.instruction(
    f"mbarrier inval {_SPACE} b64",
    section="mbarrier.inval",
    anchor=_SECTION + "inval",
)
def inval(build: Build) -> Step:
    build.count(1)
    find = places(build, 0, own=True)

    def step(warp: Warp) -> None:
        for memory, offset, _ in find(warp):
            invalidate(memory, offset)

    return step


@mbarriers.instruction(
    f"mbarrier expect_tx [sem:relaxed] [scope:cta|cluster] {_ANY_SPACE} b64",
    section="mbarrier.expect_tx",
    anchor=_SECTION + "expect-tx",
)
def expect_tx(build: Build) -> Step:
    return _transactions(build, MBarrier.expect)


@mbarriers.instruction(
    f"mbarrier complete_tx [sem:relaxed] [scope:cta|cluster] {_ANY_SPACE} b64",
    section="mbarrier.complete_tx",
    anchor=_SECTION + "complete-tx",
)
def complete_tx(build: Build) -> Step:
    return _transactions(build, MBarrier.complete)


def _transactions(build: Build, change: Callable[[MBarrier, int], None]) -> Step:
    build.count(2)
    find, num_bytes = places(build, 0), build.source(1, "u32")

    def step(warp: Warp) -> None:
        for memory, offset, lanes in find(warp):
            barrier = find_barrier(memory, offset)
            _note_remote(warp, build, barrier)
            for lane in lanes:
                change(barrier, int(warp.r[num_bytes][lane]))

    return step


def _note_remote(warp: Warp, build: Build, barrier: MBarrier) -> None:
    """What another CTA's barrier counts must be waited for before that CTA exits."""
    if barrier.memory is not warp.cta.shared:
        arrivals, instruction = warp.cta.cluster.arrivals, build.instruction
        what = ".".join((instruction.opcode, instruction.modifiers[0]))
        barrier.attach([arrivals.executed(barrier.memory, warp, what, warp.site(instruction))])


@mbarriers.instruction(
    f"mbarrier what:arrive|arrive_drop [expect_tx] [sem:release|relaxed] [scope:cta|cluster] "
    f"{_ANY_SPACE} b64",
    f"mbarrier what:arrive|arrive_drop noComplete [sem:release] [scope:cta] {_SPACE} b64",
    section="mbarrier.arrive",
    anchor=_SECTION + "arrive",
)
def arrive(build: Build) -> Step:
    """With and without state, count, bytes; the lanes arrive one after the other.

    ``.shared::cluster`` names a barrier of any CTA of the cluster and returns no state.
    """
    expects = build.has("expect_tx")
    with_state = len(build.operands) > 1 and not _is_address(build, 0)
    at = 1 if with_state else 0
    build.count(*((at + 2,) if expects or build.has("noComplete") else (at + 1, at + 2)))
    returns_state = with_state and not isinstance(build.operands[0], Sink)
    if build.get("space") == "shared::cluster" and returns_state:
        raise build.refusal("an arrival at another CTA's barrier returns no state; want _")
    dest = build.dest(0, "b64") if returns_state else None
    number = build.source(at + 1, "u32") if len(build.operands) > at + 1 else None
    find = places(build, at)
    drop, may_complete = build.get("what") == "arrive_drop", not build.has("noComplete")

    def step(warp: Warp) -> None:
        states = np.zeros(32, np.uint64)
        for memory, offset, lanes in find(warp):
            barrier = find_barrier(memory, offset)
            _note_remote(warp, build, barrier)
            if dest is None and number is None and not drop:
                barrier.arrive_each(len(lanes), by=warp.publish())
                continue
            for lane in lanes.tolist():
                value = 1 if number is None else int(warp.r[number][lane])
                if expects:
                    barrier.expect(value)
                    value = 1
                states[lane] = barrier.arrive(
                    value, drop=drop, may_complete=may_complete, by=warp.publish()
                )
        if dest is not None:
            put(warp, dest, states)

    return step


def _is_address(build: Build, index: int) -> bool:
    return isinstance(build.operands[index], Address)


@mbarriers.instruction(
    "mbarrier pending_count b64",
    section="mbarrier.pending_count",
    anchor=_SECTION + "pending-count",
)
def pending_count(build: Build) -> Step:
    build.count(2)
    dest, state = build.dest(0, "b32"), build.source(1, "b64")

    def step(warp: Warp) -> None:
        put(warp, dest, (warp.r[state] & np.uint64(0xFFFF_FFFF)).astype(np.uint32))

    return step


@mbarriers.instruction(
    "mbarrier what:test_wait|try_wait [parity] [sem:acquire|relaxed] [scope:cta|cluster] "
    f"{_SPACE} b64",
    section="mbarrier.test_wait, mbarrier.try_wait",
    anchor=_SECTION + "test-wait-mbarrier-try-wait",
    retries=True,
)
def wait(build: Build) -> Step:
    """Both may answer false as long as the phase is not complete.

    ``try_wait`` stands still until it is, and answers false only when nothing else can happen.
    ``test_wait`` answers false, lets others run, and every other time stands still as well: a loop
    around it costs no more than a few turns and ends as a deadlock if nothing can end it.
    """
    build.count(3, 4) if build.get("what") == "try_wait" else build.count(3)
    by_parity = build.has("parity")
    dest, find = build.dest(0, "pred"), places(build, 1, own=True)
    wanted = build.source(2, "u32" if by_parity else "b64")
    if len(build.operands) == 4:
        build.source(3, "u32")  # a time: how long is left to the order
    always_waits = build.get("what") == "try_wait"

    def step(warp: Warp) -> None:
        tests: list[tuple[MBarrier, int, Array]] = []
        for memory, offset, lanes in find(warp):
            barrier = find_barrier(memory, offset)
            values = warp.r[wanted][lanes]
            for value in dict.fromkeys(values.tolist()):
                tests.append((barrier, value, lanes[values == value]))
        results = np.zeros(32, bool)
        for barrier, value, lanes in tests:
            if _complete(barrier, value, by_parity=by_parity):
                barrier.observed(warp)
                results[lanes] = True
        if not results[warp.mask].all():
            barrier, value, lanes = tests[0]
            if len(tests) > 1:
                kept = np.zeros(32, bool)
                kept[lanes] = True
                warp.retry_others(kept)
            if not results[lanes[0]]:
                warp.failed_tests += 1
                if always_waits or warp.failed_tests % 2 == 0:
                    _stand_still(warp, dest, barrier, value, by_parity=by_parity)
                    return
                warp.poll()
        put(warp, dest, results)

    return step


def _complete(barrier: MBarrier, value: int, *, by_parity: bool) -> bool:
    return barrier.parity_complete(value & 1) if by_parity else barrier.is_complete(value)


def _stand_still(warp: Warp, dest: int, barrier: MBarrier, value: int, *, by_parity: bool) -> None:
    def resume(in_time: bool) -> None:
        if in_time:
            barrier.observed(warp)
        put(warp, dest, np.full(32, in_time))

    def describe() -> str:
        what = f"the phase of parity {value & 1}" if by_parity else f"phase {value >> 32}"
        return f"{barrier} for {what}; {barrier.status}"

    warp.wait(
        barrier.queue,
        ready=lambda: _complete(barrier, value, by_parity=by_parity),
        describe=describe,
        resume=resume,
        may_time_out=True,
    )


@mbarriers.instruction(
    f"cp async mbarrier arrive [noinc] {_SPACE} b64",
    section="cp.async.mbarrier.arrive",
    anchor="parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive",
)
def cp_async_mbarrier_arrive(build: Build) -> Step:
    """An arrival of each lane when all cp.async that it has issued are complete.

    Without ``.noinc`` the pending count goes up by one first, so the phase is not nearer its end.
    """
    build.count(1)
    find, noinc = places(build, 0, own=True), build.has("noinc")
    instruction = build.instruction

    def step(warp: Warp) -> None:
        for memory, offset, lanes in find(warp):
            barrier = find_barrier(memory, offset)
            mask = np.zeros(32, bool)
            mask[lanes] = True
            copies = warp.copies.issued(mask)
            claims = [claim for copy in copies for claim in (*copy.reads, *copy.writes)]
            if not noinc:
                barrier.pending += len(lanes)

            def phase(
                barrier: MBarrier = barrier, count: int = len(lanes), claims: list[Claim] = claims
            ) -> None:
                barrier.attach(claims)
                barrier.arrive_each(count)

            site = warp.site(instruction)
            op = AsyncOp("cp.async.mbarrier.arrive", site, [phase], [copy.op for copy in copies])
            warp.cta.machine.scheduler.asynchronous.issue(op)

    return step
