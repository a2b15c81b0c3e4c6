"""Logic, shifts, bit fields and byte permutation. PTX ISA, "Logic and Shift Instructions"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import DTYPES, Build, compute, compute_slots, put
from nibblas.emulator.isa.permutations import permutation, permuted
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.isa.truth_tables import three_input
from nibblas.emulator.machine.memory import Array
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import TYPE_BYTES, Imm, Pair

logic = Family("logic")

_BITWISE = "type:pred|b16|b32|b64"
_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


@logic.instruction(f"and {_BITWISE}", section="and", anchor="logic-and-shift-instructions-and")
@logic.instruction(f"or {_BITWISE}", section="or", anchor="logic-and-shift-instructions-or")
@logic.instruction(f"xor {_BITWISE}", section="xor", anchor="logic-and-shift-instructions-xor")
def bitwise(build: Build) -> Step:
    kind = build.get("type")
    functions = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    return compute(build, functions[build.instruction.opcode], kind, kind, kind)


@logic.instruction(f"not {_BITWISE}", section="not", anchor="logic-and-shift-instructions-not")
def not_(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.invert, kind, kind)


@logic.instruction(
    "cnot type:b16|b32|b64", section="cnot", anchor="logic-and-shift-instructions-cnot"
)
def cnot(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, lambda a: (a == 0).astype(a.dtype), kind, kind)


@logic.instruction("shl type:b16|b32|b64", section="shl", anchor="logic-and-shift-instructions-shl")
def shl(build: Build) -> Step:
    """Amounts past the width give 0; numpy's shift does the same."""
    kind = build.get("type")
    dtype = DTYPES[kind]
    if kind == "b32":
        return compute(build, np.left_shift, kind, kind, "u32")
    return compute(build, lambda a, n: np.left_shift(a, n).astype(dtype), kind, kind, "u32")


@logic.instruction(
    "shr type:b16|b32|b64|u16|u32|u64|s16|s32|s64",
    section="shr",
    anchor="logic-and-shift-instructions-shr",
)
def shr(build: Build) -> Step:
    """Signed types fill with the sign; amounts are clamped to the width."""
    kind = build.get("type")
    dtype, most = DTYPES[kind], 8 * TYPE_BYTES[kind] - 1
    if kind in ("b32", "u32"):
        return compute(build, np.right_shift, kind, kind, "u32")
    if kind[0] != "s":
        return compute(build, lambda a, n: np.right_shift(a, n).astype(dtype), kind, kind, "u32")

    def shift(a: Array, n: Array) -> Array:
        shifted: Array = np.right_shift(a, np.minimum(n, most).astype(dtype))
        return shifted

    return compute(build, shift, kind, kind, "u32")


@logic.instruction(
    "shf side:l|r mode:clamp|wrap b32", section="shf", anchor="logic-and-shift-instructions-shf"
)
def shf(build: Build) -> Step:
    """``d, a, b, c``: the 64 bits with a below b, shifted by c; the upper or lower half."""
    wrap, left = build.get("mode") == "wrap", build.get("side") == "l"

    def shift(a: Array, b: Array, c: Array) -> Array:
        joined = b.astype(np.uint64) << np.uint64(32) | a
        amount = (c & 31 if wrap else np.minimum(c, 32)).astype(np.uint64)
        moved: Array = joined << amount >> np.uint64(32) if left else joined >> amount
        return moved.astype(np.uint32)

    return compute(build, shift, "b32", "b32", "b32", "u32")


@logic.instruction("lop3 b32", section="lop3", anchor="logic-and-shift-instructions-lop3")
def lop3(build: Build) -> Step:
    build.count(5)
    function, order = three_input(_table_of(build))
    sources = [build.source(1 + i, "b32") for i in order]
    return compute_slots(function, build.dest(0, "b32"), "b32", sources, ["b32"] * 3)


@logic.instruction(
    "lop3 combine:or|and b32", section="lop3", anchor="logic-and-shift-instructions-lop3"
)
def lop3_predicate(build: Build) -> Step:
    """``d|p, a, b, c, table, q``: p is (d != 0) combined with q."""
    build.count(6)
    function, order = three_input(_table_of(build))
    target = build.operands[0]
    if not isinstance(target, Pair):
        raise build.refusal("expected d|p as destination")
    dest, flag = build.dest(target.first, "b32"), build.dest(target.second, "pred")
    x, y, z = (build.source(1 + i, "b32") for i in order)
    other, negated = build.predicate(5)
    combine = np.bitwise_or if build.get("combine") == "or" else np.bitwise_and

    def step(warp: Warp) -> None:
        r = warp.r
        value = function(r[x], r[y], r[z])
        condition = combine(value != 0, ~r[other] if negated else r[other])
        put(warp, dest, value)
        put(warp, flag, condition)

    return step


