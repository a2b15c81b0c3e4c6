"""The emulated driver: the runtime's launch code runs a kernel on memory of the process."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from nibblas.emulator import (
    Device,
    EmulatedDriver,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UninitialisedRead,
)
from nibblas.emulator.compile import cuda_ptx
from nibblas.emulator.driver import Span, merged
from nibblas.runtime.driver import DriverError, use_driver
from nibblas.runtime.kernel import LoadedKernel, load_kernel
from nibblas.runtime.source import KernelSource
from tests.runtime.configs import KERNELS, PARAMS, ScaleConfig

COUNT = 300


@pytest.fixture(autouse=True)
def kernels_of_tests(nvrtc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nibblas.runtime.source.KERNELS", KERNELS)


@pytest.fixture(scope="module")
def driver() -> EmulatedDriver:
    return EmulatedDriver("sm_90")


@pytest.fixture
def kernel(driver: EmulatedDriver):
    with use_driver(driver):
        yield load_kernel(0, ScaleConfig())


def span(array: np.ndarray, name: str, **rights: bool) -> Span:
    begin = array.ctypes.data
    return Span(name, begin, begin + array.nbytes, **rights)


def launch(kernel: LoadedKernel, x: np.ndarray, out: np.ndarray, count: int = COUNT) -> None:
    parameters = PARAMS.pack(x.ctypes.data, out.ctypes.data, count)
    kernel.launch(-(-count // 128), 128, parameters, queue=0)


def test_a_kernel_computes_where_arrays_lie(driver, kernel) -> None:
    x, out = np.arange(COUNT, dtype=np.uint32), np.zeros(COUNT, np.uint32)
    with driver.tensors([span(x, "x"), span(out, "out", writable=True)]):
        launch(kernel, x, out)
    assert (out == 3 * x).all()
    assert driver.emulation.reports[-1].kernel == "tiny_scale"


def test_memory_of_the_process_is_out_of_bounds_when_the_block_has_ended(driver, kernel) -> None:
    x, out = np.ones(COUNT, np.uint32), np.zeros(COUNT, np.uint32)
    with driver.tensors([span(x, "x"), span(out, "out", writable=True)]):
        launch(kernel, x, out)
    with pytest.raises(OutOfBounds):
        launch(kernel, x, out)


def test_one_element_too_many_is_out_of_bounds(driver, kernel) -> None:
    x, out = np.ones(COUNT + 1, np.uint32), np.zeros(COUNT, np.uint32)
    with (
        driver.tensors([span(x, "x"), span(out, "out", writable=True)]),
        pytest.raises(OutOfBounds, match="out"),
    ):
        launch(kernel, x, out, COUNT + 1)


def test_inputs_are_read_only(driver, kernel) -> None:
    x, out = np.ones(COUNT, np.uint32), np.zeros(COUNT, np.uint32)
    with (
        driver.tensors([span(x, "x"), span(out, "out")]),
        pytest.raises(IllegalOperation, match="out, which is read-only"),
    ):
        launch(kernel, x, out)
    assert not out.any()


def test_what_holds_no_values_yet_is_not_read(driver, kernel) -> None:
    x, out = np.ones(COUNT, np.uint32), np.zeros(COUNT, np.uint32)
    spans = [span(x, "x", readable=False), span(out, "out", writable=True)]
    with driver.tensors(spans), pytest.raises(UninitialisedRead):
        launch(kernel, x, out)


def test_an_array_at_an_odd_address_is_misaligned_for_the_kernel(driver, kernel) -> None:
    raw = np.zeros(4 * COUNT + 2, np.uint8)
    out = np.zeros(COUNT, np.uint32)
    x = raw[2:].view(np.uint32)
    with (
        driver.tensors([span(x, "x"), span(out, "out", writable=True)]),
        pytest.raises(Misaligned),
    ):
        launch(kernel, x, out)


def test_overlapping_spans_become_one_with_the_rights_of_both() -> None:
    spans = [Span("a", 0, 10), Span("b", 8, 20, writable=True), Span("c", 20, 30), Span("d", 5, 5)]
    assert merged(spans) == [Span("a, b", 0, 20, writable=True), Span("c", 20, 30)]


def test_memory_of_the_drivers_own(driver) -> None:
    address = driver.alloc(0, 64)
    driver.copy_to_device(0, address, bytes(range(64)))
    assert driver.copy_to_host(0, address, 64) == bytes(range(64))
    with pytest.raises(DriverError, match="65 bytes"):
        driver.copy_to_host(0, address, 65)
    driver.free(0, address)
    with pytest.raises(DriverError, match="no allocation"):
        driver.copy_to_host(0, address, 1)


def test_exported_sizes_are_read_from_the_text(driver) -> None:
    source = KernelSource.of(ScaleConfig(), "sm_90a")
    text = cuda_ptx(source.text, name=source.name, headers=dict(source.headers))
    module = driver.load(0, text.encode())
    assert int.from_bytes(driver.constant(module, "nibblas_parameter_bytes"), "little") == 24
    with pytest.raises(KeyError):
        driver.constant(module, "no_such_variable")
    with pytest.raises(DriverError, match="NOT_FOUND"):
        driver.function(module, "no_such_kernel")


def test_a_launch_that_does_not_fit_is_the_drivers_error(driver, kernel) -> None:
    with pytest.raises(DriverError, match="block: got"):
        kernel.launch(1, 2048, bytes(24), queue=0)
    with pytest.raises(ValueError, match="24"):
        kernel.launch(1, 32, bytes(23), queue=0)


def test_there_is_one_device(driver) -> None:
    assert driver.device_count() == 1
    with pytest.raises(DriverError, match="INVALID_DEVICE"):
        driver.attribute(1, "sms")


def test_shared_memory_that_nothing_has_written() -> None:
    """An error, or NaN in every format where the kernel says it does not care."""
    text = cuda_ptx(
        'extern "C" __global__ void k(float* out) {'
        "  __shared__ volatile float s[32]; out[threadIdx.x] = s[threadIdx.x]; }"
    )
    dev = Device("sm_90", unwritten_shared="nan")
    out = dev.empty(32, np.float32)
    dev.load_ptx(text).kernel("k").launch(1, 32, [out])
    assert np.isnan(out.to_numpy()).all()
    dev = Device("sm_90")
    with pytest.raises(UninitialisedRead):
        dev.load_ptx(text).kernel("k").launch(1, 32, [dev.empty(32, np.float32)])
    with pytest.raises(ValueError, match="unwritten_shared: got 'zero'"):
        Device("sm_90", unwritten_shared=cast(Any, "zero"))
