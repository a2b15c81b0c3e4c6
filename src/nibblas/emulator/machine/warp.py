"""A warp: 32 lanes, their registers, and the fragments into which divergence splits them.

A fragment is a set of lanes at one place. Blocks are numbered so that the end of every loop and
branch comes after its inside (program.py), and the runnable fragment with the smallest number runs
first; fragments that meet merge. So lanes reconverge at the immediate post-dominator or earlier.
Instructions for whole warps wait until their lanes have arrived, whatever the order.

A fragment that polls, or that runs long while another could, lets the others go first: one lane's
progress never depends on another's reconvergence (forward progress of sm_70 and up).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.errors import EmulationError, Site
from nibblas.emulator.machine.clock import NOTHING, Known, new_party
from nibblas.emulator.machine.groups import CopyGroups
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.tensor_order import TensorThreads
from nibblas.emulator.machine.unfenced import UnfencedWrites
from nibblas.emulator.machine.waiting import Wait, WaitQueue
from nibblas.emulator.machine.warpgroup import WarpState

if TYPE_CHECKING:
    from nibblas.emulator.machine.cta import Cta
    from nibblas.emulator.program import Block
    from nibblas.emulator.ptx.model import Instruction

ALL = b"\x01" * 32
NONE = b"\x00" * 32
_PATIENCE = 4096
"""Blocks that a fragment runs in a row before another runnable one of its warp gets its turn."""

_lane_cache: dict[bytes, Array] = {}


def lanes_of(key: bytes) -> Array | None:
    """Numbers of the lanes in a mask's bytes; None for all 32."""
    if key == ALL:
        return None
    lanes = _lane_cache.get(key)
    if lanes is None:
        lanes = _lane_cache[key] = np.flatnonzero(np.frombuffer(key, bool))
    return lanes


