"""The PTX front end: what it reads, and how it refuses what it cannot."""

from __future__ import annotations

import pytest

from nibblas.emulator import PtxError
from nibblas.emulator.ptx import parse
from nibblas.emulator.ptx.model import (
    Address,
    BranchTargets,
    Guard,
    Imm,
    Instruction,
    Label,
    Not,
    Pair,
    Reg,
    Sink,
    Symbol,
    SymbolByte,
    Vector,
)
from tests.emulator.conftest import HEADER, entry


def instructions(body: str, **kwargs: str) -> list[Instruction]:
    statements = parse(entry(body, **kwargs)).functions["k"].body
    assert statements is not None
    return [s for s in statements if isinstance(s, Instruction)][:-1]


def test_header_gives_version_and_target() -> None:
    module = parse(HEADER)
    assert (module.version, module.target, module.address_bits) == ((8, 8), "sm_90a", 64)


def test_opcode_and_modifiers_are_split() -> None:
    (found,) = instructions("ld.global.L1::no_allocate.v2.f32 {%f1, %f2}, [%rd1+16];")
    assert found.opcode == "ld"
    assert found.modifiers == ("global", "L1::no_allocate", "v2", "f32")
    assert found.operands == (Vector((Reg("%f1"), Reg("%f2"))), Address(Reg("%rd1"), 16))


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("0f3F800000", Imm(1.0, "f32")),
        ("0d3FF0000000000000", Imm(1.0, "f64")),
        ("-1", Imm(-1)),
        ("0xFFU", Imm(255)),
        ("0b101", Imm(5)),
        ("017", Imm(15)),
        ("(2+3)*4", Imm(20)),
        ("-0f3F800000", Imm(-1.0, "f32")),
        ("1.5", Imm(1.5, "f64")),
        ("WARP_SZ", Imm(32)),
        ("%tid.x", Reg("%tid.x")),
        ("_", Sink()),
        ("!%p1", Not(Reg("%p1"))),
        ("%r1|%p1", Pair(Reg("%r1"), Reg("%p1"))),
        ("name+8", Symbol("name", 8)),
        ("[name+8]", Address(Symbol("name"), 8)),
        ("[%rd1+-8]", Address(Reg("%rd1"), -8)),
        ("[%rd1, {%r1, %r2}]", Address(Reg("%rd1"), 0, (Vector((Reg("%r1"), Reg("%r2"))),))),
    ],
)
def test_operand_forms(text: str, operand: object) -> None:
    (found,) = instructions(f"op.x %r0, {text};")
    assert found.operands[1] == operand


def test_guards() -> None:
    plain, negated = instructions("@%p1 op; @!%p2 op;")
    assert plain.guard == Guard("%p1", False)
    assert negated.guard == Guard("%p2", True)


def test_lines_are_those_of_the_text_and_of_the_source() -> None:
    text = HEADER + '.file 1 "kernel.cu"\n.entry k()\n{\n.loc 1 42 7\nexit;\n}\n'
    (found,) = parse(text).functions["k"].body or ()
    assert isinstance(found, Instruction)
    assert found.line == text[: text.index("exit")].count("\n") + 1
    assert str(found.loc) == "kernel.cu:42"


def test_nested_scopes_hide_outer_names() -> None:
    body = """
    { .reg .b64 %r1; mov.b64 %r1, 7; bra done; done: }
    { bra done; done: }
    mov.b32 %r1, 1;
    """
    function = parse(entry(body)).functions["k"]
    inner, first, second, outer = (
        getattr(s.operands[0], "name", "")
        for s in function.body or ()
        if isinstance(s, Instruction) and s.operands
    )
    assert function.registers[inner] == "b64"
    assert function.registers[outer] == "b32"
    labels = [s.name for s in function.body or () if isinstance(s, Label)]
    assert [first, second] == labels
    assert len(set(labels)) == 2


def test_branch_targets() -> None:
    body = "table: .branchtargets a, b;\n brx.idx %r1, table;\n a: b:"
    (found,) = (
        s for s in parse(entry(body)).functions["k"].body or () if isinstance(s, BranchTargets)
    )
    assert found.targets == ("a", "b")


def test_variables_and_initialisers() -> None:
    module = parse(
        HEADER
        + ".visible .global .align 8 .b8 bytes[4] = {1, 2, 0xFF, -1};\n"
        + ".const .f32 pi = 0f40490FDB;\n"
        + ".global .align 4 .u32 grid[2][3] = {{1, 2, 3}, {4, 5, 6}};\n"
        + ".global .u64 pointer = generic(bytes)+2;\n"
        + ".global .b8 part[2] = {0xFF(bytes), 0xFF00(bytes)};\n"
        + ".extern .shared .align 128 .b8 dynamic[];\n"
    )
    found = module.variables
    assert found["bytes"].init == (1, 2, 255, -1)
    assert (found["bytes"].align, found["bytes"].num_bytes) == (8, 4)
    assert found["pi"].init == (3.1415927410125732,)
    assert found["grid"].dims == (2, 3)
    assert found["grid"].num_bytes == 24
    assert found["grid"].init == (1, 2, 3, 4, 5, 6)
    assert found["pointer"].init == (SymbolByte("bytes", 2, generic=True),)
    assert found["part"].init == (SymbolByte("bytes", mask=0xFF), SymbolByte("bytes", mask=0xFF00))
    assert found["dynamic"].extern
    assert found["dynamic"].align == 128


def test_parameters_by_value_and_directives() -> None:
    module = parse(
        HEADER
        + ".visible .entry k(\n.param .align 128 .b8 map[128],\n"
        + ".param .u64 .ptr .global .align 16 p\n)\n"
        + ".maxntid 256, 1, 1\n.minnctapersm 2\n.explicitcluster\n.reqnctapercluster 2\n{ ret; }\n"
    )
    function = module.functions["k"]
    assert [(p.name, p.num_bytes, p.align) for p in function.params] == [
        ("map", 128, 128),
        ("p", 8, 8),
    ]
    assert function.directives["maxntid"] == (256, 1, 1)
    assert function.directives["reqnctapercluster"] == (2, 1, 1)
    assert "explicitcluster" in function.directives


def test_device_functions_and_calls() -> None:
    module = parse(
        HEADER
        + ".func (.param .b32 r) f(.param .b32 a);\n"
        + ".func (.param .b32 r) f(.param .b32 a)\n{ ret; }\n"
        + ".entry k()\n{ .param .b32 x; .param .b32 y; call.uni (x), f, (y); ret; }\n"
    )
    assert module.functions["f"].body is not None
    assert not module.functions["f"].is_entry
    call = (module.functions["k"].body or ())[0]
    assert isinstance(call, Instruction)
    assert [type(o).__name__ for o in call.operands] == ["Group", "Symbol", "Group"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("mov.u32 %r1 %r2;", "expected ','"),
        ("mov.u32 %q1, 0;", "%q1"),
        ("@%q bra x;", "%q is not a declared register"),
        ("mov.u32 %r1, [%rd1;", "expected ']'"),
        (".wrong 1;", "unexpected directive .wrong"),
        ("mov.u32 %r1, 'a';", "unexpected character"),
    ],
)
def test_malformed_text_is_refused_with_its_line(body: str, complaint: str) -> None:
    text = entry("\n\n" + body)
    with pytest.raises(PtxError) as caught:
        parse(text)
    assert complaint in str(caught.value)
    assert caught.value.line == text[: text.index(body)].count("\n") + 1


def test_text_that_stops_is_refused() -> None:
    with pytest.raises(PtxError, match="unexpected end"):
        parse(HEADER + ".entry k() {")
