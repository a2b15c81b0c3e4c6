"""What a result was measured on, as the plain data that its line carries."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import torch

import nibblas
from nibblas.bench.contenders import DISTRIBUTION

_GPU_STATE = "driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"


def describe(device: torch.device) -> dict[str, object]:
    """Machine and its load, versions, commit and input distribution."""
    facts: dict[str, object] = {
        "device": device.type,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nibblas": nibblas.__version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "inputs": DISTRIBUTION,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["gpu_state"] = _output_of("nvidia-smi", f"--query-gpu={_GPU_STATE}", "--format=csv")
    return facts


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
