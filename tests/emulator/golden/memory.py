"""Loads, stores and atomics of every space and width; cp.async."""

from __future__ import annotations

import itertools

import numpy as np

from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw
from tests.emulator.golden.operands import operands

_THREADS = 64


def loads() -> Case:
    """Every width and sign, extended into wider registers; vectors; through shared and local."""
    lines = ["mad.wide.u32 %rd10, %r0, 32, %rd0;", "mad.wide.u32 %rd21, %r0, 8, %rd20;"]
    lines += ["cvta.to.global.u64 %rd11, %rd10;", "mov.u32 %r1, tile;"]
    lines += ["mad.lo.u32 %r2, %r0, 32, %r1;", "cvt.u64.u32 %rd12, %r2;"]
    lines += [
        "cvta.shared.u64 %rd12, %rd12;",
        "mov.u64 %rd13, spill;",
        "cvta.local.u64 %rd14, %rd13;",
    ]
    for i in range(2):
        lines.append(f"ld.global.nc.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd10+{16 * i}];")
        lines.append(f"st.shared.v4.b32 [%r2+{16 * i}], {{%r10, %r11, %r12, %r13}};")
        lines.append(f"st.local.v4.b32 [spill+{16 * i}], {{%r10, %r11, %r12, %r13}};")
    lines.append("bar.sync 0;")
    row = itertools.count()

    def store64(register: str) -> None:
        lines.append(f"st.global.b64 [%rd21+{8 * _THREADS * next(row)}], {register};")

    places = {
        "global": "%rd10",
        "shared": "%r2",
        "local": "%rd13",
        "": "%rd12",
        "volatile.global": "%rd10",
        "relaxed.gpu.global": "%rd10",
        "acquire.gpu.global": "%rd10",
    }
    for (space, base), kind in itertools.product(
        places.items(), ("u8", "s8", "u16", "s16", "u32", "s32", "b64")
    ):
        dot = "." if space else ""
        at = int(kind[1:]) // 8 * 3 % 24
        lines.append(f"ld{dot}{space}.{kind} %rd30, [{base}+{at}];")
        store64("%rd30")
    lines.append("ld.u16 %rd30, [%rd14+6];")
    store64("%rd30")
    for cop in ("ca", "cg", "cs", "lu", "cv"):
        lines.append(f"ld.global.{cop}.b64 %rd30, [%rd10+8];")
        store64("%rd30")
    for kind, count in (("u8", 4), ("s16", 2), ("b16", 4), ("b32", 2), ("b64", 2)):
        registers = [f"%rd{30 + i}" for i in range(count)]
        lines.append(f"ld.shared.v{count}.{kind} {{{', '.join(registers)}}}, [%r2+16];")
        for register in registers:
            store64(register)
    lines.append("ld.global.b64 %rd30, [%rd10];")
    for i, kind in enumerate(("b8", "b16", "b32", "b64")):
        lines.append(f"st.shared.{kind} [%r2+{8 * i % 32}], %rd30;")
    lines += ["bar.sync 0;"]
    for i in range(4):
        lines.append(f"ld.shared.b64 %rd30, [%r2+{8 * i}];")
        store64("%rd30")
    shared = f".shared .align 16 .b8 tile[{32 * _THREADS}]; .local .align 16 .b8 spill[32];"
    data = Draw(5).integers(0, 256, 32 * _THREADS, np.uint8)
    text = module("    " + "\n    ".join(lines), shared=shared)
    return Case("loads", text, (data,), 8 * _THREADS * next(row), block=_THREADS)


_ATOMS = [
    *itertools.product(("add", "min", "max", "exch"), ("u32", "u64")),
    *itertools.product(("min", "max"), ("s32", "s64")),
    ("add", "s32"),
    *itertools.product(("and", "or", "xor", "exch", "cas"), ("b32", "b64")),
    *itertools.product(("inc", "dec"), ("u32",)),
    ("add", "f32"),
    ("add", "f64"),
    ("add", "noftz.f16x2"),
    ("add", "noftz.bf16x2"),
    ("add", "noftz.f16"),
    ("cas", "b16"),
]


