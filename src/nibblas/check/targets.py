"""Where a problem can run: a backend and, for the CPU backend, an instruction level."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nibblas import env
from nibblas.backends import registry
from nibblas.backends.base import Backend
from nibblas.backends.cpu import CpuBackend
from nibblas.errors import NativeLibraryError, bad_value
from nibblas.runtime import cpu_library


@dataclass(frozen=True)
class Target:
    """A backend's name and an instruction level ("" where the backend has none)."""

    backend: str
    level: str = ""

    def __str__(self) -> str:
        return f"{self.backend}/{self.level}" if self.level else self.backend


def available(*, backend: str | None = None, level: str | None = None) -> tuple[Target, ...]:
    """Every backend of this build, the CPU backend once per level that this machine can run.

    A CPU backend without its library stays in the list, without a level: it refuses, visibly.

    Args:
        backend: only this one; None: NIBBLAS_BACKEND's, else all.
        level: only this CPU level; None: NIBBLAS_CPU_LEVEL's, else all.

    Raises:
        ValueError: an unknown backend, or a level that cannot run here.
    """
    named = backend or env.forced_backend()
    backends = registry.all_backends() if named is None else (registry.get(named),)
    targets = [Target(b.name, name) for b in backends for name in _levels(b)]
    if level is None:
        return tuple(targets)
    at_level = tuple(target for target in targets if target.level == level)
    if not at_level:
        known = ", ".join(target.level for target in targets if target.level) or "none"
        raise bad_value("level", given=repr(level), wanted=f"a level that runs here: {known}")
    return at_level


def _levels(backend: Backend) -> Sequence[str]:
    """The instruction levels to run a backend at, slowest first."""
    if not isinstance(backend, CpuBackend):
        return ("",)
    try:
        library = cpu_library.load()
    except NativeLibraryError:
        return ("",)
    forced_level = env.forced_cpu_level()
    return list(library.levels) if forced_level is None else [library.choose_level(forced_level)]


@contextlib.contextmanager
def forced(target: Target) -> Iterator[None]:
    """Inside, the CPU backend plans for the target's level; one without levels has one thread."""
    with env.cpu_level(target.level) if target.level else one_thread():
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside: on small tensors, waking a second costs more than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
