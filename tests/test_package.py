"""What a user gets by installing and importing the package."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nibblas

SOURCE = Path(__file__).resolve().parents[1] / "src" / "nibblas"
OPTIONAL_PACKAGES = (
    "compressed_tensors",
    "ml_dtypes",
    "rich",
    "safetensors",
    "torchao",
    "transformers",
    "typer",
)
SIDE_ROOMS = ("nibblas.competition", "nibblas.check", "nibblas.cli")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )


@pytest.fixture(scope="module")
def installed() -> importlib.metadata.Distribution:
    """The installed distribution; skipped where nibblas is imported from its source tree."""
    try:
        distribution = importlib.metadata.distribution("nibblas")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nibblas is not installed")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable", False):
        pytest.skip("an editable install keeps its files in the source tree")
    if SOURCE in Path(nibblas.__file__).resolve().parents:
        pytest.skip("nibblas is imported from its source tree")
    return distribution


@pytest.fixture(scope="module")
def installed_files(installed: importlib.metadata.Distribution) -> set[str]:
    """Paths below nibblas/ that the installed wheel holds, byte code left out."""
    return {
        file.relative_to("nibblas").as_posix()
        for file in installed.files or ()
        if file.parts[0] == "nibblas" and file.suffix != ".pyc"
    }


def test_import_loads_no_optional_package_and_no_side_room() -> None:
    loaded = set(run_python("import sys, nibblas; print(*sys.modules)").stdout.split())
    assert loaded.isdisjoint({*OPTIONAL_PACKAGES, *SIDE_ROOMS})


def test_import_is_silent_and_leaves_the_gpu_alone() -> None:
    result = run_python("import torch, nibblas; assert not torch.cuda.is_initialized()")
    assert (result.stdout, result.stderr) == ("", "")


def test_every_public_name_exists() -> None:
    assert [name for name in nibblas.__all__ if not hasattr(nibblas, name)] == []


def test_version_is_the_distributions(installed: importlib.metadata.Distribution) -> None:
    assert installed.version == nibblas.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", nibblas.__version__)


def test_only_torch_and_numpy_are_required(installed: importlib.metadata.Distribution) -> None:
    required = [r for r in installed.requires or () if "extra ==" not in r]
    assert sorted(re.split(r"[^\w-]", r)[0] for r in required) == ["numpy", "torch"]


def test_wheel_is_marked_as_typed(installed_files: set[str]) -> None:
    assert "py.typed" in installed_files


def test_wheel_holds_every_module(installed_files: set[str]) -> None:
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert modules == {file for file in installed_files if file.endswith(".py")}


def test_wheel_holds_the_device_code_and_not_the_cpu_sources(installed_files: set[str]) -> None:
    kernels = SOURCE / "kernels"
    texts = {p.relative_to(SOURCE).as_posix() for p in kernels.rglob("*") if p.is_file()}
    shipped = {text for text in texts if not text.startswith("kernels/cpu/")}
    assert {file for file in installed_files if file.startswith("kernels/")} == shipped


def test_wheel_holds_one_native_library(installed_files: set[str]) -> None:
    libraries = [file for file in installed_files if file.startswith("lib/")]
    assert len(libraries) == 1
