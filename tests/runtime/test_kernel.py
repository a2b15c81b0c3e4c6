"""Loading and launching, on a recorded device."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from typing import Any

import pytest

from nibblas import env
from nibblas.errors import NativeLibraryError
from nibblas.runtime.driver import DriverError, LaunchSpec, current_driver, use_driver
from nibblas.runtime.kernel import (
    LoadedKernel,
    compute_capability,
    current_queue,
    load_kernel,
    loaded_kernels,
    log_to_stderr,
)
from nibblas.runtime.recording import RecordingDriver
from tests.runtime.configs import PARAMS, ScaleConfig

pytestmark = pytest.mark.usefixtures("nvrtc")

PARAMETERS = PARAMS.pack(0x1111, 0x2222, 1000)
QUEUE = 0xABC0


@pytest.fixture
def loaded(recorder: RecordingDriver) -> LoadedKernel:
    return load_kernel(0, ScaleConfig())


def test_loading_happens_once_per_device(recorder: RecordingDriver) -> None:
    first = load_kernel(0, ScaleConfig())
    assert load_kernel(0, ScaleConfig()) is first
    assert load_kernel(1, ScaleConfig()) is not first
    assert [event.call for event in recorder.events] == 2 * [
        "load",
        "function",
        "set_shared_memory",
    ]
    assert recorder.events[0].arguments["device"] == 0
    assert recorder.events[3].arguments["device"] == 1


def test_what_is_loaded_is_known_with_its_digest(recorder: RecordingDriver) -> None:
    assert loaded_kernels() == ()
    kernels = tuple(load_kernel(0, ScaleConfig(factor=factor)) for factor in (3, 4))
    assert loaded_kernels() == kernels
    images = [event.arguments["image"] for event in recorder.events if event.call == "load"]
    digests = [hashlib.sha256(image).hexdigest() for image in images]
    assert [kernel.image_digest for kernel in kernels] == digests
    with use_driver(RecordingDriver()):
        assert loaded_kernels() == ()


def test_configurations_are_kernels_of_their_own(recorder: RecordingDriver) -> None:
    load_kernel(0, ScaleConfig(factor=3))
    load_kernel(0, ScaleConfig(factor=4))
    assert len(set(recorder.cubins.values())) == 2


def test_the_device_chooses_the_target(recorder: RecordingDriver) -> None:
    assert compute_capability(0) == (9, 0)
    assert load_kernel(0, ScaleConfig()).source.target == "sm_90a"
    recorder.attributes["compute_capability_major"] = 8
    assert load_kernel(1, ScaleConfig()).source.target == "sm_80"


def test_dynamic_shared_memory_is_opted_in_to(recorder: RecordingDriver) -> None:
    load_kernel(0, ScaleConfig(shared_bytes=2048))
    (event,) = [e for e in recorder.events if e.call == "set_shared_memory"]
    assert event.arguments["num_bytes"] == 2048


def test_more_shared_memory_than_the_device_has_is_refused(recorder: RecordingDriver) -> None:
    with pytest.raises(DriverError, match="cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE"):
        load_kernel(0, ScaleConfig(shared_bytes=232449))


def test_a_launch_reaches_the_driver_whole(recorder: RecordingDriver, loaded: LoadedKernel) -> None:
    loaded.launch((4, 5, 6), (128, 1, 1), PARAMETERS, QUEUE, cluster=(2, 1, 1), programmatic=True)
    assert recorder.launches == [
        LaunchSpec(
            function=recorder.launches[0].function,
            kernel="tiny_scale",
            device=0,
            grid=(4, 5, 6),
            block=(128, 1, 1),
            shared_bytes=512,
            queue=QUEUE,
            parameters=PARAMETERS,
            cluster=(2, 1, 1),
            programmatic=True,
        )
    ]


def test_parameters_are_passed_byte_for_byte(
    recorder: RecordingDriver, loaded: LoadedKernel
) -> None:
    loaded.launch(8, 128, PARAMETERS, QUEUE)
    (launch,) = recorder.launches
    assert PARAMS.unpack(launch.parameters) == (0x1111, 0x2222, 1000)
    assert launch.grid == (8, 1, 1) and launch.block == (128, 1, 1)


def test_a_warm_call_does_nothing_but_launch(
    recorder: RecordingDriver, loaded: LoadedKernel
) -> None:
    recorder.clear()
    for _ in range(3):
        load_kernel(0, ScaleConfig()).launch(8, 128, PARAMETERS, current_queue(0))
    assert [event.call for event in recorder.events] == ["launch"] * 3


def test_a_bound_launch_reaches_the_driver_as_a_launch_does(
    recorder: RecordingDriver, loaded: LoadedKernel
) -> None:
    settings: Any = {"cluster": (2, 1, 1), "programmatic": True}
    loaded.launch(8, (128, 2, 1), PARAMETERS, QUEUE, **settings)
    loaded.bind(8, (128, 2, 1), bytes(PARAMS.size), **settings)(PARAMETERS, QUEUE)
    launch, bound = recorder.launches
    assert launch == bound
    with pytest.raises(ValueError, match="tiny_scale: got 23 bytes of parameters; want 24"):
        loaded.bind(8, 128, bytes(23))


@pytest.mark.parametrize("size", [0, PARAMS.size - 1, PARAMS.size + 8])
def test_parameters_of_another_size_are_refused(
    recorder: RecordingDriver, loaded: LoadedKernel, size: int
) -> None:
    with pytest.raises(ValueError, match=f"tiny_scale: got {size} bytes of parameters; want 24"):
        loaded.launch(8, 128, bytes(size), QUEUE)
    assert recorder.launches == []


def test_a_size_that_differs_from_the_configuration_is_refused(
    recorder: RecordingDriver,
) -> None:
    config = ScaleConfig(reported={"nibblas_parameter_bytes": 32})
    with pytest.raises(
        NativeLibraryError, match="nibblas_parameter_bytes is 24 in the cubin, 32 in its config"
    ):
        load_kernel(0, config)
    assert recorder.count("function", "launch") == 0


def test_a_size_that_the_kernel_does_not_export_is_refused(recorder: RecordingDriver) -> None:
    config = ScaleConfig(reported={"nibblas_absent": 1})
    with pytest.raises(NativeLibraryError, match="exports no variable 'nibblas_absent'"):
        load_kernel(0, config)


@pytest.mark.parametrize("bound", [False, True])
def test_a_launch_is_logged_before_it_happens(
    bound: bool,
    recorder: RecordingDriver,
    loaded: LoadedKernel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(spec: LaunchSpec) -> None:
        raise DriverError("cuLaunchKernelEx", error="CUDA_ERROR_LAUNCH_FAILED", launch=spec)

    launch = loaded.bind(8, 128, PARAMETERS) if bound else partial(loaded.launch, 8, 128)
    monkeypatch.setattr(recorder, "launch", refuse)
    with (
        caplog.at_level(logging.DEBUG, "nibblas.launch"),
        pytest.raises(DriverError, match="cuLaunchKernelEx: CUDA_ERROR_LAUNCH_FAILED; launching"),
    ):
        launch(PARAMETERS, QUEUE)
    assert [record.getMessage() for record in caplog.records] == [
        "tiny_scale on device 0: grid (8, 1, 1) block (128, 1, 1) cluster (1, 1, 1) "
        "shared 512 B parameters 24 B queue 0xabc0"
    ]


def test_launches_are_not_logged_unless_asked_for(
    loaded: LoadedKernel, caplog: pytest.LogCaptureFixture
) -> None:
    loaded.launch(8, 128, PARAMETERS, QUEUE)
    assert caplog.records == []


def test_the_environment_shows_the_log_on_stderr(
    loaded: LoadedKernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NIBBLAS_LOG_LAUNCHES", raising=False)
    assert not env.log_launches()
    monkeypatch.setenv("NIBBLAS_LOG_LAUNCHES", "1")
    assert env.log_launches()
    logger = logging.getLogger("nibblas.launch")
    monkeypatch.setattr(logger, "handlers", [])
    log_to_stderr()
    try:
        loaded.launch(8, 128, PARAMETERS, QUEUE)
    finally:
        logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err.startswith("nibblas.launch: tiny_scale on device 0: grid")


def test_the_queue_is_the_drivers(recorder: RecordingDriver) -> None:
    assert current_queue(0) == 0
    recorder.queue = QUEUE
    assert current_queue(0) == QUEUE


def test_drivers_nest_and_end() -> None:
    outer, inner = RecordingDriver(), RecordingDriver()
    with use_driver(outer):
        with use_driver(inner):
            assert current_driver() is inner
        assert current_driver() is outer


def test_each_driver_loads_for_itself(recorder: RecordingDriver, loaded: LoadedKernel) -> None:
    with use_driver(RecordingDriver()) as other:
        assert load_kernel(0, ScaleConfig()) is not loaded
        assert other.count("load") == 1
    assert load_kernel(0, ScaleConfig()) is loaded


def test_recorded_memory_keeps_what_is_copied() -> None:
    driver = RecordingDriver(devices=2)
    first, second = driver.alloc(1, 100), driver.alloc(1, 1)
    assert second >= first + 100
    driver.copy_to_device(1, first, b"abc")
    assert driver.copy_to_host(1, first, 4) == b"abc\0"
    for device, address in [(0, first), (1, first + 1)]:
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
            driver.copy_to_host(device, address, 1)
    driver.free(1, first)
    with pytest.raises(DriverError, match="cuMemFree"):
        driver.free(1, first)
    assert driver.count("alloc", "free", "copy_to_device", "copy_to_host", "synchronize") == 8
    with pytest.raises(DriverError, match="INVALID_DEVICE"):
        driver.alloc(2, 1)
