"""Environment variables: every one that nibblas reads is read here, and nowhere else.

========================  ===================================================================
``NIBBLAS_BACKEND``       backend for every call that names none ("cpu", "reference", ...)
``NIBBLAS_CPU_LEVEL``     instruction level of the CPU backend ("portable", ..., "amx")
``NIBBLAS_SM100_PRESET``  preset of the sm100 backend ("fused_persistent", "wide_deep", "swapped")
``NIBBLAS_PDL``           "0": no launch begins before its predecessor on the queue has ended
``NIBBLAS_CACHE_DIR``     folder of compiled kernels, instead of the platform's cache folder
``NIBBLAS_LOG_LAUNCHES``  "1": every kernel launch is written to stderr before it happens
========================  ===================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_cpu_level: ContextVar[str | None] = ContextVar("nibblas_cpu_level", default=None)
_sm100_preset: ContextVar[str | None] = ContextVar("nibblas_sm100_preset", default=None)

BACKEND_VARIABLE = "NIBBLAS_BACKEND"
CPU_LEVEL_VARIABLE = "NIBBLAS_CPU_LEVEL"
SM100_PRESET_VARIABLE = "NIBBLAS_SM100_PRESET"
CACHE_DIR_VARIABLE = "NIBBLAS_CACHE_DIR"
PDL_VARIABLE = "NIBBLAS_PDL"
LOG_LAUNCHES_VARIABLE = "NIBBLAS_LOG_LAUNCHES"

_environ = os.environ
_variables: dict[bytes, bytes] | None = (
    getattr(os.environ, "_data", None) if os.name == "posix" else None
)
_FORCING_KEYS = tuple(
    os.fsencode(name)
    for name in (BACKEND_VARIABLE, CPU_LEVEL_VARIABLE, SM100_PRESET_VARIABLE, PDL_VARIABLE)
)
_NOTHING_FORCED = (None, None, None, True)


def forced_backend() -> str | None:
    """The backend's name from NIBBLAS_BACKEND; None when unset or empty."""
    return os.environ.get(BACKEND_VARIABLE) or None


def forced_cpu_level() -> str | None:
    """The level's name: ``cpu_level``'s, else NIBBLAS_CPU_LEVEL's; None when unset or empty."""
    return _cpu_level.get() or os.environ.get(CPU_LEVEL_VARIABLE) or None


def forced_sm100_preset() -> str | None:
    """The preset's name: ``sm100_preset``'s, else NIBBLAS_SM100_PRESET's; None: not forced."""
    return _sm100_preset.get() or os.environ.get(SM100_PRESET_VARIABLE) or None


def programmatic_launches() -> bool:
    """Whether kernels that can may begin early (programmatic dependent launch): unless "0"."""
    return os.environ.get(PDL_VARIABLE) != "0"


def forced() -> tuple[str | None, str | None, str | None, bool]:
    """What decides plans: ``forced_backend()``, ``forced_cpu_level()``, ``forced_sm100_preset()``,
    ``programmatic_launches()``.

    Every call of a product asks, and ``os.environ.get`` takes 1 us to find a variable missing.
    CPython keeps the variables in a dictionary of bytes, which is asked first where it is there.
    """
    raw = _variables if os.environ is _environ else None
    if (
        raw is not None
        and raw.keys().isdisjoint(_FORCING_KEYS)
        and _cpu_level.get() is None
        and _sm100_preset.get() is None
    ):
        return _NOTHING_FORCED
    launches = programmatic_launches()
    return forced_backend(), forced_cpu_level(), forced_sm100_preset(), launches


@contextmanager
def cpu_level(name: str) -> Iterator[None]:
    """Inside, and in this thread, the CPU backend runs at that instruction level."""
    token = _cpu_level.set(name)
    try:
        yield
    finally:
        _cpu_level.reset(token)


@contextmanager
def sm100_preset(name: str) -> Iterator[None]:
    """Inside, and in this thread, the sm100 backend takes that preset."""
    token = _sm100_preset.set(name)
    try:
        yield
    finally:
        _sm100_preset.reset(token)


def of_a_child(**more: str) -> dict[str, str]:
    """A child process's environment: this one's without a forced choice, and ``more``."""
    forcing = {os.fsdecode(key) for key in _FORCING_KEYS}
    kept = {name: value for name, value in os.environ.items() if name not in forcing}
    return kept | more


def cache_dir() -> Path | None:
    """The folder from NIBBLAS_CACHE_DIR; None when unset or empty."""
    folder = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(folder).expanduser() if folder else None


def log_launches() -> bool:
    """Whether NIBBLAS_LOG_LAUNCHES is "1"."""
    return os.environ.get(LOG_LAUNCHES_VARIABLE) == "1"
