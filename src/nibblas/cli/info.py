"""``nibblas info``: versions, devices, CPU levels, cubins, backends and why one is not there."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

import nibblas
from nibblas import env
from nibblas.backends import registry
from nibblas.backends.base import Backend
from nibblas.cli.report import Debug, Json, command, print_json
from nibblas.errors import NativeLibraryError
from nibblas.plan.problem import Activations, Problem, uniform_shapes
from nibblas.runtime import cpu_library, prebuild

_SHAPES = uniform_shapes((16, 1), n=256, k=512)
"""A plain problem: a backend that refuses it is not usable here."""
_ACTIVATIONS: tuple[Activations, ...] = ("bf16", "nvfp4")


@command
def info(as_json: Json = False, debug: Debug = False) -> None:
    """Say what this installation has: versions, devices, CPU levels, cubins, backends.

    \b
    Examples:
      nibblas info
      nibblas info --json

    Exit codes: 0 always, unless the environment names a backend or level that does not exist (2).
    """
    facts = collect()
    if as_json:
        print_json(facts)
        return
    lines = list(_lines(facts))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:<{width}}  {value}")


def collect() -> dict[str, Any]:
    """Everything that the command shows, as plain data."""
    return {
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "devices": _devices(),
        "cpu": _cpu(),
        "prebuilt_cubins": _prebuilt(),
        "backends": [_backend(backend) for backend in registry.all_backends()],
        "forced_backend": _forced_backend(),
    }


def _forced_backend() -> str | None:
    """NIBBLAS_BACKEND, if there is such a backend; ValueError otherwise."""
    name = env.forced_backend()
    return None if name is None else registry.get(name, argument=env.BACKEND_VARIABLE).name


def _versions() -> dict[str, str]:
    found = {"nibblas": nibblas.__version__, "python": platform.python_version()}
    found["torch"] = torch.__version__  # with the build's tag, which its metadata may lack
    for package in ("numpy", "typer", "rich"):
        found[package] = metadata.version(package)
    return found


def _devices() -> list[dict[str, Any]]:
    """CUDA devices with their compute capability and memory; empty without a usable driver."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _cpu() -> dict[str, Any]:
    """The CPU library: its file, its levels here, and the one in use; or why it is not there."""
    try:
        library = cpu_library.load()
    except NativeLibraryError as error:
        return {"library": None, "problem": str(error), "levels": [], "level": None}
    forced = env.forced_cpu_level()
    return {
        "library": str(library.path),
        "problem": None,
        "levels": list(library.levels),
        "level": library.choose_level(forced),
        "forced_level": forced,
    }


def _prebuilt() -> dict[str, dict[str, int]]:
    """By NVRTC target: configurations of GPU kernels, and how many have a cubin here."""
    return {
        target: {"cubins": cubins, "configurations": configurations}
        for target, (cubins, configurations) in prebuild.shipped().items()
    }


def _backend(backend: Backend) -> dict[str, Any]:
    """Whether it takes a plain problem, per precision and kind of device here, and why not."""
    refused: dict[str, list[str]] = {}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for activations in _ACTIVATIONS:
            problem = Problem(_SHAPES, activations, "bf16", device=device)
            reasons = backend.why_not(problem)
            if reasons:
                refused[f"{problem.precision} on {device}"] = reasons
    return {"name": backend.name, "refused": refused}


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every line of the plain output."""
    yield from facts["versions"].items()
    yield "platform", f"{facts['platform']}, {facts['threads']} torch threads"
    yield from _device_lines(facts["devices"])
    yield from _cpu_lines(facts["cpu"])
    yield "prebuilt cubins", _prebuilt_text(facts["prebuilt_cubins"])
    for backend in facts["backends"]:
        by_reason: dict[str, list[str]] = {}
        for what, why in backend["refused"].items():
            by_reason.setdefault(", ".join(why), []).append(what)
        text = "; ".join(f"not {', '.join(what)}: {why}" for why, what in by_reason.items())
        yield f"backend {backend['name']}", text or "takes both precisions on every device here"
    if facts["forced_backend"]:
        yield env.BACKEND_VARIABLE, facts["forced_backend"]


def _device_lines(devices: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if not devices:
        yield "cuda", "no device"
    for device in devices:
        gib = device["memory_bytes"] / 2**30
        yield (
            device["device"],
            f"{device['name']}, compute capability {device['compute_capability']}, {gib:.0f} GiB",
        )


def _cpu_lines(cpu: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if cpu["library"] is None:
        yield "cpu library", cpu["problem"]
        return
    yield "cpu library", cpu["library"]
    why = f", as {env.CPU_LEVEL_VARIABLE} says" if cpu["forced_level"] else ""
    yield "cpu levels", f"{', '.join(cpu['levels'])}; in use: {cpu['level']}{why}"


def _prebuilt_text(targets: dict[str, dict[str, int]]) -> str:
    """How many, for which targets; of how many where some are missing."""
    total = sum(counts["cubins"] for counts in targets.values())
    if not total:
        return "none: kernels are compiled at their first use"
    shown = []
    for target, counts in targets.items():
        whole = counts["cubins"] == counts["configurations"]
        of_all = "" if whole else f" of {counts['configurations']}"
        shown.append(f"{target} {counts['cubins']}{of_all}")
    return f"{total}: {', '.join(shown)}"
