"""Conversions. PTX ISA, "cvt"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, bits_dtype, compute, compute_slots
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.ptx.model import TYPE_BYTES

conversions = Family("conversions")

_INT = "u8|u16|u32|u64|s8|s16|s32|s64"


@conversions.instruction(
    f"cvt [sat] to:{_INT} from:{_INT}",
    section="cvt",
    anchor="data-movement-and-conversion-instructions-cvt",
)
def cvt_integers(build: Build) -> Step:
    """Registers may be wider than the types: a source is cut, a result is extended."""
    build.count(2)
    to, origin = build.get("to"), build.get("from")
    source = build.source(1, origin, wider=True)
    dest = build.dest(0, to, wider=True)
    held = bits_dtype(f"b{8 * build.slots.width(source)}")
    narrow, read = bits_dtype(origin), DTYPES[origin]
    written = DTYPES[to]
    wide = np.dtype(f"{'i' if to[0] == 's' else 'u'}{build.slots.width(dest)}")
    limits = np.iinfo(written)
    saturates = build.has("sat")

    def convert(a: Array) -> Array:
        value = (a if held == narrow else a.astype(narrow)).view(read)
        if saturates:
            source_limits = np.iinfo(read)
            low, high = max(limits.min, source_limits.min), min(limits.max, source_limits.max)
            value = np.clip(value, low, high)
        value = value.astype(written)
        return value if wide == written else value.astype(wide)

    return compute_slots(
        convert,
        dest,
        f"{'s' if to[0] == 's' else 'u'}{8 * build.slots.width(dest)}",
        [source],
        [f"b{8 * TYPE_BYTES[origin]}" if held == narrow else f"b{8 * held.itemsize}"],
    )


@conversions.instruction(
    "cvt pack sat to:u16|s16 s32",
    "cvt pack sat to:u8|s8|u4|s4|u2|s2 s32 b32",
    section="cvt.pack",
    anchor="data-movement-and-conversion-instructions-cvt-pack",
)
def cvt_pack(build: Build) -> Step:
    """``d, a, b[, c]``: b at the bottom, a above it, what fits of c above that."""
    to = build.get("to")
    bits = int(to[1:])
    low, high = (0, (1 << bits) - 1) if to[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)

    def field(value: Array) -> Array:
        cut: Array = np.clip(value, low, high).view(np.uint32) & np.uint32((1 << bits) - 1)
        return cut

    def pack(a: Array, b: Array) -> Array:
        joined: Array = field(b) | field(a) << np.uint32(bits)
        return joined

    def pack_onto(a: Array, b: Array, c: Array) -> Array:
        joined: Array = pack(a, b) | c << np.uint32(2 * bits)
        return joined

    if bits == 16:
        return compute(build, pack, "b32", "s32", "s32")
    return compute(build, pack_onto, "b32", "s32", "s32", "b32")
