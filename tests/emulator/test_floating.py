"""f32 and f64 arithmetic against exact fractions, in every rounding mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from nibblas.emulator import UnsupportedInstruction
from tests.emulator.instructions import execute
from tests.emulator.oracle import as_float, edge_floats, rounded

MODES = ["rn", "rz", "rm", "rp"]
OPERATIONS: dict[str, tuple[int, Callable[..., Fraction], Callable[..., float]]] = {
    "add": (2, lambda a, b: a + b, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c, lambda a, b, c: a * b + c),
    "div": (2, lambda a, b: a / b, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a, lambda a: 1 / a),
}


def operands(kind: str, count: int, number: int) -> list[np.ndarray]:
    """Columns of numbers; a third of the rows are chosen to cancel or to tie."""
    columns = [edge_floats(kind, count, seed) for seed in range(number)]
    third = count // 3
    if number == 3:  # c close to -a b
        with np.errstate(all="ignore"):
            columns[2][:third] = -(columns[0][:third] * columns[1][:third])
        near = np.nextafter(columns[2][: third // 2], columns[2].dtype.type(0))
        columns[2][: third // 2] = near
    if number == 2:
        columns[1][:third] = -columns[0][:third]
        columns[1][: third // 2] *= columns[1].dtype.type(2.0**-24)
    return columns


def expected(name: str, kind: str, mode: str, row: tuple[float, ...]) -> float:
    """By definition: the exact result rounded once; signs of zeros by the rule for sums."""
    _, exact, simple = OPERATIONS[name]
    if not all(map(math.isfinite, row)) or (name in ("div", "rcp") and row[-1] == 0):
        with np.errstate(all="ignore"):
            return float(simple(*map(np.float64, row)))
    value = rounded(exact(*map(Fraction, row)), kind, mode)
    if value != 0 or isinstance(value, float):
        return as_float(value)
    if exact(*map(Fraction, row)) != 0:
        return -0.0 if exact(*map(Fraction, row)) < 0 else 0.0
    if name in ("mul", "div", "rcp"):
        return math.copysign(0.0, math.prod(math.copysign(1.0, x) for x in row))
    first = row[0] * row[1] if name == "fma" and 0 in row[:2] else row[0]
    if name == "fma" and 0 not in row[:2]:
        first = math.copysign(1.0, row[0]) * math.copysign(1.0, row[1])
    last = -row[-1] if name == "sub" else row[-1]
    signs = {math.copysign(1.0, first), math.copysign(1.0, last)}
    if len(signs) == 1:
        return math.copysign(0.0, signs.pop())
    return -0.0 if mode == "rm" else 0.0


def same(found: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(found)
    return found == wanted and math.copysign(1, found) == math.copysign(1, wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_rounded_once(name: str, kind: str, mode: str) -> None:
    number = OPERATIONS[name][0]
    columns = operands(kind, 512 if kind == "f32" else 192, number)
    names = ", ".join(f"%a{i}" for i in range(number))
    dtype = columns[0].dtype
    found = execute(f"{name}.{mode}.{kind} %d, {names};", *columns, result=dtype)
    for row, got in zip(zip(*(c.tolist() for c in columns), strict=True), found, strict=True):
        assert same(float(got), expected(name, kind, mode, row)), row


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_root(kind: str, mode: str) -> None:
    a = edge_floats(kind, 512, 1)
    found = execute(f"sqrt.{mode}.{kind} %d, %a0;", a, result=a.dtype)
    for x, got in zip(a.tolist(), found.tolist(), strict=True):
        if math.isnan(x) or x < 0:
            assert math.isnan(got)
        elif x == 0 or math.isinf(x):
            assert same(got, x)
        else:
            up = Fraction(float(np.nextafter(a.dtype.type(got), a.dtype.type(np.inf))))
            down = Fraction(float(np.nextafter(a.dtype.type(got), a.dtype.type(0))))
            root = Fraction(got)
            if mode == "rn":
                assert ((root + down) / 2) ** 2 < Fraction(x) < ((root + up) / 2) ** 2
            elif mode == "rp":
                assert down**2 < Fraction(x) <= root**2
            else:
                assert root**2 <= Fraction(x) < up**2


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "div"])
def test_nan_results_are_canonical(name: str) -> None:
    payloads = np.array([0x7F800001, 0xFFC12345, 0x7FC00000, 0x3F800000], np.uint32)
    a = payloads.view(np.float32)
    number = OPERATIONS[name][0]
    rest = ", ".join(["%a0"] * number)
    found = execute(f"{name}.rn.f32 %d, {rest};", a)
    assert found[:3].tolist() == [0x7FFFFFFF] * 3
    assert found[3] != 0x7FFFFFFF


def test_flush_to_zero() -> None:
    tiny, small = np.float32(2.0**-127), np.float32(2.0**-126)
    a = np.array([tiny, -tiny, small, -small, 1.0], np.float32)
    found = execute("add.ftz.f32 %d, %a0, 0f80000000;", a, result="f4")
    assert found.tolist() == [0.0, -0.0, small, -small, 1.0]
    assert np.signbit(found).tolist() == [False, True, False, True, False]
    found = execute("mul.ftz.f32 %d, %a0, 0f3f000000;", a, result="f4")  # halves: subnormal
    assert found.tolist() == [0.0, -0.0, 0.0, -0.0, 0.5]
    assert np.signbit(found).tolist() == [False, True, False, True, False]
    found = execute("fma.rn.ftz.f32 %d, %a0, 0f3f800000, %a0;", a, result="f4")
    assert found.tolist() == [0.0, -0.0, 2 * small, -2 * small, 2.0]
    kept = execute("mul.f32 %d, %a0, 0f3f000000;", a, result="f4")
    assert kept.tolist() == [2.0**-128, -(2.0**-128), 2.0**-127, -(2.0**-127), 0.5]


def test_saturation() -> None:
    a = np.array([-1.0, -0.0, 0.25, 1.0, 7.0, np.inf, -np.inf, np.nan], np.float32)
    found = execute("add.sat.f32 %d, %a0, 0f80000000;", a, result="f4")
    assert found.tolist() == [0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert not np.signbit(found).any()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_min_max_prefer_numbers_and_order_zeros(kind: str) -> None:
    dtype = {"f32": "f4", "f64": "f8"}[kind]
    nan, inf = np.nan, np.inf
    a = np.array([1, 2, -0.0, 0.0, nan, 3, nan, -inf], dtype)
    b = np.array([2, 1, 0.0, -0.0, 4, nan, nan, inf], dtype)
    low = execute(f"min.{kind} %d, %a0, %a1;", a, b, result=dtype)
    high = execute(f"max.{kind} %d, %a0, %a1;", a, b, result=dtype)
    assert low[:6].tolist() == [1, 1, 0, 0, 4, 3]
    assert high[:6].tolist() == [2, 2, 0, 0, 4, 3]
    assert np.signbit(low[2:4]).all()
    assert not np.signbit(high[2:4]).any()
    assert np.isnan(low[6])
    assert (low[7], high[7]) == (-inf, inf)


def test_min_max_variants() -> None:
    a = np.array([np.nan, 1.0, -3.0, 2.0], np.float32)
    b = np.array([1.0, np.nan, 2.0, -3.0], np.float32)
    found = execute("max.NaN.f32 %d, %a0, %a1;", a, b)
    assert found[:2].tolist() == [0x7FFFFFFF] * 2
    assert found[2:].view(np.float32).tolist() == [2.0, 2.0]
    found = execute("min.xorsign.abs.f32 %d, %a0, %a1;", a, b, result="f4")
    assert found[2:].tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_pairs_are_two_single_operations(name: str, mode: str) -> None:
    number = OPERATIONS[name][0]
    columns = operands("f32", 512, number)
    names = ", ".join(f"%a{i}" for i in range(number))
    halves = [column.reshape(-1, 2).view(np.uint64).ravel() for column in columns]
    for flush in ("", ".ftz"):
        body = f"{name}.{mode}{flush}.f32{{}} %d, {names};"
        found = execute(body.format("x2"), *halves, result=np.uint64, target="sm_100")
        single = execute(body.format(""), *columns, target="sm_100")
        assert (found.view(np.uint32) == single).all()
    row = [column[7].item() for column in columns]
    kept = execute(f"{name}.{mode}.f32x2 %d, {names};", *halves, result="u8", target="sm_120")
    assert same(float(kept.view(np.float32)[7]), expected(name, "f32", mode, tuple(row)))


def test_pairs_round_to_nearest_unless_told_otherwise() -> None:
    a, b = (edge_floats("f32", 256, seed).view(np.uint64) for seed in (1, 2))
    for name in ("add", "sub", "mul"):
        default = execute(f"{name}.f32x2 %d, %a0, %a1;", a, b, result="u8", target="sm_100")
        nearest = execute(f"{name}.rn.f32x2 %d, %a0, %a1;", a, b, result="u8", target="sm_100")
        assert (default == nearest).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "fma"])
def test_mixed_precision_rounds_once(name: str, kind: str, mode: str) -> None:
    number = OPERATIONS[name][0]
    codes = [edge_floats("f16", 256, seed).view(np.uint16) for seed in range(number - 1)]
    if kind == "f16":
        wide = [code.view(np.float16).astype(np.float32) for code in codes]
    else:
        wide = [(code.astype(np.uint32) << 16).view(np.float32) for code in codes]
    last = edge_floats("f32", 256, 9)
    last[:64] = -wide[0][:64]
    names = ", ".join(f"%a{i}" for i in range(number))
    found = execute(
        f"{name}.{mode}.f32.{kind} %d, {names};", *codes, last, result="f4", target="sm_100"
    )
    for row, got in zip(zip(*(c.tolist() for c in (*wide, last)), strict=True), found, strict=True):
        assert same(float(got), expected(name, "f32", mode, row)), row


@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max_of_three(name: str) -> None:
    a, b, c = (edge_floats("f32", 512, seed) for seed in (1, 2, 3))
    pick = min if name == "min" else max
    for form, signed in (("", True), (".abs", False)):
        found = execute(
            f"{name}{form}.f32 %d, %a0, %a1, %a2;", a, b, c, result="f4", target="sm_100"
        )
        for row, got in zip(zip(a, b, c, strict=True), found, strict=True):
            numbers = [float(x) if signed else abs(float(x)) for x in row if x == x]
            want = pick(numbers, key=lambda x: (x, math.copysign(1, x))) if numbers else math.nan
            assert same(float(got), want), row
    found = execute(f"{name}.NaN.f32 %d, %a0, %a1, %a2;", a, b, c, target="sm_100")
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    assert (found[nan] == 0x7FFFFFFF).all()
    assert not np.isnan(found.view("f4")[~nan]).any()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("mul.f32x2 %rd0, %rd1, %rd2;", r"\.f32x2 needs sm_100 or sm_103 or sm_120"),
        ("add.f32.bf16 %f0, %h0, %f1;", r"\.f32\.bf16 needs sm_100"),
        ("max.f32 %f0, %f0, %f1, %f2;", "three sources needs sm_100"),
        ("max.abs.f32 %f0, %f0, %f1;", "both or neither"),
        ("max.xorsign.f32 %f0, %f0, %f1;", "both or neither"),
    ],
)
def test_what_hopper_has_not(body: str, text: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=text):
        execute(body + "mov.u32 %d, 0;", np.zeros(1, np.uint32))


def test_xorsign_takes_two_sources() -> None:
    with pytest.raises(UnsupportedInstruction, match="xorsign with three sources"):
        execute("max.xorsign.abs.f32 %f0, %f0, %f1, %f2;", np.zeros(1, "u4"), target="sm_100")


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_signs_and_properties(kind: str) -> None:
    a, b = edge_floats(kind, 256, 1), edge_floats(kind, 256, 2)
    bits = a.dtype.itemsize * 8
    word = f"u{bits // 8}"
    sign = np.array(1 << bits - 1, word)
    ua, ub = a.view(word), b.view(word)
    quiet = np.array(0x7FFFFFFF if bits == 32 else 1 << 51, word)
    nan = np.full_like(ua, quiet) if bits == 32 else (ua | quiet) & ~sign  # as an H200 answers
    for name, expected in (("neg", ua ^ sign), ("abs", ua & ~sign)):
        found = execute(f"{name}.{kind} %d, %a0;", a, result=word)
        assert (found == np.where(np.isnan(a), nan, expected)).all()
    expected_bits = ub & ~sign | ua & sign
    assert (execute(f"copysign.{kind} %d, %a0, %a1;", a, b, result=word) == expected_bits).all()
    tiny = np.finfo(a.dtype).tiny
    for name, holds in {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= tiny) | (a == 0),
        "subnormal": (np.abs(a) < tiny) & (a != 0),
    }.items():
        body = f"testp.{name}.{kind} %p1, %a0; selp.u32 %d, 1, 0, %p1;"
        assert (execute(body, a) == holds).all()


@pytest.mark.parametrize(
    ("name", "function", "ulps"),
    [
        ("rcp.approx.f32", lambda a: 1 / a, 1),
        ("rcp.approx.ftz.f32", lambda a: 1 / a, 1),
        ("sqrt.approx.f32", np.sqrt, 1),
        ("rsqrt.approx.f32", lambda a: 1 / np.sqrt(a), 2),
        ("ex2.approx.f32", np.exp2, 2),
        ("lg2.approx.f32", np.log2, 2),
        ("sin.approx.f32", np.sin, 2),
        ("cos.approx.f32", np.cos, 2),
        ("tanh.approx.f32", np.tanh, 2),
    ],
)
def test_approximations_lie_within_their_bounds(name: str, function, ulps: int) -> None:
    """Tighter than the PTX ISA asks for, on normal numbers."""
    a = np.abs(np.random.default_rng(1).standard_normal(512)).astype(np.float32) + np.float32(0.01)
    found = execute(f"{name} %d, %a0;", a, result="f4")
    exact = function(a.astype(np.float64))
    assert (np.abs(found - exact) <= ulps * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_approximations_at_the_edges() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([0.0, -0.0, inf, -inf, nan, -1.0], np.float32)
    edges: dict[str, list[float | None]] = {
        "rcp.approx.f32": [inf, -inf, 0.0, -0.0, nan, -1.0],
        "sqrt.approx.f32": [0.0, -0.0, inf, nan, nan, nan],
        "rsqrt.approx.f32": [inf, -inf, 0.0, nan, nan, nan],
        "lg2.approx.f32": [-inf, -inf, inf, nan, nan, nan],
        "ex2.approx.f32": [1.0, 1.0, inf, 0.0, nan, 0.5],
        "sin.approx.f32": [0.0, -0.0, nan, nan, nan, None],
        "cos.approx.f32": [1.0, 1.0, nan, nan, nan, None],
        "tanh.approx.f32": [0.0, -0.0, 1.0, -1.0, nan, None],
    }
    for name, wanted in edges.items():
        found = execute(f"{name} %d, %a0;", a, result="f4").tolist()
        for got, want in zip(found, wanted, strict=True):
            assert want is None or same(got, want), (name, found)
            assert not math.isnan(got) or want is None or math.isnan(want)


def test_division_by_approximate_reciprocal() -> None:
    big = np.float32(2.0**127)
    a = np.array([1.0, np.inf, 6.0, 1.0, -4.0], np.float32)
    b = np.array([big, big, 3.0, 0.0, -big], np.float32)
    found = execute("div.approx.f32 %d, %a0, %a1;", a, b, result="f4").tolist()
    assert found[0] == 0
    assert math.isnan(found[1])
    assert found[2:] == [2.0, np.inf, 0.0]
    full = execute("div.full.f32 %d, %a0, %a1;", a, b, result="f4").tolist()
    assert full == [2.0**-127, np.inf, 2.0, np.inf, 2.0**-125]


def test_double_approximations_clear_the_lower_word() -> None:
    a = np.array([3.0, 2.0**-1074, 0.7], np.float64)
    found = execute("rcp.approx.ftz.f64 %d, %a0;", a, result="u8")
    assert (found & 0xFFFFFFFF == 0).all()
    values = found.view(np.float64)
    assert values[1] == np.inf
    assert values[[0, 2]] == pytest.approx(1 / a[[0, 2]], rel=1e-6)
