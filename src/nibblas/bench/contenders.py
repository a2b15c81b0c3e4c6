"""What is timed, and the numbers that all of it multiplies.

All contenders compute one product of the same numbers. Each has several sets of tokens, weights and
output, equal copies at different addresses, so that a call finds its inputs in memory and not in a
cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import nibblas
from nibblas import env
from nibblas.backends import registry
from nibblas.backends.base import Backend
from nibblas.bench.cases import BenchCase, Kind
from nibblas.errors import bad_value
from nibblas.formats import e2m1
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.runtime import cpu_library

DISTRIBUTION = "NVFP4 values: codes uniform over 16, block scales uniform over bytes 0x28..0x47"
RIVAL_LIMIT = 0.02
"""Largest relative error, of Frobenius norms, of a rival: it computes the same product at all."""

_DTYPES = {"w4a4": torch.bfloat16, "w4a16-bf16": torch.bfloat16, "w4a16-fp16": torch.float16}
_SLOW_BACKENDS = ("reference",)


@dataclass(frozen=True)
class Contender:
    """Something that computes the case's product.

    Attributes:
        call: computes it with one of ``sets`` sets of inputs.
        result: what the latest call with a set computed, ``(M, N)``.
        ours: whether its result is held to the error bound.
        level: CPU instruction level to run at; "": whatever is chosen.
        rounds: at most so many are timed; None: as many as asked for.
        other_maths: how its arithmetic differs from the exact product of the inputs; "": not.
        error_limit: of a rival, relative, of Frobenius norms.
        plan: of ours: the planner's choice for the case.
        config: the configuration that runs, where it is known.
    """

    name: str
    call: Callable[[int], object]
    sets: int
    result: Callable[[int], Tensor]
    ours: bool = False
    level: str = ""
    rounds: int | None = None
    other_maths: str = ""
    error_limit: float = RIVAL_LIMIT
    plan: Plan | None = None
    config: str = ""


@dataclass(frozen=True)
class CaseData:
    """The tensors of a case: tokens, ends of the groups, and one set of weights."""

    case: BenchCase
    kind: Kind
    x: Tensor | NVFP4Array
    w: NVFP4Array
    offs: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Of the output, and of tokens and weights where they are multiplied as 16-bit values."""
        return dtype_of(self.kind)

    @property
    def device(self) -> torch.device:
        return self.w.device

    @property
    def problem(self) -> Problem:
        return self.case.problem(self.kind, self.device.type)

    def tokens(self, dtype: torch.dtype | None = None) -> Tensor:
        """``(M, K)`` as 16-bit values: exact in ``dtype``'s default, the kind's own type."""
        dtype = dtype or self.dtype
        return decode(self.x, dtype) if isinstance(self.x, NVFP4Array) else self.x.to(dtype)

    def out(self) -> Tensor:
        rows = sum(self.case.rows)
        return torch.empty((rows, self.case.n), dtype=self.dtype, device=self.w.device)


def dtype_of(kind: Kind) -> torch.dtype:
    """The output's type, in which rivals multiply too."""
    return _DTYPES[kind]


