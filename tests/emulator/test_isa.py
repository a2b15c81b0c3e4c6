"""The table of handlers, and the first families against numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from nibblas.emulator.isa.registry import HANDLERS, MANUAL_ONLY
from nibblas.emulator.isa.syntax import Syntax
from nibblas.emulator.isa.table import FAMILIES, all_handlers
from tests.emulator.conftest import Lanes

A = np.random.default_rng(7).integers(0, 2**32, 32, dtype=np.uint32)
B = np.random.default_rng(8).integers(0, 2**32, 32, dtype=np.uint32)
A[:4] = B[:4] = [0, 1, 0x7FFFFFFF, 0x80000000]
TABLES = (
    f".const .u32 left[32] = {{{', '.join(map(str, A))}}};\n"
    f".const .u32 right[32] = {{{', '.join(map(str, B))}}};\n"
)
LOAD = """
    mul.wide.u32 %rd4, %r0, 4;
    mov.u64 %rd2, left;
    mov.u64 %rd3, right;
    add.s64 %rd2, %rd2, %rd4;
    add.s64 %rd3, %rd3, %rd4;
    ld.const.u32 %r2, [%rd2];
    ld.const.u32 %r3, [%rd3];
"""
SA, SB = A.view(np.int32), B.view(np.int32)
AMOUNT = B & 63


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("add.s32 %r1, %r2, %r3;", A + B),
        ("sub.u32 %r1, %r2, %r3;", A - B),
        ("mul.lo.s32 %r1, %r2, %r3;", A * B),
        ("mad.lo.u32 %r1, %r2, %r3, 17;", A * B + np.uint32(17)),
        ("and.b32 %r1, %r2, %r3;", A & B),
        ("or.b32 %r1, %r2, %r3;", A | B),
        ("xor.b32 %r1, %r2, %r3;", A ^ B),
        ("not.b32 %r1, %r2;", ~A),
        (
            "mul.wide.s32 %rd5, %r2, %r3; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r1, %rd5;",
            (SA.astype(np.int64) * SB.astype(np.int64) >> 32).astype(np.uint32),
        ),
        (
            "mul.wide.u32 %rd5, %r2, %r3; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r1, %rd5;",
            (A.astype(np.uint64) * B.astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
        ),
        (
            "and.b32 %r3, %r3, 63; shl.b32 %r1, %r2, %r3;",
            (A.astype(np.uint64) << AMOUNT.astype(np.uint64)).astype(np.uint32)
            * (AMOUNT < 32).astype(np.uint32),
        ),
        (
            "and.b32 %r3, %r3, 63; shr.u32 %r1, %r2, %r3;",
            (A.astype(np.uint64) >> AMOUNT.astype(np.uint64)).astype(np.uint32),
        ),
        (
            "and.b32 %r3, %r3, 63; shr.s32 %r1, %r2, %r3;",
            (SA >> np.minimum(AMOUNT, 31).astype(np.int32)).view(np.uint32),
        ),
        ("setp.lt.s32 %p1, %r2, %r3; selp.b32 %r1, 1, 0, %p1;", (SA < SB).astype(np.uint32)),
        ("setp.lt.u32 %p1, %r2, %r3; selp.b32 %r1, 1, 0, %p1;", (A < B).astype(np.uint32)),
        (
            "setp.ne.u32 %p1, %r0, 3; setp.lt.and.u32 %p2|%p3, %r2, %r3, !%p1;"
            "selp.b32 %r4, 1, 0, %p2; selp.b32 %r1, 2, %r4, %p3;",
            np.where(np.arange(32) == 3, np.where(A < B, 1, 2), 0),
        ),
        ("cvt.s64.s32 %rd5, %r2; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r1, %rd5;", SA >> 31),
        ("cvt.u16.u32 %h1, %r2; cvt.s32.s16 %r1, %h1;", A.astype(np.int16).astype(np.int32)),
        ("cvt.sat.s8.s32 %r1, %r2;", np.clip(SA, -128, 127)),
        ("mov.b32 {%h1, %h2}, %r2; mov.b32 %r1, {%h2, %h1};", A >> 16 | A << 16),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_integers_against_numpy(lanes: Lanes, body: str, expected: np.ndarray) -> None:
    found = lanes(LOAD + body, before=TABLES)
    assert found.tolist() == np.asarray(expected).astype(np.int64).astype(np.uint32).tolist()


@pytest.mark.parametrize(
    ("synopsis", "modifiers", "found"),
    [
        (
            "ld [weak] [space:global|shared] type:b32",
            ["global", "b32"],
            {"space": "global", "type": "b32"},
        ),
        (
            "ld [weak] [space:global|shared] type:b32",
            ["weak", "b32"],
            {"weak": "weak", "type": "b32"},
        ),
        ("ld [weak] [space:global|shared] type:b32", ["b32", "global"], None),
        ("ld [weak] [space:global|shared] type:b32", ["global"], None),
        ("cvt to:s8|u8 from:s8|u8", ["s8", "u8"], {"to": "s8", "from": "u8"}),
        (
            "ld [space:shared::cta|shared] type:b8",
            ["shared::cta", "b8"],
            {"space": "shared::cta", "type": "b8"},
        ),
        (
            "st [L2::cache_hint] type:b8",
            ["L2::cache_hint", "b8"],
            {"L2::cache_hint": "L2::cache_hint", "type": "b8"},
        ),
    ],
)
def test_synopsis(synopsis: str, modifiers: list[str], found: dict | None) -> None:
    assert Syntax(synopsis).match(modifiers) == found


@pytest.mark.parametrize(
    ("synopsis", "modifiers", "found"),
    [
        (
            "ld [sem:acquire|relaxed] [scope:gpu] [space:global] [vec:v2] type:u64",
            "global.u64.v2",
            1,
        ),
        (
            "ld [sem:acquire|relaxed] [scope:gpu] [space:global] [vec:v2] type:u64",
            "u64.gpu.acquire",
            1,
        ),
        ("ld [vec:v2] type:u64", "v2", 0),  # the type is missing
        ("ld [vec:v2] type:u64", "u64.v2.v2", 0),
        ("ld [vec:v2] type:u64", "u64.v4", 0),
        ("cvt [sat] f16 f32", "f16.f32.sat", 1),
        ("cvt [sat] f16 f32", "f32.f16.sat", 0),  # d before a
        ("cvt [sat] to:f16|f32 from:f16|f32", "f16.f32.sat", 0),  # each could be either
        ("cp bulk global shared::cta group", "bulk.group.global.shared::cta", 1),
        ("cp bulk global shared::cta group", "bulk.shared::cta.global.group", 0),  # to before from
    ],
)
def test_words_may_stand_elsewhere(synopsis: str, modifiers: str, found: bool) -> None:
    words = modifiers.split(".")
    match = Syntax(synopsis).match_in_any_order(words)
    assert (match is not None) == found
    assert match is None or sorted(match.values()) == sorted(words)


def test_what_stands_in_order_comes_first(lanes: Lanes) -> None:
    """Kernels in use have .acquire behind .global, .v2 behind the type, .relu behind .f16x2."""
    body = """
        st.shared.u32 [cell], %r0;
        ld.shared.acquire.gpu.u32 %r1, [cell];
        st.global.u32.cs [%rd1], %r1;
        ld.global.u32.cg %r2, [%rd1];
        fma.rn.f16x2.relu %r3, %r2, %r2, %r2;
        setp.u32.eq %p1, %r1, %r2;
        selp.u32 %r1, 1, 0, %p1;
    """
    assert (lanes(body, before=".shared .u32 cell;") == 1).all()


def test_every_handler_says_where_it_comes_from() -> None:
    handlers = all_handlers()
    entered = [handler for of_opcode in HANDLERS.values() for handler in of_opcode]
    assert {id(handler) for handler in entered} == {id(handler) for handler in handlers}
    assert all(family.handlers for family in FAMILIES)
    for handler in handlers:
        assert handler.section
        assert re.fullmatch(r"[a-z0-9-]+", handler.anchor)
        assert handler.provenance.startswith(MANUAL_ONLY) or re.search(
            r"\d{4}-\d\d-\d\d", handler.provenance
        )


def test_no_two_handlers_claim_one_synopsis() -> None:
    synopses = [syntax.synopsis for handler in all_handlers() for syntax in handler.syntaxes]
    assert len(synopses) == len(set(synopses))
