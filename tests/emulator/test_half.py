"""f16 and bf16 arithmetic against exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.instructions import execute
from tests.emulator.oracle import as_float, rounded

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
EXACT: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
}
EDGES = {
    "f16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00],
    "bf16": [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC1, 0x3F80],
}


def codes(kind: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    wild = rng.integers(0, 2**16, count, dtype=np.uint16)
    near = rng.standard_normal(count).astype(DTYPES[kind]).view(np.uint16)
    mixed = np.where(rng.random(count) < 0.5, wild, near)
    mixed[: len(EDGES[kind])] = EDGES[kind]
    return rng.permutation(mixed)


def floats_of(kind: str, given: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return given.view(DTYPES[kind]).astype(np.float64)


def expected(name: str, kind: str, row: tuple[float, ...]) -> float:
    if not all(map(math.isfinite, row)):
        with np.errstate(all="ignore"):
            return float(EXACT[name](*map(np.float64, row)))
    exact = EXACT[name](*map(Fraction, row))
    if exact == 0:
        return float(EXACT[name](*row))  # float64 has no underflow here
    value = as_float(rounded(exact, kind, "rn"))
    return -abs(value) if exact < 0 else abs(value)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", EXACT)
def test_rounded_once(name: str, kind: str) -> None:
    number = 3 if name == "fma" else 2
    columns = [codes(kind, 1024, seed) for seed in range(number)]
    names = ", ".join(f"%a{i}" for i in range(number))
    rn = ".rn" if name == "fma" or kind == "bf16" else ""
    found = execute(f"{name}{rn}.{kind} %d, {names};", *columns, result="u2")
    packed = [c.view(np.uint32) for c in columns]
    pairs = execute(f"{name}.rn.{kind}x2 %d, {names};", *packed)
    assert (pairs.view(np.uint16) == found).all()
    values = [floats_of(kind, c).tolist() for c in columns]
    for row, code in zip(zip(*values, strict=True), found, strict=True):
        wanted = expected(name, kind, row)
        got = float(code.view(DTYPES[kind]))
        if math.isnan(wanted):
            assert code == 0x7FFF
        else:
            assert got == wanted, row
            assert math.copysign(1, got) == math.copysign(1, wanted), row


def test_double_rounding_of_fma_is_avoided() -> None:
    """1 + 2^-11 + 2^-24 * 2^-24: float32, and float64 in one step more, would round to even."""
    a = np.array([2.0**-14, 2.0**-24], np.float16)
    b = np.array([2.0**-14, 2.0**-24], np.float16)
    c = np.array([1 + 2.0**-10, 1 + 2.0**-10], np.float16)
    assert execute("fma.rn.f16 %d, %a0, %a1, %a2;", a, b, c, result="f2").tolist() == c.tolist()
    x = np.array([1 + 2.0**-5], np.float16)  # x * x = 1 + 2^-4 + 2^-10
    y = np.array([2.0**-11], np.float16)
    found = execute("fma.rn.f16 %d, %a0, %a0, %a1;", x, y, result="f2")
    assert found[0] == np.float16(1 + 2.0**-4 + 2.0**-9)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_min_max_abs_neg(kind: str) -> None:
    a, b = codes(kind, 512, 1), codes(kind, 512, 2)
    a[:4], b[:4] = [0x8000, 0, a[2], a[3]], [0, 0x8000, b[2], b[3]]
    x, y = floats_of(kind, a), floats_of(kind, b)
    low = execute(f"min.{kind} %d, %a0, %a1;", a, b, result="u2")
    high = execute(f"max.{kind} %d, %a0, %a1;", a, b, result="u2")
    assert (low[:2] == 0x8000).all()
    assert (high[:2] == 0).all()
    both = np.isnan(x) & np.isnan(y)
    assert (low[both] == 0x7FFF).all()
    values = low.view(DTYPES[kind]).astype(np.float64)
    assert (values[~both] == np.fmin(x, y)[~both]).all()
    for name, wanted in (("neg", a ^ 0x8000), ("abs", a & 0x7FFF)):
        found = execute(f"{name}.{kind} %d, %a0;", a, result="u2")
        assert (found == np.where(np.isnan(x), 0x7FFF, wanted)).all()
    loud = execute(f"max.NaN.{kind} %d, %a0, %a1;", a, b, result="u2")
    assert (loud[np.isnan(x) | np.isnan(y)] == 0x7FFF).all()


def test_modifiers() -> None:
    a = np.array([-2.0, 0.5, 3.0, np.nan, 2.0**-24], np.float16)
    one = "mov.u16 %h1, 0x3c00; mov.u16 %h2, 0;"
    found = execute(one + "fma.rn.sat.f16 %d, %a0, %h1, %h2;", a, result="f2")
    assert found.tolist() == [0.0, 0.5, 1.0, 0.0, 2.0**-24]
    found = execute(one + "fma.rn.relu.f16 %d, %a0, %h1, %h2;", a, result="u2")
    assert found.tolist() == [0, 0x3800, 0x4200, 0x7FFF, 1]
    found = execute(one + "fma.rn.ftz.f16 %d, %a0, %h1, %h2;", a, result="f2")
    assert found[4] == 0
    found = execute(one + "add.ftz.f16 %d, %a0, %h2;", a, result="f2")
    assert found[4] == 0


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_approximations(kind: str) -> None:
    values = np.array([0.0, 1.0, -1.5, 0.3], DTYPES[kind])
    a = values.view(np.uint16)
    tanh = execute(f"tanh.approx.{kind} %d, %a0;", a, result="u2").view(DTYPES[kind])
    exact = np.tanh(values.astype(np.float64))
    assert tanh.astype(float) == pytest.approx(exact, rel=2.0**-8)
    ftz = ".ftz" if kind == "bf16" else ""
    power = execute(f"ex2.approx{ftz}.{kind} %d, %a0;", a, result="u2").view(DTYPES[kind])
    assert power.astype(float) == pytest.approx(np.exp2(values.astype(float)), rel=2.0**-8)