def make_data(case: BenchCase, kind: Kind, device: torch.device, seed: int = 0) -> CaseData:
    """Random tensors on ``device``; see ``DISTRIBUTION``."""
    generator = torch.Generator(device).manual_seed(seed)

    def array(*shape: int) -> NVFP4Array:
        *outer, k = shape
        byte = {"dtype": torch.uint8, "device": device, "generator": generator}
        codes = torch.randint(0, 256, (*outer, k // 2), **byte)  # type: ignore[call-overload]
        scales = torch.randint(0x28, 0x48, (*outer, k // 16), **byte)  # type: ignore[call-overload]
        return NVFP4Array(codes, scales)

    rows = sum(case.rows)
    tokens = array(rows, case.k)
    x = tokens if kind == "w4a4" else decode(tokens, dtype_of(kind))
    ends = torch.tensor(case.rows).cumsum(0).to(torch.int32).to(device)
    return CaseData(case, kind, x, array(len(case.rows), case.n, case.k), ends)


def decode(array: NVFP4Array, dtype: torch.dtype) -> Tensor:
    """The values in a 16-bit type, which is exact, by PyTorch's own operations."""
    values: Tensor = e2m1.decode_packed(array.codes, dtype).unflatten(-1, (-1, 16))
    values *= array.scales.to(dtype).unsqueeze(-1)
    return values.flatten(-2)


def our_contenders(
    data: CaseData,
    rotate_bytes: float,
    *,
    backends: Sequence[str] = (),
    levels: Sequence[str] = (),
) -> tuple[list[Contender], dict[str, list[str]]]:
    """Each backend that takes the case, the CPU backend once per level; why the others refuse.

    Args:
        rotate_bytes: each contender's sets of inputs take at least so many bytes together.
        backends: only these; none: all but ``reference``.
        levels: only these CPU levels; none: all that run here.

    Raises:
        ValueError: an unknown backend or level, or none that takes the case, with the reasons.
    """
    refused: dict[str, list[str]] = {}
    runs: list[tuple[Backend, str]] = []
    for backend in _candidates(backends):
        reasons = backend.why_not(data.problem)
        if reasons:
            refused[backend.name] = reasons
        else:
            runs += [(backend, level) for level in _levels(backend, levels)]
    if not runs:
        account = "; ".join(f"{name}: {', '.join(why)}" for name, why in refused.items())
        wanted = f"a backend that takes {data.kind} on {data.device.type} ({account})"
        raise bad_value("case", given=data.case.name, wanted=wanted)
    xs, ws = _input_sets(data, rotate_bytes)
    return [_ours(data, xs, ws, backend, level) for backend, level in runs], refused


def _candidates(names: Sequence[str]) -> Iterator[Backend]:
    if names:
        yield from (registry.get(name) for name in names)
    else:
        yield from (b for b in registry.all_backends() if b.name not in _SLOW_BACKENDS)


def _levels(backend: Backend, asked: Sequence[str]) -> Sequence[str]:
    if backend.name != "cpu":
        return ("",)
    library = cpu_library.load()
    for level in asked:
        library.choose_level(level)
    return asked or tuple(library.levels)


def _input_sets(
    data: CaseData, rotate_bytes: float
) -> tuple[list[Tensor | NVFP4Array], list[NVFP4Array]]:
    token_bytes = _nbytes(data.x) if isinstance(data.x, NVFP4Array) else data.x.nbytes
    count = sets_for(token_bytes + _nbytes(data.w), rotate_bytes)
    xs: list[Tensor | NVFP4Array] = [data.x]
    for _ in range(count - 1):
        xs.append(_clone(data.x) if isinstance(data.x, NVFP4Array) else data.x.clone())
    return xs, [data.w, *(_clone(data.w) for _ in range(count - 1))]


def _ours(
    data: CaseData,
    xs: list[Tensor | NVFP4Array],
    ws: list[NVFP4Array],
    backend: Backend,
    level: str,
) -> Contender:
    outs = [data.out() for _ in ws]
    name = backend.name

    def call(i: int) -> object:
        return nibblas.grouped_mm(xs[i], ws[i], data.offs, out=outs[i], backend=name)

    shown = f"{name}/{level}" if level else name
    with at_level(level):
        plan = backend.plan(data.problem)
    return Contender(
        shown,
        call,
        len(ws),
        outs.__getitem__,
        ours=True,
        level=level,
        plan=plan,
        config=str(plan.config),
    )


def at_level(level: str) -> contextlib.AbstractContextManager[None]:
    """Inside, the CPU backend runs at that level; "": at the one it would choose."""
    return env.cpu_level(level) if level else contextlib.nullcontext()


def _nbytes(array: NVFP4Array) -> int:
    return array.codes.nbytes + array.scales.nbytes


def _clone(array: NVFP4Array) -> NVFP4Array:
    return NVFP4Array(array.codes.clone(), array.scales.clone())


def sets_for(num_bytes: int, rotate_bytes: float) -> int:
    """Sets that take at least ``rotate_bytes``, and one more, so that a set is cold when met."""
    return 1 + int(rotate_bytes // num_bytes) + (rotate_bytes > 0)


def rotating(tensor: Tensor, count: int) -> list[Tensor]:
    """``count`` equal tensors at different addresses, the first of them ``tensor`` itself."""
    return [tensor, *(tensor.clone() for _ in range(count - 1))]
