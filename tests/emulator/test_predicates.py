"""Comparisons and selections of every type, with NaNs, and what predicates make of them."""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.instructions import edge_integers, execute

COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


def numbers(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of a few values."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]).astype(DTYPES[kind])
    a, b = (v.ravel() for v in np.meshgrid(values, values))
    return a, b


def floats(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


@pytest.mark.parametrize("kind", DTYPES)
def test_ordered_and_unordered(kind: str) -> None:
    a, b = numbers(kind)
    x, y = floats(a), floats(b)
    unordered = np.isnan(x) | np.isnan(y)
    word = f"u{a.itemsize}"
    for name, compare in COMPARE.items():
        body = f"setp.{{}}.{kind} %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;"
        ordered = execute(body.format(name), a.view(word), b.view(word)).astype(bool)
        assert (ordered == (compare(x, y) & ~unordered)).all(), name
        loose = execute(body.format(f"{name}u"), a.view(word), b.view(word)).astype(bool)
        assert (loose == (compare(x, y) | unordered)).all(), name
    for name, wanted in {"num": ~unordered, "nan": unordered}.items():
        found = execute(body.format(name), a.view(word), b.view(word))
        assert (found == wanted).all()


@pytest.mark.parametrize("kind", ["u16", "u32", "u64", "s16", "s32", "s64"])
def test_integers(kind: str) -> None:
    bits = int(kind[1:])
    a, b = edge_integers(bits, 256, 1), edge_integers(bits, 256, 2)
    b[:64] = a[:64]
    x, y = (v.view(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}") for v in (a, b))
    names = {**COMPARE, **(UNSIGNED if kind[0] == "u" else {})}
    for name, compare in names.items():
        body = f"setp.{name}.{kind} %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;"
        assert (execute(body, a, b) == compare(x, y)).all(), name


@pytest.mark.parametrize("combine", ["and", "or", "xor"])
def test_both_results_are_combined(combine: str) -> None:
    a, b = edge_integers(32, 256, 1) % 4, edge_integers(32, 256, 2) % 4
    body = f"""
        setp.eq.u32 %p3, %a1, 2;
        setp.lt.{combine}.u32 %p1|%p2, %a0, %a1, !%p3;
        selp.u32 %d, 1, 0, %p1; selp.u32 %r3, 2, 0, %p2; or.b32 %d, %d, %r3;"""
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combine]
    less, other = a < b, b != 2
    expected = join(less, other) * 1 + join(~less, other) * 2
    assert execute(body, a, b).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_give_a_predicate_each(kind: str) -> None:
    a, b = numbers(kind)
    packed = [np.stack([v, v[::-1]], axis=1).view(np.uint32).ravel() for v in (a, b)]
    body = f"""
        setp.lt.{kind}x2 %p1|%p2, %a0, %a1;
        selp.u32 %d, 1, 0, %p1; selp.u32 %r3, 2, 0, %p2; or.b32 %d, %d, %r3;"""
    less = floats(a) < floats(b)
    assert execute(body, *packed).tolist() == (less + 2 * less[::-1]).tolist()
    found = execute(f"set.lt.{kind}x2.{kind}x2 %d, %a0, %a1;", *packed).view(np.uint16)
    one = 0x3C00 if kind == "f16" else 0x3F80
    assert found.reshape(-1, 2).tolist() == (np.stack([less, less[::-1]], 1) * one).tolist()


def test_set() -> None:
    a, b = numbers("f32")
    less = a < b
    found = execute("set.lt.u32.f32 %d, %a0, %a1;", a, b)
    assert found.tolist() == np.where(less, 0xFFFFFFFF, 0).tolist()
    assert (execute("set.lt.f32.f32 %d, %a0, %a1;", a, b, result="f4") == less).all()
    body = "setp.eq.f32 %p1, %a0, 0f3f800000; set.lt.and.u32.f32 %d, %a0, %a1, %p1;"
    assert (execute(body, a, b) != 0).tolist() == (less & (a == 1)).tolist()


def test_flushing_makes_subnormals_equal_zero() -> None:
    tiny = np.array([2.0**-130], np.float32)
    for ftz, wanted in (("", 0), (".ftz", 1)):
        body = f"setp.eq{ftz}.f32 %p1, %a0, 0f00000000; selp.u32 %d, 1, 0, %p1;"
        assert execute(body, tiny).tolist() == [wanted]


def test_slct_by_sign() -> None:
    a, b = np.full(4, 7, np.uint32), np.full(4, 9, np.uint32)
    by = np.array([0.0, -0.0, -1.0, np.nan], np.float32)
    assert execute("slct.u32.f32 %d, %a0, %a1, %a2;", a, b, by).tolist() == [7, 7, 9, 9]
    by = np.array([0, 1, -1, 0x80000000], np.int64).astype(np.uint32)
    assert execute("slct.b32.s32 %d, %a0, %a1, %a2;", a, b, by).tolist() == [7, 7, 9, 9]
