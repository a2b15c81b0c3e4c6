"""The driver seam: everything that kernels need from a device, behind one small interface.

``CudaDriver`` answers it with a GPU; ``RecordingDriver`` answers it with none, and keeps what it
was asked; the emulator's driver runs kernels with none. All handles and addresses are plain
integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, TypeVar

from nibblas.runtime.tensormap import TensorMapSpec

Dim3 = tuple[int, int, int]

Attribute = Literal[
    "compute_capability_major",
    "compute_capability_minor",
    "sms",
    "max_shared_bytes_per_block",
    "driver_version",
]
"""``driver_version`` is the newest CUDA that the driver supports, as 1000 * major + 10 * minor;
``max_shared_bytes_per_block`` the most that a kernel can opt in to."""


ImageKind = Literal["cubin", "ptx"]
"""Machine code, or the text that machine code is made from."""


class LaunchSpec(NamedTuple):
    """One kernel launch, complete: a driver adds nothing and decides nothing.

    Attributes:
        function: handle from ``Driver.function``.
        kernel: its name, for messages and logs.
        device: device ordinal, as torch counts.
        grid: blocks. block: threads. cluster: blocks per cluster.
        shared_bytes: dynamic shared memory per block.
        queue: handle of the queue that orders the launch; 0 is the default one.
        parameters: the kernel's one parameter, a struct passed by value.
        programmatic: the kernel waits for its predecessor on the queue by itself
            (griddepcontrol.wait), so it may start before that one has ended.
    """

    function: int
    kernel: str
    device: int
    grid: Dim3
    block: Dim3
    shared_bytes: int
    queue: int
    parameters: bytes
    cluster: Dim3 = (1, 1, 1)
    programmatic: bool = False

    def __str__(self) -> str:
        flags = " programmatic" if self.programmatic else ""
        return (
            f"{self.kernel} on device {self.device}: grid {self.grid} block {self.block} "
            f"cluster {self.cluster} shared {self.shared_bytes} B "
            f"parameters {len(self.parameters)} B queue {self.queue:#x}{flags}"
        )


def clusters_that_fit(spec: LaunchSpec, sms: int, max_shared_bytes: int) -> int:
    """``Driver.resident_clusters`` by shared memory alone, for drivers without a device.

    A multiprocessor has 1 KB more than one block may have, and every block takes 1 KB of its own.
    """
    reserved = 1 << 10
    blocks = (max_shared_bytes + reserved) // (spec.shared_bytes + reserved)
    x, y, z = spec.cluster
    return sms * max(1, blocks) // (x * y * z)


LaunchAt = Callable[[bytes, int], None]
"""Launches with these parameters on this queue; returns before it has run."""


class DriverError(RuntimeError):
    """A CUDA call failed.

    Attributes:
        call: the driver function. error: CUDA's name of the error.
        launch: the launch that failed; None for other calls.
    """

    def __init__(
        self, call: str, *, error: str, text: str = "", launch: LaunchSpec | None = None
    ) -> None:
        self.call, self.error, self.launch = call, error, launch
        message = f"{call}: {error}"
        if text:
            message += f" ({text})"
        if launch is not None:
            message += f"; launching {launch}"
        super().__init__(message)


class Driver(Protocol):
    """What the runtime asks of a device. Every call may raise DriverError.

    ``load``, ``function`` and ``encode_tensor_map`` happen once per kernel or tensor; a warm call
    of a product is ``launch`` alone.
    """

    def device_count(self) -> int: ...

    def attribute(self, device: int, name: Attribute) -> int: ...

    @property
    def image_kind(self) -> ImageKind:
        """What ``load`` takes."""
        ...

    def load(self, device: int, image: bytes) -> int:
        """The module of an image on one device; it stays loaded as long as the driver lives."""
        ...

    def function(self, module: int, name: str) -> int:
        """An ``extern "C"`` kernel of the module, ready to launch."""
        ...

    def set_shared_memory(self, function: int, num_bytes: int) -> None:
        """Opts in to that much dynamic shared memory per block."""
        ...

    def constant(self, module: int, name: str) -> bytes:
        """The initial bytes of an ``extern "C"`` variable; KeyError: the module has none."""
        ...

    def alloc(self, device: int, num_bytes: int) -> int: ...

    def free(self, device: int, address: int) -> None: ...

    def copy_to_device(self, device: int, address: int, data: bytes) -> None: ...

    def copy_to_host(self, device: int, address: int, num_bytes: int) -> bytes: ...

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """The 128 bytes of a CUtensorMap over the tensor at ``address``."""
        ...

    def launch(self, spec: LaunchSpec) -> None: ...

    def bind(self, spec: LaunchSpec) -> LaunchAt:
        """``launch`` of one spec again and again, with other parameters on other queues."""
        ...

    def resident_clusters(self, spec: LaunchSpec) -> int:
        """How many clusters of a launch the device holds at once, whatever its grid."""
        ...

    def current_queue(self, device: int) -> int:
        """The queue that torch's current work on the device goes to."""
        ...

    def synchronize(self, device: int, queue: int) -> None:
        """Waits until the queue is empty."""
        ...


_AnyDriver = TypeVar("_AnyDriver", bound=Driver)

_current: Driver | None = None


def current_driver() -> Driver:
    """The driver in use: the one of ``use_driver``, else CUDA's, opened on first use.

    Raises:
        NativeLibraryError: CUDA's is wanted, and its bindings or the driver itself are missing or
            too old.
    """
    global _current
    if _current is None:
        from nibblas.runtime.cuda_driver import CudaDriver

        _current = CudaDriver.open()
    return _current


@contextmanager
def use_driver(driver: _AnyDriver) -> Iterator[_AnyDriver]:
    """Puts a driver in place of CUDA's, for the whole process, until the block ends."""
    global _current
    before, _current = _current, driver
    try:
        yield driver
    finally:
        _current = before
