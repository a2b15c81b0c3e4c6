"""Shared-memory descriptors of tcgen05 against CuTe's layout algebra, and every wrong field."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import IllegalOperation
from nibblas.emulator.machine.tcgen05_descriptors import (
    check_base_offset,
    decode,
    operand_offsets,
)
from tests.emulator.canonical import SWIZZLES, WIDTH, bits_of, canonical, evaluate, strides

CASES = [
    *((mode, False, bits) for mode in ("none", "32", "64", "128") for bits in (4, 8, 16, 32)),
    *((mode, True, bits) for mode in ("none", "32", "64", "128") for bits in (8, 16)),
    ("128/32", True, 32),
]


@pytest.mark.parametrize(("mode", "mn_major", "element_bits"), CASES)
@pytest.mark.parametrize("rows", [8, 72, 128])
def test_places_follow_the_canonical_layouts(
    mode: str, mn_major: bool, element_bits: int, rows: int
) -> None:
    span = 16 * WIDTH[mode]
    k_size = 256 // element_bits
    lbo, sbo = strides(mode, mn_major, element_bits, rows)
    starts = [0x2400]
    if not mn_major and mode in ("64", "128"):  # K advances within a row of the swizzle
        starts += [0x2400 + step for step in range(32, span, 32)]
    for start in starts:
        found = operand_offsets(
            decode(bits_of(start, lbo, sbo, mode)), rows, max(1, element_bits // 8), mn_major
        )
        place = canonical(mode, mn_major, element_bits, lbo, sbo)
        steps = 2 if element_bits == 4 else 1  # two elements in a byte
        for row in (*range(0, rows, 7), rows - 1):
            for k in range(0, k_size, steps):
                assert found[k // steps, row, 0] == place(start, row, k), (row, k)


@pytest.mark.parametrize(
    ("mode", "lbo", "sbo", "exact"),
    [
        ("none", 64 * 4, 32 * 4, (((8, 2), (4, 32)), ((4, 4), (1, 64)))),
        ("32", 0, 64 * 4, (((8, 2), (8, 64)), ((4, 4), (1, 4)))),
    ],
)
def test_examples_of_the_ptx_isa_k_major_tf32(mode: str, lbo: int, sbo: int, exact) -> None:
    """Figures "K major, no-swizzling and tf32 type", "K major, 32B swizzling and tf32 type"."""
    found = operand_offsets(decode(bits_of(0, lbo, sbo, mode)), 16, 4, False)
    b, m, s = SWIZZLES[mode]
    for row in range(16):
        for k in range(8):
            address = 4 * (evaluate(row, *exact[0]) + evaluate(k, *exact[1]))
            assert found[k, row, 0] == address ^ (address >> s & (1 << b) - 1 << m)


@pytest.mark.parametrize(
    ("mode", "lbo", "sbo", "rows", "exact"),
    [
        ("none", 128 * 2, 64 * 2, 16, (((8, 1, 2), (1, 8, 64)), ((8, 2), (8, 128)))),
        ("32", 128 * 2, 256 * 2, 32, (((8, 2, 2), (1, 8, 128)), ((8, 2), (16, 256)))),
        ("64", 256 * 2, 512 * 2, 64, (((8, 4, 2), (1, 8, 256)), ((8, 2), (32, 512)))),
    ],
)
def test_examples_of_the_ptx_isa_mn_major_bf16(
    mode: str, lbo: int, sbo: int, rows: int, exact
) -> None:
    found = operand_offsets(decode(bits_of(0, lbo, sbo, mode)), rows, 2, True)
    b, m, s = SWIZZLES[mode]
    for row in range(rows):
        for k in range(16):
            address = 2 * (evaluate(row, *exact[0]) + evaluate(k, *exact[1]))
            assert found[k, row, 0] == address ^ (address >> s & (1 << b) - 1 << m)


def test_leading_offset_is_not_used_by_swizzled_k_major() -> None:
    for mode in ("32", "64", "128"):
        sbo = 8 * 16 * WIDTH[mode]
        places = [
            operand_offsets(decode(bits_of(1024, lbo, sbo, mode)), 64, 1, False)
            for lbo in (0, 16, 4096)
        ]
        assert (places[0] == places[1]).all() and (places[0] == places[2]).all()


def test_base_offset_is_nothing_without_a_swizzle() -> None:
    with_base = decode(bits_of(0x2000, 16, 128, "none", base=3))
    assert with_base == decode(bits_of(0x2000, 16, 128, "none"))


def test_base_offset_moves_the_pattern() -> None:
    """A tile that begins 256 bytes into a pattern: row r of it is row r + 2 of the pattern."""
    inside = operand_offsets(decode(bits_of(1024 + 256, 0, 1024, "128", base=2)), 8, 1, False)
    aligned = operand_offsets(decode(bits_of(1024, 0, 1024, "128")), 8, 1, False)
    assert (inside - 256 == aligned).all()


@pytest.mark.parametrize(
    ("start", "mode", "base"),
    [
        *((1024 + 32, "128", 0), (1024 + 256, "128", 2), (512 + 32, "64", 0), (128, "64", 1)),
        *((256, "32", 0), (128, "32", 1), (128, "none", 0)),
    ],
)
def test_a_base_offset_says_where_the_pattern_is(start: int, mode: str, base: int) -> None:
    check_base_offset(decode(bits_of(start, 0, 1024, mode, base=base)))


@pytest.mark.parametrize(
    ("start", "mode", "base"), [(128, "128", 0), (1024, "128", 1), (128, "64", 0), (128, "32", 0)]
)
def test_a_base_offset_of_another_address_is_reported(start: int, mode: str, base: int) -> None:
    with pytest.raises(IllegalOperation, match="want base offset"):
        check_base_offset(decode(bits_of(start, 0, 1024, mode, base=base)))


GOOD = bits_of(0x2000, 16, 1024, "128")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (GOOD & ~(7 << 46), "bits 46-48 are 0"),
        (GOOD | 1 << 47, "bits 46-48 are 3"),
        (GOOD | 1 << 14, "must be zero"),
        (GOOD | 1 << 31, "must be zero"),
        (GOOD | 1 << 53, "must be zero"),
        (GOOD | 1 << 60, "must be zero"),
        (GOOD | 1 << 61, "swizzle mode 3"),
        (GOOD ^ 7 << 61, "swizzle mode 5"),
        (GOOD | 5 << 61, "swizzle mode 7"),
        (GOOD | 1 << 52, "bit 52"),
    ],
)
def test_wrong_fields_are_reported(bits: int, words: str) -> None:
    with pytest.raises(IllegalOperation, match=words) as report:
        decode(bits)
    assert "PTX ISA" in str(report.value)


@pytest.mark.parametrize(
    ("bits", "element_bytes", "mn_major", "words"),
    [
        (bits_of(0, 0, 512, "128"), 1, False, "overlap"),
        (bits_of(0, 16, 16, "none"), 1, False, "overlap"),
        (bits_of(96 + 16, 0, 1024, "128"), 1, False, "cross"),
        (bits_of(0, 0, 1024, "128/32"), 4, False, "only MN-major"),
        (bits_of(0, 4096, 1024, "128/32"), 2, True, "no others"),
        (bits_of(0, 4096, 1024, "128"), 4, True, "need 128-byte swizzling with 32-byte"),
    ],
)
def test_contradictions_with_the_operand_are_reported(
    bits: int, element_bytes: int, mn_major: bool, words: str
) -> None:
    with pytest.raises(IllegalOperation, match=words):
        operand_offsets(decode(bits), 128, element_bytes, mn_major)


def test_every_byte_of_an_operand_has_its_own_place() -> None:
    found = operand_offsets(decode(GOOD), 128, 1, False)
    assert len(np.unique(found)) == 128 * 32
    assert found.min() == 0x2000 and found.max() < 0x2000 + 128 * 128
