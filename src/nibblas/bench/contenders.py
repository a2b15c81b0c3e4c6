"""What is timed: our backends and levels, and PyTorch on weights that were decoded before or not.

All contenders compute one product of the same numbers. Each has several sets of weights, equal
copies at different addresses, so that a call finds its weights in memory and not in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import nibblas
from nibblas.backends import registry
from nibblas.bench.cases import BenchCase, Kind
from nibblas.formats import e2m1
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.runtime import cpu_library

DISTRIBUTION = "codes uniform over 16, block scales uniform over bytes 0x28..0x47, tokens normal"
DECODING_ROUNDS = 3
MM = "torch mm"

_DTYPES = {"w4a4": torch.bfloat16, "w4a16-bf16": torch.bfloat16, "w4a16-fp16": torch.float16}
_SLOW_BACKENDS = ("reference",)


@dataclass(frozen=True)
class Contender:
    """Something that computes the case's product.

    Attributes:
        call: computes it with one of ``sets`` sets of weights.
        latest: what the latest call computed, ``(M, N)``.
        ours: whether its result is held to the error bound.
        level: CPU instruction level to run at; "": whatever is chosen.
        rounds: at most so many are timed; None: as many as asked for.
    """

    name: str
    call: Callable[[int], object]
    sets: int
    latest: Callable[[], Tensor]
    ours: bool = False
    level: str = ""
    rounds: int | None = None


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
        return _DTYPES[self.kind]

    @property
    def weight_bytes(self) -> int:
        return self.w.codes.nbytes + self.w.scales.nbytes

    def out(self) -> Tensor:
        rows = sum(self.case.rows)
        return torch.empty((rows, self.case.n), dtype=self.dtype, device=self.w.device)


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
    x: Tensor | NVFP4Array
    if kind == "w4a4":
        x = array(rows, case.k)
    else:
        x = torch.randn(rows, case.k, device=device, generator=generator).to(_DTYPES[kind])
    ends = torch.tensor(case.rows).cumsum(0).to(torch.int32).to(device)
    return CaseData(case, kind, x, array(len(case.rows), case.n, case.k), ends)


def contenders(
    data: CaseData, rotate_bytes: float, *, levels: tuple[str, ...] = ()
) -> list[Contender]:
    """Ours first: each backend that takes the case, the CPU backend once per level.

    Args:
        rotate_bytes: each contender's sets of weights take at least so many bytes together.
        levels: only these CPU levels; none: all that run here.
    """
    return [*_ours(data, rotate_bytes, levels), *_rivals(data, rotate_bytes)]


def _ours(data: CaseData, rotate_bytes: float, levels: tuple[str, ...]) -> Iterator[Contender]:
    device = data.w.device
    problem = data.case.problem(data.kind, device.type)
    runs = [
        (backend.name, level)
        for backend in registry.all_backends()
        if backend.name not in _SLOW_BACKENDS and not backend.why_not(problem)
        for level in (_levels(levels) if backend.name == "cpu" else ("",))
    ]
    count = _sets(data.weight_bytes, rotate_bytes)
    weights = [data.w] + [
        NVFP4Array(data.w.codes.clone(), data.w.scales.clone()) for _ in range(count - 1)
    ]
    for backend, level in runs:
        out = data.out()
        name = f"{backend}/{level}" if level else backend
        call = _our_call(data, weights, out, backend)
        yield Contender(name, call, count, _always(out), ours=True, level=level)


def _our_call(
    data: CaseData, weights: list[NVFP4Array], out: Tensor, backend: str
) -> Callable[[int], object]:
    return lambda i: nibblas.grouped_mm(data.x, weights[i], data.offs, out=out, backend=backend)


def _levels(asked: tuple[str, ...]) -> list[str]:
    library = cpu_library.load()
    for level in asked:
        library.choose_level(level)
    return list(asked or library.levels)


def _rivals(data: CaseData, rotate_bytes: float) -> Iterator[Contender]:
    x = decode(data.x, data.dtype) if isinstance(data.x, NVFP4Array) else data.x
    decoded = decode(data.w, data.dtype)
    count = _sets(decoded.nbytes, rotate_bytes)
    weights = [decoded, *(decoded.clone() for _ in range(count - 1))]
    groups = _group_slices(data.case)

    def multiply(out: Tensor, w: Tensor) -> None:
        for g, rows in groups:
            torch.mm(x[rows], w[g].T, out=out[rows])

    out = data.out()
    yield Contender(MM, lambda i: multiply(out, weights[i]), count, _always(out))
    grouped = getattr(torch.nn.functional, "grouped_mm", None)
    if grouped is not None and data.dtype == torch.bfloat16:
        latest = [data.out()]  # it has no out=, and a copy would be charged to it

        def call(i: int) -> None:
            latest[0] = grouped(x, weights[i].transpose(-2, -1), offs=data.offs)

        yield Contender("torch grouped_mm", call, count, lambda: latest[0])
    last = data.out()
    sets = [data.w] * _sets(data.weight_bytes, rotate_bytes)
    yield Contender(
        "decode + torch mm",
        lambda i: multiply(last, decode(sets[i], data.dtype)),
        len(sets),
        _always(last),
        rounds=DECODING_ROUNDS,
    )


def _always(out: Tensor) -> Callable[[], Tensor]:
    return lambda: out


def decode(array: NVFP4Array, dtype: torch.dtype) -> Tensor:
    """The values in a 16-bit type, which is exact, by PyTorch's own operations."""
    values: Tensor = e2m1.decode_packed(array.codes, dtype).unflatten(-1, (-1, 16))
    values *= array.scales.to(dtype).unsqueeze(-1)
    return values.flatten(-2)


def _group_slices(case: BenchCase) -> list[tuple[int, slice]]:
    slices, begin = [], 0
    for g, rows in enumerate(case.rows):
        if rows:
            slices.append((g, slice(begin, begin + rows)))
        begin += rows
    return slices


def _sets(num_bytes: int, rotate_bytes: float) -> int:
    """Sets that take at least ``rotate_bytes``, and one more, so that a set is cold when met."""
    return 1 + int(rotate_bytes // num_bytes) + (rotate_bytes > 0)
