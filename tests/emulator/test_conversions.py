"""cvt: every type and rounding against exact fractions and ml_dtypes; every 8- and 4-bit code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from nibblas.emulator import UnsupportedInstruction
from nibblas.emulator.formats import FORMATS
from tests.emulator.instructions import edge_integers, execute
from tests.emulator.oracle import as_float, edge_floats, rounded

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
    "e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
    "ue8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
MODES = ["rn", "rz", "rm", "rp"]
INTEGERS = ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"]


def floats_of(kind: str, given: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return given.view(DTYPES[kind]).astype(np.float64)


def inputs(kind: str, count: int = 512, seed: int = 1) -> np.ndarray:
    """Register contents of a floating type."""
    if kind == "bf16":
        bits = edge_floats("f32", count, seed).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    values = edge_floats(kind, count, seed)
    return values.view(f"u{values.itemsize}")


@pytest.mark.parametrize("kind", [f for f in FORMATS if f in DTYPES])
def test_tables_are_those_of_ml_dtypes(kind: str) -> None:
    form = FORMATS[kind]
    codes = np.arange(1 << form.bits, dtype=f"u{DTYPES[kind].itemsize}")
    with np.errstate(invalid="ignore"):
        expected = codes.view(DTYPES[kind]).astype(np.float64)
    assert np.array_equal(form.values, expected, equal_nan=True)
    assert (np.signbit(form.values) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("to", "origin"),
    [("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")],
)
def test_narrowing_rounds_once(to: str, origin: str, mode: str) -> None:
    source = inputs(origin)
    width = DTYPES[to].itemsize
    found = execute(f"cvt.{mode}.{to}.{origin} %d, %a0;", source, result=f"u{width}")
    canonical = 0x7FFF if width == 2 else 0x7FFFFFFF
    results = floats_of(to, found)
    for x, got, bits in zip(floats_of(origin, source), results, found, strict=True):
        if math.isnan(x) and (to, origin) == ("f32", "f64"):
            assert math.isnan(got)  # keeps its payload
        elif math.isnan(x):
            assert bits == canonical
        elif math.isinf(x):
            assert got == x
        else:
            wanted = as_float(rounded(Fraction(x), to, mode))
            assert got == wanted
            assert np.signbit(got) == np.signbit(x)


@pytest.mark.parametrize(
    ("to", "origin"), [("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f64", "f32")]
)
def test_widening_is_exact(to: str, origin: str) -> None:
    source = inputs(origin, 1024)
    if DTYPES[origin].itemsize == 2:
        source = np.arange(65536, dtype=np.uint16)[::7]
    found = execute(f"cvt.{to}.{origin} %d, %a0;", source, result=DTYPES[to])
    values = floats_of(origin, source)
    with np.errstate(invalid="ignore"):
        wide = found.astype(np.float64)
    assert np.array_equal(wide, values, equal_nan=True)
    assert (np.signbit(found) == np.signbit(values))[~np.isnan(values)].all()


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("to", INTEGERS)
def test_float_to_integer(to: str, rounding: str) -> None:
    bits = int(to[1:])
    low, high = (0, (1 << bits) - 1) if to[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    wholes: dict[str, Callable[[Fraction], int]] = {
        "rni": round,
        "rzi": math.trunc,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    for origin in ("f16", "f32", "f64"):
        source = inputs(origin, 256)
        width = max(2, bits // 8)
        found = execute(f"cvt.{rounding}.{to}.{origin} %d, %a0;", source, result=f"u{width}")
        for x, got in zip(floats_of(origin, source), found.tolist(), strict=True):
            if math.isnan(x):
                wanted = 1 << bits - 1 if origin == "f64" or bits == 64 else 0
                wanted = wanted - (1 << bits) if to[0] == "s" and wanted else wanted
            elif math.isinf(x):
                wanted = high if x > 0 else low
            else:
                wanted = min(high, max(low, wholes[rounding](Fraction(float(x)))))
            assert got == wanted % (1 << 8 * width)


@pytest.mark.parametrize(
    ("to", "mode"), list(itertools.product(["f16", "bf16", "f32", "f64"], MODES))
)
def test_integer_to_float(to: str, mode: str) -> None:
    for origin in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = int(origin[1:])
        source = edge_integers(bits, 192)
        result = DTYPES[to]
        word = f"u{result.itemsize}"
        found = execute(f"cvt.{mode}.{to}.{origin} %d, %a0;", source, result=word)
        signed = source.view(f"i{bits // 8}") if origin[0] == "s" else source
        for x, got in zip(signed.tolist(), floats_of(to, found).tolist(), strict=True):
            assert got == as_float(rounded(Fraction(x), to, mode)), (origin, x)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_rounding_to_whole_numbers_keeps_the_type_and_sign(kind: str) -> None:
    source = inputs(kind)
    word = source.dtype
    for rounding, whole in {
        "rni": np.rint,
        "rzi": np.trunc,
        "rmi": np.floor,
        "rpi": np.ceil,
    }.items():
        found = execute(f"cvt.{rounding}.{kind}.{kind} %d, %a0;", source, result=word)
        with np.errstate(invalid="ignore"):
            expected = whole(floats_of(kind, source))
        values = floats_of(kind, found)
        assert np.array_equal(values, expected, equal_nan=True)
        known = ~np.isnan(expected)
        assert (np.signbit(values) == np.signbit(floats_of(kind, source)))[known].all()


def test_saturation_and_flushing() -> None:
    source = np.array([-1.0, 0.5, 2.0, np.nan, 2.0**-130], np.float32)
    assert execute("cvt.sat.f32.f32 %d, %a0;", source, result="f4").tolist()[:4] == [0, 0.5, 1, 0]
    assert execute("cvt.ftz.f32.f32 %d, %a0;", source, result="f4")[4] == 0
    assert execute("cvt.rn.sat.f16.f32 %d, %a0;", source, result="f2").tolist()[:4] == [
        0,
        0.5,
        1,
        0,
    ]
    assert execute("cvt.rpi.ftz.s32.f32 %d, %a0;", source)[4] == 0
    assert execute("cvt.rpi.s32.f32 %d, %a0;", source)[4] == 1


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_pairs_put_the_first_operand_into_the_upper_half(kind: str, mode: str) -> None:
    a, b = inputs("f32", seed=1), inputs("f32", seed=2)
    one = execute(f"cvt.{mode}.{kind}.f32 %d, %a0;", np.concatenate([a, b]), result="u2")
    pairs = execute(f"cvt.{mode}.{kind}x2.f32 %d, %a0, %a1;", a, b)
    assert (pairs >> 16 == one[:512]).all()
    assert (pairs & 0xFFFF == one[512:]).all()
    clamped = execute(f"cvt.{mode}.relu.{kind}x2.f32 %d, %a0, %a1;", a, b)
    halves = clamped.view(np.uint16).reshape(-1, 2)
    assert (halves[:, 1] == np.where(one[:512] & 0x8000, 0, one[:512])).all()
    finite = execute(f"cvt.{mode}.satfinite.{kind}.f32 %d, %a0;", a, result="u2")
    infinite = one[:512] & 0x7FFF == (0x7C00 if kind == "f16" else 0x7F80)
    assert (finite[~infinite] == one[:512][~infinite]).all()
    assert (finite[infinite] & 0x7FFF == (0x7BFF if kind == "f16" else 0x7F7F)).all()


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(mode: str) -> None:
    source = inputs("f32")
    found = execute(f"cvt.{mode}.tf32.f32 %d, %a0;", source)
    rows = zip(source.tolist(), source.view(np.float32).tolist(), found.tolist(), strict=True)
    for given, x, bits in rows:
        if math.isnan(x):  # .rna cuts it, as an H200 does
            assert bits == (given & 0xFFFFE000 if mode == "rna" else 0x7FFFFFFF)
        else:
            got = float(np.uint32(bits).view(np.float32))
            assert bits & 0x1FFF == 0
            assert got == (x if math.isinf(x) else as_float(rounded(Fraction(x), "tf32", mode)))


NARROW = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]


@pytest.mark.parametrize("kind", NARROW)
def test_every_code_widens_to_halves(kind: str) -> None:
    bits = FORMATS[kind].bits
    place = 4 if kind == "e2m1" else 8
    first, second = (v.ravel() for v in np.meshgrid(np.arange(1 << bits), np.arange(1 << bits)))
    packed = (first | second << place).astype(np.uint16)
    body = f"cvt.rn.f16x2.{kind}x2 %d, %a0;"
    if kind == "e2m1":
        body = "cvt.u8.u16 %b, %a0; cvt.rn.f16x2.e2m1x2 %d, %b;"
    found = execute(body, packed, declare=".reg .b8 %b;", target="sm_100")
    found = found.view(np.float16).reshape(-1, 2)
    values = FORMATS[kind].values
    for column, codes in enumerate((first, second)):
        assert np.array_equal(found[:, column].astype(np.float64), values[codes], equal_nan=True)
    nans = np.isnan(values[first])
    assert (found.view(np.uint16)[nans, 0] == 0x7FFF).all()


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("origin", ["f32", "f16x2"])
def test_narrowing_is_nearest_even_and_saturates(kind: str, origin: str) -> None:
    """All values, all midpoints, their neighbours, edges."""
    form = FORMATS[kind]
    values = np.sort(form.values[np.isfinite(form.values)])
    middles = (values[1:] + values[:-1]) / 2
    raw = np.concatenate([values, middles, [form.most * 1.02, -form.most * 4, np.inf, -np.inf]])
    dtype = np.float32 if origin == "f32" else np.float16
    with np.errstate(over="ignore"):
        source = raw.astype(dtype)
    around = [np.nextafter(source, dtype(side)) for side in (np.inf, -np.inf)]
    source = np.concatenate([source, *around, np.array([np.nan, -0.0, 0.0], dtype)])
    if origin == "f32":
        body = f"cvt.rn.satfinite.{kind}x2.f32 %r, %a0, %a0;"
        given = source
    else:
        body = f"cvt.rn.satfinite.{kind}x2.f16x2 %r, %a0;"
        given = np.repeat(source.view(np.uint16), 2).view(np.uint32)
    declare = f".reg .b{8 if kind == 'e2m1' else 16} %r;"
    move = "cvt.u16.u8 %d, %r;" if kind == "e2m1" else "mov.u16 %d, %r;"
    found = execute(body + move, given, result="u2", declare=declare, target="sm_120")
    place = 4 if kind == "e2m1" else 8
    assert (found >> place == found & (1 << place) - 1).all()
    with np.errstate(all="ignore"):
        clipped = np.clip(source.astype(np.float64), -form.most, form.most)
        expected = clipped.astype(DTYPES[kind]).view(np.uint8).astype(int)
    nans = np.isnan(source)
    expected[nans] = 0x7F if form.bits == 8 else (1 << form.bits - 1) - 1
    assert (found & (1 << place) - 1).tolist() == expected.tolist()
    body = body.replace(".satfinite", ".satfinite.relu")
    clamped = execute(body + move, given, result="u2", declare=declare, target="sm_120")
    negative = expected & form.sign_bit != 0
    assert (clamped & (1 << place) - 1).tolist() == np.where(negative, 0, expected).tolist()


def test_two_different_operands_are_packed_in_order() -> None:
    a, b = np.array([1.0, 2.0], np.float32), np.array([-0.5, 4.0], np.float32)
    found = execute("cvt.rn.satfinite.e4m3x2.f32 %d, %a0, %a1;", a, b, result="u2")
    assert found.tolist() == [0x38B0, 0x4048]


def test_scales() -> None:
    a = np.array([1.0, 1.5, 2.0**-127, 0.0, np.inf, np.nan, 3e38, 2.0**-130], np.float32)
    on = {"result": "u2", "target": "sm_100"}
    down = execute("cvt.rz.ue8m0x2.f32 %d, %a0, %a0;", a, **on) & 0xFF
    up = execute("cvt.rp.satfinite.ue8m0x2.f32 %d, %a0, %a0;", a, **on) & 0xFF
    assert down.tolist() == [127, 127, 0, 0, 255, 255, 254, 0]
    assert up.tolist() == [127, 128, 0, 0, 254, 255, 254, 0]
    codes = np.arange(0, 65536, 13, dtype=np.uint16)
    found = execute("cvt.rn.bf16x2.ue8m0x2 %d, %a0;", codes, target="sm_100").view(np.uint16)
    expected = FORMATS["ue8m0"].values[codes.view(np.uint8)]
    assert np.array_equal(floats_of("bf16", found), expected, equal_nan=True)


@pytest.mark.parametrize(("mode", "form"), [("rz", ""), ("rp", ".satfinite")])
def test_scales_by_definition(mode: str, form: str) -> None:
    """The power of two that bounds each magnitude, of pairs and of packed .bf16."""
    a, b = (edge_floats("f32", 512, seed) for seed in (1, 2))
    found = execute(
        f"cvt.{mode}{form}.ue8m0x2.f32 %d, %a0, %a1;", a, b, result="u2", target="sm_100"
    )
    for column, values in ((found >> 8, a), (found & 0xFF, b)):
        for x, got in zip(np.abs(values).tolist(), column.tolist(), strict=True):
            if math.isnan(x) or (math.isinf(x) and not form):
                assert got == 255
                continue
            power = [Fraction(2) ** (code - 127) for code in (max(got - 1, 0), got, got + 1)]
            exact = Fraction(x) if math.isfinite(x) else Fraction(2) ** 128
            if mode == "rz":
                assert exact < power[2]
                assert got == 0 or power[1] <= exact
            else:
                assert got == 254 or exact <= power[1]
                assert got == 0 or power[0] < exact
    halves = (a.view(np.uint32) & 0xFFFF0000 | b.view(np.uint32) >> 16).astype(np.uint32)
    cut = [(halves >> 16 << 16).view(np.float32), (halves << 16).view(np.float32)]
    packed = execute(
        f"cvt.{mode}{form}.ue8m0x2.bf16x2 %d, %a0;", halves, result="u2", target="sm_100"
    )
    apart = execute(
        f"cvt.{mode}{form}.ue8m0x2.f32 %d, %a0, %a1;", *cut, result="u2", target="sm_100"
    )
    assert (packed == apart).all()


@pytest.mark.parametrize(
    "instruction",
    [
        *(f"cvt.rn.satfinite.{kind}x2.f32 %h1, %f0, %f1" for kind in ("e3m2", "e2m3", "e2m1")),
        *(f"cvt.rn.f16x2.{kind}x2 %r1, %h1" for kind in ("e3m2", "e2m3", "e2m1")),
        "cvt.rz.ue8m0x2.f32 %h1, %f0, %f1",
        "cvt.rp.ue8m0x2.bf16x2 %h1, %r1",
        "cvt.rn.bf16x2.ue8m0x2 %r1, %h1",
    ],
)
def test_narrow_floats_are_of_blackwell(instruction: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="needs sm_100 or sm_103 or sm_120"):
        execute(f"{instruction}; mov.u32 %d, 0;", np.zeros(1, np.uint32))


@pytest.mark.parametrize(
    "instruction",
    [
        "cvt.rs.f16x2.f32 %r1, %f0, %f1, %r2",
        "cvt.rs.satfinite.e2m1x4.f32 %h1, {%f0, %f1, %f2, %f3}, %r2",
        "cvt.satfinite.e2m1x2.f32 %h1, %f0, %f1",
        "cvt.rn.ue8m0x2.f32 %h1, %f0, %f1",
    ],
)
def test_stochastic_and_undefined_forms_are_refused(instruction: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="not modelled"):
        execute(f"{instruction}; mov.u32 %d, 0;", np.zeros(1, np.uint32), target="sm_100")
