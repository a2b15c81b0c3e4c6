"""What a result was measured on, as the plain data that its line carries."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

import nibblas
from nibblas.bench import humming_rival
from nibblas.bench.contenders import DISTRIBUTION

_GPU_STATE = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}
_RIVAL_PACKAGES = ("triton", humming_rival.PACKAGE)


def describe(device: torch.device, commit_known: str | None = None) -> dict[str, object]:
    """Machine and its load, versions, commit and input distribution; a GPU as it is now.

    Args:
        commit_known: of the source tree, where git cannot tell.
    """
    facts: dict[str, object] = {
        "device": device.type,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nibblas": nibblas.__version__,
        "commit": commit_known or commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "inputs": DISTRIBUTION,
    }
    facts |= {name: found for name in _RIVAL_PACKAGES if (found := _version_of(name))}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts |= gpu_state(device)
    return facts


def gpu_state(device: torch.device) -> dict[str, object]:
    """Driver, clocks, power and temperature, as nvidia-smi says; empty where it says nothing."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    for name in (f"GPU-{uuid}", str(index)):
        said = _output_of(
            "nvidia-smi",
            f"--id={name}",
            f"--query-gpu={','.join(_GPU_STATE.values())}",
            "--format=csv,noheader,nounits",
        )
        fields = [field.strip() for field in (said or "").split(",")]
        if len(fields) == len(_GPU_STATE):
            return {key: _number(text) for key, text in zip(_GPU_STATE, fields, strict=True)}
    return {}


def _number(text: str) -> float | str:
    """A driver's version has two dots, and what a board does not measure is "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return text


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The CPU's name, with how many of them there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor() or "unknown"


def commit() -> str:
    """Of the source tree that runs; "unknown" for an installed package."""
    folder = str(Path(nibblas.__file__).resolve().parent)
    return _output_of("git", "-C", folder, "describe", "--always", "--dirty") or "unknown"


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
