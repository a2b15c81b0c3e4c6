"""Loads and stores. PTX ISA, "ld", "st".

Cache operators, eviction priorities, prefetch sizes and memory orders are accepted where they
change no result here: every load sees every store that was executed before it, so an order weaker
than ``.acquire``/``.release`` is never weaker in effect. What a missing fence does between proxies
is modelled by the state of each byte (machine/memory.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import IllegalOperation
from nibblas.emulator.isa.build import BLACKWELL, Build, bits_dtype, put
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import LOCATE, Path, check_write
from nibblas.emulator.machine.clock import everything
from nibblas.emulator.machine.memory import GENERIC_DIRTY, Array
from nibblas.emulator.machine.regions import check_aligned
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import TYPE_BYTES, Operand, Vector

memory = Family("memory")

_LEVELS = (
    "[evict1:L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate] "
    "[evict2:L2::evict_normal|L2::evict_first|L2::evict_last] "
)
_SPACE = (
    "[space:global|shared|shared::cta|shared::cluster|local|const|param|param::entry|param::func] "
)
_STORE_SPACE = "[space:global|shared|shared::cta|shared::cluster|local|param|param::func] "
_VEC = "[vec:v2|v4|v8] type:@scalar|b128"
_SCOPE = "[scope:cta|cluster|gpu|sys] "


@memory.instruction(
    "ld [weak] "
    + _SPACE
    + "[cop:ca|cg|cs|lu|cv] [nc] "
    + _LEVELS
    + "[L2::cache_hint] [prefetch:L2::64B|L2::128B|L2::256B] "
    + _VEC,
    "ld [sem:volatile|relaxed|acquire] "
    + _SCOPE
    + _SPACE
    + _LEVELS
    + "[L2::cache_hint] [prefetch:L2::64B|L2::128B|L2::256B] "
    + _VEC,
    section="ld",
    anchor="data-movement-and-conversion-instructions-ld",
)
def ld(build: Build) -> Step:
    build.count(3 if build.has("L2::cache_hint") else 2)
    kind, space = build.get("type"), build.get("space", "generic")
    targets = _elements(build, 0)
    slots = [build.dest(target, kind, wider=True) for target in targets]
    path = _path(space, kind, len(slots))
    addresses = build.address(1)
    widths = [build.slots.width(slot) for slot in slots]
    widen = [_widener(kind, width) for width in widths]
    key, size = f"load {space.split(':')[0]}", path.size
    synchronises = build.has("sem")

    def step(warp: Warp) -> None:
        lanes, where = warp.lanes, addresses(warp)
        if synchronises:
            warp.learn(everything())
        if lanes is None:
            values = path.load(warp, where, None)
            warp.cta.machine.bytes[key] += 32 * size
        else:
            found = path.load(warp, where[lanes], lanes)
            values = np.zeros((32, *found.shape[1:]), found.dtype)
            values[lanes] = found
            warp.cta.machine.bytes[key] += len(lanes) * size
        if len(slots) == 1:
            change = widen[0]
            put(warp, slots[0], change(values) if change else values)
            return
        columns = np.ascontiguousarray(values.T)
        for slot, column, change in zip(slots, columns, widen, strict=True):
            put(warp, slot, change(column) if change else column)

    return step


@memory.instruction(
    "st [weak] " + _STORE_SPACE + "[cop:wb|cg|cs|wt] " + _LEVELS + "[L2::cache_hint] " + _VEC,
    "st [sem:volatile|relaxed|release] "
    + _SCOPE
    + _STORE_SPACE
    + _LEVELS
    + "[L2::cache_hint] "
    + _VEC,
    section="st",
    anchor="data-movement-and-conversion-instructions-st",
)
def st(build: Build) -> Step:
    build.count(3 if build.has("L2::cache_hint") else 2)
    kind, space = build.get("type"), build.get("space", "generic")
    slots = [build.source(item, kind, wider=True) for item in _elements(build, 1)]
    path = _path(space, kind, len(slots))
    addresses = build.address(0)
    narrow = bits_dtype(kind)
    key, size = f"store {space.split(':')[0]}", path.size

    def step(warp: Warp) -> None:
        lanes, where, r = warp.lanes, addresses(warp), warp.r
        if len(slots) == 1:
            values = r[slots[0]]
            if values.dtype != narrow:
                values = values.astype(narrow)
        else:
            values = np.stack([r[slot] for slot in slots], axis=1).astype(narrow, copy=False)
        if lanes is None:
            path.store(warp, where, None, values)
            warp.cta.machine.bytes[key] += 32 * size
        else:
            path.store(warp, where[lanes], lanes, values[lanes])
            warp.cta.machine.bytes[key] += len(lanes) * size

    return step


@memory.instruction(
    "st bulk [weak] [shared::cta]",
    section="st.bulk",
    anchor="data-movement-and-conversion-instructions-st-bulk",
)
def st_bulk(build: Build) -> Step:
    """``[a], size, 0``: zeros to shared memory of the CTA; address and size are multiples of 8."""
    build.count(3)
    build.require_arch("st.bulk", *BLACKWELL)
    if build.integer(2) != 0:
        raise build.refusal("a value other than 0")
    addresses, size_slot = build.address(0), build.source(1, "b64")
    space = "shared::cta" if build.has("shared::cta") else "generic"

    def clear(warp: Warp, lane: int) -> None:
        address, size = int(addresses(warp)[lane]), int(warp.r[size_slot][lane])
        check_aligned("address", address, 8)
        if size % 8 or size == 0 or size > _MOST_BULK:
            raise IllegalOperation(
                f"st.bulk of {size} bytes; want a multiple of 8, at most {_MOST_BULK}"
            )
        shared, base = LOCATE[space](warp, lane, address, size)
        if shared is not warp.cta.shared:
            raise IllegalOperation(f"st.bulk to {shared.name}; want the CTA's own shared memory")
        offset = address - base
        check_write(shared, offset, size, lane)
        shared.data[offset : offset + size] = 0
        shared.state[offset : offset + size] = shared.written
        if shared.written & GENERIC_DIRTY:
            warp.unfenced.add(shared, offset, size, lane)
        warp.cta.machine.bytes["store shared"] += size

    def step(warp: Warp) -> None:
        for lane in np.flatnonzero(warp.mask).tolist():
            clear(warp, lane)

    return step


_MOST_BULK = 1 << 24
"""PTX ISA, "st.bulk": the largest size."""


def _elements(build: Build, index: int) -> tuple[Operand, ...]:
    operand = build.operands[index]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    wanted = int(build.get("vec", "v1")[1:])
    if len(items) != wanted:
        raise build.refusal(f"got {len(items)} elements; the vector has {wanted}")
    size = wanted * TYPE_BYTES[build.get("type")]
    if size > 32:
        raise build.refusal("a vector of more than 32 bytes")
    if size == 32:
        build.require_arch("a vector of 32 bytes", *BLACKWELL)
        if build.get("space", "global") != "global":
            raise build.refusal("vectors of 32 bytes are of global memory")
    return items


def _path(space: str, kind: str, count: int) -> Path:
    space = space.split("::")[0] if space.startswith("param") else space
    if kind == "b128":
        return Path(space, 8, 2)
    return Path(space, TYPE_BYTES[kind], count)


def _widener(kind: str, width: int) -> Callable[[Array], Array] | None:
    """Loads into wider registers: signed types extend the sign, others zeros."""
    size = TYPE_BYTES[kind]
    if width == size:
        return None
    wide = np.dtype(f"u{width}")
    if kind[0] != "s":
        return lambda values: values.astype(wide)
    narrow_signed, wide_signed = np.dtype(f"i{size}"), np.dtype(f"i{width}")

    def extend(values: Array) -> Array:
        return values.view(narrow_signed).astype(wide_signed).view(wide)

    return extend
