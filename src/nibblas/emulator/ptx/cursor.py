"""A position in a list of tokens, and what is read at one: operands and constants."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal

from nibblas.emulator.errors import PtxError
from nibblas.emulator.ptx.lexer import Token
from nibblas.emulator.ptx.model import (
    Address,
    Group,
    Imm,
    Loc,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Symbol,
    Vector,
)

WARP_SIZE = 32


class Cursor:
    """Reads tokens in order. Every method raises PtxError where the text does not fit.

    ``files``: paths of the sources that ``.loc`` names by number.
    """

    def __init__(self, tokens: list[Token], files: Mapping[int, str]) -> None:
        self._tokens = tokens
        self._index = 0
        self.files = files

    @property
    def kind(self) -> str:
        return self._tokens[self._index].kind

    @property
    def text(self) -> str:
        return self._tokens[self._index].text

    @property
    def line(self) -> int:
        return self._tokens[self._index].line

    @property
    def following(self) -> str:
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)].text

    @property
    def index(self) -> int:
        return self._index

    def text_between(self, start: int, stop: int) -> str:
        """The tokens of a range, as one readable line."""
        pieces: list[str] = []
        for token in self._tokens[start:stop]:
            glued = token.text in ",;)]}:" or (pieces and pieces[-1][-1:] in "([{@!")
            pieces.append(token.text if glued or not pieces else f" {token.text}")
        return "".join(pieces)

    def take(self, kind: str | None = None) -> Token:
        token = self._tokens[self._index]
        if token.kind == "end":
            raise PtxError("unexpected end of the text", token.line)
        if kind is not None and token.kind != kind:
            raise PtxError(f"expected a {kind}, found {token.text!r}", token.line)
        self._index += 1
        return token

    def accept(self, text: str) -> bool:
        if self.text == text and self.kind != "string":
            self._index += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise PtxError(f"expected {text!r}, found {self.text!r}", self.line)

    def skip_parentheses(self) -> None:
        self._skip("(", ")")

    def skip_braces(self) -> None:
        """Everything up to and including the next balanced ``{...}``."""
        self._skip("{", "}")

    def _skip(self, opening: str, closing: str) -> None:
        depth = 0
        while True:
            text = self.take().text
            if text == opening:
                depth += 1
            elif text == closing:
                depth -= 1
                if depth == 0:
                    return

    def rest_of_line(self) -> list[Token]:
        """Directives that no semicolon ends: what stands on the current line."""
        line, found = self._tokens[self._index - 1].line, []
        while self.line == line and self.kind != "end":
            found.append(self.take())
        return found

    def loc_directive(self) -> Loc:
        """``.loc file line column`` ..., after the directive."""
        file, line, *_ = self.rest_of_line()
        return Loc(self.files.get(int(file.text), f"file {file.text}"), int(line.text))

    def integer(self) -> int:
        """A constant integer expression. PTX ISA, "Constant Expressions"."""
        return self._sum()

    def _sum(self) -> int:
        value = self._product()
        while self.text in ("+", "-"):
            sign = 1 if self.take().text == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> int:
        value = self._unary()
        while self.text == "*":
            self.take()
            value *= self._unary()
        return value

    def _unary(self) -> int:
        if self.accept("-"):
            return -self._unary()
        if self.accept("+"):
            return self._unary()
        if self.accept("~"):
            return ~self._unary()
        if self.accept("!"):
            return int(not self._unary())
        if self.accept("("):
            value = self._sum()
            self.expect(")")
            return value
        if self.text == "WARP_SZ":
            self.take()
            return WARP_SIZE
        return integer_of(self.take("number").text)

    def number(self) -> Imm:
        """A constant of any kind, sign included."""
        start = self._index
        sign = 1
        while self.text in ("-", "+"):
            sign = -sign if self.take().text == "-" else sign
        if self.kind == "float":
            value, kind = float_of(self.take().text)
            return Imm(-value if sign < 0 else value, kind)
        self._index = start
        return Imm(self.integer())

    def operand(self) -> Operand:
        """One operand of an instruction. PTX ISA, "Instruction Operands"."""
        first = self._simple_operand()
        if self.accept("|"):
            return Pair(first, self._simple_operand())
        return first

    def _simple_operand(self) -> Operand:
        text = self.text
        if text == "[":
            return self._address()
        if text == "{":
            return Vector(self._list("{", "}"))
        if text == "(" and not self._starts_expression():
            return Group(self._list("(", ")"))
        if text == "!":
            self.take()
            name = self.take("word").text
            return Not(Reg(name))
        if self.kind == "word" and text != "WARP_SZ":
            self.take()
            return self._named(text)
        return self.number()

    def _named(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if self.accept("["):  # an element of an array
            offset = self.integer()
            self.expect("]")
            return Symbol(text, offset)
        if self.text in ("+", "-"):
            return Symbol(text, self.integer())
        return Reg(text)  # the body's scopes tell registers from symbols

    def _starts_expression(self) -> bool:
        following = self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        return following.kind == "number" and self._tokens[self._index + 2].text not in (",", ")")

    def _list(self, opening: str, closing: str) -> tuple[Operand, ...]:
        self.expect(opening)
        items: list[Operand] = []
        while not self.accept(closing):
            items.append(self.operand())
            self.accept(",")
        return tuple(items)

    def _address(self) -> Address:
        self.expect("[")
        base: Reg | Symbol | Imm
        if self.kind == "word" and self.text != "WARP_SZ":
            base = Reg(self.take().text)
        else:
            base = Imm(self.integer())
        offset = self.integer() if self.text in ("+", "-") else 0
        coordinates: list[Operand] = []
        while self.accept(","):
            coordinates.append(self.operand())
        self.expect("]")
        return Address(base, offset, tuple(coordinates))


def integer_of(text: str) -> int:
    """An integer constant: decimal, 0x, 0b or octal, with or without ``U``."""
    digits = text.rstrip("Uu")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return int(digits, 8)
    return int(digits, 0)


def float_of(text: str) -> tuple[float, Literal["f32", "f64"]]:
    """(value, "f32" or "f64") of a floating-point constant; decimal ones are f64."""
    if text[:2] in ("0f", "0F"):
        return struct.unpack(">f", bytes.fromhex(text[2:]))[0], "f32"
    if text[:2] in ("0d", "0D"):
        return struct.unpack(">d", bytes.fromhex(text[2:]))[0], "f64"
    return float(text), "f64"
