"""What a self-test is run on: the machine, the backends that take its products, the predictions.

Nothing here names a person, a host or a folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import torch

from nibblas import env
from nibblas.backends.selection import explain_problem
from nibblas.bench.machine import describe
from nibblas.competition.cases import BENCHMARKS
from nibblas.competition.solution import problem_of
from nibblas.emulator.backend import driver_of, emulating
from nibblas.errors import NativeLibraryError
from nibblas.plan.problem import Activations
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.cache import PREBUILT, file_name, prebuilt_key
from nibblas.runtime.compile import compiler_version
from nibblas.runtime.driver import current_driver, use_driver
from nibblas.runtime.kernel import LoadedKernel, compute_capability
from nibblas.selftest.barriers import barrier_words
from nibblas.selftest.jobs import EMULATED, Kernels, Place

EMULATED_SMS = 4
"""Few, so that a CTA takes several tiles of a small problem."""

_ACTIVATIONS: dict[str, Activations] = {"w4a4": "nvfp4", "w4a16": "bf16"}
_NOT_KERNELS = ("cpu", "reference")


@contextmanager
def at(place: Place, *, sms: int | None = EMULATED_SMS) -> Iterator[None]:
    """Inside, the current driver is the place's, and so is the emulated device."""
    if not place.emulated:
        with torch.cuda.device(place.device):
            yield
        return
    with emulating(place.arch, num_sms=sms), use_driver(driver_of(place.arch)):
        yield


def preset(name: str) -> Any:
    """A context in which the kernel takes that preset; an empty name: its own choice."""
    return env.sm100_preset(name) if name else nullcontext()


def collect(place: Place) -> dict[str, Any]:
    """Machine, kernels and predictions of a place.

    Raises:
        NativeLibraryError: none of the library's kernels runs there.
    """
    with at(place, sms=None):
        kernels = _kernels(place)
        return {
            "machine": _machine(place),
            "kernels": asdict(kernels),
            "predictions": list(_predictions(place, kernels)),
        }


def kernel_facts(kernel: LoadedKernel) -> dict[str, Any]:
    """Which kernel that is, down to the bytes that were loaded."""
    source = kernel.source
    shipped = (PREBUILT / file_name(source, prebuilt_key(source))).is_file()
    cubin = "shipped cubin" if shipped else "cubin compiled here"
    return {
        "entry": source.entry,
        "target": source.target,
        "config": str(kernel.config),
        "source_file": source.name,
        "source_sha256": source.digest(),
        "image_sha256": kernel.image_digest,
        "image": cubin if current_driver().image_kind == "cubin" else "PTX, emulated",
        "shared_bytes": kernel.config.shared_bytes,
        "barrier_words": asdict(barrier_words(kernel.config, source.target)),
    }


def _kernels(place: Place) -> Kernels:
    backends = {name: _chosen(place, kind) for name, kind in _ACTIVATIONS.items()}
    takes_presets = "sm100" in backends["w4a4"].values()
    names = {precision: chosen["call"] for precision, chosen in backends.items()}
    return Kernels(names, PRESETS if takes_presets else ())


def _chosen(place: Place, activations: Activations) -> dict[str, str]:
    """The backend to name in a call, and the one whose kernel it runs; for a case of full size."""
    problem = problem_of(BENCHMARKS[0], torch.device(place.tensors))
    if activations != "nvfp4":
        problem = replace(problem, activations=activations, x_scale_layout="linear")
    explained = explain_problem(problem, EMULATED if place.emulated else None)
    plan = on_the_device(explained.plan)
    if plan.backend in _NOT_KERNELS:
        reasons = "; ".join(
            f"{name}: {why}" for name, whys in explained.refused.items() for why in whys
        )
        raise NativeLibraryError(f"no kernel of nibblas runs on {place.device}: {reasons}")
    return {"call": explained.plan.backend, "kernel": plan.backend}


def on_the_device(plan: Plan) -> Plan:
    """The plan of the kernel's own backend: the emulator's wraps it."""
    inner = getattr(plan.config, "plan", plan)
    assert isinstance(inner, Plan)
    return inner


def _predictions(place: Place, kernels: Kernels) -> Iterator[dict[str, Any]]:
    """By the planner's model, for the public benchmark cases: microseconds, never measured."""
    backend = kernels.backends["w4a4"]
    device = torch.device(place.tensors)
    for case in BENCHMARKS:
        for name in kernels.presets or ("",):
            with preset(name):
                plan = on_the_device(explain_problem(problem_of(case, device), backend).plan)
            seconds = plan.estimate.seconds
            yield {
                "case": case.name,
                "preset": name,
                "backend": plan.backend,
                "config": str(plan.config),
                "predicted_us": None if math.isinf(seconds) else seconds * 1e6,
                "bound": plan.estimate.bound,
                "terms_us": {term: t * 1e6 for term, t in plan.estimate.terms.items()},
            }


def _machine(place: Place) -> dict[str, Any]:
    facts = {**describe(torch.device(place.tensors)), "device": place.device}
    facts.pop("inputs", None)  # of the benchmarks; ours are the competition's
    driver = current_driver()
    index = torch.device(place.tensors).index or 0
    facts["compute_capability"] = ".".join(map(str, compute_capability(index)))
    facts["multiprocessors"] = driver.attribute(index, "sms")
    facts["cuda_of_driver"] = driver.attribute(index, "driver_version")
    if place.emulated:
        facts["emulated"] = place.arch
    else:
        torch.empty(1, device=place.device)  # a device that cannot be used says so now
        facts["memory_bytes"] = torch.cuda.get_device_properties(index).total_memory
    facts["nvrtc"] = _nvrtc()
    facts["cuda_bindings"] = _version("cuda-bindings")
    return facts


def _nvrtc() -> str | None:
    try:
        return compiler_version()
    except NativeLibraryError:
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
