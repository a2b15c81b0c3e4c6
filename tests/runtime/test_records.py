"""Records of which only the addresses change."""

from __future__ import annotations

import struct

import pytest

from nibblas.runtime.records import RecordTemplate

RECORD = struct.pack("=6q", 10, -11, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("words", "addresses", "filled"),
    [
        ((1, 4), (7, 2**47), (10, 7, 12, 13, 2**47, 15)),
        ((0, 1, 5), (7, 8, 9), (7, 8, 12, 13, 14, 9)),
        ((5, 0, 3), (7, 8, 9), (8, -11, 12, 9, 14, 7)),
    ],
)
def test_addresses_land_in_their_words_and_the_rest_stays(
    words: tuple[int, ...], addresses: tuple[int, ...], filled: tuple[int, ...]
) -> None:
    template = RecordTemplate(RECORD, words)
    for _ in range(2):  # filling changes nothing in the template
        template.filled([1] * len(words))
        assert struct.unpack("=6q", template.filled(addresses)) == filled


def test_a_missing_address_is_an_error() -> None:
    with pytest.raises((ValueError, IndexError)):
        RecordTemplate(RECORD, (1, 2, 3)).filled((1, 2))
