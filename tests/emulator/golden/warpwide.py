"""Instructions of a whole warp: shuffles, votes, reductions, matrix moves, mma.sync."""

from __future__ import annotations

import itertools

import numpy as np

from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw


def _random(*shape: int, seed: int, dtype: str = "u4") -> np.ndarray:
    return Draw(seed).integers(0, 1 << 8 * np.dtype(dtype).itemsize, shape, dtype)


class _Rows:
    """Lines of a kernel in which each thread stores 32-bit results, row after row."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.lines = ["mad.wide.u32 %rd21, %r0, 4, %rd20;"]
        self.names: list[str] = []

    def add(self, text: str, *registers: str) -> None:
        """``text`` leaves results in the registers; ``%p...`` ones are stored as 0 or 1."""
        self.lines.append(text)
        for register in registers:
            if register.startswith("%p"):
                self.lines.append(f"selp.b32 %r63, 1, 0, {register};")
                register = "%r63"
            offset = 4 * self.threads * len(self.names)
            self.lines.append(f"st.global.b32 [%rd21+{offset}], {register};")
            self.names.append(text)

    def case(self, name: str, inputs: tuple[np.ndarray, ...], **launch) -> Case:
        text = module("    " + "\n    ".join(self.lines), inputs=len(inputs), **launch)
        out_bytes = 4 * self.threads * len(self.names)
        return Case(name, text, inputs, out_bytes, block=self.threads, row_names=tuple(self.names))


def shuffles() -> Case:
    """a, b: random; %r3 = b, %r4 = b & 31, %r5: one of few values."""
    threads = 64
    rows = _Rows(threads)
    rows.lines += [
        "mad.wide.u32 %rd10, %r0, 8, %rd0;",
        "ld.global.v2.u32 {%r2, %r3}, [%rd10];",
        "and.b32 %r4, %r3, 31;",
        "and.b32 %r5, %r3, 3;",
        "setp.lt.u32 %p3, %r4, 12;",
        "mov.u32 %r6, %laneid;",
    ]
    for mode, clamp in itertools.product(("idx", "bfly", "up", "down"), ("0x1f", "0x181f", "0x0")):
        text = f"shfl.sync.{mode}.b32 %r10|%p1, %r2, %r4, {clamp}, 0xffffffff;"
        # A value from a lane outside its segment is the lane's own.
        rows.add(text, "%r10", "%p1")
    rows.add("shfl.sync.down.b32 %r10, %r2, 5, 0xc07, 0xffffffff;", "%r10")
    rows.add("shfl.sync.idx.b32 %r10, %r2, 0, 0x1c1f, 0xffffffff;", "%r10")
    for mode in ("any", "all", "uni"):
        rows.add(f"vote.sync.{mode}.pred %p1, %p3, 0xffffffff;", "%p1")
        rows.add(f"vote.sync.{mode}.pred %p1, !%p3, 0xffffffff;", "%p1")
    rows.add("vote.sync.ballot.b32 %r10, %p3, 0xffffffff;", "%r10")
    rows.add("match.any.sync.b32 %r10, %r5, 0xffffffff;", "%r10")
    rows.add("cvt.u64.u32 %rd11, %r5; match.any.sync.b64 %r10, %rd11, 0xffffffff;", "%r10")
    rows.add("match.all.sync.b32 %r10|%p1, %r5, 0xffffffff;", "%r10", "%p1")
    rows.add("match.all.sync.b32 %r10|%p1, 7, 0xffffffff;", "%r10", "%p1")
    for op, kind in itertools.product(("add", "min", "max"), ("u32", "s32")):
        rows.add(f"redux.sync.{op}.{kind} %r10, %r2, 0xffffffff;", "%r10")
    for op in ("and", "or", "xor"):
        rows.add(f"redux.sync.{op}.b32 %r10, %r2, 0xffffffff;", "%r10")
    rows.add("elect.sync %r10|%p1, 0xffffffff;", "%r10", "%p1")
    rows.add("activemask.b32 %r10;", "%r10")
    rows.add(
        "mov.b32 %r10, 0; setp.ge.u32 %p4, %r6, 16;"
        " @%p4 shfl.sync.bfly.b32 %r10, %r2, 3, 0x1f, 0xffff0000;",
        "%r10",
    )
    rows.add(
        "mov.b32 %r10, 0; @!%p4 redux.sync.add.u32 %r10, %r2, 0x0000ffff;",
        "%r10",
    )
    rows.add("mov.b32 %r10, 0; @%p4 vote.sync.ballot.b32 %r10, %p3, 0xffff0000;", "%r10")
    rows.add("mov.b32 %r10, 0; @%p4 match.any.sync.b32 %r10, %r5, 0xffff0000;", "%r10")
    rows.add("mov.b32 %r10, 0; @%p4 elect.sync %r10|%p1, 0xffff0000;", "%r10")
    rows.add("barrier.cta.red.popc.aligned.u32 %r10, 1, %p3;", "%r10")
    rows.add("barrier.cta.red.and.aligned.pred %p1, 1, %p3;", "%p1")
    rows.add("barrier.cta.red.or.aligned.pred %p1, 1, !%p3;", "%p1")
    inputs = _random(threads, 2, seed=3)
    return rows.case("warp", (inputs,))


def matrices() -> Case:
    """ldmatrix, stmatrix and movmatrix over a shared array of random bytes."""
    threads = 32
    rows = _Rows(threads)
    shared = ".shared .align 128 .b8 tile[2048];"
    rows.lines += [
        "mov.u32 %r1, tile;",
        "mad.lo.u32 %r2, %r0, 64, %r1;",
        "mad.wide.u32 %rd10, %r0, 64, %rd0;",
    ]
    for i in range(4):
        rows.lines.append(f"ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd10+{16 * i}];")
        rows.lines.append(f"st.shared.v4.b32 [%r2+{16 * i}], {{%r10, %r11, %r12, %r13}};")
    # Rows in an order that no row of addresses suggests.
    rows.lines += [
        "bar.sync 0;",
        "mad.lo.u32 %r3, %r0, 37, 11;",
        "and.b32 %r3, %r3, 127;",
        "mad.lo.u32 %r3, %r3, 16, %r1;",
    ]
    registers = ["%r10", "%r11", "%r12", "%r13"]
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        listed = ", ".join(registers[:count])
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{listed}}}, [%r3];"
        rows.add(text, *registers[:count])
    rows.add("movmatrix.sync.aligned.m8n8.trans.b16 %r14, %r10;", "%r14")
    rows.lines += [f"xor.b32 %r{10 + i}, %r{10 + i}, {0x01010101 * (i + 1)};" for i in range(4)]
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        listed = ", ".join(registers[:count])
        rows.lines.append("bar.sync 0;")
        rows.add(
            f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3], {{{listed}}};\n"
            "    bar.sync 0;\n    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r2+16];",
            *(f"%r{20 + i}" for i in range(4)),
        )
    return rows.case("matrices", (_random(512, seed=4),), shared=shared)


def floats(kind: str, shape: tuple[int, ...], style: str, seed: int) -> np.ndarray:
    """Bits of finite floats. kind: f16, bf16, tf32, f32, e4m3, e5m2.

    style: "normal" as of a Gaussian; "wide": any exponent, so that few terms decide and the others
    are cut; "cancel": near 1 with both signs; "small": subnormals and the smallest normals;
    "any": all bits, infinities and NaNs among them.
    """
    exponent_bits, mantissa_bits = {
        "f16": (5, 10),
        "bf16": (8, 7),
        "tf32": (8, 23),
        "f32": (8, 23),
        "e4m3": (4, 3),
        "e5m2": (5, 2),
    }[kind]
    random = Draw(seed, len(style))
    top, bias = (1 << exponent_bits) - 1, (1 << exponent_bits - 1) - 1
    if style == "any":
        exponent = random.integers(0, top + 1, shape)
    elif style == "wide":
        reach = min(bias - 1, 14)
        exponent = random.integers(bias - reach, bias + reach + 1, shape)
    elif style == "cancel":
        exponent = random.integers(bias - 1, bias + 2, shape)
    elif style == "small":
        exponent = random.integers(0, 2, shape)
    else:
        exponent = bias - random.halvings(6, shape)
    fraction = random.integers(0, 1 << mantissa_bits, shape)
    sign = random.integers(0, 2, shape)
    value = sign << exponent_bits + mantissa_bits | exponent << mantissa_bits | fraction
    if kind == "e4m3" and style != "any":
        value = np.where(value & 0x7F == 0x7F, value - 1, value)
    bits = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}.get(kind, 32)
    return value.astype(f"u{bits // 8}")


STYLES = ("normal", "wide", "cancel", "small", "any")

#: shape, types of D A B C, registers of A, B, C.
_MMA = [
    ("m16n8k16", "f32.f16.f16.f32", 4, 2, 4),
    ("m16n8k16", "f16.f16.f16.f16", 4, 2, 2),
    ("m16n8k16", "f32.bf16.bf16.f32", 4, 2, 4),
    ("m16n8k8", "f32.f16.f16.f32", 2, 1, 4),
    ("m16n8k8", "f32.bf16.bf16.f32", 2, 1, 4),
    ("m16n8k8", "f32.tf32.tf32.f32", 4, 2, 4),
    ("m16n8k32", "s32.s8.s8.s32", 4, 2, 4),
    ("m16n8k32", "s32.u8.s8.s32", 4, 2, 4),
    ("m16n8k32", "f32.e4m3.e4m3.f32", 4, 2, 4),
    ("m16n8k32", "f32.e5m2.e4m3.f32", 4, 2, 4),
]


def mma(shape: str, types: str, a: int, b: int, c: int) -> Case:
    """One mma per warp; warps take operands of one style each, in turn."""
    warps = 40
    d_kind, a_kind, b_kind, c_kind = types.split(".")
    operands = []
    for index, (kind, count) in enumerate(((a_kind, a), (b_kind, b), (c_kind, c))):
        if kind[0] in "su":
            operands.append(_random(warps, 32, count, seed=index))
            continue
        each = {"f32": 1, "tf32": 1, "e4m3": 4, "e5m2": 4}.get(kind, 2)
        parts = [
            floats(kind, (32, count * each), STYLES[w % len(STYLES)], 100 * index + w)
            for w in range(warps)
        ]
        if kind == "f32":  # sums that reach from far below a product to far above
            scale = [0, 0, -24, 0, 20]
            for w, part in enumerate(parts):
                if STYLES[w % len(STYLES)] != "any":
                    parts[w] = (part.view(np.float32) * 2.0 ** scale[w % 5]).view(np.uint32)
        operands.append(np.stack(parts).view(np.uint32))
    names = {"a": 10, "b": 20, "c": 30, "d": 40}
    lines = ["mov.u32 %r1, %ctaid.x;", "mad.lo.u32 %r2, %r1, 32, %r0;"]
    for i, (letter, count) in enumerate(zip("abc", (a, b, c), strict=True)):
        lines.append(f"mad.wide.u32 %rd10, %r2, {4 * count}, %rd{i};")
        lines += [f"ld.global.b32 %r{names[letter] + j}, [%rd10+{4 * j}];" for j in range(count)]
    listed = {
        letter: "{" + ", ".join(f"%r{names[letter] + j}" for j in range(count)) + "}"
        for letter, count in zip("abcd", (a, b, c, c), strict=True)
    }
    if d_kind == "f32":  # f32 operands have to be f32 registers
        for j in range(c):
            lines.append(f"mov.b32 %f{j}, %r{30 + j};")
        listed["c"] = "{" + ", ".join(f"%f{j}" for j in range(c)) + "}"
        listed["d"] = "{" + ", ".join(f"%f{10 + j}" for j in range(c)) + "}"
    lines.append(
        f"mma.sync.aligned.{shape}.row.col.{types} "
        f"{listed['d']}, {listed['a']}, {listed['b']}, {listed['c']};"
    )
    lines.append(f"mad.wide.u32 %rd10, %r2, {4 * c}, %rd20;")
    source = "%f" if d_kind == "f32" else "%r"
    first = 10 if d_kind == "f32" else 40
    lines += [f"st.global.b32 [%rd10+{4 * j}], {source}{first + j};" for j in range(c)]
    text = module("    " + "\n    ".join(lines), inputs=3)
    name = f"mma_{shape}_{types.replace('.', '_')}"
    return Case(name, text, tuple(operands), 4 * c * 32 * warps, grid=warps)


def cases() -> list[Case]:
    return [shuffles(), matrices(), *(mma(*row) for row in _MMA)]
