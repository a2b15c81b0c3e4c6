"""Permutations of the bytes of two words, for prmt. PTX ISA, "prmt"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.machine.memory import Array

_Binary = Callable[[Array, Array], Array]


def permuted(a: Array, b: Array, selector: Array) -> Array:
    """Byte i is the byte that selector nibble i names; its bit 3: the sign, eight times."""
    joined = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros(a.shape, np.uint32)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i)
        byte = (joined >> (8 * (nibble & 7)).astype(np.uint64)).astype(np.uint8)
        signs = (byte.view(np.int8) >> 7).view(np.uint8)
        byte = np.where(nibble & 8, signs, byte)
        result |= byte.astype(np.uint32) << np.uint32(8 * i)
    return result


def permutation(selector: int) -> _Binary:
    """A constant permutation as shifts and masks; as ``permuted`` where it spreads signs."""
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    if any(nibble & 8 for nibble in nibbles):
        whole = np.full(32, selector, np.uint32)
        return lambda a, b: permuted(a, b, whole)
    masks: dict[tuple[int, int], int] = {}  # (source, shift to the left) -> bits of the result
    for place, nibble in enumerate(nibbles):
        key = (nibble // 4, 8 * (place - nibble % 4))
        masks[key] = masks.get(key, 0) | 0xFF << 8 * place
    terms = [_moved(source, shift, mask) for (source, shift), mask in masks.items()]
    if len(terms) == 1:
        return terms[0]
    if len(terms) == 2:
        first, second = terms
        return lambda a, b: first(a, b) | second(a, b)

    def joined(a: Array, b: Array) -> Array:
        result = terms[0](a, b)
        for term in terms[1:]:
            result = result | term(a, b)
        return result

    return joined


def _moved(source: int, shift: int, mask: int) -> _Binary:
    """One source shifted to the left (negative: right), cut to the mask's bits."""
    bits, amount = np.uint32(mask), np.uint32(abs(shift))
    reach = 0xFFFF_FFFF << shift & 0xFFFF_FFFF if shift >= 0 else 0xFFFF_FFFF >> -shift
    if shift == 0:
        return lambda a, b: (b if source else a) & bits
    if shift > 0:
        if mask == reach:
            return lambda a, b: (b if source else a) << amount
        return lambda a, b: (b if source else a) << amount & bits
    if mask == reach:
        return lambda a, b: (b if source else a) >> amount
    return lambda a, b: (b if source else a) >> amount & bits
