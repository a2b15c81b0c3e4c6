"""A session of CudaDriver on the stub, printed as JSON: step -> result or error, and driver calls.

Runs in a process of its own, where the stub is found before any real driver.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

from nibblas.errors import NativeLibraryError
from nibblas.runtime.cuda_driver import CudaDriver
from nibblas.runtime.driver import DriverError, LaunchSpec
from nibblas.runtime.tensormap import TensorMapSpec

CODES = TensorMapSpec(
    "uint8",
    dims=(512, 64),
    stride_bytes=(512,),
    box=(128, 32),
    swizzle="128b",
    l2_promotion="l2_256b",
)


def main() -> None:
    stub = ctypes.CDLL("libcuda.so.1")
    stub.stub_log.restype = ctypes.c_char_p
    steps: dict[str, dict[str, Any]] = {}

    def step(name: str, run: Callable[[], Any]) -> Any:
        stub.stub_clear_log()
        result: Any = None
        error = ""
        try:
            result = run()
        except (DriverError, NativeLibraryError) as caught:
            error = f"{type(caught).__name__}: {caught}"
        shown = result.hex() if isinstance(result, bytes) else result
        shown = shown if isinstance(shown, (int, str, type(None))) else type(shown).__name__
        calls = stub.stub_log().decode().splitlines()
        steps[name] = {"result": shown, "error": error, "calls": calls}
        return result

    stub.stub_set_init_status(100)
    step("no device", CudaDriver.open)
    stub.stub_set_init_status(0)
    stub.stub_set_version(12080)
    step("old driver", CudaDriver.open)
    stub.stub_set_version(13000)
    driver = step("open", CudaDriver.open)
    use(driver, step)
    print(json.dumps(steps))


def use(driver: CudaDriver, step: Callable[[str, Callable[[], Any]], Any]) -> None:
    step("devices", driver.device_count)
    step("sms", lambda: driver.attribute(1, "sms"))
    step("version", lambda: driver.attribute(0, "driver_version"))
    module = step("load", lambda: driver.load(1, b"cubin\0"))
    function = step("function", lambda: driver.function(module, "kernel"))
    step("absent function", lambda: driver.function(module, "absent"))
    step("shared memory", lambda: driver.set_shared_memory(function, 100_000))
    address = driver.alloc(1, 16)
    driver.copy_to_device(1, address, b"0123456789abcdef")
    step("copy", lambda: driver.copy_to_host(1, address, 10).decode())
    driver.free(1, address)
    step("synchronize", lambda: driver.synchronize(1, 0x77))
    step("bad device", lambda: driver.load(2, b"cubin\0"))
    step("tensor map", lambda: driver.encode_tensor_map(CODES, 0x1230))
    row = TensorMapSpec("uint8", dims=(512,), stride_bytes=(), box=(128,))
    step("tensor map of rank 1", lambda: driver.encode_tensor_map(row, 0x1230))
    spec = LaunchSpec(function, "kernel", 1, (1, 2, 3), (4, 5, 6), 77, 0x99, b"data")
    step("launch", lambda: driver.launch(spec))
    step("context after", lambda: int(driver._cuda.cuCtxGetCurrent()[1]))
    driver._cuda.cuCtxPushCurrent(driver._cuda.CUcontext(0x101))
    cluster = spec._replace(cluster=(2, 1, 1), programmatic=True)
    step("launch in context", lambda: driver.launch(cluster))
    step("refused launch", lambda: driver.launch(spec._replace(grid=(0, 1, 1))))
    step("resident clusters", lambda: driver.resident_clusters(cluster))
    step("refused occupancy", lambda: driver.resident_clusters(spec._replace(grid=(0, 1, 1))))
    step("bound launch in context", lambda: driver.bind(cluster)(b"more", 0x9A))
    driver._cuda.cuCtxPopCurrent()
    step("bound launch", lambda: driver.bind(spec)(b"more", 0x9A))
    refused = driver.bind(spec._replace(grid=(0, 1, 1)))
    step("refused bound launch", lambda: refused(b"more", 0x9A))
    step("context after bound", lambda: int(driver._cuda.cuCtxGetCurrent()[1]))


if __name__ == "__main__":
    main()
