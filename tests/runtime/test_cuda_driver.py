"""CUDA's driver seam: on a stub of libcuda through the real bindings, and with parts missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.runtime import compile as compiler
from nibblas.runtime import cuda_driver
from nibblas.runtime.cuda_driver import CudaDriver
from tests.runtime.cuda_stub.session import CODES

REPOSITORY = Path(__file__).resolve().parents[2]
Session = dict[str, dict[str, Any]]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment and import path, for another process."""
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), **variables}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The steps of cuda_stub/session.py."""
    pytest.importorskip("cuda.bindings.driver")
    cc = shutil.which("cc")
    if cc is None or not sys.platform.startswith("linux"):
        pytest.skip("the stub of libcuda needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("stub")
    source = Path(__file__).parent / "cuda_stub" / "libcuda.c"
    library = folder / "libcuda.so.1"
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-w", source, "-o", library, "-ldl"], check=True)
    result = subprocess.run(
        [sys.executable, "-m", "tests.runtime.cuda_stub.session"],
        cwd=REPOSITORY,
        env=environment(LD_LIBRARY_PATH=str(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    steps: Session = json.loads(result.stdout)
    return steps


def test_opens_and_answers_queries(session: Session) -> None:
    assert session["open"]["result"] == "CudaDriver"
    assert session["devices"]["result"] == 2
    assert session["sms"]["result"] == 1016  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    assert session["version"]["result"] == 13000


def test_an_old_driver_is_told_what_it_lacks(session: Session) -> None:
    assert session["old driver"]["error"] == (
        "NativeLibraryError: the NVIDIA driver supports CUDA 12.8; nibblas's kernels need 13.0 or "
        "newer: update the driver"
    )


def test_a_machine_without_a_device_is_told_so(session: Session) -> None:
    assert session["no device"]["error"] == (
        "NativeLibraryError: no usable NVIDIA driver: cuInit: CUDA_ERROR_NO_DEVICE (from the stub)"
    )


def test_code_is_loaded_in_the_primary_context_and_outside_of_capture(session: Session) -> None:
    relaxed = 2
    assert session["load"]["calls"] == [
        "retain 1",
        f"load cubin context 101 capture mode {relaxed}",
    ]
    assert session["function"]["calls"] == [
        "function 200 kernel context 101",
        "load function 300",
    ]


def test_an_absent_function_is_an_error_with_its_call(session: Session) -> None:
    assert session["absent function"]["error"] == (
        "DriverError: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (from the stub)"
    )


def test_shared_memory_is_a_function_attribute(session: Session) -> None:
    max_dynamic_shared_bytes = 8
    assert session["shared memory"]["calls"] == [
        f"attribute {max_dynamic_shared_bytes} of 300 = 100000"
    ]


def test_memory_and_queues(session: Session) -> None:
    assert session["copy"]["result"] == "0123456789"
    assert session["synchronize"]["calls"] == ["synchronize 77 context 101"]
    assert "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in session["bad device"]["error"]


def test_tensor_maps_are_encoded_as_specified(session: Session) -> None:
    encoded = bytes.fromhex(session["tensor map"]["result"])
    assert encoded == (0x1230).to_bytes(8, "little") + bytes(range(8, 128))
    assert CODES.l2_promotion == "l2_256b" and CODES.swizzle == "128b"
    assert session["tensor map"]["calls"] == [
        "encode type 0 rank 2 at 1230 dims 512 64 stride 512 box 128 32 steps 1 1 modes 0 3 3 0"
    ]


def test_a_tensor_map_of_one_dimension_passes_an_array_of_strides(session: Session) -> None:
    assert session["tensor map of rank 1"]["calls"] == [
        "encode type 0 rank 1 at 1230 dims 512 512 stride 0 box 128 128 steps 1 1 modes 0 0 0 0"
    ]


def test_a_launch_from_another_context_goes_to_the_right_one_and_back(session: Session) -> None:
    assert session["launch"]["calls"] == [
        "launch 300 context 101 grid 1 2 3 block 4 5 6 shared 77 queue 99 attributes 0: data"
    ]
    assert session["context after"]["result"] == 0


def test_cluster_and_programmatic_launch_are_passed(session: Session) -> None:
    (call,) = session["launch in context"]["calls"]
    assert call.endswith("attributes 2: data")


def test_a_refused_launch_names_itself(session: Session) -> None:
    assert session["refused launch"]["error"] == (
        "DriverError: cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (from the stub); launching kernel "
        "on device 1: grid (0, 1, 1) block (4, 5, 6) cluster (1, 1, 1) shared 77 B parameters 4 B "
        "queue 0x99"
    )


def test_how_many_clusters_the_device_holds(session: Session) -> None:
    assert session["resident clusters"]["result"] == 36
    assert session["resident clusters"]["calls"] == [
        "clusters of 300 context 101 grid 1 block 4 shared 77 attributes 2"
    ]
    error = session["refused occupancy"]["error"]
    assert error.startswith("DriverError: cuOccupancyMaxActiveClusters: CUDA_ERROR_INVALID_VALUE")


def test_a_bound_launch_is_a_launch_with_other_parameters_and_queue(session: Session) -> None:
    settled = "context 101 grid 1 2 3 block 4 5 6 shared 77 queue 9a"
    assert session["bound launch"]["calls"] == [f"launch 300 {settled} attributes 0: more"]
    (call,) = session["bound launch in context"]["calls"]
    assert call == f"launch 300 {settled} attributes 2: more"
    assert "queue 0x9a" in session["refused bound launch"]["error"]
    assert session["context after bound"]["result"] == 0


def without_module(monkeypatch: pytest.MonkeyPatch, *owners: Any) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    for owner in owners:
        monkeypatch.setattr(owner, "import_module", missing)


def test_missing_bindings_are_told_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_module(monkeypatch, cuda_driver)
    with pytest.raises(NativeLibraryError, match=r'pip install "nibblas\[cuda\]"'):
        CudaDriver.open()


def test_missing_compiler_is_told_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_module(monkeypatch, compiler)
    with pytest.raises(NativeLibraryError, match=r'NVRTC: pip install "nibblas\[cuda\]"'):
        compiler.compile_cubin("", name="x.cu", target="sm_90a", headers={})


def test_bindings_without_a_driver_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*_: object) -> None:
        raise RuntimeError("libcuda.so.1 not found")

    bindings = SimpleNamespace(cuInit=no_library)
    monkeypatch.setattr(cuda_driver, "import_module", lambda name: bindings)
    with pytest.raises(NativeLibraryError, match=r"no usable NVIDIA driver: libcuda\.so\.1 not"):
        CudaDriver.open()


IMPORTS = """
import sys
sys.modules["cuda"] = sys.modules["platformdirs"] = None  # importing them fails
import nibblas
import nibblas.runtime.kernel, nibblas.runtime.recording, nibblas.runtime.prebuild
"""


def test_importing_needs_no_optional_package() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
