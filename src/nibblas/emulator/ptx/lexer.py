"""PTX text to tokens. PTX ISA, chapter 4, "Syntax"."""

from __future__ import annotations

import re
from typing import NamedTuple

from nibblas.emulator.errors import PtxError


class Token(NamedTuple):
    """``kind``: "word" (opcodes with their modifiers, names), "directive", "number", "float",
    "string", "punctuation" or "end"."""

    kind: str
    text: str
    line: int


_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}
             |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<number>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
  | (?P<word>[%$_A-Za-z][\w$%]*(?:(?:::|\.)[\w$]+)*)
  | (?P<punctuation>[{}()\[\]<>,;:=+\-*/!~@|&^?])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[Token]:
    """All tokens, an "end" token last.

    Raises:
        PtxError: a character that begins no token.
    """
    tokens = []
    line, position, end = 1, 0, len(text.rstrip("\0"))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxError(f"unexpected character {text[position]!r}", line)
        found = match.group()
        if match.lastgroup != "skip":
            tokens.append(Token(match.lastgroup or "", found, line))
        line += found.count("\n")
        position = match.end()
    tokens.append(Token("end", "", line))
    return tokens