def _table_of(build: Build) -> int:
    table = build.integer(4)
    if not 0 <= table <= 0xFF:
        raise build.refusal(f"got {table}; want a truth table of 8 bits")
    return table


@logic.instruction(
    "prmt b32", section="prmt", anchor="data-movement-and-conversion-instructions-prmt"
)
def prmt(build: Build) -> Step:
    """Byte i of d is the byte that selector nibble i names; its bit 3: the sign, eight times."""
    build.count(4)
    selector = build.operands[3]
    if isinstance(selector, Imm):
        function = permutation(int(selector.value) & 0xFFFF)
        sources = [build.source(1, "b32"), build.source(2, "b32")]
        return compute_slots(function, build.dest(0, "b32"), "b32", sources, ["b32", "b32"])
    return compute(build, permuted, "b32", "b32", "b32", "b32")


_PRMT_MODES = {  # nibbles, byte 0 first, by the selector's low two bits
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@logic.instruction(
    "prmt b32 mode:f4e|b4e|rc8|ecl|ecr|rc16",
    section="prmt",
    anchor="data-movement-and-conversion-instructions-prmt",
)
def prmt_mode(build: Build) -> Step:
    selectors = np.array([int(digits, 16) for digits in _PRMT_MODES[build.get("mode")]], np.uint32)
    return compute(build, lambda a, b, c: permuted(a, b, selectors[c & 3]), *["b32"] * 4)


@logic.instruction(
    "popc type:b32|b64", section="popc", anchor="integer-arithmetic-instructions-popc"
)
def popc(build: Build) -> Step:
    kind = build.get("type")
    size = TYPE_BYTES[kind]

    def count(a: Array) -> Array:
        ones = _ONES[np.ascontiguousarray(a).view(np.uint8)].reshape(-1, size)
        total: Array = ones.sum(axis=1, dtype=np.uint32)
        return total

    return compute(build, count, "u32", kind)


def bit_length(a: Array) -> Array:
    """Position of the highest one, from 1; 0 for 0. int32, any unsigned type."""
    wide = a.astype(np.uint64)
    high = (wide >> np.uint64(32)).astype(np.float64)
    low = (wide & np.uint64(0xFFFF_FFFF)).astype(np.float64)
    length: Array = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return length.astype(np.int32)


@logic.instruction("clz type:b32|b64", section="clz", anchor="integer-arithmetic-instructions-clz")
def clz(build: Build) -> Step:
    kind = build.get("type")
    bits = 8 * TYPE_BYTES[kind]
    return compute(build, lambda a: (bits - bit_length(a)).astype(np.uint32), "u32", kind)


@logic.instruction(
    "bfind type:@int",
    "bfind shiftamt type:@int",
    section="bfind",
    anchor="integer-arithmetic-instructions-bfind",
)
def bfind(build: Build) -> Step:
    """The highest bit that is no sign; with shiftamt its distance from the top; else all ones."""
    kind = build.get("type")
    if TYPE_BYTES[kind] == 2:
        raise build.refusal("bfind has no 16-bit types")
    bits = 8 * TYPE_BYTES[kind]

    def find(a: Array) -> Array:
        length = bit_length((np.where(a < 0, ~a, a) if kind[0] == "s" else a).view(f"u{bits // 8}"))
        if build.has("shiftamt"):
            length = np.where(length == 0, 0, bits + 1 - length)
        return (length - 1).astype(np.uint32)

    return compute(build, find, "u32", kind)


@logic.instruction(
    "brev type:b32|b64", section="brev", anchor="integer-arithmetic-instructions-brev"
)
def brev(build: Build) -> Step:
    kind = build.get("type")

    def reverse(a: Array) -> Array:
        reversed_bytes: Array = _REVERSED[np.ascontiguousarray(a.byteswap()).view(np.uint8)]
        return reversed_bytes.view(DTYPES[kind])

    return compute(build, reverse, kind, kind)


def field_range(operand: Array, bits: int) -> Array:
    """A position or length: the PTX ISA allows 0 to 255; beyond, 32-bit forms use the low byte,
    64-bit forms all of it (so an H200 answers)."""
    return operand & np.uint32(0xFF) if bits == 32 else np.minimum(operand, 255)


@logic.instruction(
    "bfe type:u32|u64|s32|s64", section="bfe", anchor="integer-arithmetic-instructions-bfe"
)
def bfe(build: Build) -> Step:
    """``d, a, position, length``: past the top the sign, or zero, goes on."""
    kind = build.get("type")
    bits, bits_type = 8 * TYPE_BYTES[kind], f"b{8 * TYPE_BYTES[kind]}"
    unsigned = DTYPES[bits_type]

    def extract(a: Array, position: Array, length: Array) -> Array:
        position, length = field_range(position, bits), field_range(length, bits)
        wide = a.astype(np.uint64)
        kept = np.minimum(length, 64).astype(np.uint64)
        field = (wide >> position.astype(np.uint64)) & ~(~np.uint64(0) << kept)
        if kind[0] == "s":
            top = np.minimum(position + length - 1, bits - 1)
            sign = (wide >> top.astype(np.uint64) & np.uint64(1)) * (length > 0)
            reach = np.minimum(np.minimum(length, np.maximum(bits - position.astype(int), 0)), 64)
            fill = ~np.uint64(0) << reach.astype(np.uint64)
            field = np.where(sign > 0, field | fill, field)
        narrow: Array = field.astype(unsigned)
        return narrow

    return compute(build, extract, bits_type, bits_type, "u32", "u32")


@logic.instruction("bfi type:b32|b64", section="bfi", anchor="integer-arithmetic-instructions-bfi")
def bfi(build: Build) -> Step:
    """``d, a, b, position, length``: a's low bits go into b."""
    kind = build.get("type")
    dtype, bits = DTYPES[kind], 8 * TYPE_BYTES[kind]

    def insert(a: Array, b: Array, position: Array, length: Array) -> Array:
        at = field_range(position, bits).astype(np.uint64)
        mask = ~(~np.uint64(0) << field_range(length, bits).astype(np.uint64)) << at
        inserted: Array = (a.astype(np.uint64) << at & mask) | (b.astype(np.uint64) & ~mask)
        result: Array = inserted.astype(dtype)
        return result

    return compute(build, insert, kind, kind, kind, "u32", "u32")


@logic.instruction(
    "bmsk mode:clamp|wrap b32", section="bmsk", anchor="integer-arithmetic-instructions-bmsk"
)
def bmsk(build: Build) -> Step:
    """``d, a, b``: b ones from bit a."""
    wrap = build.get("mode") == "wrap"

    def mask(a: Array, b: Array) -> Array:
        at, count = (a & 31, b & 31) if wrap else (a, b)
        ones = ~(~np.uint64(0) << count.astype(np.uint64)) << at.astype(np.uint64)
        return np.where(count == 0, 0, ones).astype(np.uint32)

    return compute(build, mask, "b32", "u32", "u32")


@logic.instruction(
    "szext mode:clamp|wrap type:u32|s32",
    section="szext",
    anchor="integer-arithmetic-instructions-szext",
)
def szext(build: Build) -> Step:
    """The low n bits, extended with zeros or their sign."""
    kind, wrap = build.get("type"), build.get("mode") == "wrap"

    def extend(a: Array, n: Array) -> Array:
        count = n & 31 if wrap else np.minimum(n, 32)
        shift = (64 - count.astype(np.int64)).astype(np.int64)
        if kind == "s32":
            wide = (a.astype(np.int64) << np.minimum(shift, 63)) >> np.minimum(shift, 63)
            return np.where(count == 0, 0, wide).astype(np.uint32)
        low: Array = (a & ~(~np.uint64(0) << count.astype(np.uint64))).astype(np.uint32)
        return low

    return compute(build, extend, "b32", "b32", "u32")


@logic.instruction("fns b32", section="fns", anchor="integer-arithmetic-instructions-fns")
def fns(build: Build) -> Step:
    """``d, mask, base, n``: the n-th one from the base upwards, or downwards; else all ones."""

    def find(mask: Array, base: Array, n: Array) -> Array:
        rows = zip(mask.tolist(), base.tolist(), n.tolist(), strict=True)
        return np.array([_nth_one(*row) for row in rows], np.uint32)

    return compute(build, find, "b32", "b32", "u32", "s32")


def _nth_one(mask: int, base: int, n: int) -> int:
    step, left = (1, n - 1) if n > 0 else (-1, -n - 1) if n < 0 else (32, 0)
    for position in range(base, 32 if step > 0 else -1, step):
        if mask >> position & 1:
            if left == 0:
                return position
            left -= 1
    return 0xFFFF_FFFF
