"""Exchange between the lanes of a warp. PTX ISA, "shfl.sync", "vote.sync", "match.sync" ...

The lanes of the member mask take part together: the first to come wait for the others. Lanes of
one warp that name different masks form groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.floats import NAN_32
from nibblas.emulator.isa.build import DTYPES, SM_100_FAMILY, Build, bits_dtype, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp, bits_of, mask_of
from nibblas.emulator.ptx.model import Operand, Pair

warp_ops = Family("warp_ops")

_PARALLEL = "parallel-synchronization-and-communication-instructions"
_LANES = np.arange(32)
_EVERYONE = np.full(32, 0xFFFF_FFFF, np.uint32)
_EVERYONE_KEY = _EVERYONE.tobytes()
_POISON = np.uint32(0xBAADF00D)

Groups = list[tuple[int, Array]]
"""Member masks as written, and the lanes [32] of each that execute."""


def arrived(warp: Warp, slot: int) -> Groups | None:
    """The groups of a ``.sync`` instruction, or None: lanes are missing, come back later.

    Raises:
        IllegalOperation: a lane is not in the mask that it names.
    """
    members = warp.r[slot]
    if members.tobytes() == _EVERYONE_KEY:
        if not (warp.full or warp.gather(warp.alive)):
            return None
        return [(0xFFFF_FFFF, warp.mask)]
    groups = []
    wanted = 0
    for bits in np.unique(members[warp.mask]).tolist():
        lanes = warp.mask & (members == bits)
        outside = bits_of(lanes) & ~bits
        if outside:
            raise IllegalOperation(
                f"the member mask {bits:#010x} leaves out lanes that execute", lanes=outside
            )
        wanted |= bits
        groups.append((bits, lanes))
    return groups if warp.gather(mask_of(wanted)) else None


def _targets(operand: Operand) -> tuple[Operand, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


_Source = Callable[[Array, Array, Array], tuple[Array, Array]]
"""(b, bound, segment mask) -> source lane, and whether it lies in the segment."""


def _up(b: Array, bound: Array, segment: Array) -> tuple[Array, Array]:
    source = _LANES - b
    return source, source >= bound


def _down(b: Array, bound: Array, segment: Array) -> tuple[Array, Array]:
    source = _LANES + b
    return source, source <= bound


def _butterfly(b: Array, bound: Array, segment: Array) -> tuple[Array, Array]:
    source = _LANES ^ b
    return source, source <= bound


def _indexed(b: Array, bound: Array, segment: Array) -> tuple[Array, Array]:
    source = (_LANES & segment) | (b & ~segment)
    return source, source <= bound


_SOURCES: dict[str, _Source] = {
    "up": _up,
    "down": _down,
    "bfly": _butterfly,
    "idx": _indexed,
}


@warp_ops.instruction(
    "shfl sync mode:up|down|bfly|idx b32",
    section="shfl.sync",
    anchor="data-movement-and-conversion-instructions-shfl-sync",
    retries=True,
)
def shfl(build: Build) -> Step:
    """``d[|p], a, b, c, members``; c: clamp in bits 0-4, segment mask in bits 8-12.

    A lane whose source does not take part gets poison: the PTX ISA leaves it undefined.
    """
    build.count(5)
    value_target, flag_target = _targets(build.operands[0])
    dest = build.dest(value_target, "b32")
    flag = -1 if flag_target is None else build.dest(flag_target, "pred")
    a, b, c, members = (build.source(i, "b32") for i in (1, 2, 3, 4))
    source_of = _SOURCES[build.get("mode")]
    known: dict[bytes, tuple[Array, Array]] = {}

    def sources(b_value: Array, c_value: Array) -> tuple[Array, Array]:
        key = b_value.tobytes() + c_value.tobytes()
        if key not in known:
            if len(known) > 64:
                known.clear()
            segment = (c_value >> np.uint32(8)).astype(np.int64) & 31
            bound = (_LANES & segment) | (c_value.astype(np.int64) & 31 & ~segment)
            source, inside = source_of(b_value.astype(np.int64) & 31, bound, segment)
            known[key] = np.where(inside, source, _LANES), inside
        return known[key]

    def step(warp: Warp) -> None:
        groups = arrived(warp, members)
        if groups is None:
            return
        source, inside = sources(warp.r[b], warp.r[c])
        value = warp.r[a][source]
        if warp.lanes is not None or len(groups) > 1:
            present = np.zeros(32, bool)
            for _, lanes in groups:
                present |= lanes & lanes[source]
            value = np.where(present, value, _POISON)
        put(warp, dest, value)
        if flag >= 0:
            put(warp, flag, inside)

    return step


def _each_group(
    build: Build, dest: int, dtype: np.dtype[np.generic], members: int, of: Callable[..., object]
) -> Step:
    """A step that gives all lanes of a group ``of(warp, lanes)``."""

    def step(warp: Warp) -> None:
        groups = arrived(warp, members)
        if groups is None:
            return
        result = np.zeros(32, dtype)
        for _, lanes in groups:
            result = np.where(lanes, np.asarray(of(warp, lanes)).astype(dtype), result)
        put(warp, dest, result)

    return step


@warp_ops.instruction(
    "vote sync mode:all|any|uni pred",
    section="vote.sync",
    anchor=f"{_PARALLEL}-vote-sync",
    retries=True,
)
def vote(build: Build) -> Step:
    build.count(3)
    dest = build.dest(0, "pred")
    slot, negated = build.predicate(1)
    members, mode = build.source(2, "b32"), build.get("mode")

    def result(warp: Warp, lanes: Array) -> bool:
        votes = warp.r[slot][lanes] ^ negated
        if mode == "all":
            return bool(votes.all())
        if mode == "any":
            return bool(votes.any())
        return bool(votes.all() or not votes.any())

    return _each_group(build, dest, np.dtype(bool), members, result)


@warp_ops.instruction(
    "vote sync ballot b32",
    section="vote.sync",
    anchor=f"{_PARALLEL}-vote-sync",
    retries=True,
)
def ballot(build: Build) -> Step:
    build.count(3)
    dest = build.dest(0, "b32")
    slot, negated = build.predicate(1)

    def result(warp: Warp, lanes: Array) -> int:
        return bits_of((warp.r[slot] ^ negated) & lanes)

    return _each_group(build, dest, np.dtype("u4"), build.source(2, "b32"), result)


@warp_ops.instruction("activemask b32", section="activemask", anchor=f"{_PARALLEL}-activemask")
def activemask(build: Build) -> Step:
    build.count(1)
    dest = build.dest(0, "b32")

    def step(warp: Warp) -> None:
        put(warp, dest, np.full(32, bits_of(warp.mask), np.uint32))

    return step


@warp_ops.instruction(
    "match any sync type:b32|b64",
    section="match.sync",
    anchor=f"{_PARALLEL}-match-sync",
    retries=True,
)
def match_any(build: Build) -> Step:
    """Each lane: the lanes of its group that hold its value."""
    build.count(3)
    dest, source = build.dest(0, "b32"), build.source(1, build.get("type"))
    weights = np.uint32(1) << _LANES.astype(np.uint32)

    def result(warp: Warp, lanes: Array) -> Array:
        value = warp.r[source]
        equal = (value[:, None] == value[None, :]) & lanes[None, :]
        lanes_equal: Array = (equal * weights).sum(axis=1, dtype=np.uint32)
        return lanes_equal

    return _each_group(build, dest, np.dtype("u4"), build.source(2, "b32"), result)


@warp_ops.instruction(
    "match all sync type:b32|b64",
    section="match.sync",
    anchor=f"{_PARALLEL}-match-sync",
    retries=True,
)
def match_all(build: Build) -> Step:
    build.count(3)
    value_target, flag_target = _targets(build.operands[0])
    dest = build.dest(value_target, "b32")
    flag = -1 if flag_target is None else build.dest(flag_target, "pred")
    source, members = build.source(1, build.get("type")), build.source(2, "b32")

    def step(warp: Warp) -> None:
        groups = arrived(warp, members)
        if groups is None:
            return
        result, all_equal = np.zeros(32, np.uint32), np.zeros(32, bool)
        for _, lanes in groups:
            values = warp.r[source][lanes]
            if (values == values[0]).all():
                result = np.where(lanes, np.uint32(bits_of(lanes)), result)
                all_equal |= lanes
        put(warp, dest, result)
        if flag >= 0:
            put(warp, flag, all_equal)

    return step


@warp_ops.instruction(
    "elect sync", section="elect.sync", anchor=f"{_PARALLEL}-elect-sync", retries=True
)
def elect(build: Build) -> Step:
    """The lowest lane of the mask; the PTX ISA says only that the choice is deterministic."""
    build.count(2)
    number_target, flag_target = _targets(build.operands[0])
    if flag_target is None:
        raise build.refusal("expected d|p as destination")
    dest, flag = build.dest(number_target, "b32"), build.dest(flag_target, "pred")
    members = build.source(1, "b32")

    def step(warp: Warp) -> None:
        groups = arrived(warp, members)
        if groups is None:
            return
        leader = np.zeros(32, np.uint32)
        for _, lanes in groups:
            leader = np.where(lanes, np.uint32(lanes.argmax()), leader)
        put(warp, dest, leader)
        put(warp, flag, leader == _LANES)

    return step


_REDUCTIONS: dict[str, Callable[[Array], object]] = {
    "add": lambda values: np.add.reduce(values, dtype=values.dtype),
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@warp_ops.instruction(
    "redux sync op:add|min|max type:u32|s32",
    "redux sync op:and|or|xor type:b32",
    section="redux.sync",
    anchor=f"{_PARALLEL}-redux-sync",
    retries=True,
)
def redux(build: Build) -> Step:
    build.count(3)
    kind = build.get("type")
    dest, source = build.dest(0, kind), build.source(1, kind)
    reduce, dtype, bits = _REDUCTIONS[build.get("op")], DTYPES[kind], bits_dtype(kind)

    def result(warp: Warp, lanes: Array) -> object:
        return np.asarray(reduce(warp.r[source].view(dtype)[lanes])).view(bits)

    return _each_group(build, dest, bits, build.source(2, "b32"), result)


@warp_ops.instruction(
    "redux sync op:min|max [abs] [NaN] f32",
    section="redux.sync",
    anchor=f"{_PARALLEL}-redux-sync",
    retries=True,
)
def redux_single(build: Build) -> Step:
    """-0 below +0; NaNs are left out, or with .NaN decide; the NaN is the canonical one."""
    build.count(3)
    build.require_arch("redux of .f32", *SM_100_FAMILY)
    dest, source = build.dest(0, "f32"), build.source(1, "f32")
    largest, absolute, propagates = build.get("op") == "max", build.has("abs"), build.has("NaN")

    def result(warp: Warp, lanes: Array) -> object:
        values = warp.r[source].view(np.float32)[lanes]
        numbers = values[values == values]
        if not numbers.size or (propagates and numbers.size < values.size):
            return NAN_32
        keys = (np.abs(numbers) if absolute else numbers).view(np.int32)
        ordered = keys ^ (keys >> 31 & 0x7FFF_FFFF)  # as the numbers are, -0 before +0
        return keys[ordered.argmax() if largest else ordered.argmin()].view(np.uint32)

    return _each_group(build, dest, bits_dtype("f32"), build.source(2, "b32"), result)


@warp_ops.instruction(
    "bar warp sync", section="bar.warp.sync", anchor=f"{_PARALLEL}-bar-warp-sync", retries=True
)
def bar_warp(build: Build) -> Step:
    build.count(1)
    members = build.source(0, "b32")

    def step(warp: Warp) -> None:
        arrived(warp, members)

    return step
