"""The driver seam over CUDA: cuda.bindings for set-up, ctypes for the warm launch.

Work happens in each device's primary context, the one that torch uses, and the calling thread's
current context is as before when a call returns: torch reads its current device from it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from nibblas.errors import NativeLibraryError
from nibblas.runtime import INSTALL_HINT, elf
from nibblas.runtime.driver import Attribute, DriverError, ImageKind, LaunchAt, LaunchSpec
from nibblas.runtime.launcher import Launcher, max_active_clusters
from nibblas.runtime.tensormap import TensorMapSpec

MINIMUM_DRIVER_VERSION = 13000
"""The first driver that loads cubins of NVRTC 13, of any minor release (CUDA Compatibility,
"Minor Version Compatibility")."""

_ATTRIBUTES = {
    "compute_capability_major": "COMPUTE_CAPABILITY_MAJOR",
    "compute_capability_minor": "COMPUTE_CAPABILITY_MINOR",
    "sms": "MULTIPROCESSOR_COUNT",
    "max_shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
}


class CudaDriver:
    """CUDA's driver.

    Args:
        cuda: the module ``cuda.bindings.driver``.
    """

    image_kind: ImageKind = "cubin"

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._attributes: dict[tuple[int, Attribute], int] = {}
        self._contexts: dict[int, int] = {}  # device -> handle
        self._modules: dict[int, tuple[int, bytes]] = {}  # handle -> device, cubin
        self._functions: dict[int, int] = {}  # handle -> device
        self._lock = threading.Lock()
        self._call("cuInit", 0)
        self.version: int = self._call("cuDriverGetVersion")
        if self.version < MINIMUM_DRIVER_VERSION:
            raise NativeLibraryError(
                f"the NVIDIA driver supports CUDA {_release(self.version)}; nibblas's kernels need "
                f"{_release(MINIMUM_DRIVER_VERSION)} or newer: update the driver"
            )
        self._launcher = Launcher(self._address("cuLaunchKernelEx"))

    @classmethod
    def open(cls) -> CudaDriver:
        """The driver of this machine; NativeLibraryError says what is missing."""
        try:
            return cls(import_module("cuda.bindings.driver"))
        except ImportError as error:
            raise NativeLibraryError(f"CUDA kernels need cuda.bindings: {INSTALL_HINT}") from error
        except NativeLibraryError:
            raise
        except (RuntimeError, OSError) as error:
            raise NativeLibraryError(f"no usable NVIDIA driver: {error}") from error

    def device_count(self) -> int:
        count: int = self._call("cuDeviceGetCount")
        return count

    def attribute(self, device: int, name: Attribute) -> int:
        if name == "driver_version":
            return self.version
        if (device, name) not in self._attributes:
            attribute = self._enum("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE", _ATTRIBUTES[name])
            handle = self._call("cuDeviceGet", device)
            self._attributes[device, name] = self._call("cuDeviceGetAttribute", attribute, handle)
        return self._attributes[device, name]

    def load(self, device: int, image: bytes) -> int:
        with self._in_context(device), self._outside_capture():
            module = int(self._call("cuModuleLoadData", image))
        self._modules[module] = (device, image)
        return module

    def function(self, module: int, name: str) -> int:
        """The function, loaded now: a lazily loaded one would allocate in its first launch."""
        device, _ = self._modules[module]
        with self._in_context(device), self._outside_capture():
            handle = self._call("cuModuleGetFunction", self._cuda.CUmodule(module), name.encode())
            self._call("cuFuncLoad", handle)
        self._functions[int(handle)] = device
        return int(handle)

    def set_shared_memory(self, function: int, num_bytes: int) -> None:
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self._in_context(self._functions[function]):
            self._call("cuFuncSetAttribute", self._cuda.CUfunction(function), attribute, num_bytes)

    def constant(self, module: int, name: str) -> bytes:
        """From the cubin that was loaded: a copy from the device would synchronise it."""
        return elf.read_variable(self._modules[module][1], name)

    def alloc(self, device: int, num_bytes: int) -> int:
        with self._in_context(device):
            return int(self._call("cuMemAlloc", num_bytes))

    def free(self, device: int, address: int) -> None:
        with self._in_context(device):
            self._call("cuMemFree", address)

    def copy_to_device(self, device: int, address: int, data: bytes) -> None:
        with self._in_context(device):
            self._call("cuMemcpyHtoD", address, data, len(data))

    def copy_to_host(self, device: int, address: int, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        with self._in_context(device):
            self._call("cuMemcpyDtoH", data, address, num_bytes)
        return bytes(data)

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        cuda = self._cuda
        tensor_map = self._call(
            "cuTensorMapEncodeTiled",
            self._enum("CUtensorMapDataType", "CU_TENSOR_MAP_DATA_TYPE", spec.data_type),
            len(spec.dims),
            address,
            [cuda.cuuint64_t(size) for size in spec.dims],
            # A null pointer is refused even at rank 1, where no stride is read.
            [cuda.cuuint64_t(stride) for stride in spec.stride_bytes or (0,)],
            [cuda.cuuint32_t(size) for size in spec.box],
            [cuda.cuuint32_t(step) for step in spec.steps],
            self._enum("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE", spec.interleave),
            self._enum("CUtensorMapSwizzle", "CU_TENSOR_MAP_SWIZZLE", spec.swizzle),
            self._enum("CUtensorMapL2promotion", "CU_TENSOR_MAP_L2_PROMOTION", spec.l2_promotion),
            self._enum("CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL", spec.oob_fill),
        )
        return b"".join(int(word).to_bytes(8, "little") for word in tensor_map.opaque)

    def launch(self, spec: LaunchSpec) -> None:
        _, current = self._cuda.cuCtxGetCurrent()
        if int(current) == self._contexts[spec.device]:
            status = self._launcher.launch(spec)
        else:
            with self._in_context(spec.device):
                status = self._launcher.launch(spec)
        if status:
            raise self._error("cuLaunchKernelEx", self._cuda.CUresult(status), spec)

    def bind(self, spec: LaunchSpec) -> LaunchAt:
        launch, current_context = self._launcher.bind(spec), self._cuda.cuCtxGetCurrent
        context = self._context(spec.device)

        def launch_at(parameters: bytes, queue: int) -> None:
            _, current = current_context()
            if int(current) == context:
                status = launch(parameters, queue)
            else:
                with self._in_context(spec.device):
                    status = launch(parameters, queue)
            if status:
                launched = spec._replace(parameters=parameters, queue=queue)
                raise self._error("cuLaunchKernelEx", self._cuda.CUresult(status), launched)

        return launch_at

    def resident_clusters(self, spec: LaunchSpec) -> int:
        with self._in_context(spec.device):
            status, count = max_active_clusters(self._address("cuOccupancyMaxActiveClusters"), spec)
        if status:
            raise self._error("cuOccupancyMaxActiveClusters", self._cuda.CUresult(status), spec)
        return count

    def current_queue(self, device: int) -> int:
        """Through torch's raw getter where there is one: 0.1 us; the public call takes 6 us."""
        try:
            queue: int = torch._C._cuda_getCurrentRawStream(device)
        except AttributeError:
            queue = torch.cuda.current_stream(device).cuda_stream
        return queue

    def synchronize(self, device: int, queue: int) -> None:
        with self._in_context(device):
            self._call("cuStreamSynchronize", self._cuda.CUstream(queue))

    @contextmanager
    def _in_context(self, device: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent", self._cuda.CUcontext(self._context(device)))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def _context(self, device: int) -> int:
        with self._lock:
            if device not in self._contexts:
                handle = self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", device))
                self._contexts[device] = int(handle)
            return self._contexts[device]

    @contextmanager
    def _outside_capture(self) -> Iterator[None]:
        """Lets this thread load code while one of its queues is being captured into a graph."""
        relaxed = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", before)

    def _enum(self, kind: str, prefix: str, name: str) -> Any:
        return getattr(getattr(self._cuda, kind), f"{prefix}_{name.upper()}")

    def _address(self, name: str) -> int:
        flags = self._cuda.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        address, _ = self._call("cuGetProcAddress", name.encode(), self.version, int(flags))
        return int(address)

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(self._cuda, name)(*arguments)
        if status:
            raise self._error(name, status)
        return results[0] if len(results) == 1 else results

    def _error(self, call: str, status: Any, launch: LaunchSpec | None = None) -> DriverError:
        _, text = self._cuda.cuGetErrorString(status)
        described = text.decode() if text else ""
        return DriverError(call, error=status.name, text=described, launch=launch)


def _release(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
