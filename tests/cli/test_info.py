from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import nibblas
from nibblas import env
from nibblas.backends import registry
from nibblas.backends.reference import ReferenceBackend
from nibblas.cli import info
from nibblas.cli.app import app
from nibblas.errors import NativeLibraryError
from nibblas.runtime import cpu_library, prebuild
from nibblas.runtime.cpu_library import CpuLibrary

RUNNER = CliRunner()


def has_cpu_library() -> bool:
    try:
        return bool(cpu_library.load().levels)
    except NativeLibraryError:
        return False


def test_names_versions_and_every_backend() -> None:
    result = RUNNER.invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    assert nibblas.__version__ in result.stdout
    assert torch.__version__ in result.stdout
    for backend in registry.all_backends():
        assert f"backend {backend.name}" in result.stdout


def test_json_says_why_a_backend_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceBackend, "why_not", lambda self, problem: ["not today"])
    data = json.loads(RUNNER.invoke(app, ["info", "--json"]).stdout)
    assert data["versions"]["nibblas"] == nibblas.__version__
    reference = next(b for b in data["backends"] if b["name"] == "reference")
    assert reference["refused"]["w4a4 on cpu"] == ["not today"]


def test_a_missing_library_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> CpuLibrary:
        raise NativeLibraryError("no library is installed")

    monkeypatch.setattr(cpu_library, "load", load)
    result = RUNNER.invoke(app, ["info"])
    assert result.exit_code == 0
    assert "cpu library" in result.stdout
    assert result.stdout.count("no library is installed") >= 2


def test_an_unknown_level_in_the_environment_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CPU_LEVEL_VARIABLE, "abacus")
    if not has_cpu_library():
        pytest.skip("the CPU library is not installed")
    result = RUNNER.invoke(app, ["info"])
    assert result.exit_code == 2
    assert f"{env.CPU_LEVEL_VARIABLE}: got 'abacus'" in result.stderr


def test_unknown_forced_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIBBLAS_BACKEND", "abacus")
    with pytest.raises(ValueError, match=r"^NIBBLAS_BACKEND: got 'abacus'"):
        info.collect()


@pytest.mark.parametrize(
    ("shipped", "text"),
    [
        ({"sm_80": (0, 2), "sm_90a": (0, 3)}, "none: kernels are compiled at their first use"),
        ({"sm_80": (2, 2), "sm_90a": (3, 3)}, "5: sm_80 2, sm_90a 3"),
        ({"sm_80": (0, 2), "sm_90a": (2, 3)}, "2: sm_80 0 of 2, sm_90a 2 of 3"),
    ],
)
def test_prebuilt_cubins_are_counted_by_target(
    monkeypatch: pytest.MonkeyPatch, shipped: dict[str, tuple[int, int]], text: str
) -> None:
    monkeypatch.setattr(prebuild, "shipped", lambda: shipped)
    lines = RUNNER.invoke(app, ["info"]).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("prebuilt cubins")]
    assert line.removeprefix("prebuilt cubins").strip() == text
    data = json.loads(RUNNER.invoke(app, ["info", "--json"]).stdout)
    assert data["prebuilt_cubins"]["sm_90a"] == {
        "cubins": shipped["sm_90a"][0],
        "configurations": 3,
    }
