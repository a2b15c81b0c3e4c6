"""Conversions. PTX ISA, "cvt"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, bits_dtype, compute_slots
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
