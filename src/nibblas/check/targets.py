"""Where a problem can run: a backend, a device, and an instruction level of the CPU backend."""

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
    """A backend's name, an instruction level ("" where it has none), and where the tensors lie."""

    backend: str
    level: str = ""
    device: str = "cpu"

    def __str__(self) -> str:
        name = f"{self.backend}/{self.level}" if self.level else self.backend
        return name if self.device == "cpu" else f"{name} on {self.device}"


def available(
    *, backend: str | None = None, level: str | None = None, device: str | None = None
) -> tuple[Target, ...]:
    """Every backend of this build, the CPU backend once per level that this machine can run.

    What cannot run here stays in the list and refuses, visibly: a CPU backend without its library
    (then without a level), a GPU backend without a GPU (then on the CPU).

    Args:
        backend: only this one; None: NIBBLAS_BACKEND's, else all.
        level: only this CPU level; None: NIBBLAS_CPU_LEVEL's, else all.
        device: only backends that compute there: "cpu", "cuda", "cuda:1"; None: each where it
            usually computes.

    Raises:
        ValueError: an unknown backend, a level that cannot run here, a device that is not here or
            that the one backend asked for does not compute on.
    """
    named = backend or env.forced_backend()
    backends = registry.all_backends() if named is None else (registry.get(named),)
    places = [(b, _place(b, device, named=named is not None)) for b in backends]
    targets = [
        Target(b.name, name, place)
        for b, place in places
        if place is not None
        for name in _levels(b)
    ]
    if level is None:
        return tuple(targets)
    at_level = tuple(target for target in targets if target.level == level)
    if not at_level:
        known = ", ".join(target.level for target in targets if target.level) or "none"
        raise bad_value("level", given=repr(level), wanted=f"a level that runs here: {known}")
    return at_level


def device_named(name: str) -> torch.device:
    """The device that a user asks for by name, which is then there; ValueError otherwise."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        given = str(error).splitlines()[0]
        raise bad_value("device", given=given, wanted="cpu, cuda or cuda:INDEX") from None
    if device.type not in ("cpu", "cuda"):
        raise bad_value("device", given=repr(name), wanted="cpu, cuda or cuda:INDEX")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise bad_value("device", given=repr(name), wanted=f"one of the {found} CUDA devices here")
    return device


def _place(backend: Backend, device: str | None, *, named: bool) -> str | None:
    """The device to check a backend on; None: it computes on other kinds than the one asked for.

    Args:
        named: only this backend was asked for, so that what cannot be is an error.
    """
    if device is not None:
        if device_named(device).type in backend.devices:
            return device
        if named:
            kinds = " or ".join(backend.devices)
            raise bad_value("device", given=repr(device), wanted=f"{kinds} with {backend.name!r}")
        return None
    usual = backend.devices[0]
    if usual == "cuda" and not torch.cuda.is_available():
        if named:
            wanted = f"a CUDA device, on which {backend.name!r} computes"
            raise bad_value("device", given="none that PyTorch can use", wanted=wanted)
        return "cpu"
    return usual


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
