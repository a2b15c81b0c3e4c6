"""Logic, shifts, bit fields, byte permutation against their definitions on Python's integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nibblas.emulator.isa.truth_tables import three_input
from tests.emulator.instructions import edge_integers, execute

M32 = 0xFFFF_FFFF


def test_lop3_has_all_256_functions() -> None:
    a, b, c = (np.array(v, np.uint32) for v in ([0xF0] * 2, [0xCC] * 2, [0xAA] * 2))
    for table in range(256):
        function, order = three_input(table)
        found = function(*[(a, b, c)[i] for i in order])
        assert (found & 0xFF).tolist() == [table, table]


@pytest.mark.parametrize("combine", ["or", "and"])
def test_lop3_with_predicate(combine: str) -> None:
    a, b = edge_integers(32, seed=1), edge_integers(32, seed=2) & 3
    body = f"""
        setp.eq.u32 %p2, %a1, 1;
        lop3.{combine}.b32 %d|%p1, %a0, %a1, 7, 0x80, %p2;
        selp.b32 %d, 1, 0, %p1;"""
    expected = [
        int((x & y & 7 != 0) or y == 1) if combine == "or" else int((x & y & 7 != 0) and y == 1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert execute(body, a, b).tolist() == expected


def permuted(a: int, b: int, selector: int) -> int:
    data = (a | b << 32).to_bytes(8, "little")
    result = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = data[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * i
    return result


@pytest.mark.parametrize(
    "selector", [0x5410, 0x7632, 0x3210, 0x0123, 0x7654, 0x4140, 0x0000, 0x9876, 0x5040, 0x6521]
)
def test_prmt_with_a_constant(selector: int) -> None:
    a, b = edge_integers(32, seed=1), edge_integers(32, seed=2)
    found = execute(f"prmt.b32 %d, %a0, %a1, {selector:#x};", a, b)
    assert found.tolist() == [
        permuted(x, y, selector) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]


def test_prmt_with_a_register() -> None:
    a, b, c = (edge_integers(32, 1024, seed) for seed in (1, 2, 3))
    expected = [
        permuted(x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert execute("prmt.b32 %d, %a0, %a1, %a2;", a, b, c).tolist() == expected


@pytest.mark.parametrize(
    ("mode", "bytes_of"),
    [  # PTX ISA, table of prmt modes: source bytes of d, most significant first
        ("f4e", lambda c: [c + 3, c + 2, c + 1, c]),
        ("b4e", lambda c: [(c - 3) % 8, (c - 2) % 8, (c - 1) % 8, c]),
        ("rc8", lambda c: [c, c, c, c]),
        ("ecl", lambda c: [max(3, c), max(2, c), max(1, c), c]),
        ("ecr", lambda c: [c, min(2, c), min(1, c), 0]),
        ("rc16", lambda c: [2 * (c & 1) + 1, 2 * (c & 1)] * 2),
    ],
)
def test_prmt_modes(mode: str, bytes_of) -> None:
    a, b, c = (edge_integers(32, seed=seed) for seed in (1, 2, 3))
    expected = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        selector = int("".join(map(str, bytes_of(z & 3))), 16)
        expected.append(permuted(x, y, selector))
    assert execute(f"prmt.b32.{mode} %d, %a0, %a1, %a2;", a, b, c).tolist() == expected


@pytest.mark.parametrize(("side", "mode"), list(itertools.product("lr", ["clamp", "wrap"])))
def test_funnel_shift(side: str, mode: str) -> None:
    a, b, c = (edge_integers(32, seed=seed) for seed in (1, 2, 3))
    c[:256] %= 70
    expected = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        n = z & 31 if mode == "wrap" else min(z, 32)
        joined = x | y << 32
        expected.append((joined << n >> 32 if side == "l" else joined >> n) & M32)
    assert execute(f"shf.{side}.{mode}.b32 %d, %a0, %a1, %a2;", a, b, c).tolist() == expected


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
def test_shifts(kind: str) -> None:
    bits = int(kind[1:])
    a, n = edge_integers(bits, seed=1), edge_integers(32, seed=2)
    n[:300] %= 80
    left, right = [], []
    for x, y in zip(a.tolist(), n.tolist(), strict=True):
        value = x - (1 << bits) if kind[0] == "s" and x >> bits - 1 else x
        left.append((x << min(y, bits)) % (1 << bits))
        right.append((value >> min(y, bits)) % (1 << bits))
    result = f"u{bits // 8}"
    assert execute(f"shl.b{bits} %d, %a0, %a1;", a, n, result=result).tolist() == left
    assert execute(f"shr.{kind} %d, %a0, %a1;", a, n, result=result).tolist() == right


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_and_reversal(bits: int) -> None:
    a = edge_integers(bits, 1024)
    values = a.tolist()
    assert execute(f"popc.b{bits} %d, %a0;", a).tolist() == [v.bit_count() for v in values]
    assert execute(f"clz.b{bits} %d, %a0;", a).tolist() == [bits - v.bit_length() for v in values]
    expected = [int(f"{v:0{bits}b}"[::-1], 2) for v in values]
    assert execute(f"brev.b{bits} %d, %a0;", a, result=f"u{bits // 8}").tolist() == expected


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfind(kind: str) -> None:
    bits = int(kind[1:])
    a = edge_integers(bits, 1024)
    plain, shift = [], []
    for value in a.tolist():
        value = ~value % (1 << bits) if kind[0] == "s" and value >> bits - 1 else value
        found = value.bit_length() - 1
        plain.append(found % (1 << 32))
        shift.append(M32 if found < 0 else bits - 1 - found)
    assert execute(f"bfind.{kind} %d, %a0;", a).tolist() == plain
    assert execute(f"bfind.shiftamt.{kind} %d, %a0;", a).tolist() == shift


def in_range(operand: int, bits: int) -> int:
    """The PTX ISA allows 0 to 255; beyond, an H200 cuts in 32-bit forms and not in 64-bit ones."""
    return operand & 0xFF if bits == 32 else min(operand, 255)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfe_follows_the_pseudocode(kind: str) -> None:
    bits = int(kind[1:])
    a, b, c = edge_integers(bits, 1024), edge_integers(32, 1024, 1), edge_integers(32, 1024, 2)
    b[:700] %= bits + 4
    c[:700] %= bits + 4
    expected = []
    for value, position, length in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        position, length = in_range(position, bits), in_range(length, bits)
        sign = value >> min(position + length - 1, bits - 1) & 1 if length else 0
        if kind[0] == "u":
            sign = 0
        result = 0
        for i in range(bits):
            inside = i < length and position + i < bits
            result |= (value >> position + i & 1 if inside else sign) << i
        expected.append(result)
    found = execute(f"bfe.{kind} %d, %a0, %a1, %a2;", a, b, c, result=f"u{bits // 8}")
    assert found.tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_bfi_follows_the_pseudocode(bits: int) -> None:
    a, b = edge_integers(bits, 1024, 1), edge_integers(bits, 1024, 2)
    c, d = edge_integers(32, 1024, 3), edge_integers(32, 1024, 4)
    c[:700] %= bits + 4
    d[:700] %= bits + 4
    expected = []
    for x, y, position, length in zip(*(v.tolist() for v in (a, b, c, d)), strict=True):
        for i in range(in_range(length, bits)):
            at = in_range(position, bits) + i
            if at < bits and i < bits:
                y = y & ~(1 << at) | (x >> i & 1) << at
        expected.append(y)
    found = execute(f"bfi.b{bits} %d, %a0, %a1, %a2, %a3;", a, b, c, d, result=f"u{bits // 8}")
    assert found.tolist() == expected


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk_and_szext(mode: str) -> None:
    a, b = edge_integers(32, seed=1), edge_integers(32, seed=2)
    a[:400] %= 40
    b[:400] %= 40
    masks, zeros, signs = [], [], []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        at, count = (x & 31, y & 31) if mode == "wrap" else (x, y)
        masks.append((1 << min(count, 32)) - 1 << min(at, 32) & M32)
        n = y & 31 if mode == "wrap" else min(y, 32)
        low = x & (1 << n) - 1
        zeros.append(low)
        signs.append((low - (1 << n) if n and low >> n - 1 else low) & M32)
    assert execute(f"bmsk.{mode}.b32 %d, %a0, %a1;", a, b).tolist() == masks
    assert execute(f"szext.{mode}.u32 %d, %a0, %a1;", a, b).tolist() == zeros
    assert execute(f"szext.{mode}.s32 %d, %a0, %a1;", a, b).tolist() == signs


def test_fns_finds_the_nth_one() -> None:
    mask = edge_integers(32, 512, 1)
    base = np.random.default_rng(2).integers(0, 32, 512).astype(np.uint32)
    n = np.random.default_rng(3).integers(-6, 7, 512).astype(np.int32)
    expected = []
    for m, b, count in zip(mask.tolist(), base.tolist(), n.tolist(), strict=True):
        places = [b] if count == 0 else list(range(b, 32) if count > 0 else range(b, -1, -1))
        ones = [p for p in places if m >> p & 1]
        wanted = max(abs(count), 1) - 1
        expected.append(ones[wanted] if wanted < len(ones) else M32)
    assert execute("fns.b32 %d, %a0, %a1, %a2;", mask, base, n).tolist() == expected


def test_cnot() -> None:
    a = edge_integers(32)
    assert execute("cnot.b32 %d, %a0;", a).tolist() == (a == 0).astype(int).tolist()
