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


#: Levels that add in one order, and so give equal bits.
EQUAL_LEVELS = ("portable", "avx2", "avx512")


@pytest.fixture(scope="session")
def equal_levels(library: CpuLibrary) -> list[str]:
    """Levels that this machine can run and that promise equal bits."""
    return [level for level in library.levels if level in EQUAL_LEVELS]


@pytest.fixture(params=[*EQUAL_LEVELS, "amx"])
def level(request: pytest.FixtureRequest, library: CpuLibrary) -> str:
    """Every instruction level that this machine can run, in turn."""
    if request.param not in library.levels:
        pytest.skip(f"this machine cannot run level {request.param}")
    return str(request.param)


@pytest.fixture(scope="session")
def run(library: CpuLibrary) -> Run:
    """``run(operands or list of them, level, threads=1, batch_invariant=False)`` fills outputs."""

    def call(
        operands: Operands | Sequence[Operands],
        level: str,
        threads: int = 1,
        *,
        batch_invariant: bool = False,
    ) -> None:
        products = [operands] if isinstance(operands, Operands) else operands
        records = [problem_record(product, batch_invariant) for product in products]
        library.grouped_mm(records, level, threads)

    return call