def bits_of(mask: Array) -> int:
    """A bool mask as an integer, lane 0 in bit 0."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def mask_of(bits: int) -> Array:
    """An integer as a bool mask [32]."""
    data = np.frombuffer((bits & 0xFFFF_FFFF).to_bytes(4, "little"), np.uint8)
    return np.unpackbits(data, bitorder="little").astype(bool)


class Fragment:
    """Lanes that execute together. ``pc``: their block. ``wait``: None if they can run.

    ``gathering``: they stand at a warp-wide instruction until other lanes arrive there.
    """

    __slots__ = ("gathering", "mask", "pc", "polled", "wait")

    def __init__(self, pc: int, mask: Array) -> None:
        self.pc, self.mask = pc, mask
        self.wait: Wait | None = None
        self.gathering = self.polled = False

    @property
    def runnable(self) -> bool:
        return self.wait is None and not self.gathering


class Warp:
    """One warp of a CTA.

    Attributes:
        r: registers, by slot; see isa/build.py.
        alive: lanes that have not exited.
        mask: lanes that execute now, bool [32]. lanes: their numbers; None: all 32.
        full: ``mask`` is all that is alive, so results may be written to all 32 lanes.
        current: the fragment that runs. block: where.
        local: local memory of the 32 lanes, ``local_bytes`` each.
        unfenced: shared memory that its lanes have written since their last proxy fence.
        copies, bulk_copies: groups of cp.async, of cp.async.bulk.
        failed_tests: mbarrier tests that have failed. wgmma: those in flight.
        tensor: what its threads have done with tensor memory.
        known: what is ordered before all that it does from now on, because some lane has waited.
        party, core: numbers of the warp, and of the tensor core as far as it runs its operations.
    """

    def __init__(self, cta: Cta, index: int, registers: list[Array], lanes: int) -> None:
        self.cta, self.index = cta, index
        self.r = registers
        self.alive = np.arange(32) < lanes
        self._alive_key = self.alive.tobytes()
        self.current = Fragment(0, self.alive)
        self.fragments = [self.current]
        self.local_bytes = cta.machine.program.local_bytes
        self.local = Memory("local memory", 0, 32 * self.local_bytes)
        self.mask, self.full, self.lanes = self.alive, True, lanes_of(self._alive_key)
        self.block: Block = cta.machine.program.blocks[0]
        self.reschedule = self.yielded = False
        self.queued = False
        self.unfenced = UnfencedWrites()
        self.copies, self.bulk_copies = CopyGroups(), CopyGroups()
        self.failed_tests = 0
        self.wgmma = WarpState()
        self.tensor = TensorThreads()
        self.known = NOTHING
        self.party, self.core = new_party(), new_party()
        self._tracked = cta.machine.program.uses_tensor_memory
        self._in_a_row = 0

    def __repr__(self) -> str:
        return f"warp {self.index} of CTA {self.cta.index}"

    @property
    def finished(self) -> bool:
        return not self.fragments

    @property
    def runnable(self) -> bool:
        return any(fragment.runnable for fragment in self.fragments)

    def set_active(self, mask: Array) -> None:
        """Makes these lanes the ones that execute."""
        key = mask.tobytes()
        self.mask, self.full, self.lanes = mask, key == self._alive_key, lanes_of(key)

    def activate(self, fragment: Fragment) -> None:
        self.current = fragment
        self.set_active(fragment.mask)

    def run(self, budget: int) -> int:
        """Runs until nothing can or about ``budget`` instructions are done; returns how many."""
        blocks, counts = self.cta.machine.program.blocks, self.cta.machine.block_counts
        done = 0
        while done < budget:
            fragment = self._choose()
            if fragment is None:
                break
            self.activate(fragment)
            alone = len(self.fragments) == 1
            self.reschedule = False
            while done < budget:
                index = fragment.pc
                block = self.block = blocks[index]
                counts[index] += 1
                done += block.size
                fragment.pc = block.following
                position = 0
                try:
                    for step in block.steps:
                        step(self)
                        position += 1
                    if block.end is not None:
                        block.end(self)
                except EmulationError as error:
                    raise self._placed(error, block.instructions[position]) from None
                if self.reschedule or not alone:
                    break
            if self.yielded:
                self.yielded = False
                break
        return done

    def _choose(self) -> Fragment | None:
        """Merges what has met; then the first runnable fragment, those that polled last."""
        fragments = self.fragments
        if len(fragments) == 1:
            return fragments[0] if fragments[0].runnable else None
        self._merge()
        runnable = [fragment for fragment in self.fragments if fragment.runnable]
        if not runnable:
            return None
        patient = [fragment for fragment in runnable if not fragment.polled]
        if not patient:
            for fragment in runnable:
                fragment.polled = False
            patient = runnable
        first = min(patient, key=lambda fragment: fragment.pc)
        if first is not self.current or len(runnable) == 1:
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row > _PATIENCE:
            first.polled = True
        return first

    def _merge(self) -> None:
        by_pc: dict[int, Fragment] = {}
        kept = []
        for fragment in self.fragments:
            other = by_pc.get(fragment.pc) if fragment.wait is None else None
            if other is None:
                kept.append(fragment)
                if fragment.wait is None:
                    by_pc[fragment.pc] = fragment
            else:
                other.mask = other.mask | fragment.mask
                other.gathering = False
        self.fragments = kept

    def branch(self, taken: Array, target: int) -> None:
        """Sends some of the active lanes to a block, the others on to the following one."""
        fragment = self.current
        here = taken & fragment.mask
        key = here.tobytes()
        if key == NONE:
            return
        if key == fragment.mask.tobytes():
            fragment.pc = target
            return
        self.fragments.append(Fragment(target, here))
        fragment.mask = fragment.mask & ~here
        self.reschedule = True

    def split(self, kept: Array) -> None:
        """Leaves only some active lanes in the current fragment; the others go on without it."""
        fragment = self.current
        self.fragments.append(Fragment(fragment.pc, fragment.mask & ~kept))
        fragment.mask = fragment.mask & kept
        self.set_active(fragment.mask)
        self.reschedule = True

    def retry_others(self, kept: Array) -> None:
        """Leaves only some active lanes here; the others execute this instruction by themselves.

        Only for instructions that are alone in their block (``retries``).
        """
        self.split(kept)
        self.fragments[-1].pc = self.block.index

    def gather(self, wanted: Array) -> bool:
        """Whether all wanted lanes that are alive execute now.

        If not, the current fragment comes back to this instruction, which begins its block, when
        they have arrived; the step must then do nothing.
        """
        if self.full:
            return True
        missing = wanted & self.alive & ~self.mask
        if missing.tobytes() == NONE:
            return True
        fragment = self.current
        fragment.pc = self.block.index
        fragment.gathering = self.reschedule = True
        return False

    def exit_lanes(self) -> None:
        """Ends the active lanes."""
        self.alive = self.alive & ~self.mask
        self._alive_key = self.alive.tobytes()
        self.fragments.remove(self.current)
        self.reschedule = True
        for fragment in self.fragments:
            fragment.gathering = False  # those that are gone are waited for no longer
        self.cta.cluster.barrier.check()
        if not self.fragments:
            self.cta.warp_finished(self)

    def poll(self) -> None:
        """A look at something that has not come: lets others run before the next look."""
        self.current.polled = self.reschedule = self.yielded = True

    def wait(
        self,
        queue: WaitQueue,
        *,
        ready: Callable[[], bool],
        describe: Callable[[], str],
        resume: Callable[[bool], None] | None = None,
        may_time_out: bool = False,
    ) -> None:
        """Stops the active lanes after this instruction until ``queue`` is notified and ready.

        Only for steps that end a block. See ``Wait`` for the arguments.
        """
        instruction = self.block.instructions[-1]
        wait = Wait(
            self,
            self.current,
            self.site(instruction),
            ready=ready,
            describe=describe,
            resume=resume,
            may_time_out=may_time_out,
        )
        self.current.wait = wait
        self.reschedule = True
        machine = self.cta.machine
        machine.counts["waits"] += 1
        queue.add(wait)
        if may_time_out:
            machine.scheduler.may_time_out(wait, queue)

    def learn(self, known: Known) -> None:
        """Some lane has waited, and so these events are ordered before what follows."""
        if self._tracked:
            self.known = self.known | known

    def publish(self) -> Known:
        """What is ordered before what waits for an arrival of the warp now."""
        return self.known.up_to_now(self.party) if self._tracked else NOTHING

    def site(self, instruction: Instruction, lanes: int = 0) -> Site:
        return Site(
            self.cta.machine.program.name,
            self.cta.index,
            self.index,
            lanes or bits_of(self.mask),
            str(instruction),
            instruction.line,
            str(instruction.loc or ""),
        )

    def _placed(self, error: EmulationError, instruction: Instruction) -> EmulationError:
        if error.site is None:
            error.site = self.site(instruction, error.lanes)
        return error
