"""The emulator behind the driver seam: the shipped launch code runs the shipped kernels on it.

``load`` takes PTX; a launch runs to its end before it returns. CPU tensors are the device's memory
as they lie, at their own addresses: ``EmulatedDriver.tensors`` says which bytes a kernel may read
and which it may write, and everything else is out of bounds.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from nibblas.emulator.device import (
    MAX_INSTRUCTIONS,
    SHARED_BEGIN,
    Buffer,
    Device,
    LoadedModule,
    UnwrittenShared,
)
from nibblas.emulator.errors import LaunchError
from nibblas.emulator.limits import LIMITS
from nibblas.emulator.machine.memory import Memory
from nibblas.emulator.machine.tensor_map import check_type, encode
from nibblas.emulator.order import ORDERS
from nibblas.emulator.report import Report
from nibblas.errors import bad_value
from nibblas.runtime.driver import (
    Attribute,
    DriverError,
    ImageKind,
    LaunchAt,
    LaunchSpec,
    clusters_that_fit,
)
from nibblas.runtime.tensormap import TensorMapSpec

_DRIVER_VERSION = 13000
_REPORTS_KEPT = 1024


@dataclass(frozen=True)
class Emulation:
    """What decides a run besides the kernel and its inputs; see ``Device`` for the fields.

    Attributes:
        unwritten_shared: "nan" here, since the portable kernel multiplies tokens that do not exist
            and does not store what comes of it.
        reports: of the launches, oldest first; the newest thousand.
    """

    arch: str = "sm_90"
    order: str = "round_robin"
    seed: int = 0
    num_sms: int | None = None
    shared_begin: int = SHARED_BEGIN
    max_instructions: int = MAX_INSTRUCTIONS
    unwritten_shared: UnwrittenShared = "nan"
    reports: deque[Report] = field(
        default_factory=lambda: deque(maxlen=_REPORTS_KEPT), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.arch not in LIMITS:
            raise bad_value("arch", given=repr(self.arch), wanted=f"one of {', '.join(LIMITS)}")
        if self.order not in ORDERS:
            raise bad_value("order", given=repr(self.order), wanted=f"one of {', '.join(ORDERS)}")
        if self.num_sms is not None and self.num_sms < 1:
            raise bad_value("num_sms", given=self.num_sms, wanted="at least 1")


@dataclass(frozen=True)
class Span:
    """Bytes of the process that kernels may touch: of one operand, or of several that overlap.

    ``readable``: it holds values; else a read before the first write is an error.
    """

    name: str
    begin: int
    end: int
    readable: bool = True
    writable: bool = False


class EmulatedDriver:
    """One emulated GPU.

    Args:
        arch: as ``Device``'s.

    Attributes:
        emulation: how launches run; may be replaced between them by one of the same architecture.
    """

    image_kind: ImageKind = "ptx"

    def __init__(self, arch: str = "sm_90") -> None:
        self.emulation = Emulation(arch)
        self.emulated = Device(arch)
        self._modules: list[LoadedModule] = []
        self._functions: list[tuple[LoadedModule, str]] = []
        self._buffers: dict[int, Buffer] = {}

    def device_count(self) -> int:
        return 1

    def attribute(self, device: int, name: Attribute) -> int:
        self._check_device("cuDeviceGetAttribute", device)
        digits = int(self.emulation.arch.removeprefix("sm_"))
        values: dict[Attribute, int] = {
            "compute_capability_major": digits // 10,
            "compute_capability_minor": digits % 10,
            "sms": self.emulation.num_sms or self.emulated.limits.num_sms,
            "max_shared_bytes_per_block": self.emulated.limits.shared_bytes,
            "driver_version": _DRIVER_VERSION,
        }
        return values[name]

    def load(self, device: int, image: bytes) -> int:
        """PtxError: the text is not PTX, or holds what is not modelled."""
        self._check_device("cuModuleLoadData", device)
        self._modules.append(self.emulated.load_ptx(image.rstrip(b"\0").decode()))
        return len(self._modules)

    def function(self, module: int, name: str) -> int:
        loaded = self._modules[module - 1]
        if name not in loaded.kernel_names:
            raise DriverError("cuModuleGetFunction", error="CUDA_ERROR_NOT_FOUND", text=name)
        loaded.kernel(name)
        self._functions.append((loaded, name))
        return len(self._functions)

    def set_shared_memory(self, function: int, num_bytes: int) -> None:
        most = self.emulated.limits.shared_bytes
        if num_bytes > most:
            raise DriverError(
                "cuFuncSetAttribute",
                error="CUDA_ERROR_INVALID_VALUE",
                text=f"{num_bytes} bytes of shared memory; at most {most}",
            )

    def constant(self, module: int, name: str) -> bytes:
        return self._modules[module - 1].variable(name).to_numpy().tobytes()

    def alloc(self, device: int, num_bytes: int) -> int:
        self._check_device("cuMemAlloc", device)
        buffer = self.emulated.empty(num_bytes)
        self._buffers[buffer.address] = buffer
        return buffer.address

    def free(self, device: int, address: int) -> None:
        self.emulated.free(self._buffer("cuMemFree", device, address))
        del self._buffers[address]

    def copy_to_device(self, device: int, address: int, data: bytes) -> None:
        buffer = self._buffer("cuMemcpyHtoD", device, address)
        if len(data) > buffer.num_bytes:
            _refuse("cuMemcpyHtoD", f"{len(data)} bytes into {buffer.num_bytes}")
        buffer.memory.write(0, data)

    def copy_to_host(self, device: int, address: int, num_bytes: int) -> bytes:
        buffer = self._buffer("cuMemcpyDtoH", device, address)
        if num_bytes > buffer.num_bytes:
            _refuse("cuMemcpyDtoH", f"{num_bytes} bytes from {buffer.num_bytes}")
        return buffer.memory.read(0, num_bytes)

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """A map in the emulator's encoding; DriverError: what the driver refuses."""
        try:
            check_type(spec, self.emulated.arch)
            return encode(spec, address)
        except ValueError as error:
            raise DriverError("cuTensorMapEncodeTiled", error="CUDA_ERROR_INVALID_VALUE") from error

    def launch(self, spec: LaunchSpec) -> None:
        """Runs a kernel to its end.

        Raises:
            DriverError: the launch does not fit the kernel or the device.
            EmulationError: what the kernel did wrong.
        """
        self._check_device("cuLaunchKernelEx", spec.device)
        emulated, emulation = self.emulated, self.emulation
        emulated.order, emulated.seed = emulation.order, emulation.seed
        emulated.num_sms = emulation.num_sms or emulated.limits.num_sms
        emulated.shared_begin = emulation.shared_begin
        emulated.max_instructions = emulation.max_instructions
        emulated.unwritten_shared = emulation.unwritten_shared
        module, name = self._functions[spec.function - 1]
        try:
            report = module.kernel(name).launch(
                spec.grid,
                spec.block,
                [spec.parameters],
                cluster=spec.cluster,
                smem=spec.shared_bytes,
                programmatic=spec.programmatic,
            )
        except LaunchError as error:
            raise DriverError(
                "cuLaunchKernelEx",
                error="CUDA_ERROR_INVALID_VALUE",
                text=str(error),
                launch=spec,
            ) from error
        emulation.reports.append(report)

    def bind(self, spec: LaunchSpec) -> LaunchAt:
        return lambda parameters, queue: self.launch(
            spec._replace(parameters=parameters, queue=queue)
        )

    def resident_clusters(self, spec: LaunchSpec) -> int:
        sms = self.attribute(spec.device, "sms")
        return clusters_that_fit(spec, sms, self.emulated.limits.shared_bytes)

    def current_queue(self, device: int) -> int:
        return 0

    def synchronize(self, device: int, queue: int) -> None:
        self._check_device("cuStreamSynchronize", device)

    @contextmanager
    def tensors(self, spans: Sequence[Span]) -> Iterator[None]:
        """Inside, kernels may touch these bytes of the process, where they lie."""
        memories: list[Memory] = []
        try:
            for span in merged(spans):
                memory = _memory_of(span)
                self.emulated.addresses.adopt(memory)
                memories.append(memory)
            yield
        finally:
            for memory in memories:
                self.emulated.addresses.free(memory)

    def _check_device(self, call: str, device: int) -> None:
        if device != 0:
            raise DriverError(call, error="CUDA_ERROR_INVALID_DEVICE")

    def _buffer(self, call: str, device: int, address: int) -> Buffer:
        self._check_device(call, device)
        if address not in self._buffers:
            _refuse(call, f"{address:#x} is no allocation")
        return self._buffers[address]


def merged(spans: Sequence[Span]) -> list[Span]:
    """Spans that share no byte: those that overlap become one, with the rights of both."""
    result: list[Span] = []
    end = -math.inf
    for span in sorted(spans, key=lambda span: span.begin):
        if span.begin == span.end:
            continue
        if span.begin >= end:
            result.append(span)
        else:
            last = result[-1]
            names = last.name if span.name in last.name.split(", ") else f"{last.name}, {span.name}"
            result[-1] = Span(
                names,
                last.begin,
                max(last.end, span.end),
                last.readable or span.readable,
                last.writable or span.writable,
            )
        end = result[-1].end
    return result


def _memory_of(span: Span) -> Memory:
    num_bytes = span.end - span.begin
    data = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(span.begin))
    return Memory(
        span.name,
        span.begin,
        num_bytes,
        initialised=span.readable,
        read_only=not span.writable,
        data=data,
    )


def _refuse(call: str, text: str) -> NoReturn:
    raise DriverError(call, error="CUDA_ERROR_INVALID_VALUE", text=text)
