"""How kernel tests call the CPU library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from nibblas.backends.base import Operands
from nibblas.backends.cpu import problem_record
from nibblas.errors import NativeLibraryError
from nibblas.runtime import cpu_library
from nibblas.runtime.cpu_library import CpuLibrary

Run = Callable[..., None]


@pytest.fixture(scope="session")
def library() -> CpuLibrary:
    try:
        return cpu_library.load()
    except NativeLibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def levels(library: CpuLibrary) -> list[str]:
    return list(library.levels)


@pytest.fixture(params=["portable", "avx2"])
def level(request: pytest.FixtureRequest, library: CpuLibrary) -> str:
    """Every instruction level that this machine can run, in turn."""
    if request.param not in library.levels:
        pytest.skip(f"this machine cannot run level {request.param}")
    return str(request.param)


@pytest.fixture(scope="session")
def run(library: CpuLibrary) -> Run:
    """``run(operands or list of them, level, threads=1)`` writes their outputs."""

    def call(operands: Operands | Sequence[Operands], level: str, threads: int = 1) -> None:
        products = [operands] if isinstance(operands, Operands) else operands
        library.grouped_mm([problem_record(p) for p in products], level, threads)

    return call
