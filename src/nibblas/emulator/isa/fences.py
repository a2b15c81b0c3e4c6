"""Fences. PTX ISA, "membar, fence".

Memory is sequentially consistent here: what orders ordinary accesses changes nothing. What acts:

    fence.proxy.async               cleans the shared memory that the executing threads stored, for
                                    wgmma, tcgen05 and bulk copies: machine/unfenced.py; with the
                                    rules of "hardware" all that their CTA stored
    fence.proxy.async::generic.release  the same; its acquire side is demanded by nothing
    fence.proxy.tensormap ... acquire   a changed tensor map may be used

fence.mbarrier_init and the release side of tensor maps are accepted and demanded by nothing.
"""

from __future__ import annotations

from nibblas.emulator.isa.build import Build
from nibblas.emulator.isa.bulk import by_lane
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.unfenced import ALL_LANES
from nibblas.emulator.machine.warp import Warp

fences = Family("fences")

_ANCHOR = "parallel-synchronization-and-communication-instructions-membar"


def _nothing(warp: Warp) -> None:
    del warp


@fences.instruction("membar level:cta|gl|sys", section="membar, fence", anchor=_ANCHOR)
@fences.instruction(
    "fence [sem:sc|acq_rel|acquire|release] scope:cta|cluster|gpu|sys",
    "fence acquire sync_restrict::shared::cluster cluster",
    "fence release sync_restrict::shared::cta cluster",
    "fence mbarrier_init release cluster",
    "fence proxy alias",
    "fence proxy tensormap::generic release scope:cta|cluster|gpu|sys",
    "fence proxy async::generic acquire sync_restrict::shared::cluster cluster",
    section="membar, fence",
    anchor=_ANCHOR,
)
def ordering(build: Build) -> Step:
    build.count(0)
    return _nothing


@fences.instruction(
    "fence proxy async [space:global|shared::cta|shared::cluster]",
    "fence proxy async::generic release sync_restrict::shared::cta cluster",
    section="membar, fence",
    anchor=_ANCHOR,
)
def proxy_async(build: Build) -> Step:
    """Global memory has no records of ordinary stores, so ``.global`` changes nothing."""
    build.count(0)
    if build.get("space") == "global":
        return _nothing

    def fence(warp: Warp) -> None:
        warp.unfenced.fence(warp.mask)
        if warp.cta.machine.rules == "hardware":
            for other in warp.cta.warps:
                other.unfenced.fence(ALL_LANES)

    return fence


@fences.instruction(
    "fence proxy tensormap::generic acquire scope:cta|cluster|gpu|sys",
    section="membar, fence",
    anchor=_ANCHOR,
)
def acquire_map(build: Build) -> Step:
    """``[map], 128``."""
    build.count(2)
    if build.integer(1) != 128:
        raise build.refusal("a size other than 128")
    address = build.address(0)

    def acquire(warp: Warp, lane: int) -> None:
        warp.cta.machine.changed_maps.discard(int(address(warp)[lane]))

    return by_lane(acquire)
