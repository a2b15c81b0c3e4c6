"""Where problems run: every CPU level, what is asked for, what the environment says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nibblas
from nibblas import env, ops
from nibblas.backends import registry
from nibblas.check.targets import Target, available, forced, one_thread
from nibblas.errors import NativeLibraryError
from nibblas.plan.problem import Problem, uniform_shapes
from nibblas.runtime import cpu_library
from nibblas.runtime.cpu_library import CpuLibrary

PROBLEM = Problem(uniform_shapes((4,), n=16, k=32), "bf16", "bf16")
LEVELS = {"portable": 0, "avx2": 1}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.BACKEND_VARIABLE, raising=False)
    monkeypatch.delenv(env.CPU_LEVEL_VARIABLE, raising=False)


@pytest.fixture
def two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with two levels, which is never called."""
    library = CpuLibrary(Path("none"), LEVELS, None, 0)  # type: ignore[arg-type]
    monkeypatch.setattr(cpu_library, "load", lambda: library)


@pytest.mark.usefixtures("two_levels")
def test_the_cpu_backend_comes_once_per_level() -> None:
    assert available(backend="cpu") == (Target("cpu", "portable"), Target("cpu", "avx2"))
    assert Target("reference") in available()


@pytest.mark.usefixtures("two_levels")
def test_a_level_asked_for_leaves_out_everything_else() -> None:
    assert available(level="avx2") == (Target("cpu", "avx2"),)


@pytest.mark.usefixtures("two_levels")
def test_the_environment_chooses_backend_and_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CPU_LEVEL_VARIABLE, "portable")
    assert Target("cpu", "avx2") not in available()
    monkeypatch.setenv(env.BACKEND_VARIABLE, "cpu")
    assert available() == (Target("cpu", "portable"),)


@pytest.mark.usefixtures("two_levels")
def test_a_level_that_does_not_run_here_is_refused() -> None:
    with pytest.raises(ValueError, match="level: got 'amx'; want a level that runs here: portable"):
        available(level="amx")


def test_a_missing_library_leaves_a_target_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> CpuLibrary:
        raise NativeLibraryError("not installed")

    monkeypatch.setattr(cpu_library, "load", load)
    assert available(backend="cpu") == (Target("cpu"),)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that there is one CUDA device; it is never used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("one_gpu")
def test_each_backend_is_checked_where_it_computes() -> None:
    assert available(backend="portable") == (Target("portable", device="cuda"),)
    assert available(backend="reference") == (Target("reference"),)
    assert {str(target) for target in available()} >= {"portable on cuda", "reference"}


@pytest.mark.usefixtures("one_gpu", "two_levels")
def test_a_device_asked_for_leaves_out_backends_that_do_not_compute_there() -> None:
    on_gpu, on_cpu = available(device="cuda:0"), available(device="cpu")
    assert {t.backend for t in on_gpu} == {"portable", "reference", "sm90", "sm100"}
    assert {t.device for t in on_gpu} == {"cuda:0"}
    assert {t.backend for t in on_cpu} == {"cpu", "reference"}


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_its_backend_refuses_visibly_unless_it_was_asked_for() -> None:
    assert Target("portable") in available()
    message = r"^device: got none that PyTorch can use; want a CUDA device, on which 'portable'"
    with pytest.raises(ValueError, match=message):
        available(backend="portable")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (dict(device="cuda"), "device: got 'cuda'; want one of the 0 CUDA devices here"),
        (dict(device="toaster"), "want cpu, cuda or cuda:INDEX"),
        (dict(device="meta"), "device: got 'meta'; want cpu, cuda or cuda:INDEX"),
        (dict(backend="portable", device="cpu"), "device: got 'cpu'; want cuda with 'portable'"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_a_device_that_cannot_be_is_refused(asked: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        available(**asked)


@pytest.mark.usefixtures("two_levels")
def test_forced_plans_for_the_level_and_only_inside() -> None:
    backend = registry.get("cpu")
    with forced(Target("cpu", "portable")):
        assert backend.plan(PROBLEM).config.level == "portable"
    assert backend.plan(PROBLEM).config.level == "avx2"


def test_one_thread_is_undone() -> None:
    threads = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_each_level_really_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and prepared calls are kept per shape; those of one level must not serve another."""
    ran: list[int] = []
    library = cpu_library.load()
    run = library.native.nibblas_cpu_grouped_mm

    def recording(record: bytes, count: int, level: int, *others: int) -> Any:
        ran.append(level)
        return run(record, count, level, *others)

    native: Any = SimpleNamespace(nibblas_cpu_grouped_mm=recording)
    recorded = replace(library, native=native)
    monkeypatch.setattr(cpu_library, "load", lambda: recorded)
    x, offs = torch.zeros(1, 16).half(), torch.ones(1, dtype=torch.int32)
    w = nibblas.quantize(torch.zeros(1, 4, 16))
    ops.forget_plans()
    for level in [*library.levels, *library.levels]:
        with forced(Target("cpu", level)):
            nibblas.grouped_mm(x, w, offs)
    ops.forget_plans()
    assert ran == [*library.levels.values(), *library.levels.values()]
