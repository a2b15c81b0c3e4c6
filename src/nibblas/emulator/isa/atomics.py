"""Atomic operations. PTX ISA, "atom", "red".

Lanes that name one address act in the order of their numbers. Orders and scopes change nothing
here: every access is seen by all at once (isa/memory.py). Of a cas that fails for a lane the others
run next: it may be a lock's. red.async is with the asynchronous copies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator import floats
from nibblas.emulator.formats import bf16_of, f32_of_bf16, odd_single
from nibblas.emulator.isa.build import DTYPES, Build, put
from nibblas.emulator.isa.half import canonical
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import Path
from nibblas.emulator.machine.clock import everything
from nibblas.emulator.machine.memory import SHARED_WINDOW, WINDOW_BYTES, Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import TYPE_BYTES, Operand, Sink, Vector

atomics = Family("atomics")

_ORDER = "[sem:relaxed|acquire|release|acq_rel] [scope:cta|cluster|gpu|sys]"
_RED_ORDER = "[sem:relaxed|release] [scope:cta|cluster|gpu|sys]"
_SPACE = "[space:global|shared|shared::cta|shared::cluster]"
_HINT = "[L2::cache_hint]"
_BITWISE = "op:and|or|xor {hint} type:b32|b64"
_INTEGER = "op:add|min|max {hint} type:u32|u64|s32|s64"
_COUNTER = "op:inc|dec {hint} type:u32"
_FLOAT = "op:add {hint} type:f32|f64"
_HALF = "op:add noftz {hint} type:f16|f16x2|bf16|bf16x2"
_EXCHANGE = "op:exch {hint} type:b32|b64|b128"
_COMPARE = "op:cas {hint} type:b16|b32|b64|b128"
_VECTOR_32 = "[space:global] op:add {hint} vec:v2|v4 type:f32"
_VECTOR_16 = "[space:global] op:add|min|max noftz {hint} vec:v2|v4|v8 type:f16|bf16"
_VECTOR_X2 = "[space:global] op:add|min|max noftz {hint} vec:v2|v4 type:f16x2|bf16x2"

_Update = Callable[..., Array]
"""(old, b[, c]) -> new, all of one dtype and shape."""


def _synopses(opcode: str, order: str, *forms: str) -> list[str]:
    spaced = [form if form.startswith("[") else f"{_SPACE} {form}" for form in forms]
    return [f"{opcode} {order} {form}".replace("{hint}", _HINT) for form in spaced]


_SHARED_FORMS = (_BITWISE, _INTEGER, _COUNTER, _FLOAT, _HALF, _VECTOR_32, _VECTOR_16, _VECTOR_X2)


def _increment(old: Array, limit: Array) -> Array:
    following: Array = old + np.uint32(1)
    return np.where(old >= limit, np.uint32(0), following)


def _decrement(old: Array, limit: Array) -> Array:
    previous: Array = old - np.uint32(1)
    return np.where((old == 0) | (old > limit), limit, previous)


def _compare_and_swap(old: Array, expected: Array, new: Array) -> Array:
    equal = old == expected
    if old.ndim == 2:  # .b128
        equal = equal.all(axis=1)[:, None]
    return np.where(equal, new, old)


_INTEGERS: dict[str, _Update] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": _increment,
    "dec": _decrement,
    "exch": lambda old, new: new,
    "cas": _compare_and_swap,
}


def _update(operation: str, kind: str) -> _Update:
    """On the register's bits."""
    if kind == "b128":
        return _INTEGERS[operation]
    if kind.removesuffix("x2") in ("f16", "bf16"):
        return _on_halves(operation, kind.removesuffix("x2"))
    dtype, bits = DTYPES[kind], np.dtype(f"u{TYPE_BYTES[kind]}")
    function = _INTEGERS[operation]
    if kind == "f32":
        return lambda old, b: floats.canonical_single(
            old.view(np.float32) + b.view(np.float32)
        ).view(bits)
    if kind == "f64":
        return _add_double_in_shared
    return lambda *operands: function(*[o.view(dtype) for o in operands]).view(bits)


def _add_double_in_shared(old: Array, b: Array) -> Array:
    add = floats.nan_double(np.add)
    return add(old.view(np.float64), b.view(np.float64)).view(np.uint64)


def _add_double(old: Array, b: Array) -> Array:
    """A NaN operand is the result as it is, not made quiet (as on an H200)."""
    x, y = old.view(np.float64), b.view(np.float64)
    return np.where(y != y, b, np.where(x != x, old, (x + y).view(np.uint64)))


def _on_halves(operation: str, kind: str) -> _Update:
    """Without flushing: .noftz. min and max prefer numbers to NaNs."""
    brain = kind == "bf16"

    def function(old: Array, b: Array) -> Array:
        pair = [np.ascontiguousarray(x).view(np.uint16) for x in (old, b)]
        x, y = [f32_of_bf16(c) if brain else c.view(np.float16) for c in pair]
        if operation == "add":
            total = odd_single(x.astype(np.float64) + y) if brain else x + y
        else:
            total = floats.extreme(operation == "max", propagate=False)(x, y)
        codes = bf16_of(total) if brain else canonical(total.view(np.uint16), 0x7C00)
        return codes.view(old.dtype).reshape(old.shape)

    return function


