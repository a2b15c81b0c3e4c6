"""The benchmark cases: what layers of mixture-of-experts models ask of a CPU and of a GPU.

c1..c4  CPU: decoding and small batches, 8 experts of 1536 x 2048, and one large matrix.
S1..S4  GPU: the public competition problem's C0..C3.
D1, D2  GPU: decoding; few tokens on 32 large experts, and 64 tokens on 8 of 128 small experts each.
P1, P2  GPU: prefill; 1024 rows on each of 8 large experts, 256 on each of 128 small ones.
P2-skew GPU: the rows of P2 routed badly: 90 % of them to one expert, the rest shared out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from nibblas.competition.cases import BENCHMARKS, BenchmarkCase
from nibblas.errors import bad_value
from nibblas.plan.problem import Activations, OutType, Problem, even_rows, uniform_shapes

Kind = Literal["w4a4", "w4a16-bf16", "w4a16-fp16"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ACTIVATIONS: dict[Kind, Activations] = {
    "w4a4": "nvfp4",
    "w4a16-bf16": "bf16",
    "w4a16-fp16": "fp16",
}
OUT: dict[Kind, OutType] = {"w4a4": "bf16", "w4a16-bf16": "bf16", "w4a16-fp16": "fp16"}
PRECISIONS = ("w4a4", "w4a16")
TOKEN_TYPES = ("bf16", "fp16")


def kinds_of(precisions: Iterable[str], token_types: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds of these precisions, w4a16 once per 16-bit type of tokens; names as in ``KINDS``.

    Raises:
        ValueError: a precision or a type that there is not.
    """
    precisions, token_types = tuple(precisions), tuple(token_types)
    _check("precision", precisions, PRECISIONS)
    _check("activations", token_types, TOKEN_TYPES)
    wanted = {p if p == "w4a4" else f"{p}-{t}" for p in precisions for t in token_types}
    return tuple(kind for kind in KINDS if kind in wanted)


def _check(argument: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise bad_value(argument, given=repr(name), wanted=f"one of {', '.join(known)}")


@dataclass(frozen=True)
class BenchCase:
    """A grouped product whose groups share N and K.

    Attributes:
        rows: M of every group.
        device: "cpu" or "cuda", which it is made for.
    """

    name: str
    rows: tuple[int, ...]
    n: int
    k: int
    device: str

    def problem(self, kind: Kind, device: str) -> Problem:
        """What the planner sees of it."""
        shapes = uniform_shapes(self.rows, self.n, self.k)
        return Problem(shapes, ACTIVATIONS[kind], OUT[kind], device=device)

    def __str__(self) -> str:
        few, many = min(self.rows), max(self.rows)
        m = str(few) if few == many else f"{few}..{many}"
        return f"G={len(self.rows)} M={m} N={self.n} K={self.k}"


def _of_competition(name: str, case: BenchmarkCase) -> BenchCase:
    (n,), (k,) = set(case.n), set(case.k)
    return BenchCase(name, case.m, n, k, "cuda")


def _skewed(rows: int, experts: int, share: float) -> tuple[int, ...]:
    """``share`` of the rows on the first expert, the others evenly on the rest."""
    first = round(share * rows)
    return (first, *even_rows(rows - first, experts - 1))


def _routed(tokens: int, experts: int, per_token: int, seed: int) -> tuple[int, ...]:
    """Rows per expert when every token draws distinct experts."""
    draw = random.Random(seed)
    rows = [0] * experts
    for _ in range(tokens):
        for expert in draw.sample(range(experts), per_token):
            rows[expert] += 1
    return tuple(rows)


_D1_ROWS = tuple(int(digit) for digit in "28840071542101774864572567487173")

CASES: tuple[BenchCase, ...] = (
    BenchCase("c1", (1,) * 8, 1536, 2048, "cpu"),
    BenchCase("c2", (4,) * 8, 1536, 2048, "cpu"),
    BenchCase("c3", (64,) * 8, 1536, 2048, "cpu"),
    *(BenchCase(f"c4m{m}", (m,), 4096, 7168, "cpu") for m in (1, 8, 64, 256)),
    *(_of_competition(f"S{i + 1}", case) for i, case in enumerate(BENCHMARKS)),
    BenchCase("D1", _D1_ROWS, 4096, 7168, "cuda"),
    BenchCase("D2", _routed(64, 128, 8, seed=2), 1536, 2048, "cuda"),
    BenchCase("P1", (1024,) * 8, 4096, 7168, "cuda"),
    BenchCase("P2", (256,) * 128, 1536, 2048, "cuda"),
    BenchCase("P2-skew", _skewed(256 * 128, 128, 0.9), 1536, 2048, "cuda"),
)


def cases_named(names: Iterable[str], device: str) -> tuple[BenchCase, ...]:
    """The cases of these names, "c4" meaning all of c4; no names: all made for ``device``.

    Raises:
        ValueError: a name that there is not.
    """
    names = tuple(names)
    if not names:
        return tuple(case for case in CASES if case.device == device)
    found: dict[str, BenchCase] = {}
    for name in names:
        matching = [case for case in CASES if case.name == name]
        matching = matching or [case for case in CASES if case.name.startswith(f"{name}m")]
        if not matching:
            known = ", ".join(case.name for case in CASES)
            raise bad_value("case", given=repr(name), wanted=f"one of {known}")
        found |= {case.name: case for case in matching}
    return tuple(found.values())
