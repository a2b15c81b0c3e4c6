"""Data movement between registers: mov, cvta. PTX ISA, "Data Movement and Conversion"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import Build, bits_dtype, compute, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import TYPE_BYTES, Reg, Vector

moves = Family("moves")

_CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


@moves.instruction(
    "mov type:pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64",
    section="mov",
    anchor="data-movement-and-conversion-instructions-mov",
)
def mov(build: Build) -> Step:
    build.count(2)
    kind = build.get("type")
    target, source = build.operands
    if isinstance(source, Vector):
        return _pack(build, kind, source)
    if isinstance(target, Vector):
        return _unpack(build, kind, target)
    if isinstance(source, Reg) and source.name in _CLOCKS:
        return _clock(build, source.name, kind)
    slot, dest = build.source(source, kind), build.dest(target, kind)

    return lambda warp: put(warp, dest, warp.r[slot])


def _part(build: Build, kind: str, parts: int) -> str:
    size = TYPE_BYTES[kind] * 8 // parts
    if size < 8 or TYPE_BYTES[kind] * 8 % parts:
        raise build.refusal(f"a .{kind} has no {parts} parts")
    return f"b{size}"


def _pack(build: Build, kind: str, source: Vector) -> Step:
    """``mov.b32 d, {a, b}``: a is the low part."""
    part = _part(build, kind, len(source.items))
    slots = [build.source(item, part) for item in source.items]
    dest, bits, wide = build.dest(0, kind), bits_dtype(kind), kind == "b128"

    def step(warp: Warp) -> None:
        joined = np.stack([warp.r[slot] for slot in slots], axis=1).view(bits)
        put(warp, dest, joined if wide else joined[:, 0])

    return step


def _unpack(build: Build, kind: str, target: Vector) -> Step:
    """``mov.b32 {a, b}, d``."""
    part = _part(build, kind, len(target.items))
    slots = [build.dest(item, part) for item in target.items]
    source, bits = build.source(1, kind), bits_dtype(part)

    def step(warp: Warp) -> None:
        parts = np.ascontiguousarray(warp.r[source]).view(bits).reshape(32, len(slots))
        for i, slot in enumerate(slots):
            put(warp, slot, parts[:, i].copy())

    return step


def _clock(build: Build, name: str, kind: str) -> Step:
    """Instructions run so far stand for cycles and nanoseconds alike: they never go back."""
    dest, bits = build.dest(0, kind), bits_dtype(kind)
    shift = 32 if name.endswith("_hi") else 0
    limit = (1 << 8 * bits.itemsize) - 1

    def step(warp: Warp) -> None:
        now = warp.cta.machine.scheduler.instructions
        put(warp, dest, np.full(32, now >> shift & limit, bits))

    return step


@moves.instruction(
    "cvta space:global|const|local|shared|shared::cta|shared::cluster|param size:u32|u64",
    "cvta [to] space:global|const|local|shared|shared::cta|shared::cluster|param size:u32|u64",
    section="cvta",
    anchor="data-movement-and-conversion-instructions-cvta",
)
def cvta(build: Build) -> Step:
    size, space = build.get("size"), build.get("space")
    if size != "u64":
        raise build.refusal("only 64-bit addresses are supported")
    if space == "param":
        return compute(build, _to_param if build.has("to") else _from_param, size, size)
    window = {"local": LOCAL_WINDOW}.get(space, SHARED_WINDOW if "shared" in space else 0)
    offset = np.full(32, window, np.uint64)
    if window == 0:
        return compute(build, lambda a: a, size, size)
    if build.has("to"):
        return compute(build, lambda a: a - offset, size, size)
    return compute(build, lambda a: a + offset, size, size)


def _from_param(address: Array) -> Array:
    """An entry's parameters have generic addresses; those of a call lie in local memory."""
    return np.where(address < WINDOW_BYTES, address + np.uint64(LOCAL_WINDOW), address)


def _to_param(address: Array) -> Array:
    in_local = (address >= LOCAL_WINDOW) & (address < LOCAL_WINDOW + WINDOW_BYTES)
    return np.where(in_local, address - np.uint64(LOCAL_WINDOW), address)