def _flushed(update: _Update) -> _Update:
    """.f32 sums in global memory flush subnormals; those in shared memory do not."""

    def function(old: Array, b: Array) -> Array:
        operands = [floats.flush_single(x.view(np.float32)).view(np.uint32) for x in (old, b)]
        return floats.flush_single(update(*operands).view(np.float32)).view(np.uint32)

    return function


def _vector(build: Build, operand: Operand) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    wanted = int(build.get("vec", "v1")[1:])
    if len(items) != wanted:
        raise build.refusal(f"got {len(items)} elements; the vector has {wanted}")
    return items


def _step(build: Build, *, returns: bool) -> Step:
    kind, space, operation = build.get("type"), build.get("space", "generic"), build.get("op")
    operands = list(build.operands)
    build.count(2 + returns + (operation == "cas") + build.has("L2::cache_hint"))
    dests: list[int] = []
    if returns:
        target = operands.pop(0)
        if not isinstance(target, Sink):
            dests = [build.dest(item, kind) for item in _vector(build, target)]
    addresses = build.address(operands[0])
    groups = [[build.source(item, kind) for item in _vector(build, operands[1])]]
    if operation == "cas":
        groups.append([build.source(operands[2], kind)])
    count = 2 if kind == "b128" else len(groups[0])
    path = Path(space, 8 if kind == "b128" else TYPE_BYTES[kind], count)
    update = _update(operation, kind)
    in_global = {"f32": _flushed(update), "f64": _add_double}.get(kind, update)
    apply = _applied(update, in_global, space if in_global is not update else "")
    key, size = f"atomic {space.split(':')[0]}", path.size
    scalar = count == 1 or kind == "b128"
    polls = operation == "cas"

    def step(warp: Warp) -> None:
        warp.learn(everything())
        lanes = np.flatnonzero(warp.mask)
        where = addresses(warp)[lanes]
        values = [_stacked(warp, slots, scalar)[lanes] for slots in groups]
        old = np.empty_like(values[0])
        for some in _rounds(where):
            at, who = where[some], lanes[some]
            everyone = None if len(who) == 32 else who
            old[some] = path.load(warp, at, everyone)
            path.store(warp, at, everyone, apply(at, old[some], *[v[some] for v in values]))
        warp.cta.machine.bytes[key] += len(lanes) * size
        if polls and old.tobytes() != values[0].tobytes():
            warp.poll()
        if dests:
            whole = np.zeros((32, *old.shape[1:]), old.dtype)
            whole[lanes] = old
            _spread(warp, dests, whole, scalar)

    return step


def _stacked(warp: Warp, slots: list[int], scalar: bool) -> Array:
    if scalar:
        return warp.r[slots[0]]
    return np.stack([warp.r[slot] for slot in slots], axis=1)


def _spread(warp: Warp, slots: list[int], values: Array, scalar: bool) -> None:
    if scalar and values.ndim == 2:
        warp.r[slots[0]] = np.where(warp.mask[:, None], values, warp.r[slots[0]])
    elif scalar:
        put(warp, slots[0], values)
    else:
        for slot, column in zip(slots, values.T.copy(), strict=True):
            put(warp, slot, column)


def _rounds(where: Array) -> list[Array]:
    """Positions of the lanes, so that in each round no address comes twice."""
    listed = where.tolist()
    if len(set(listed)) == len(listed):
        return [np.arange(len(listed))]
    seen: dict[int, int] = {}
    rounds: list[list[int]] = []
    for position, address in enumerate(listed):
        number = seen.get(address, 0)
        seen[address] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(position)
    return [np.array(positions) for positions in rounds]


def _applied(in_shared: _Update, in_global: _Update, space: str) -> Callable[..., Array]:
    """(addresses, old, ...) -> new. ``space``: empty where both are the same."""
    if space == "generic":
        return _by_window(in_shared, in_global)
    update = in_global if space == "global" else in_shared
    return lambda where, *operands: update(*operands)


def _by_window(in_shared: _Update, in_global: _Update) -> Callable[..., Array]:
    def apply(where: Array, *operands: Array) -> Array:
        shared = (where >= SHARED_WINDOW) & (where < SHARED_WINDOW + WINDOW_BYTES)
        shared = shared if operands[0].ndim == 1 else shared[:, None]
        return np.where(shared, in_shared(*operands), in_global(*operands))

    return apply


@atomics.instruction(
    *_synopses("atom", _ORDER, *_SHARED_FORMS, _EXCHANGE),
    section="atom",
    anchor="parallel-synchronization-and-communication-instructions-atom",
)
def atom(build: Build) -> Step:
    return _step(build, returns=True)


@atomics.instruction(
    *_synopses("atom", _ORDER, _COMPARE),
    section="atom",
    anchor="parallel-synchronization-and-communication-instructions-atom",
    ends_block=True,
)
def atom_cas(build: Build) -> Step:
    return _step(build, returns=True)


@atomics.instruction(
    *_synopses("red", _RED_ORDER, *_SHARED_FORMS),
    section="red",
    anchor="parallel-synchronization-and-communication-instructions-red",
)
def red(build: Build) -> Step:
    return _step(build, returns=False)
