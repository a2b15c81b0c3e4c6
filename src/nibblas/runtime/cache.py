"""Finds the cubin of a kernel: in memory, shipped in the package, in the user's cache, or compiled.

Two keys. A shipped cubin is found by ``prebuilt_key``, over the source, configuration, entry and
target alone: whichever compiler the user has, or none, the one that was tested is used. A compiled
one is found by ``user_key``, which adds the compiler's version and options.

A file in either folder is the cubin followed by the SHA-256 of it: still an ELF file to every tool,
and a truncated or damaged one is noticed.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from nibblas import env
from nibblas.runtime.bounded import BoundedCache
from nibblas.runtime.compile import (
    OPTIONS,
    compile_cubin,
    compiler_version,
    resource_problems,
)
from nibblas.runtime.source import KernelSource

PREBUILT = Path(__file__).resolve().parents[1] / "prebuilt"

_DIGEST_BYTES = hashlib.sha256().digest_size
_KEY_DIGITS = 32
_CUBINS_IN_MEMORY = 64

_log = logging.getLogger("nibblas.compile")


def prebuilt_key(source: KernelSource) -> str:
    """What identifies a shipped cubin."""
    return source.digest()


def user_key(source: KernelSource, compiler: str, options: Sequence[str] = ()) -> str:
    """What identifies a cubin that one compiler made."""
    return source.digest(compiler, *OPTIONS, *options)


def file_name(source: KernelSource, key: str) -> str:
    return f"{source.entry}-{source.target}-{key[:_KEY_DIGITS]}.cubin"


def pack(cubin: bytes) -> bytes:
    """A cubin as its file holds it."""
    return cubin + hashlib.sha256(cubin).digest()


def unpack(data: bytes) -> bytes | None:
    """The cubin of a file's content; None if the content is damaged."""
    cubin, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


class CubinCache:
    """Cubins by source.

    Args:
        folder: the user's cache; None: memory only.
        prebuilt: the folder of shipped cubins.
    """

    def __init__(self, folder: Path | None, prebuilt: Path = PREBUILT) -> None:
        self.folder = folder
        self.prebuilt = prebuilt
        self._memory: BoundedCache[str, bytes] = BoundedCache(_CUBINS_IN_MEMORY)
        self._warned = False

    def get(self, source: KernelSource, options: Sequence[str] = ()) -> bytes:
        """The cubin, from the nearest place that has it.

        Args:
            options: further compiler options; with any, shipped cubins do not count.

        Raises:
            CompileError, NativeLibraryError: it must be compiled, and cannot be.
        """
        memory_key = source.digest(*options)
        return self._memory.get_or_make(memory_key, lambda: self._find(source, options))

    def _find(self, source: KernelSource, options: Sequence[str]) -> bytes:
        if not options:
            shipped = _read(self.prebuilt / file_name(source, prebuilt_key(source)))
            if shipped is not None:
                _log.debug("%s for %s: prebuilt", source.entry, source.target)
                return shipped
        key = user_key(source, compiler_version(), options)
        path = None if self.folder is None else self.folder / file_name(source, key)
        stored = None if path is None else _read(path)
        return self._compile(source, options, path) if stored is None else stored

    def _compile(self, source: KernelSource, options: Sequence[str], path: Path | None) -> bytes:
        begin = time.perf_counter()
        compiled = compile_cubin(
            source.text,
            name=source.name,
            target=source.target,
            headers=dict(source.headers),
            options=options,
            log_folder=None if self.folder is None else self.folder / "logs",
        )
        seconds = time.perf_counter() - begin
        _log.info("%s for %s: compiled in %.1f s", source.entry, source.target, seconds)
        for problem in resource_problems(compiled):
            _log.warning("%s for %s: %s", source.entry, source.target, problem)
        if path is not None:
            self._store(path, compiled.cubin)
        return compiled.cubin

    def _store(self, path: Path, cubin: bytes) -> None:
        try:
            write_atomically(path, pack(cubin))
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"nibblas cannot write its cache ({error}): kernels are compiled anew in every "
                    f"process; set {env.CACHE_DIR_VARIABLE} to a folder that can be written",
                    stacklevel=2,
                )


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that other processes see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@cache
def default_cache() -> CubinCache:
    """The process's cache: NIBBLAS_CACHE_DIR, or the platform's folder for caches.

    Without platformdirs to name that folder, cubins stay in memory: shipped ones need no folder.
    """
    return CubinCache(env.cache_dir() or _platform_folder())


def _platform_folder() -> Path | None:
    try:
        folder: Path = import_module("platformdirs").user_cache_path("nibblas", appauthor=False)
    except ImportError:
        return None
    return folder


def _read(path: Path) -> bytes | None:
    try:
        return unpack(path.read_bytes())
    except OSError:
        return None
