"""The block-scaled accumulation model against its own words, in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from nibblas.emulator.block_scaled import multiply_add_fp4, multiply_add_scaled, scale_factors
from nibblas.emulator.dot import accumulation, expanded
from nibblas.emulator.formats import FORMATS
from tests.emulator.oracle import log2_floor

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def towards_zero(value: Fraction, unit: Fraction) -> Fraction:
    whole = abs(value) // unit
    return whole * unit if value > 0 else -whole * unit


def scale_of(code: int, kind: str) -> tuple[Fraction, int] | None:
    """(value, exponent) of a scale; None: NaN. The sign of .ue4m3 is not looked at."""
    if kind == "ue8m0":
        return None if code == 255 else (Fraction(2) ** (code - 127), code - 127)
    exponent, fraction = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return None
    if exponent == 0:
        return Fraction(fraction, 512), -6 if fraction else -126
    return Fraction(8 + fraction) * Fraction(2) ** (exponent - 10), exponent - 7


def cut_to_single(total: Fraction) -> float:
    if total == 0:
        return 0.0
    place = max(log2_floor(abs(total)), -126)
    found = towards_zero(total, Fraction(2) ** (place - 23))
    if abs(found) >= Fraction(2) ** 128:
        return math.inf if total > 0 else -math.inf
    return float(found)


def single_exponent(value: float) -> int:
    return max(math.frexp(value)[1] - 1, -126) if value else -126


def by_definition(a, b, c: float, sfa, sfb, kind: str) -> float:
    """One output of kind::mxf4nvf4 from codes [64] and scale codes."""
    values = [(Fraction(c), single_exponent(c))]
    for block in range(4):
        products = sum(
            Fraction(E2M1[x]) * Fraction(E2M1[y])
            for x, y in zip(a[16 * block :][:16], b[16 * block :][:16], strict=True)
        )
        which = block * len(sfa) // 4
        left, right = scale_of(int(sfa[which]), kind), scale_of(int(sfb[which]), kind)
        if left is None or right is None:
            return math.nan
        values.append((products * left[0] * right[0], left[1] + right[1]))
    unit = Fraction(2) ** (max(e for _, e in values) - 35)
    return cut_to_single(sum((towards_zero(value, unit) for value, _ in values), Fraction()))


def pack(codes: np.ndarray) -> np.ndarray:
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def check(a, b, c, sfa, sfb, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        found = multiply_add_fp4(pack(a), pack(b), c, sfa, sfb, kind)
    for i, j in np.ndindex(*c.shape):
        expected = by_definition(a[i], b[j], float(c[i, j]), sfa[i], sfb[j], kind)
        if math.isnan(expected):
            assert found.view(np.uint32)[i, j] == 0x7FFF_FFFF
        else:
            assert float(found[i, j]) == expected, (i, j)
    return found


@pytest.mark.parametrize(
    ("kind", "scales", "low", "high"),
    [
        ("ue4m3", 4, 0, 127),
        ("ue8m0", 4, 90, 165),
        ("ue8m0", 2, 90, 165),
        ("ue8m0", 2, 0, 256),
        ("ue4m3", 4, 0, 256),
    ],
)
def test_model_follows_its_definition(kind: str, scales: int, low: int, high: int) -> None:
    rng = np.random.default_rng(low + high + scales)
    m, n = 9, 12
    a, b = (rng.integers(0, 16, (rows, 64)).astype(np.uint8) for rows in (m, n))
    sfa, sfb = (rng.integers(low, high, (rows, scales)).astype(np.uint8) for rows in (m, n))
    c = (rng.standard_normal((m, n)) * 2.0 ** rng.integers(-40, 40, (m, n))).astype(np.float32)
    c[0] = 0
    check(a, b, c, sfa, sfb, kind)


def test_terms_far_apart_are_cut_at_35_bits() -> None:
    """A scale of 2^16 beside one of 11 * 2^-18: of 99 * 2^-20 what lies below 2^-19 is lost."""
    a = np.zeros((1, 64), np.uint8)
    b = np.zeros((1, 64), np.uint8)
    a[0, 0] = b[0, 0] = 2  # 1.0
    a[0, 16] = b[0, 16] = 3  # 1.5
    sfa = np.array([[0x78, 0x01, 0x38, 0x38]], np.uint8)  # 2^8, 2^-9, 1, 1
    sfb = np.array([[0x78, 0x0B, 0x38, 0x38]], np.uint8)  # 2^8, 11 * 2^-9
    c = np.full((1, 1), -(2.0**16), np.float32)
    found = check(a, b, c, sfa, sfb, "ue4m3")
    assert found[0, 0] == 98 * 2.0**-20


def test_a_block_of_zeros_still_aligns() -> None:
    """Its scales are 2^16: c loses what lies below 2^-19, though nothing is added to it."""
    a = np.zeros((1, 64), np.uint8)
    sf = np.full((1, 4), 0x78, np.uint8)
    c = np.full((1, 1), 2.0**-10 + 2.0**-20, np.float32)
    assert check(a, a, c, sf, sf, "ue4m3")[0, 0] == 2.0**-10


def test_every_code_times_every_scale() -> None:
    """All 16 codes, all scale bytes 0x00 to 0x7E on both sides: exact in float32."""
    codes = np.arange(16, dtype=np.uint8)
    scales = np.arange(0x7F, dtype=np.uint8)
    for k in (0, 17, 47, 63):
        a = np.zeros((16 * 127, 64), np.uint8)
        a[:, k] = np.tile(codes, 127)
        sfa = np.zeros((16 * 127, 4), np.uint8)
        sfa[:, k // 16] = np.repeat(scales, 16)
        b = np.zeros((127, 64), np.uint8)
        b[:, k] = 7
        sfb = np.zeros((127, 4), np.uint8)
        sfb[:, k // 16] = scales
        c = np.zeros((len(a), len(b)), np.float32)
        found = multiply_add_fp4(pack(a), pack(b), c, sfa, sfb, "ue4m3")
        value = FORMATS["e4m3"].values
        left = np.array(E2M1, np.float64)[a[:, k]] * value[sfa[:, k // 16]]
        expected = np.multiply.outer(left, 6 * value[sfb[:, k // 16]])
        assert (found == expected).all()
        assert (expected.astype(np.float32) == expected).all()


def test_a_sum_of_negative_zeros_is_a_positive_one() -> None:
    a, b = np.full((2, 64), 8, np.uint8), np.full((2, 64), 2, np.uint8)
    sf = np.full((2, 4), 0x38, np.uint8)
    c = np.full((2, 2), -0.0, np.float32)
    assert not multiply_add_fp4(pack(a), pack(b), c, sf, sf, "ue4m3").view(np.uint32).any()


def test_negation_and_infinities() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 16, (5, 64)).astype(np.uint8) for _ in range(2))
    sf = np.full((5, 4), 0x38, np.uint8)
    c = np.zeros((5, 5), np.float32)
    plain = multiply_add_fp4(pack(a), pack(b), c, sf, sf, "ue4m3")
    negated = multiply_add_fp4(pack(a), pack(b), c, sf, sf, "ue4m3", negate=True)
    assert (plain == -negated).all() and plain.any()
    c[0, 0], c[1, 1] = np.inf, np.nan
    with np.errstate(all="ignore"):
        found = multiply_add_fp4(pack(a), pack(b), c, sf, sf, "ue4m3")
    assert found[0, 0] == np.inf
    assert found.view(np.uint32)[1, 1] == 0x7FFF_FFFF
    assert np.isfinite(found).sum() == 23


def test_a_nan_scale_reaches_its_own_row_only() -> None:
    a = np.zeros((4, 64), np.uint8)
    sf = np.full((4, 4), 0x38, np.uint8)
    bad = sf.copy()
    bad[2, 3] = 0x7F
    with np.errstate(all="ignore"):
        found = multiply_add_fp4(pack(a), pack(a), np.zeros((4, 4), np.float32), bad, sf, "ue4m3")
    assert np.isnan(found[2]).all() and not np.isnan(np.delete(found, 2, axis=0)).any()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_mxf8f6f4_follows_its_definition(kind: str) -> None:
    """dot.py's sum of 32 products whose exponents hold the scales'."""
    rng = np.random.default_rng(8)
    form, model = FORMATS[kind], accumulation("sm_100", "e4m3")
    assert (model.terms, model.fraction_bits) == (32, 25)
    usable = np.flatnonzero(np.isfinite(form.values))
    a, b = rng.choice(usable, (32, 6)), rng.choice(usable, (32, 5))
    sfa, sfb = rng.integers(100, 150, 6), rng.integers(100, 150, 5)
    c = (rng.standard_normal((5, 6)) * 2.0 ** rng.integers(-30, 30, (5, 6))).astype(np.float32)
    found = multiply_add_scaled(expanded(a, kind), expanded(b, kind), c, sfa, sfb, model)
    least = 1 - form.bias
    for i, j in np.ndindex(6, 5):
        terms = [(Fraction(float(c[j, i])), single_exponent(float(c[j, i])))]
        shift = int(sfa[i]) + int(sfb[j]) - 254
        for x, y in zip(form.values[a[:, i]], form.values[b[:, j]], strict=True):
            if x and y:
                places = [max(math.frexp(v)[1] - 1, least) for v in (x, y)]
                value = Fraction(x) * Fraction(y) * Fraction(2) ** shift
                terms.append((value, sum(places) + shift))
        unit = Fraction(2) ** (max(e for _, e in terms) - 25)
        total = sum((towards_zero(v, unit) for v, _ in terms), Fraction())
        assert float(found[j, i]) == cut_to_single(total)


def test_scale_codes() -> None:
    values, powers = scale_factors("ue4m3")
    assert values[[0, 1, 0x38, 0x7E, 0xB8]].tolist() == [0, 2.0**-9, 1, 448, 1]
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    assert powers[[0, 1, 7, 8, 0x7E]].tolist() == [0, 2.0**-6, 2.0**-6, 2.0**-6, 256]
    values, powers = scale_factors("ue8m0")
    assert values[[0, 127, 254]].tolist() == [2.0**-127, 1, 2.0**127] and np.isnan(values[255])
