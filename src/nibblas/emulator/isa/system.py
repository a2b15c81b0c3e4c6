"""Hints, address spaces, cache policies, sleeping. PTX ISA, several sections.

There are no caches here: prefetches and priorities check their operands and do nothing else.
"""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import Build, compute, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import (
    CONST_BASE,
    GLOBAL_BASE,
    LOCAL_WINDOW,
    PARAM_BASE,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_BYTES,
    Array,
)
from nibblas.emulator.machine.warp import Warp

system = Family("system")

_MOVEMENT = "data-movement-and-conversion-instructions"
_POLICY = np.uint64(0x12F0_0000_0000_0000)


def _nothing(warp: Warp) -> None:
    """The step of a hint."""


@system.instruction(
    "prefetch [space:global|local] level:L1|L2",
    "prefetch global level:L2::evict_last|L2::evict_normal",
    section="prefetch, prefetchu",
    anchor=f"{_MOVEMENT}-prefetch-prefetchu",
)
@system.instruction(
    "prefetchu L1",
    section="prefetch, prefetchu",
    anchor=f"{_MOVEMENT}-prefetch-prefetchu",
)
def prefetch(build: Build) -> Step:
    """An address out of bounds is no fault."""
    build.count(1)
    build.address(0)
    return _nothing


@system.instruction(
    "applypriority [global] L2::evict_normal",
    section="applypriority",
    anchor=f"{_MOVEMENT}-applypriority",
)
def applypriority(build: Build) -> Step:
    build.count(2)
    build.address(0)
    return _nothing


@system.instruction(
    "createpolicy fractional primary:L2::evict_last|L2::evict_normal|L2::evict_first|"
    "L2::evict_unchanged [secondary:L2::evict_first|L2::evict_unchanged] b64",
    "createpolicy range [global] primary:L2::evict_last|L2::evict_normal|L2::evict_first|"
    "L2::evict_unchanged [secondary:L2::evict_first|L2::evict_unchanged] b64",
    "createpolicy cvt L2 b64",
    section="createpolicy",
    anchor=f"{_MOVEMENT}-createpolicy",
)
def createpolicy(build: Build) -> Step:
    """An opaque number."""
    dest = build.dest(0, "b64")
    policy = np.full(32, _POLICY)
    return lambda warp: put(warp, dest, policy)


@system.instruction(
    "nanosleep u32",
    section="nanosleep",
    anchor="miscellaneous-instructions-nanosleep",
    ends_block=True,
)
def nanosleep(build: Build) -> Step:
    """Others run meanwhile."""
    build.count(1)
    build.source(0, "u32")
    return Warp.poll


@system.instruction(
    "isspacep space:global|const|local|shared|shared::cta|shared::cluster|param|param::entry",
    section="isspacep",
    anchor=f"{_MOVEMENT}-isspacep",
)
def isspacep(build: Build) -> Step:
    """By the windows of the address map; shared::cta is the CTA's own part of the cluster's."""
    build.count(2)
    space = build.get("space").removesuffix("::entry")
    if space in ("shared", "shared::cta"):
        return _in_own_shared(build)
    begin, end = {
        "shared::cluster": (SHARED_WINDOW, SHARED_WINDOW + WINDOW_BYTES),
        "local": (LOCAL_WINDOW, LOCAL_WINDOW + WINDOW_BYTES),
        "const": (CONST_BASE, PARAM_BASE),
        "param": (PARAM_BASE, GLOBAL_BASE),
        "global": (GLOBAL_BASE, 1 << 63),
    }[space]

    def inside(a: Array) -> Array:
        return np.asarray((a >= begin) & (a < end))

    return compute(build, inside, "pred", "u64")


def _in_own_shared(build: Build) -> Step:
    dest, source = build.dest(0, "pred"), build.source(1, "u64")

    def step(warp: Warp) -> None:
        own = (SHARED_WINDOW >> RANK_SHIFT) + warp.cta.rank
        put(warp, dest, warp.r[source] >> np.uint64(RANK_SHIFT) == own)

    return step
