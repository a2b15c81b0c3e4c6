"""Instructions whose lanes are independent: integer, float, half, predicate, conversion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from tests.emulator.golden.case import Case, module
from tests.emulator.golden.operands import THREADS, operands

_WIDTH = {"16": "b16", "32": "b32", "64": "b64"}


def lane_case(name: str, kind: str, snippets: Sequence[str], threads: int = THREADS) -> Case:
    """A kernel that runs every snippet on the operands of each thread.

    A snippet is PTX with ``{a32}``, ``{b32}``, ``{c32}`` (and 16, 64) for operands and ``{d16}``,
    ``{d32}``, ``{d64}``, ``{dp}`` for its result; ``{p}`` is a predicate. Results are stored as
    64 bits each. [snippets, threads]
    """
    inputs = tuple(operands(kind, bits, 1, threads) for bits in (16, 32, 64))
    lines = [".reg .pred %q, %p;"]
    for bits in ("16", "32", "64"):
        lines.append(f".reg .b{bits} %a{bits}, %b{bits}, %c{bits}, %d{bits};")
    for i, bits in enumerate(("16", "32", "64")):
        lines.append(f"mad.wide.u32 %rd10, %r0, {3 * int(bits) // 8}, %rd{i};")
        for j, operand in enumerate("abc"):
            lines.append(f"ld.global.b{bits} %{operand}{bits}, [%rd10+{j * int(bits) // 8}];")
    lines += ["and.b32 %r1, %c32, 1;", "setp.ne.u32 %p, %r1, 0;"]
    lines.append("mad.wide.u32 %rd21, %r0, 8, %rd20;")
    for i, snippet in enumerate(snippets):
        lines += _one(snippet, i * 8 * threads)
    text = module("    " + "\n    ".join(lines), inputs=3)
    return Case(
        name,
        text,
        inputs,
        8 * threads * len(snippets),
        block=threads,
        row_names=tuple(snippets),
    )


def _one(snippet: str, offset: int) -> list[str]:
    names = {f"{o}{bits}": f"%{o}{bits}" for o in "abcd" for bits in _WIDTH}
    lines = []
    result = re.search(r"\{d(16|32|64|p)\}", snippet)
    assert result, snippet
    if result[1] == "p":
        lines.append(snippet.format(**names, p="%p", dp="%q"))
        lines.append("selp.b32 %d32, 1, 0, %q;")
        return [*lines, f"st.global.b32 [%rd21+{offset}], %d32;"]
    lines.append(f"mov.b{result[1]} %d{result[1]}, 0;")
    lines.append(snippet.format(**names, p="%p", dp="%q"))
    return [*lines, f"st.global.b{result[1]} [%rd21+{offset}], %d{result[1]};"]


def _over(pattern: str, *alternatives: Iterable[str]) -> list[str]:
    """The pattern with every combination of alternatives in place of <0>, <1>, ..."""
    texts = [pattern]
    for i, choices in enumerate(alternatives):
        texts = [text.replace(f"<{i}>", choice) for text in texts for choice in choices]
    return texts


_ROUND = ("rn", "rz", "rm", "rp")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_FLOAT_COMPARE = (*_COMPARE, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")

INTEGER = [
    *_over("add.<0>16 {d16}, {a16}, {b16};", "us"),
    *_over("sub.<0>32 {d32}, {a32}, {b32};", "us"),
    *_over("add.<0>64 {d64}, {a64}, {b64};", "us"),
    "add.sat.s32 {d32}, {a32}, {b32};",
    "sub.sat.s32 {d32}, {a32}, {b32};",
    *_over("mul.<0>.<1>32 {d32}, {a32}, {b32};", ("lo", "hi"), "us"),
    *_over("mul.<0>.<1>16 {d16}, {a16}, {b16};", ("lo", "hi"), "us"),
    *_over("mul.<0>.<1>64 {d64}, {a64}, {b64};", ("lo", "hi"), "us"),
    *_over("mul.wide.<0>16 {d32}, {a16}, {b16};", "us"),
    *_over("mul.wide.<0>32 {d64}, {a32}, {b32};", "us"),
    *_over("mad.<0>.<1>32 {d32}, {a32}, {b32}, {c32};", ("lo", "hi"), "us"),
    *_over("mad.lo.<0>64 {d64}, {a64}, {b64}, {c64};", "us"),
    *_over("mad.wide.<0>16 {d32}, {a16}, {b16}, {c32};", "us"),
    *_over("mad.wide.<0>32 {d64}, {a32}, {b32}, {c64};", "us"),
    "mad.hi.sat.s32 {d32}, {a32}, {b32}, {c32};",
    *_over("mul24.<0>.<1>32 {d32}, {a32}, {b32};", ("lo", "hi"), "us"),
    *_over("mad24.lo.<0>32 {d32}, {a32}, {b32}, {c32};", "us"),
    *_over("sad.<0>32 {d32}, {a32}, {b32}, {c32};", "us"),
    *_over("or.b32 %r2, {b32}, 1; div.<0>32 {d32}, {a32}, %r2;", "us"),
    *_over("or.b32 %r2, {b32}, 1; rem.<0>32 {d32}, {a32}, %r2;", "us"),
    *_over("or.b64 %rd30, {b64}, 1; div.<0>64 {d64}, {a64}, %rd30;", "us"),
    *_over("or.b64 %rd30, {b64}, 1; rem.<0>64 {d64}, {a64}, %rd30;", "us"),
    *_over("or.b16 %h2, {b16}, 1; div.<0>16 {d16}, {a16}, %h2;", "us"),
    *_over("abs.s<0> {d<0>}, {a<0>};", _WIDTH),
    *_over("neg.s<0> {d<0>}, {a<0>};", _WIDTH),
    *_over("<1>.<2><0> {d<0>}, {a<0>}, {b<0>};", _WIDTH, ("min", "max"), "us"),
    *_over("popc.b<0> {d32}, {a<0>};", ("32", "64")),
    *_over("clz.b<0> {d32}, {a<0>};", ("32", "64")),
    *_over("brev.b<0> {d<0>}, {a<0>};", ("32", "64")),
    *_over("bfind.<1><0> {d32}, {a<0>};", ("32", "64"), "us"),
    *_over("bfind.shiftamt.<1><0> {d32}, {a<0>};", ("32", "64"), "us"),
    *_over("bfe.<1><0> {d<0>}, {a<0>}, {b32}, {c32};", ("32", "64"), "us"),
    *_over("bfi.b<0> {d<0>}, {a<0>}, {b<0>}, {b32}, {c32};", ("32", "64")),
    *_over("and.b32 %r2, {b32}, 31; szext.<0>.<1>32 {d32}, {a32}, %r2;", ("wrap", "clamp"), "us"),
    *_over("bmsk.<0>.b32 {d32}, {a32}, {b32};", ("wrap", "clamp")),
    *_over("fns.b32 {d32}, {a32}, 3, <0>;", ("1", "-2")),
    *_over("<1>.b<0> {d<0>}, {a<0>}, {b<0>};", _WIDTH, ("and", "or", "xor")),
    *_over("not.b<0> {d<0>}, {a<0>};", _WIDTH),
    *_over("cnot.b<0> {d<0>}, {a<0>};", _WIDTH),
    *_over("lop3.b32 {d32}, {a32}, {b32}, {c32}, <0>;", ("0x96", "0xE8", "0x1B", "0x80")),
    *_over("shl.b<0> {d<0>}, {a<0>}, {b32};", _WIDTH),
    *_over("shr.<1><0> {d<0>}, {a<0>}, {b32};", _WIDTH, "us"),
    *_over("shf.<0>.<1>.b32 {d32}, {a32}, {b32}, {c32};", "lr", ("wrap", "clamp")),
    "prmt.b32 {d32}, {a32}, {b32}, {c32};",
    *_over("prmt.b32.<0> {d32}, {a32}, {b32}, {c32};", ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
    "add.cc.u32 %r2, {a32}, {b32}; addc.u32 {d32}, {c32}, 0;",
    "sub.cc.u32 %r2, {a32}, {b32}; subc.u32 {d32}, {c32}, 0;",
    "mad.lo.cc.u32 %r2, {a32}, {b32}, {c32}; madc.hi.u32 {d32}, {a32}, {b32}, 7;",
    *_over("dp4a.<0>32.<1>32 {d32}, {a32}, {b32}, {c32};", "us", "us"),
    *_over("dp2a.<2>.<0>32.<1>32 {d32}, {a32}, {b32}, {c32};", "us", "us", ("lo", "hi")),
    *_over("<0>.<1>16x2 {d32}, {a32}, {b32};", ("min", "max"), "us"),
    *_over("add.<0>16x2 {d32}, {a32}, {b32};", "us"),
    "selp.b32 {d32}, {a32}, {b32}, {p};",
    "selp.b64 {d64}, {a64}, {b64}, {p};",
    "slct.u32.s32 {d32}, {a32}, {b32}, {c32};",
]

PREDICATE = [
    *_over("setp.<0>.s32 {dp}, {a32}, {b32};", _COMPARE),
    *_over("setp.<0>.u32 {dp}, {a32}, {b32};", (*_COMPARE, "lo", "ls", "hi", "hs")),
    *_over("setp.<0>.s64 {dp}, {a64}, {b64};", _COMPARE),
    *_over("setp.<0>.u16 {dp}, {a16}, {b16};", _COMPARE),
    *_over("setp.lt.<0>.s32 {dp}, {a32}, {b32}, {p};", ("and", "or", "xor")),
    "setp.lt.and.u32 {dp}, {a32}, {b32}, !{p};",
    "setp.lt.u32 %p1|%p2, {a32}, {b32}; mov.pred {dp}, %p2;",
    "set.lt.u32.s32 {d32}, {a32}, {b32};",
    "set.ge.f32.u32 {d32}, {a32}, {b32};",
    "setp.eq.u32 %p1, {a32}, {b32}; xor.pred {dp}, %p1, {p};",
    "setp.lt.u32 %p1, {a32}, {b32}; and.pred {dp}, %p1, {p};",
    "setp.lt.u32 %p1, {a32}, {b32}; or.pred {dp}, %p1, {p};",
    "not.pred {dp}, {p};",
    *_over("@{p} add.u32 {d32}, {a32}, {b32};"),
    *_over("@!{p} mov.b32 {d32}, {a32};"),
]

FLOAT = [
    *_over("add.<0>.f32 {d32}, {a32}, {b32};", _ROUND),
    *_over("sub.<0>.f32 {d32}, {a32}, {b32};", _ROUND),
    *_over("mul.<0>.f32 {d32}, {a32}, {b32};", _ROUND),
    *_over("fma.<0>.f32 {d32}, {a32}, {b32}, {c32};", _ROUND),
    *_over("div.<0>.f32 {d32}, {a32}, {b32};", _ROUND),
    *_over("sqrt.<0>.f32 {d32}, {a32};", _ROUND),
    *_over("rcp.<0>.f32 {d32}, {a32};", _ROUND),
    *_over("<0>.rn.ftz.f32 {d32}, {a32}, {b32};", ("add", "sub", "mul")),
    *_over("<0>.rn.sat.f32 {d32}, {a32}, {b32};", ("add", "mul")),
    "add.f32 {d32}, {a32}, {b32};",
    "fma.rn.ftz.f32 {d32}, {a32}, {b32}, {c32};",
    "fma.rn.sat.f32 {d32}, {a32}, {b32}, {c32};",
    *_over("<0>.f32 {d32}, {a32}, {b32};", ("min", "max")),
    *_over("<0>.NaN.f32 {d32}, {a32}, {b32};", ("min", "max")),
    *_over("<0>.ftz.f32 {d32}, {a32}, {b32};", ("min", "max")),
    *_over("<0>.xorsign.abs.f32 {d32}, {a32}, {b32};", ("min", "max")),
    *_over("<0>.f32 {d32}, {a32};", ("abs", "neg", "abs.ftz", "neg.ftz")),
    "copysign.f32 {d32}, {a32}, {b32};",
    *_over("testp.<0>.f32 {dp}, {a32};", ("finite", "infinite", "number", "notanumber"))
    + _over("testp.<0>.f32 {dp}, {a32};", ("normal", "subnormal")),
    *_over("setp.<0>.f32 {dp}, {a32}, {b32};", _FLOAT_COMPARE),
    *_over("setp.<0>.ftz.f32 {dp}, {a32}, {b32};", ("eq", "lt")),
    "set.lt.u32.f32 {d32}, {a32}, {b32};",
    "slct.f32.f32 {d32}, {a32}, {b32}, {c32};",
]

DOUBLE = [
    *_over("add.<0>.f64 {d64}, {a64}, {b64};", _ROUND),
    *_over("mul.<0>.f64 {d64}, {a64}, {b64};", _ROUND),
    *_over("fma.<0>.f64 {d64}, {a64}, {b64}, {c64};", _ROUND),
    *_over("div.<0>.f64 {d64}, {a64}, {b64};", ("rn",)),
    *_over("sqrt.<0>.f64 {d64}, {a64};", ("rn",)),
    *_over("<0>.f64 {d64}, {a64}, {b64};", ("min", "max")),
    *_over("setp.<0>.f64 {dp}, {a64}, {b64};", ("eq", "lt", "leu", "nan")),
    *_over("<0>.f64 {d64}, {a64};", ("abs", "neg")),
]


def _half(kind: str) -> list[str]:
    """kind: "f16" or "bf16"; scalar and packed."""
    return [
        *_over(f"<0>.rn.{kind} {{d16}}, {{a16}}, {{b16}};", ("add", "sub", "mul")),
        *_over(f"<0>.rn.{kind}x2 {{d32}}, {{a32}}, {{b32}};", ("add", "sub", "mul")),
        f"fma.rn.{kind} {{d16}}, {{a16}}, {{b16}}, {{c16}};",
        f"fma.rn.{kind}x2 {{d32}}, {{a32}}, {{b32}}, {{c32}};",
        f"fma.rn.relu.{kind}x2 {{d32}}, {{a32}}, {{b32}}, {{c32}};",
        *_over(f"<0>.{kind} {{d16}}, {{a16}}, {{b16}};", ("min", "max", "min.NaN", "max.NaN")),
        *_over(f"<0>.{kind}x2 {{d32}}, {{a32}}, {{b32}};", ("min", "max", "min.NaN", "max.NaN")),
        *_over(f"<0>.{kind} {{d16}}, {{a16}};", ("abs", "neg")),
        *_over(f"<0>.{kind}x2 {{d32}}, {{a32}};", ("abs", "neg")),
        *_over(f"setp.<0>.{kind} {{dp}}, {{a16}}, {{b16}};", ("eq", "lt", "geu", "nan", "num")),
        f"set.lt.u32.{kind} {{d32}}, {{a16}}, {{b16}};",
        f"set.ge.{kind}x2.{kind}x2 {{d32}}, {{a32}}, {{b32}};",
    ]


HALF = [
    *_half("f16"),
    "add.rn.sat.f16 {d16}, {a16}, {b16};",
    "mul.rn.ftz.f16x2 {d32}, {a32}, {b32};",
    "fma.rn.sat.f16x2 {d32}, {a32}, {b32}, {c32};",
    "cvt.f32.f16 {d32}, {a16};",
    *_over("cvt.<0>.s32.f16 {d32}, {a16};", ("rni", "rzi", "rmi", "rpi")),
    "cvt.f64.f16 {d64}, {a16};",
    "cvt.rn.satfinite.e4m3x2.f16x2 %h2, {a32}; mov.b16 {d16}, %h2;",
    "cvt.rn.satfinite.e5m2x2.f16x2 %h2, {a32}; mov.b16 {d16}, %h2;",
    "cvt.rn.satfinite.relu.e4m3x2.f16x2 %h2, {a32}; mov.b16 {d16}, %h2;",
]
BF16 = [*_half("bf16"), "cvt.f32.bf16 {d32}, {a16};"]

FLOAT_CONVERSIONS = [
    *_over("cvt.<0>.f16.f32 {d16}, {a32};", _ROUND),
    *_over("cvt.<0>.bf16.f32 {d16}, {a32};", ("rn", "rz", "rn.relu")),
    *_over("cvt.<0>.f16x2.f32 {d32}, {a32}, {b32};", ("rn", "rz", "rn.relu")),
    *_over("cvt.<0>.bf16x2.f32 {d32}, {a32}, {b32};", ("rn", "rz", "rn.relu")),
    "cvt.rn.sat.f16.f32 {d16}, {a32};",
    "cvt.rna.tf32.f32 {d32}, {a32};",
    *_over("cvt.rn.satfinite.<0>x2.f32 %h2, {a32}, {b32}; mov.b16 {d16}, %h2;", ("e4m3", "e5m2")),
    *_over("cvt.<0>.s32.f32 {d32}, {a32};", ("rni", "rzi", "rmi", "rpi")),
    *_over("cvt.<0>.u32.f32 {d32}, {a32};", ("rni", "rzi")),
    *_over("cvt.<0>.s64.f32 {d64}, {a32};", ("rni", "rzi")),
    *_over("cvt.rzi.<0>16.f32 {d16}, {a32};", "us"),
    *_over("cvt.rzi.<0>8.f32 {d32}, {a32};", "us"),
    *_over("cvt.<0>.f32.f32 {d32}, {a32};", ("rni", "rzi", "rmi", "rpi")),
    "cvt.sat.f32.f32 {d32}, {a32};",
    "cvt.f64.f32 {d64}, {a32};",
    *_over("cvt.<0>.f32.f64 {d32}, {a64};", _ROUND),
    *_over("cvt.rzi.<0>.f64 {d32}, {a64};", ("u32", "s32")),
    "cvt.rzi.s64.f64 {d64}, {a64};",
]

APPROXIMATE = [
    *_over("<0>.approx.f32 {d32}, {a32};", ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh")),
    *_over("<0>.approx.ftz.f32 {d32}, {a32};", ("ex2", "lg2", "rcp", "rsqrt", "sqrt")),
    *_over("<0>.f32 {d32}, {a32}, {b32};", ("div.full", "div.approx", "div.full.ftz")),
]
"""Rows of the case "approximate": what the PTX ISA bounds in error, not to the bit."""

#: Distance between the emulator's results and a device's, in units in the last place: the bound of
#: the PTX ISA for both sides. tanh has 2^-11 relative; lg2 is bounded absolutely near 1.
MOST_ULPS = {
    "ex2": 4,
    "lg2": 4,
    "rcp": 1,
    "rsqrt": 2,
    "sqrt": 2,
    "tanh": 1 << 13,
    "div": 4,
}

INTEGER_CONVERSIONS = [
    *_over("cvt.<0>.f32.s32 {d32}, {a32};", _ROUND),
    *_over("cvt.<0>.f32.u32 {d32}, {a32};", _ROUND),
    *_over("cvt.rn.f32.<0>64 {d32}, {a64};", "us"),
    *_over("cvt.rn.f16.<0>32 {d16}, {a32};", "us"),
    *_over("cvt.rn.f16.<0>16 {d16}, {a16};", "us"),
    *_over("cvt.rn.f64.<0>32 {d64}, {a32};", "us"),
    *_over("cvt.rn.f64.<0>64 {d64}, {a64};", "us"),
    *_over("cvt.rn.f32.<0>8 {d32}, {a32};", "us"),
    *_over("cvt.<0>64.<1>32 {d64}, {a32};", "us", "us"),
    *_over("cvt.<0>32.<1>64 {d32}, {a64};", "us", "us"),
    *_over("cvt.<0>32.<1>16 {d32}, {a16};", "us", "us"),
    *_over("cvt.<0>32.<1>8 {d32}, {a32};", "us", "us"),
    *_over("cvt.<0>8.<1>32 {d32}, {a32};", "us", "us"),
    *_over("cvt.sat.<0>8.<1>32 {d32}, {a32};", "us", "us"),
    *_over("cvt.sat.<0>16.<1>32 {d16}, {a32};", "us", "us"),
    *_over("cvt.sat.<0>32.<1>64 {d32}, {a64};", "us", "us"),
    *_over("cvt.pack.sat.<0>8.s32.b32 {d32}, {a32}, {b32}, {c32};", "us"),
]


def every_code_case() -> Case:
    """FP8 pairs to f16x2, every code in both halves; f16 to FP8, every f16."""
    threads = 1024
    codes = np.arange(4 * threads, dtype=np.uint32)
    low, high = codes & 0xFF, (codes * 37 + (codes >> 8)) & 0xFF
    halves = np.arange(65536, dtype=np.uint32).reshape(-1, 2)
    packed = halves[:, 0] | halves[:, 1] << np.uint32(16)
    body = f"""
    mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r2, %r1, {threads}, %r0;
    mad.wide.u32 %rd2, %r2, 4, %rd0;
    ld.global.u32 %r3, [%rd2];
    cvt.u16.u32 %h0, %r3;
    cvt.rn.f16x2.e4m3x2 %r4, %h0;
    cvt.rn.f16x2.e5m2x2 %r5, %h0;
    cvt.rn.relu.f16x2.e4m3x2 %r6, %h0;
    mad.wide.u32 %rd3, %r2, 16, %rd20;
    st.global.v4.b32 [%rd3], {{%r4, %r5, %r6, %r3}};
    mad.wide.u32 %rd2, %r2, 32, %rd1;
    mad.wide.u32 %rd4, %r2, 32, %rd20;
    add.s64 %rd4, %rd4, {16 * 4 * threads};
"""
    for i in range(8):
        body += f"""
    ld.global.u32 %r3, [%rd2+{4 * i}];
    cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r3;
    cvt.rn.satfinite.e5m2x2.f16x2 %h2, %r3;
    mov.b32 %r4, {{%h1, %h2}};
    st.global.b32 [%rd4+{4 * i}], %r4;
"""
    inputs = (low | high << np.uint32(8), packed)
    return Case("every_code", module(body, inputs=2), inputs, 12 * 16 * threads, grid=4, block=1024)


def cases() -> list[Case]:
    return [
        lane_case("integer", "int", INTEGER),
        lane_case("predicate", "int", PREDICATE),
        lane_case("float", "float", FLOAT),
        lane_case("double", "float", DOUBLE),
        lane_case("half", "half", HALF),
        lane_case("bfloat16", "bf16", BF16),
        lane_case("float_conversions", "float", FLOAT_CONVERSIONS),
        lane_case("integer_conversions", "int", INTEGER_CONVERSIONS),
        lane_case("approximate", "float", APPROXIMATE),
        every_code_case(),
    ]
