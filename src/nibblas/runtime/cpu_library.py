"""The CPU library behind its C interface (kernels/cpu/abi.h), loaded once per process."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nibblas.env import CPU_LEVEL_VARIABLE
from nibblas.errors import NativeLibraryError, bad_value

ABI_VERSION = 3

#: NIBBLAS_BAD_OFFS of abi.h.
_BAD_OFFS = 6

#: NibblasProblem of abi.h: fields of 8 bytes each, in its order.
PROBLEM = struct.Struct("@37q")

_FILE_NAMES = {"darwin": "libnibblas_cpu.dylib", "win32": "nibblas_cpu.dll"}
_TORCH_CPU_NAMES = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}


@dataclass(frozen=True)
class CpuLibrary:
    """The loaded library.

    Attributes:
        levels: level number by name, for the levels that this machine can run, slowest first.
        native: its exported functions.
        parallel_region: address of the GOMP_parallel that torch's own kernels call; 0: torch has
            none, and the library starts its threads itself.
    """

    path: Path
    levels: dict[str, int]
    native: ctypes.CDLL
    parallel_region: int

    def choose_level(self, forced: str | None) -> str:
        """The best level, or the one that NIBBLAS_CPU_LEVEL asks for.

        Raises:
            ValueError: the forced level is unknown, or this machine cannot run it.
        """
        if forced is None:
            return list(self.levels)[-1]
        if forced not in self.levels:
            wanted = f"one of {', '.join(self.levels)}, which this machine can run"
            raise bad_value(CPU_LEVEL_VARIABLE, given=repr(forced), wanted=wanted)
        return forced

    def grouped_mm(self, problems: Sequence[bytes], level: str, threads: int) -> None:
        """Runs products in one parallel region of at most ``threads`` threads.

        Args:
            problems: one ``PROBLEM`` record each; what their pointers point to must stay alive.

        Raises:
            NativeLibraryError: the library refuses a record or finds no memory.
        """
        status = self.native.nibblas_cpu_grouped_mm(
            b"".join(problems), len(problems), self.levels[level], threads, self.parallel_region
        )
        if status:
            raise self._error(status)

    def bind(self, level: str) -> Callable[[bytes, int], bool]:
        """``grouped_mm`` at one level, for products that are run again: ``(problem, threads)``.

        False: the library refuses the contents of offs, and has written nothing.
        """
        grouped_mm, number = self.native.nibblas_cpu_grouped_mm, self.levels[level]
        region = self.parallel_region

        def run(problem: bytes, threads: int) -> bool:
            status = grouped_mm(problem, 1, number, threads, region)
            if status and status != _BAD_OFFS:
                raise self._error(status)
            return not status

        return run

    def _error(self, status: int) -> NativeLibraryError:
        return NativeLibraryError(self.native.nibblas_cpu_status_text(status).decode())


def load() -> CpuLibrary:
    """The library; NativeLibraryError says why there is none, and how to get one."""
    result = _load_once()
    if isinstance(result, NativeLibraryError):
        raise result
    return result


@cache
def _load_once() -> CpuLibrary | NativeLibraryError:
    try:
        return open_library(_find())
    except NativeLibraryError as error:
        return error


def open_library(path: Path) -> CpuLibrary:
    """Opens one library file, and checks that it is of this version of nibblas."""
    try:
        native = ctypes.CDLL(str(path))
        _declare(native)
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"cannot load {path}: {error}") from error
    version = native.nibblas_cpu_abi_version()
    if version != ABI_VERSION:
        raise NativeLibraryError(
            f"{path} has interface version {version}, nibblas wants {ABI_VERSION}: reinstall it"
        )
    return CpuLibrary(path, _supported_levels(native), native, _torch_parallel_region())


def _find() -> Path:
    name = _FILE_NAMES.get(sys.platform, "libnibblas_cpu.so")
    spec = importlib.util.find_spec("nibblas")
    # An editable install has two folders: the sources, and where the library was installed.
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        path = Path(folder) / "lib" / name
        if path.is_file():
            return path
    raise NativeLibraryError(
        f"no {name} is installed beside nibblas: install a wheel, or `pip install .` from a "
        "clone with a C++17 compiler"
    )


def _declare(native: ctypes.CDLL) -> None:
    native.nibblas_cpu_abi_version.restype = ctypes.c_int32
    native.nibblas_cpu_supported_levels.restype = ctypes.c_uint32
    native.nibblas_cpu_level_name.restype = ctypes.c_char_p
    native.nibblas_cpu_level_name.argtypes = [ctypes.c_int32]
    native.nibblas_cpu_status_text.restype = ctypes.c_char_p
    native.nibblas_cpu_status_text.argtypes = [ctypes.c_int32]
    native.nibblas_cpu_grouped_mm.restype = ctypes.c_int32
    native.nibblas_cpu_grouped_mm.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_void_p,
    ]


def _supported_levels(native: Any) -> dict[str, int]:
    mask: int = native.nibblas_cpu_supported_levels()
    return {
        native.nibblas_cpu_level_name(level).decode(): level
        for level in range(mask.bit_length())
        if mask >> level & 1
    }


def _torch_parallel_region() -> int:
    """GOMP_parallel as torch's CPU library sees it, so that both use one pool of threads.

    The dynamic linker binds torch's own calls in the global scope first, where a preloaded OpenMP
    runtime stands, then among what libtorch_cpu depends on; 0: neither has one.
    """
    name = _TORCH_CPU_NAMES.get(sys.platform, "libtorch_cpu.so")
    for scope in (None, str(Path(torch.__file__).parent / "lib" / name)):
        try:
            function = ctypes.CDLL(scope).GOMP_parallel
        except (OSError, AttributeError, TypeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
