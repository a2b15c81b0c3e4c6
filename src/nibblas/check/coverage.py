"""What a sweep has met: named features of problems, each counted, those never met included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from nibblas.check.problems import ProblemSpec

Predicate = Callable[[ProblemSpec], bool]


def _equals(attribute: str, *values: object) -> dict[str, Predicate]:
    """One feature per value of a spec attribute, named ``attribute=value``."""

    def has(value: object) -> Predicate:
        return lambda spec: getattr(spec, attribute) == value

    return {f"{attribute}={value}": has(value) for value in values}


def _token_scales(layout: str, start: str, form: str = "packed") -> Predicate:
    return lambda s: (s.x_layout, s.x_start, s.form) == (layout, start, form)


FEATURES: dict[str, Predicate] = {
    **_equals("form", "packed", "masked", "list"),
    **_equals("precision", "w4a16", "w4a4"),
    **_equals("x_dtype", "bfloat16", "float16", "nvfp4"),
    **_equals("out_dtype", "float16", "bfloat16", "float32"),
    "groups: 1": lambda s: s.groups == 1,
    "groups: 64": lambda s: s.groups == 64,
    "rows: all groups empty": lambda s: not any(s.rows),
    "rows: some group empty": lambda s: 0 in s.rows and any(s.rows),
    "rows: 1": lambda s: 1 in s.rows,
    "rows: beyond 128": lambda s: max(s.rows) > 128,
    "rows: spare": lambda s: s.spare_rows > 0,
    "N: 1": lambda s: 1 in s.n,
    "N: odd": lambda s: any(n % 2 for n in s.n),
    "N: whole 128": lambda s: any(n % 128 == 0 for n in s.n),
    "K: 16": lambda s: 16 in s.k,
    "K: 16 past 64": lambda s: any(k % 64 == 16 for k in s.k),
    "K: 32 past 64": lambda s: any(k % 64 == 32 for k in s.k),
    "K: 48 past 64": lambda s: any(k % 64 == 48 for k in s.k),
    "K: beyond 512": lambda s: max(s.k) > 512,
    "token scales: linear": lambda s: s.x_layout == "linear",
    "token scales: blocked torch": _token_scales("blocked", "torch"),
    "token scales: blocked flashinfer": _token_scales("blocked", "flashinfer"),
    "token scales: blocked masked": _token_scales("blocked", "none", "masked"),
    "token scales: blocked list": _token_scales("blocked", "none", "list"),
    "weight scales: linear": lambda s: s.w_layout == "linear",
    "weight scales: blocked": lambda s: s.w_layout == "blocked",
    **_equals("x_global", "none", "tensor", "group"),
    **_equals("w_global", "none", "tensor", "group", "segment"),
    **_equals("alpha", True, False),
    **_equals("row_scale", True, False),
    **_equals("bias", "none", "shared", "group"),
    **_equals("out", "returned", "contiguous", "row_stride", "column_stride", "transposed"),
    **_equals("strided_inputs", True, False),
    **_equals("scale_bytes", "all", "middle", "small", "one"),
    **_equals("x_values", "codes", "normal", "wide", "subnormal", "large", "nonfinite"),
    **_equals("nan_scales", "none", "x", "w"),
    **_equals("batch_invariant", True, False),
    **_equals("strict", True, False),
}
"""Every feature that a sweep should meet, and how a spec shows it."""


def features(spec: ProblemSpec) -> list[str]:
    """The features that ``spec`` has."""
    return [name for name, has in FEATURES.items() if has(spec)]


def count_features(specs: Iterable[ProblemSpec]) -> Counter[str]:
    """How many of ``specs`` have each feature; every feature is present, at 0 if never met."""
    counts = Counter(dict.fromkeys(FEATURES, 0))
    for spec in specs:
        counts.update(features(spec))
    return counts
