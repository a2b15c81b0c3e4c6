"""Taking over the work of clusters that have not begun. PTX ISA, "clusterlaunchcontrol".

A request takes effect like a bulk load of 16 bytes: it is decided when the order says so, written,
and counted on the mbarrier; with ``.multicast::cluster::all`` in every CTA of the cluster. Which
clusters have not begun follows from the device's number of SMs. The response's layout is the
emulator's own: the PTX ISA calls it opaque.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import BLACKWELL, Build, put
from nibblas.emulator.isa.bulk import by_lane
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.asynchronous import AsyncOp
from nibblas.emulator.machine.bulk import Target, targets_of
from nibblas.emulator.machine.claims import claim_write
from nibblas.emulator.machine.cta import Cta
from nibblas.emulator.machine.memory import RANK_SHIFT, SHARED_WINDOW, Array
from nibblas.emulator.machine.regions import check_aligned
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Vector

launch_control = Family("launch_control")

_ANCHOR = "parallel-synchronization-and-communication-instructions-clusterlaunchcontrol-"
_BYTES = 16
_CANCELLED, _FAILED = 0x434C_4331, 0x434C_4330
"""Last word of a response; the three before it are the cluster's first CTA."""


class Failure:
    """A request that found nothing to cancel; seen when its mbarrier's phase is waited for."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta

    def release(self) -> None:
        self._cta.launch_exhausted = True


@launch_control.instruction(
    "clusterlaunchcontrol try_cancel async [shared::cta] mbarrier::complete_tx::bytes "
    "[multicast::cluster::all] b128",
    section="clusterlaunchcontrol.try_cancel",
    anchor=_ANCHOR + "try-cancel",
)
def try_cancel(build: Build) -> Step:
    """``[addr], [mbar]``."""
    build.count(2)
    build.require_arch("try_cancel", *BLACKWELL)
    multicast, generic = build.has("multicast::cluster::all"), not build.has("shared::cta")
    to, barrier = build.address(0), build.address(1)
    instruction = build.instruction

    def request(warp: Warp, lane: int) -> None:
        cta, machine = warp.cta, warp.cta.machine
        if cta.launch_exhausted:
            raise IllegalOperation(
                "try_cancel after the CTA has seen one fail (PTX ISA: undefined); want the loop "
                "to end there"
            )
        address, place = int(to(warp)[lane]), int(barrier(warp)[lane])
        if generic:
            address, place = address - SHARED_WINDOW, place - SHARED_WINDOW
        for name, value in (("response", address), ("mbarrier", place)):
            if value >> RANK_SHIFT != cta.rank:
                raise IllegalOperation(f"the {name}'s address is not in the CTA's shared memory")
        check_aligned("response", address, _BYTES)
        mask = (1 << len(cta.cluster.ctas)) - 1 if multicast else None
        site = warp.site(instruction, 1 << lane)
        response: list[Array] = []

        def decide() -> None:
            first = machine.cancel_cluster()
            words = (0, 0, 0, _FAILED) if first is None else (*first, _CANCELLED)
            response.append(np.array(words, np.uint32))

        decision = AsyncOp(_WHAT, site, [decide])
        machine.scheduler.asynchronous.issue(decision)
        for target in targets_of(warp, lane, address, place, _BYTES, mask=mask, own=False):
            _issue(cta.cluster.ctas, target, decision, response)
        machine.bytes[f"{_WHAT} to shared"] += _BYTES

    return by_lane(request)


_WHAT = "clusterlaunchcontrol.try_cancel"


def _issue(ctas: list[Cta], target: Target, decision: AsyncOp, response: list[Array]) -> None:
    """The response to one CTA."""
    memory, offset, counter = target
    where = slice(offset, offset + _BYTES)
    claim = claim_write(memory, where, _WHAT, decision.site)
    cta = ctas[memory.base >> RANK_SHIFT]

    def write() -> None:
        memory.data[where] = response[0].view(np.uint8)
        claim.land()

    def count() -> None:
        if response[0][3] == _FAILED:
            counter.attach([Failure(cta)])
        counter.complete(_BYTES, [claim])

    cta.machine.scheduler.asynchronous.issue(
        AsyncOp(_WHAT, decision.site, [write, count], [decision])
    )


def _response(warp: Warp, slot: int) -> Array:
    """The words of the active lanes' responses, uint32 [32, 4]."""
    words: Array = np.ascontiguousarray(warp.r[slot]).view(np.uint32)
    active = words[warp.mask, 3]
    if ((active != _CANCELLED) & (active != _FAILED)).any():
        raise IllegalOperation("the operand is no response of clusterlaunchcontrol.try_cancel")
    return words


@launch_control.instruction(
    "clusterlaunchcontrol query_cancel is_canceled pred b128",
    section="clusterlaunchcontrol.query_cancel",
    anchor=_ANCHOR + "query-cancel",
)
def is_canceled(build: Build) -> Step:
    build.count(2)
    build.require_arch("query_cancel", *BLACKWELL)
    dest, source = build.dest(0, "pred"), build.source(1, "b128")

    def step(warp: Warp) -> None:
        put(warp, dest, _response(warp, source)[:, 3] == _CANCELLED)

    return step


@launch_control.instruction(
    "clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128",
    "clusterlaunchcontrol query_cancel "
    "axis:get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128",
    section="clusterlaunchcontrol.query_cancel",
    anchor=_ANCHOR + "query-cancel",
)
def get_first_ctaid(build: Build) -> Step:
    """``{x, y, z, _}, response``, or one of them; of a request that has succeeded."""
    build.count(2)
    build.require_arch("query_cancel", *BLACKWELL)
    target, source = build.operands[0], build.source(1, "b128")
    if build.has("axis"):
        places = {"xyz".index(build.get("axis")[-1]): build.dest(0, "b32")}
    else:
        if not isinstance(target, Vector) or len(target.items) != 4:
            raise build.refusal("expected {x, y, z, _} as destination")
        places = {axis: build.dest(item, "b32") for axis, item in enumerate(target.items[:3])}

    def step(warp: Warp) -> None:
        words = _response(warp, source)
        if (words[warp.mask, 3] == _FAILED).any():
            raise IllegalOperation(
                "get_first_ctaid of a request that has failed: want is_canceled to guard it"
            )
        for axis, dest in places.items():
            put(warp, dest, words[:, axis].copy())

    return step
