"""A driver with no device behind it, which keeps everything that it is asked to do.

With it, all host logic runs and is proved on a machine with no GPU: which kernels are launched with
which parameters, and that a warm call neither allocates, copies, loads nor synchronises.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from nibblas.runtime import elf
from nibblas.runtime.driver import (
    Attribute,
    DriverError,
    ImageKind,
    LaunchAt,
    LaunchSpec,
    clusters_that_fit,
)
from nibblas.runtime.tensormap import TensorMapSpec

_FIRST_HANDLE = 0x1000
_FIRST_ADDRESS = 0x7F00_0000_0000
_ADDRESS_ALIGNMENT = 256


class Event(NamedTuple):
    """One call: the driver's method and its arguments by name."""

    call: str
    arguments: dict[str, Any]


@dataclass
class _Memory:
    device: int
    data: bytearray


class RecordingDriver:
    """A device of a given kind; every setting can be changed between calls.

    Args:
        compute_capability: (9, 0) for Hopper.
        sms: number of multiprocessors.
        max_shared_bytes: what a block can opt in to.
        devices: how many such devices there are.

    Attributes:
        events: every call that would reach a device, in order; queries are not recorded.
        cubins: content by module handle.
        queue: what ``current_queue`` answers.
    """

    image_kind: ImageKind = "cubin"

    def __init__(
        self,
        compute_capability: tuple[int, int] = (9, 0),
        sms: int = 132,
        *,
        max_shared_bytes: int = 232448,
        driver_version: int = 13000,
        devices: int = 1,
    ) -> None:
        major, minor = compute_capability
        self.attributes: dict[str, int] = {
            "compute_capability_major": major,
            "compute_capability_minor": minor,
            "sms": sms,
            "max_shared_bytes_per_block": max_shared_bytes,
            "driver_version": driver_version,
        }
        self.devices = devices
        self.queue = 0
        self.events: list[Event] = []
        self.cubins: dict[int, bytes] = {}
        self._memory: dict[int, _Memory] = {}
        self._next_handle = _FIRST_HANDLE
        self._next_address = _FIRST_ADDRESS

    @property
    def launches(self) -> list[LaunchSpec]:
        """Every launch, in order."""
        return [event.arguments["spec"] for event in self.events if event.call == "launch"]

    def count(self, *calls: str) -> int:
        """How many of those calls were made: ``count("alloc", "synchronize")``."""
        return sum(event.call in calls for event in self.events)

    def clear(self) -> None:
        """Forgets the events; modules and memory stay."""
        self.events.clear()

    def device_count(self) -> int:
        return self.devices

    def attribute(self, device: int, name: Attribute) -> int:
        self._check_device("cuDeviceGetAttribute", device)
        return self.attributes[name]

    def load(self, device: int, image: bytes) -> int:
        self._check_device("cuModuleLoadData", device)
        self._record("load", device=device, image=image)
        module = self._handle()
        self.cubins[module] = image
        return module

    def function(self, module: int, name: str) -> int:
        self._record("function", module=module, name=name)
        return self._handle()

    def set_shared_memory(self, function: int, num_bytes: int) -> None:
        self._record("set_shared_memory", function=function, num_bytes=num_bytes)
        if num_bytes > self.attributes["max_shared_bytes_per_block"]:
            raise DriverError("cuFuncSetAttribute", error="CUDA_ERROR_INVALID_VALUE")

    def constant(self, module: int, name: str) -> bytes:
        return elf.read_variable(self.cubins[module], name)

    def alloc(self, device: int, num_bytes: int) -> int:
        self._check_device("cuMemAlloc", device)
        self._record("alloc", device=device, num_bytes=num_bytes)
        address = self._next_address
        self._memory[address] = _Memory(device, bytearray(num_bytes))
        self._next_address += -(-num_bytes // _ADDRESS_ALIGNMENT) * _ADDRESS_ALIGNMENT
        return address

    def free(self, device: int, address: int) -> None:
        self._record("free", device=device, address=address)
        self._block("cuMemFree", device, address)
        del self._memory[address]

    def copy_to_device(self, device: int, address: int, data: bytes) -> None:
        self._record("copy_to_device", device=device, address=address, data=data)
        self._block("cuMemcpyHtoD", device, address)[: len(data)] = data

    def copy_to_host(self, device: int, address: int, num_bytes: int) -> bytes:
        self._record("copy_to_host", device=device, address=address, num_bytes=num_bytes)
        return bytes(self._block("cuMemcpyDtoH", device, address)[:num_bytes])

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """128 bytes that begin with the address, as the real ones do; the rest tells maps apart."""
        self._record("encode_tensor_map", spec=spec, address=address)
        return struct.pack("<Q32s88x", address, hashlib.sha256(repr(spec).encode()).digest())

    def launch(self, spec: LaunchSpec) -> None:
        self._record("launch", spec=spec)

    def bind(self, spec: LaunchSpec) -> LaunchAt:
        return lambda parameters, queue: self.launch(
            spec._replace(parameters=parameters, queue=queue)
        )

    def resident_clusters(self, spec: LaunchSpec) -> int:
        most = self.attributes["max_shared_bytes_per_block"]
        return clusters_that_fit(spec, self.attributes["sms"], most)

    def current_queue(self, device: int) -> int:
        return self.queue

    def synchronize(self, device: int, queue: int) -> None:
        self._record("synchronize", device=device, queue=queue)

    def _record(self, call: str, **arguments: Any) -> None:
        self.events.append(Event(call, arguments))

    def _handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def _check_device(self, call: str, device: int) -> None:
        if not 0 <= device < self.devices:
            raise DriverError(call, error="CUDA_ERROR_INVALID_DEVICE")

    def _block(self, call: str, device: int, address: int) -> bytearray:
        memory = self._memory.get(address)
        if memory is None or memory.device != device:
            raise DriverError(call, error="CUDA_ERROR_INVALID_VALUE")
        return memory.data
