"""The modifiers that a handler accepts, written as the PTX ISA writes a synopsis.

    "ld [weak] [space:global|shared] [vec:v2|v4] type:b32|f32"

Words in order: ``word`` is a literal modifier, ``name:a|b`` one of several, ``[...]`` optional.
A match gives a mapping from names to what was found; an optional literal is there or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Type lists by name, usable in any synopsis as ``type:@int``.
TYPE_SETS: Mapping[str, str] = {
    "@int": "u16|u32|u64|s16|s32|s64",
    "@bits": "b8|b16|b32|b64",
    "@scalar": "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
}


@dataclass(frozen=True)
class _Slot:
    name: str
    choices: frozenset[str]
    optional: bool


class Syntax:
    """One synopsis, ready to match."""

    def __init__(self, synopsis: str) -> None:
        for key, value in TYPE_SETS.items():
            synopsis = synopsis.replace(key, value)
        self.synopsis = synopsis
        self.opcode, *words = synopsis.split()
        self._slots = [_slot(word) for word in words]

    def match(self, modifiers: Sequence[str]) -> dict[str, str] | None:
        """What the modifiers are, by name; None: they do not fit."""
        return self._match(0, tuple(modifiers))

    def _match(self, index: int, modifiers: tuple[str, ...]) -> dict[str, str] | None:
        if index == len(self._slots):
            return None if modifiers else {}
        slot = self._slots[index]
        if modifiers and modifiers[0] in slot.choices:
            rest = self._match(index + 1, modifiers[1:])
            if rest is not None:
                return {slot.name: modifiers[0], **rest}
        return self._match(index + 1, modifiers) if slot.optional else None

    def match_in_any_order(self, modifiers: Sequence[str]) -> dict[str, str] | None:
        """The same for modifiers that stand elsewhere than in the manual, as ptxas takes them.

        Only where each word can have one meaning; types keep their order, and so do state spaces.
        """
        slots = self._slots
        words = [word for slot in slots for word in slot.choices]
        owners = {word: index for index, slot in enumerate(slots) for word in slot.choices}
        if len(words) > len(owners):
            return None
        found: dict[int, str] = {}
        latest = dict.fromkeys(_ORDERED, -1)
        for word in modifiers:
            index = owners.get(word, -1)
            if index < 0 or index in found:
                return None
            for pattern in _ORDERED:
                if pattern.fullmatch(word):
                    if index < latest[pattern]:
                        return None
                    latest[pattern] = index
            found[index] = word
        if any(index not in found and not slot.optional for index, slot in enumerate(slots)):
            return None
        return {slots[index].name: word for index, word in found.items()}


_ORDERED = (
    re.compile(r"pred|(?:[busf]|bf|tf)\d+(?:x\d+)?|u?e\d+m\d+(?:x\d+)?"),
    re.compile(r"(?:global|const|local|param|shared)(?:::\w+)?"),
)
"""Types, and state spaces: d before a, destination before source."""


def _slot(word: str) -> _Slot:
    optional = word.startswith("[")
    name, colon, choices = word.strip("[]").partition(":")
    if colon and choices.startswith(":"):  # a literal such as shared::cta
        name, colon, choices = word.strip("[]"), "", ""
    if not colon:
        return _Slot(name, frozenset({name}), optional)
    return _Slot(name, frozenset(choices.split("|")), optional)