def atomics(space: str) -> Case:
    """One address per thread: what was there, and what is there afterwards; then red.

    The last rows are whole warps on few addresses, with operations whose order does not show.
    """
    float_kinds = ("f32", "f64", "f16", "bf16")
    tables = {
        "int": [operands("int", bits, 6, _THREADS) for bits in (16, 32, 64)],
        "float": [operands("float", bits, 7, _THREADS) for bits in (16, 32, 64)],
    }
    inputs = tuple(itertools.chain(*tables.values()))
    lines = ["mad.wide.u32 %rd21, %r0, 8, %rd20;", "mov.u32 %r1, cells;"]
    lines.append("mad.lo.u32 %r2, %r0, 8, %r1;")
    for i, bits in enumerate(2 * (16, 32, 64)):
        lines.append(f"mad.wide.u32 %rd{10 + i}, %r0, {3 * bits // 8}, %rd{i};")
    row = itertools.count()
    for op, kind in (item for item in _ATOMS if item[1] != "noftz.f16" or space == "global"):
        kind = kind if op not in ("exch",) else "b" + kind[1:]
        bare = kind.removeprefix("noftz.")
        bits = 32 if bare.endswith("x2") else int(bare.lstrip("usbf"))
        table = 3 if bare.removesuffix("x2") in float_kinds else 0
        at = 10 + table + (16, 32, 64).index(bits)
        register = {16: "%h", 32: "%r", 64: "%rd"}[bits]
        a, b, c, d = (
            f"{register}{n}" for n in ((30, 31, 29, 28) if bits == 16 else (30, 31, 32, 33))
        )
        for letter, name in enumerate((a, b, c)):
            lines.append(f"ld.global.b{bits} {name}, [%rd{at}+{letter * bits // 8}];")
        if space == "global":
            offset = 8 * _THREADS * (2 * next(row))
            place, after = f"[%rd21+{offset}]", f"[%rd21+{offset + 8 * _THREADS}]"
            lines.append(f"st.global.b{bits} {place}, {a};")
        else:
            offset = 8 * _THREADS * (2 * next(row))
            place, after = "[%r2]", f"[%rd21+{offset + 8 * _THREADS}]"
            lines.append(f"st.shared.b{bits} {place}, {a};")
        third = f", {c}" if op == "cas" else ""
        lines.append(f"atom.{space}.{op}.{kind} {d}, {place}, {b}{third};")
        lines.append(f"st.global.b{bits} {after}, {d};")
        if space == "shared":
            lines.append(f"ld.shared.b{bits} {a}, [%r2];")
            lines.append(f"st.global.b{bits} [%rd21+{offset}], {a};")
        elif op not in ("exch", "cas"):
            lines.append(f"red.{space}.{op}.{kind} {place}, {b};")
    used = 8 * _THREADS * 2 * next(row)
    lines += ["and.b32 %r3, %r0, 3;", "ld.global.b32 %r30, [%rd11];"]
    for op, kind in (("add", "u32"), ("min", "s32"), ("max", "u32"), ("xor", "b32"), ("or", "b32")):
        if space == "global":
            lines.append("mad.wide.u32 %rd22, %r3, 4, %rd20;")
            lines.append(f"atom.global.{op}.{kind} %r31, [%rd22+{used}], %r30;")
        else:
            lines.append("bar.sync 0; st.shared.b32 [%r2], 5; bar.sync 0;")
            lines.append("mad.lo.u32 %r4, %r3, 4, %r1;")
            lines.append(f"red.shared.{op}.{kind} [%r4], %r30;")
            lines.append(
                "bar.sync 0; ld.shared.b32 %r31, [%r4]; mad.wide.u32 %rd22, %r3, 4, %rd20;"
            )
            lines.append(f"st.global.b32 [%rd22+{used}], %r31;")
        used += 16
    shared = f".shared .align 16 .b8 cells[{8 * _THREADS}];"
    text = module("    " + "\n    ".join(lines), inputs=6, shared=shared)
    return Case(f"atomics_{space}", text, inputs, used, block=_THREADS)


def cp_async() -> Case:
    """16, 8 and 4 bytes, short sources filled with zeros, ignored ones; groups, mbarrier."""
    lines = ["mov.u32 %r1, tile;", "mov.u32 %r2, barrier;", "mad.lo.u32 %r3, %r0, 64, %r1;"]
    lines += ["mad.wide.u32 %rd10, %r0, 64, %rd0;", "setp.eq.u32 %p1, %r0, 0;"]
    lines += [f"@%p1 mbarrier.init.shared.b64 [%r2], {_THREADS};", "bar.sync 0;"]
    lines += ["and.b32 %r4, %r0, 15;", "and.b32 %r5, %r0, 3;", "setp.lt.u32 %p2, %r4, 5;"]
    lines += [f"st.shared.b64 [%r3+{8 * i}], -1;" for i in range(8)]
    lines += [
        "cp.async.cg.shared.global [%r3], [%rd10], 16;",
        "cp.async.commit_group;",
        "cp.async.ca.shared.global [%r3+16], [%rd10+32], 8;",
        "cp.async.ca.shared.global.L2::128B [%r3+24], [%rd10+4], 4;",
        "cp.async.commit_group;",
        "cp.async.cg.shared.global [%r3+32], [%rd10+16], 16, %r4;",
        "cp.async.ca.shared.global [%r3+28], [%rd10+40], 4, %r5;",
        "cp.async.commit_group;",
        "cp.async.wait_group 2;",
        "ld.shared.b64 %rd30, [%r3];",
        "cp.async.wait_group 0;",
        "cp.async.ca.shared.global [%r3+48], [%rd10+48], 16, %p2;",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];",
        "wait: mbarrier.test_wait.parity.shared.b64 %p3, [%r2], 0;",
        "@!%p3 bra wait;",
        "mad.wide.u32 %rd21, %r0, 72, %rd20;",
        "st.global.b64 [%rd21+64], %rd30;",
    ]
    for i in range(8):
        lines += [f"ld.shared.b64 %rd30, [%r3+{8 * i}];", f"st.global.b64 [%rd21+{8 * i}], %rd30;"]
    shared = f".shared .align 128 .b8 tile[{64 * _THREADS}]; .shared .b64 barrier;"
    data = Draw(6).integers(0, 256, 64 * _THREADS, np.uint8)
    text = module("    " + "\n    ".join(lines), shared=shared)
    return Case("cp_async", text, (data,), 72 * _THREADS, block=_THREADS)


def cases() -> list[Case]:
    return [loads(), atomics("global"), atomics("shared"), cp_async()]
