"""The accumulation model against its own words, in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from nibblas.emulator.dot import Accumulation, accumulation, cut, expanded, factors, multiply_add
from nibblas.emulator.formats import FORMATS


def exponent(value: float, least: int) -> int:
    """Of a number that is not zero; subnormals count as the smallest normal."""
    return max(int(np.frexp(value)[1]) - 1, least)


def towards_zero(value: Fraction, unit: Fraction) -> Fraction:
    whole = abs(value) // unit
    return whole * unit if value > 0 else -whole * unit


def by_definition(a: list[float], b: list[float], c: float, least: int, model: Accumulation):
    for begin in range(0, len(a), model.terms):
        terms = [(Fraction(c), max(exponent(c, -126) if c else -126, -126))]
        for x, y in zip(
            a[begin : begin + model.terms], b[begin : begin + model.terms], strict=True
        ):
            if x and y:
                terms.append((Fraction(x) * Fraction(y), exponent(x, least) + exponent(y, least)))
        largest = max(e for _, e in terms)
        unit = Fraction(2) ** (largest - model.fraction_bits)
        total = sum(towards_zero(value, unit) for value, _ in terms)
        if total == 0:
            c = 0.0
            continue
        place = exponent(float(abs(total)), -126)
        if Fraction(2) ** place > abs(total):
            place -= 1
        c = float(towards_zero(total, Fraction(2) ** (max(place, -126) - model.kept_bits)))
    return c


@pytest.mark.parametrize("kind", ["f16", "bf16", "e4m3", "e5m2"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_model_follows_its_definition(kind: str, arch: str) -> None:
    rng = np.random.default_rng(hash((kind, arch)) % 1000)
    form, model = FORMATS[kind], accumulation(arch, kind, wgmma=arch == "sm_90")
    usable = np.flatnonzero(np.isfinite(form.values) & (np.abs(form.values) < 2.0**40))
    usable = usable[np.abs(form.values[usable]) > 2.0**-45]
    usable = np.append(usable, 0)
    k, m, n = 2 * model.terms, 3, 5
    for _ in range(8):
        a, b = rng.choice(usable, (k, m)), rng.choice(usable, (k, n))
        c = (rng.standard_normal((n, m)) * 2.0 ** rng.integers(-9, 9)).astype(np.float32)
        found = multiply_add(expanded(a, kind), expanded(b, kind), c, model)
        for i in range(m):
            for j in range(n):
                expected = by_definition(
                    form.values[a[:, i]].tolist(),
                    form.values[b[:, j]].tolist(),
                    float(c[j, i]),
                    1 - form.bias,
                    model,
                )
                assert float(found[j, i]) == expected


def test_hopper_keeps_two_bits_more_than_float32() -> None:
    """1 + 2^-24 + 2^-24 + ...: 25 fraction bits see the small terms, 24 of them together count."""
    model = accumulation("sm_90", "f16")
    assert (model.terms, model.fraction_bits) == (16, 25)
    a, b = np.full((16, 1), 1.0, np.float16), np.full((16, 1), 2.0**-12, np.float16)
    b[0], a[1:] = 1.0, 2.0**-12
    left, right = (expanded(x.view(np.uint16), "f16") for x in (a, b))
    total = multiply_add(left, right, np.zeros((1, 1), np.float32), model)
    assert total[0, 0] == np.float32(1 + 14 * 2.0**-24)  # 15 terms of 2^-24, cut to 2^-23
    a[1:] = 2.0**-14
    left = expanded(a.view(np.uint16), "f16")
    assert multiply_add(left, right, np.zeros((1, 1), np.float32), model)[0, 0] == 1.0


def test_exact_where_nothing_is_cut() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, (32, n)).astype(np.float16) for n in (16, 8))
    c = rng.integers(-99, 99, (8, 16)).astype(np.float32)
    left, right = (expanded(x.view(np.uint16), "f16") for x in (a, b))
    found = multiply_add(left, right, c, accumulation("sm_90", "f16"))
    assert (found == b.astype(np.float32).T @ a.astype(np.float32) + c).all()


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (np.inf, 1.0, 0.0, np.inf),
        (np.inf, 0.0, 0.0, np.nan),
        (np.inf, 1.0, -np.inf, np.nan),
        (1.0, 1.0, -np.inf, -np.inf),
        (np.nan, 1.0, 0.0, np.nan),
        (1.0, 1.0, np.nan, np.nan),
    ],
)
def test_infinities_and_nans(a: float, b: float, c: float, expected: float) -> None:
    left, right = (expanded(np.array([[x]], "f2").view("u2"), "f16") for x in (a, b))
    with np.errstate(all="ignore"):
        found = multiply_add(left, right, np.array([[c]], np.float32), accumulation("sm_90", "f16"))
    if np.isnan(expected):
        assert found.view(np.uint32)[0, 0] == 0x7FFFFFFF
    else:
        assert found[0, 0] == expected


def test_cut_of_subnormals_and_overflow() -> None:
    values = np.array([2.0**-149 * 1.75, -(2.0**-130) * (1 + 2.0**-19 + 2.0**-20), 2.0**128])
    expected = np.array([2.0**-149, -(2.0**-130) * (1 + 2.0**-19), np.inf], np.float32)
    with np.errstate(over="ignore"):
        assert (cut(values, 23) == expected).all()
        below = cut(np.array([2.0**128 * (1 - 2.0**-30)]), 23)
    assert below[0] == np.finfo(np.float32).max


def test_powers_of_codes() -> None:
    values, powers = factors("f16")
    codes = np.array([0x3C00, 0x3E00, 0x0001, 0x8000, 0x7BFF], np.uint16)
    assert values[codes].tolist() == [1.0, 1.5, 2.0**-24, 0.0, 65504.0]
    assert powers[codes].tolist() == [1.0, 1.0, 2.0**-14, 0.0, 2.0**15]
