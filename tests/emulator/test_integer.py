"""Integer arithmetic against Python's own integers, all widths, edges included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.instructions import edge_integers, execute


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def read(value: int, kind: str) -> int:
    bits = int(kind[1:])
    return signed(value, bits) if kind[0] == "s" else value & (1 << bits) - 1


def clamp(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value))


def quotient(a: int, b: int) -> int:
    """Toward zero; -1, all ones, for a zero divisor."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


KINDS = ["u16", "u32", "u64", "s16", "s32", "s64"]
WITHOUT_16 = ["u32", "u64", "s32", "s64"]
SIGNED = ["s16", "s32", "s64"]

Definition = Callable[..., int]
_OPERANDS = {"abs": 1, "neg": 1, "mad": 3, "mad24": 3, "sad": 3}


def _cases() -> list[tuple[str, str, Definition]]:
    """(instruction, type of all operands, definition on integers)."""
    cases: list[tuple[str, str, Definition]] = []
    for kind in KINDS:
        bits = int(kind[1:])
        cases += [
            (f"add.{kind}", kind, lambda a, b: a + b),
            (f"sub.{kind}", kind, lambda a, b: a - b),
            (f"mul.lo.{kind}", kind, lambda a, b: a * b),
            (f"mul.hi.{kind}", kind, lambda a, b, n=bits: a * b >> n),
            (f"mad.lo.{kind}", kind, lambda a, b, c: a * b + c),
            (f"mad.hi.{kind}", kind, lambda a, b, c, n=bits: (a * b >> n) + c),
            (f"div.{kind}", kind, quotient),
            (f"rem.{kind}", kind, lambda a, b: a - quotient(a, b) * b),
            (f"min.{kind}", kind, min),
            (f"max.{kind}", kind, max),
            (f"sad.{kind}", kind, lambda a, b, c: abs(a - b) + c),
        ]
    for kind in SIGNED:
        cases += [
            (f"abs.{kind}", kind, abs),
            (f"neg.{kind}", kind, lambda a: -a),
        ]
    cases += [
        ("add.sat.s32", "s32", lambda a, b: clamp(a + b)),
        ("sub.sat.s32", "s32", lambda a, b: clamp(a - b)),
        ("mad.hi.sat.s32", "s32", lambda a, b, c: clamp((a * b >> 32) + c)),
        ("min.relu.s32", "s32", lambda a, b: max(min(a, b), 0)),
        ("max.relu.s32", "s32", lambda a, b: max(a, b, 0)),
        ("mul24.lo.u32", "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        ("mul24.hi.u32", "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16),
        ("mul24.lo.s32", "s32", lambda a, b: signed(a, 24) * signed(b, 24)),
        ("mul24.hi.s32", "s32", lambda a, b: signed(a, 24) * signed(b, 24) >> 16),
        ("mad24.lo.s32", "s32", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
        (
            "mad24.hi.sat.s32",
            "s32",
            lambda a, b, c: clamp((signed(a, 24) * signed(b, 24) >> 16) + c),
        ),
    ]
    return cases


@pytest.mark.parametrize(("name", "kind", "define"), _cases(), ids=lambda v: str(v)[:20])
def test_arithmetic(name: str, kind: str, define: Definition) -> None:
    bits = int(kind[1:])
    count = _OPERANDS.get(name.split(".")[0], 2)
    inputs = [edge_integers(bits, 256, seed) for seed in range(count)]
    inputs[0][:40] = np.repeat(inputs[0][:8], 5)
    operands = ", ".join(f"%a{i}" for i in range(count))
    found = execute(f"{name} %d, {operands};", *inputs, result=f"u{bits // 8}")
    mask = (1 << bits) - 1
    for row, got in zip(zip(*(i.tolist() for i in inputs), strict=True), found, strict=True):
        expected = define(*(read(value, kind) for value in row)) & mask
        assert int(got) == expected, (name, row)


@pytest.mark.parametrize("kind", ["u16", "u32", "s16", "s32"])
def test_wide_products(kind: str) -> None:
    bits = int(kind[1:])
    a, b, c = edge_integers(bits, seed=1), edge_integers(bits, seed=2), edge_integers(2 * bits)
    result = f"u{bits // 4}"
    product = execute(f"mul.wide.{kind} %d, %a0, %a1;", a, b, result=result)
    sums = execute(f"mad.wide.{kind} %d, %a0, %a1, %a2;", a, b, c, result=result)
    mask = (1 << 2 * bits) - 1
    for x, y, z, p, s in zip(*(v.tolist() for v in (a, b, c, product, sums)), strict=True):
        exact = read(x, kind) * read(y, kind)
        assert p == exact & mask
        assert s == exact + z & mask


@pytest.mark.parametrize(
    ("name", "define"),
    [
        ("add.u16x2", lambda a, b: a + b),
        ("min.u16x2", min),
        ("max.u16x2", max),
        ("min.s16x2", lambda a, b: min(signed(a, 16), signed(b, 16))),
        ("max.s16x2", lambda a, b: max(signed(a, 16), signed(b, 16))),
        ("max.relu.s16x2", lambda a, b: max(signed(a, 16), signed(b, 16), 0)),
    ],
)
def test_halves(name: str, define: Definition) -> None:
    a, b = edge_integers(32, seed=1), edge_integers(32, seed=2)
    found = execute(f"{name} %d, %a0, %a1;", a, b)
    for x, y, got in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        low = define(x & 0xFFFF, y & 0xFFFF) & 0xFFFF
        high = define(x >> 16, y >> 16) & 0xFFFF
        assert got == high << 16 | low


@pytest.mark.parametrize("a_kind", ["u32", "s32"])
@pytest.mark.parametrize("b_kind", ["u32", "s32"])
def test_dot_products(a_kind: str, b_kind: str) -> None:
    a, b, c = (edge_integers(32, seed=seed) for seed in range(3))
    four = execute(f"dp4a.{a_kind}.{b_kind} %d, %a0, %a1, %a2;", a, b, c)
    two = execute(f"dp2a.hi.{a_kind}.{b_kind} %d, %a0, %a1, %a2;", a, b, c)

    def part(value: int, index: int, bits: int, kind: str) -> int:
        field = value >> bits * index & (1 << bits) - 1
        return signed(field, bits) if kind == "s32" else field

    for x, y, z, p, q in zip(*(v.tolist() for v in (a, b, c, four, two)), strict=True):
        exact = sum(part(x, i, 8, a_kind) * part(y, i, 8, b_kind) for i in range(4))
        assert p == exact + z & 0xFFFF_FFFF
        exact = sum(part(x, i, 16, a_kind) * part(y, 2 + i, 8, b_kind) for i in range(2))
        assert q == exact + z & 0xFFFF_FFFF


def test_carry_chain_adds_128_bits() -> None:
    words = [edge_integers(32, seed=seed) for seed in range(8)]
    body = """
        add.cc.u32 %r3, %a0, %a4; addc.cc.u32 %r4, %a1, %a5;
        addc.cc.u32 %r5, %a2, %a6; addc.u32 %d, %a3, %a7;"""
    found = execute(body, *words)
    for row, got in zip(zip(*(w.tolist() for w in words), strict=True), found, strict=True):
        a = sum(word << 32 * i for i, word in enumerate(row[:4]))
        b = sum(word << 32 * i for i, word in enumerate(row[4:]))
        assert int(got) == (a + b) >> 96 & 0xFFFF_FFFF


def test_borrow_chain_subtracts_128_bits() -> None:
    words = [edge_integers(64, seed=seed) for seed in range(4)]
    found = execute("sub.cc.u64 %rd3, %a0, %a2; subc.u64 %d, %a1, %a3;", *words, result="u8")
    for row, got in zip(zip(*(w.tolist() for w in words), strict=True), found, strict=True):
        a, b = row[0] | row[1] << 64, row[2] | row[3] << 64
        assert int(got) == (a - b) >> 64 & (1 << 64) - 1


def test_multiply_add_with_carry() -> None:
    a, b, c, e = (edge_integers(32, seed=seed) for seed in range(4))
    body = "mad.lo.cc.u32 %r3, %a0, %a1, %a2; madc.hi.u32 %d, %a0, %a1, %a3;"
    found = execute(body, a, b, c, e)
    for x, y, z, w, got in zip(*(v.tolist() for v in (a, b, c, e, found)), strict=True):
        assert got == (x * y + (z | w << 32)) >> 32 & 0xFFFF_FFFF
