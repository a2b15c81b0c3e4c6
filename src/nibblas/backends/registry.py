"""Every backend of this build, in the order of preference on a tie."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from nibblas.backends.base import Backend
from nibblas.errors import bad_value


@cache
def all_backends() -> tuple[Backend, ...]:
    """The backends; each can say why it cannot take a problem."""
    from nibblas.backends.cpu import CpuBackend
    from nibblas.backends.portable import PortableBackend
    from nibblas.backends.reference import ReferenceBackend
    from nibblas.backends.sm90 import Sm90Backend
    from nibblas.backends.sm100 import Sm100Backend

    return (
        CpuBackend(),
        Sm100Backend(),
        Sm90Backend(),
        PortableBackend(),
        ReferenceBackend(),
    )


@cache
def emulated_backend() -> Backend:
    """The emulator's. Its room is imported when somebody asks for it by name, and only then."""
    backend: Backend = import_module("nibblas.emulator.backend").EmulatedBackend()
    return backend


EMULATED = "emulated"
"""Not among ``all_backends``: it is for checking kernels, and no call is left to it."""


def get(name: str, *, argument: str = "backend") -> Backend:
    """The backend of that name; ValueError lists the known names under ``argument``."""
    for backend in all_backends():
        if backend.name == name:
            return backend
    if name == EMULATED:
        return emulated_backend()
    names = [*(backend.name for backend in all_backends()), EMULATED]
    known = ", ".join(map(repr, names))
    raise bad_value(argument, given=repr(name), wanted=f"one of {known}")
