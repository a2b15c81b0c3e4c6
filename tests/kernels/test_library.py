"""Loading the library, choosing a level, and what the library refuses."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nibblas.backends.cpu import CpuBackend, problem_record
from nibblas.errors import NativeLibraryError
from nibblas.plan.problem import GroupShape, Problem
from nibblas.runtime import cpu_library
from nibblas.runtime.cpu_library import PROBLEM, CpuLibrary
from tests.kernels.products import Spec, assert_untouched, build

PROBLEM_ON_CPU = Problem((GroupShape(1, 16, 16),), "bf16", "bf16")


def test_levels_are_named_slowest_first(library: CpuLibrary) -> None:
    assert next(iter(library.levels)) == "portable"
    flags = Path("/proc/cpuinfo")
    if flags.exists() and "avx2" in flags.read_text():
        assert "avx2" in library.levels


def test_best_level_is_chosen(library: CpuLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIBBLAS_CPU_LEVEL", raising=False)
    assert CpuBackend().plan(PROBLEM_ON_CPU).config.level == list(library.levels)[-1]


def test_level_is_forced_by_the_environment(
    library: CpuLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIBBLAS_CPU_LEVEL", "portable")
    assert CpuBackend().plan(PROBLEM_ON_CPU).config.level == "portable"


def test_unknown_level_is_refused_by_name(
    library: CpuLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIBBLAS_CPU_LEVEL", "avx9")
    with pytest.raises(ValueError, match=r"NIBBLAS_CPU_LEVEL: got 'avx9'; want one of portable"):
        CpuBackend().plan(PROBLEM_ON_CPU)


def test_other_devices_are_refused_with_a_reason() -> None:
    problem = Problem((GroupShape(1, 16, 16),), "bf16", "bf16", device="cuda")
    assert "cuda" in CpuBackend().why_not(problem)[0]


def test_missing_library_is_a_reason_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_library, "_FILE_NAMES", {sys.platform: "absent.so"})
    cpu_library._load_once.cache_clear()
    try:
        reasons = CpuBackend().why_not(PROBLEM_ON_CPU)
    finally:
        cpu_library._load_once.cache_clear()
    assert "pip install" in reasons[0]


def test_a_file_that_is_no_library_is_a_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "libnibblas_cpu.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(NativeLibraryError, match="cannot load"):
        cpu_library.open_library(broken)


def test_another_interface_version_is_refused(
    library: CpuLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_library, "ABI_VERSION", 10**6)
    with pytest.raises(NativeLibraryError, match="interface version"):
        cpu_library.open_library(library.path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the ELF dynamic section")
def test_library_links_no_openmp_runtime(library: CpuLibrary) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    dynamic = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(library.path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not re.search(r"gomp|omp\.so|iomp", dynamic)


@pytest.mark.skipif(sys.platform != "linux", reason="lists the process's libraries from /proc")
def test_one_openmp_runtime_in_the_process(library: CpuLibrary) -> None:
    """A product on two threads loads no OpenMP runtime beside torch's."""
    if not library.parallel_region:
        pytest.skip("this torch has no GOMP_parallel")
    product = build(Spec(rows=(64,), n=256, k=1024))
    library.grouped_mm([problem_record(product.operands)], "portable", 2)
    maps = Path("/proc/self/maps").read_text()
    runtimes = set(re.findall(r"\S*lib(?:gomp|omp|iomp5)\S*\.so\S*", maps))
    torch_folder = str(Path(torch.__file__).parent.parent)
    assert all(path.startswith(torch_folder) for path in runtimes), runtimes


def changed(record: bytes, field: int, value: int) -> bytes:
    fields = list(PROBLEM.unpack(record))
    fields[field] = value
    return PROBLEM.pack(*fields)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, 8, "another version"),
        (2, -1, "sizes"),
        (4, 24, "sizes"),
        (5, 7, "sizes"),
        (7, 9, "unknown type"),
        (10, 2, "unknown type"),
        (33, 3, "unknown type"),
    ],
)
def test_bad_records_are_refused_and_nothing_is_written(
    library: CpuLibrary, field: int, value: int, message: str
) -> None:
    product = build(Spec())
    good = problem_record(product.operands)
    with pytest.raises(NativeLibraryError, match=message):
        library.grouped_mm([good, changed(good, field, value)], "portable", 1)
    with pytest.raises(NativeLibraryError, match=message):
        library.bind("portable")(changed(good, field, value), 1)
    assert_untouched(product, product.used_rows() & False)


@pytest.mark.parametrize(
    ("masked", "offs"),
    [
        (False, [-1, 3]),
        (False, [3, 2]),
        (False, [2, 4]),
        (False, [2, -(2**31)]),
        (True, [2, 4]),
        (True, [-1, 1]),
        (True, [2**31 - 1, 1]),
    ],
)
def test_offs_that_no_product_has_are_refused_and_nothing_is_written(
    library: CpuLibrary, masked: bool, offs: list[int]
) -> None:
    """Three rows to a group when masked, three rows in all when packed."""
    product = build(Spec(rows=(2, 1), masked=masked))
    assert product.operands.offs is not None
    product.operands.offs.copy_(torch.tensor(offs))
    record = problem_record(product.operands)
    assert library.bind("portable")(record, 1) is False
    with pytest.raises(NativeLibraryError, match="offs"):
        library.grouped_mm([record], "portable", 1)
    assert_untouched(product, product.used_rows() & False)


def test_unsupported_level_is_refused(library: CpuLibrary) -> None:
    product = build(Spec())
    record = problem_record(product.operands)
    status = library.native.nibblas_cpu_grouped_mm(record, 1, 31, 1, 0)
    assert b"level" in library.native.nibblas_cpu_status_text(status)


OUT_OF_MEMORY = """
import resource, torch
from nibblas.backends.base import Operands
from nibblas.backends.cpu import problem_record
from nibblas.runtime import cpu_library
k = 2**22
scales = torch.zeros(1, 1, k // 16, dtype=torch.uint8).view(torch.float8_e4m3fn)
operands = Operands(
    x=torch.zeros(1, k, dtype=torch.bfloat16).expand(96, k), x_scales=None,
    x_scale_layout="linear", x_scale_start="torch", x_global=None,
    w=torch.zeros(1, 1, k // 2, dtype=torch.uint8), w_scales=scales, w_scale_layout="linear",
    w_global=None, offs=None, max_m=0, alpha=None, row_scale=None, bias=None,
    out=torch.zeros(96, 1),
)
library = cpu_library.load()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
try:
    library.grouped_mm([problem_record(operands)], "portable", 1)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits and reads memory the Linux way")
def test_no_memory_for_scratch_is_an_error_and_no_crash(library: CpuLibrary) -> None:
    """96 tokens of K = 2^22 want 1.6 GB of scratch, and 256 MiB are allowed."""
    result = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=120
    )
    assert result.stdout.startswith("NativeLibraryError out of memory"), result.stderr


def test_no_products(library: CpuLibrary) -> None:
    library.grouped_mm([], "portable", 2)


def test_record_has_the_size_of_the_c_struct(library: CpuLibrary) -> None:
    """The library compares the record's first field with its own sizeof."""
    assert PROBLEM.size == struct.calcsize("@37q")
    product = build(Spec())
    library.grouped_mm([problem_record(product.operands)], "portable", 1)
