"""tcgen05.commit and tcgen05.fence. PTX ISA, "TensorCore 5th Generation Specialized
Synchronization Operations" and "Async Synchronization Operations".

What they order: machine/tensor_order.py. A commit is in flight until the operations that its
thread has issued are done, then arrives; where it signals several CTAs, they see it at different
times.
"""

from __future__ import annotations

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.bulk import by_lane, value_of
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.isa.tcgen05_memory import GROUP, check_architecture, group_of, shared_bits
from nibblas.emulator.machine.access import Path, locate_shared_cluster
from nibblas.emulator.machine.bulk import OFFSET_MASK
from nibblas.emulator.machine.clock import tick
from nibblas.emulator.machine.memory import RANK_SHIFT, Memory
from nibblas.emulator.machine.warp import Warp, bits_of

tcgen05_sync = Family("tcgen05_sync")

_BARRIER_BYTES = 8


@tcgen05_sync.instruction(
    f"tcgen05 commit {GROUP} mbarrier::arrive::one [space:shared::cluster] [multicast::cluster] "
    "b64",
    section="tcgen05.commit",
    anchor="tcgen-async-sync-operations-commit",
)
def commit(build: Build) -> Step:
    """``[mbar] {, ctaMask}``: an arrival at this offset of each CTA that the mask names."""
    check_architecture(build)
    multicast = build.has("multicast::cluster")
    build.count(1 + multicast)
    group, address = group_of(build), build.address(0)
    path = Path(build.get("space", "generic"), _BARRIER_BYTES)
    mask = build.source(1, "u16", wider=True) if multicast else None
    instruction = build.instruction

    def one(warp: Warp, lane: int) -> None:
        where = int(address(warp)[lane])
        if warp.cta.machine.rules == "hardware":
            memory, base = locate_shared_cluster(warp, lane, shared_bits(where), _BARRIER_BYTES)
            offset = shared_bits(where) - base
        else:
            memory, offset = path.find(warp, lane, where)
        if memory not in warp.cta.cluster.memories:
            raise IllegalOperation("the mbarrier of tcgen05.commit is not in shared memory")
        barriers = [(memory, offset)]
        if mask is not None:
            barriers = _destinations(warp, lane, offset, value_of(warp, mask, lane) & 0xFFFF)
        site = warp.site(instruction, 1 << lane)
        warp.cta.tensor_pipe.commit(warp, lane, site, barriers, group)

    return by_lane(one)


def _destinations(warp: Warp, lane: int, offset: int, mask: int) -> list[tuple[Memory, int]]:
    """The same offset in every CTA of a mask."""
    count = len(warp.cta.cluster.ctas)
    if mask == 0 or mask >> count:
        raise IllegalOperation(f"a multicast mask of {mask:#x} in a cluster of {count}")
    found = []
    for rank in range(count):
        if mask >> rank & 1:
            place = rank << RANK_SHIFT | offset & OFFSET_MASK
            memory, base = locate_shared_cluster(warp, lane, place, _BARRIER_BYTES)
            found.append((memory, place - base))
    return found


@tcgen05_sync.instruction(
    "tcgen05 what:fence::before_thread_sync|fence::after_thread_sync",
    section="tcgen05.fence",
    anchor="tcgen05-special-sync-operations-fence",
)
def fence(build: Build) -> Step:
    check_architecture(build)
    build.count(0)
    before = build.get("what") == "fence::before_thread_sync"

    def step(warp: Warp) -> None:
        lanes = bits_of(warp.mask)
        if before:
            warp.tensor.fence_before(lanes, tick())
        else:
            warp.tensor.fence_after(lanes, warp.known)

    return step
