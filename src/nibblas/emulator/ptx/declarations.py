"""Variable declarations and their initialisers. PTX ISA, "Variables"."""

from __future__ import annotations

from nibblas.emulator.errors import PtxError
from nibblas.emulator.ptx.cursor import Cursor, float_of
from nibblas.emulator.ptx.model import TYPE_BYTES, SymbolByte, Variable


def parse_variables(
    at: Cursor, space: str, *, extern: bool = False, is_parameter: bool = False
) -> list[Variable]:
    """The variables of one declaration, its space already read; a parameter ends at , or )."""
    align, vector, kind = 0, 1, ""
    while at.kind == "directive":
        directive = at.take().text
        if directive == ".align":
            align = at.integer()
        elif directive in (".v2", ".v4", ".v8"):
            vector = int(directive[2:])
        elif directive == ".attribute":
            at.skip_parentheses()
        elif directive == ".ptr":
            _skip_pointer_attributes(at)
        elif directive[1:] in TYPE_BYTES:
            kind = directive[1:]
        elif directive in (".texref", ".samplerref", ".surfref"):
            raise PtxError("texture and surface references are not modelled", at.line)
        else:
            raise PtxError(f"unexpected {directive} in a declaration", at.line)
    found = []
    while True:
        found.append(_declarator(at, space, kind, align=align, vector=vector, extern=extern))
        if is_parameter or not at.accept(","):
            break
    if not is_parameter:
        at.expect(";")
    return found


def _skip_pointer_attributes(at: Cursor) -> None:
    """``.ptr .global .align 16``: what a pointer parameter points to; a promise, not a size."""
    while at.text in (".global", ".const", ".shared", ".local", ".align"):
        if at.take().text == ".align":
            at.integer()


def _declarator(
    at: Cursor, space: str, kind: str, *, align: int, vector: int, extern: bool
) -> Variable:
    name = at.take("word")
    if not kind:
        raise PtxError(f"{name.text} has no type", name.line)
    dims: list[int] = []
    while at.accept("["):
        dims.append(0 if at.text == "]" else at.integer())
        at.expect("]")
    init = None
    if at.accept("="):
        elements: list[int | float | SymbolByte] = []
        _read_initialiser(at, elements)
        init = tuple(elements)
        if dims and dims[0] == 0:
            dims[0] = len(elements)
    return Variable(
        name.text,
        space[1:],  # type: ignore[arg-type]
        kind,
        align or TYPE_BYTES[kind] * vector,
        name.line,
        vector,
        tuple(dims),
        init,
        extern,
    )


def _read_initialiser(at: Cursor, elements: list[int | float | SymbolByte]) -> None:
    if at.accept("{"):
        while not at.accept("}"):
            _read_initialiser(at, elements)
            at.accept(",")
    else:
        elements.append(_element(at))


def _element(at: Cursor) -> int | float | SymbolByte:
    if at.kind == "float" or (at.text in "+-" and at.following[:2] in ("0f", "0F", "0d", "0D")):
        sign = -1 if at.text == "-" else 1
        if at.kind != "float":
            at.take()
        return sign * float_of(at.take().text)[0]
    if at.kind == "word":
        return _symbol(at, mask=-1)
    value = at.integer()
    if at.accept("("):  # 0xFF(name): a byte of an address
        element = _symbol(at, mask=value)
        at.expect(")")
        return element
    return value


def _symbol(at: Cursor, *, mask: int) -> SymbolByte:
    name = at.take("word").text
    generic = name == "generic" and at.text == "("
    if generic:
        at.expect("(")
        name = at.take("word").text
        at.expect(")")
    offset = at.integer() if at.text in ("+", "-") else 0
    return SymbolByte(name, offset, mask, generic)
