"""Kernels that are loaded on a device and can be launched.

``load_kernel`` does everything that is done once: source, cubin, module, function, the check that
the compiled sizes are those that the configuration computed. ``LoadedKernel.launch`` is the warm
path.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary

from nibblas import env
from nibblas.errors import NativeLibraryError
from nibblas.runtime.cache import CubinCache, default_cache
from nibblas.runtime.compile import compile_ptx
from nibblas.runtime.driver import Dim3, Driver, LaunchAt, LaunchSpec, current_driver
from nibblas.runtime.source import KernelConfig, KernelSource

__all__ = [
    "KernelConfig",
    "KernelSource",
    "LoadedKernel",
    "compute_capability",
    "current_queue",
    "load_kernel",
    "loaded_kernels",
    "log_to_stderr",
]

PARAMETER_BYTES = "nibblas_parameter_bytes"
"""A kernel that exports its parameter struct's size under this name has every launch checked."""

_log = logging.getLogger("nibblas.launch")


class LoadedKernel:
    """One configuration, compiled for one device and loaded on it.

    Attributes:
        config: the configuration. source: the text it was made from. device: device ordinal.
        function: the driver's handle, as its launches name it.
        image_digest: SHA-256, in hex, of what was loaded: a cubin, or PTX on the emulator.
    """

    def __init__(
        self,
        driver: Driver,
        device: int,
        *,
        config: KernelConfig,
        source: KernelSource,
        image: bytes,
    ) -> None:
        self.config, self.source, self.device = config, source, device
        self.image_digest = hashlib.sha256(image).hexdigest()
        self._driver = driver
        module = driver.load(device, image)
        sizes = config.exported_sizes()
        _check_sizes(driver, module, source, sizes)
        self._parameter_bytes = sizes.get(PARAMETER_BYTES)
        self._entry = config.entry
        self._shared_bytes = config.shared_bytes
        self.function = driver.function(module, config.entry)
        if self._shared_bytes:
            driver.set_shared_memory(self.function, self._shared_bytes)
        self._resident: dict[tuple[int, int], int] = {}

    def launch(
        self,
        grid: int | Dim3,
        block: int | Dim3,
        parameters: bytes,
        queue: int,
        *,
        cluster: Dim3 = (1, 1, 1),
        programmatic: bool = False,
    ) -> None:
        """Puts one launch on a queue; returns before it has run.

        Args:
            grid: blocks; block: threads; a number is the x extent.
            parameters: the kernel's one parameter, by value.
            queue: ``current_queue(device)``.
            cluster, programmatic: see LaunchSpec.

        Raises:
            ValueError: the parameters' size is not the one that the kernel exports.
            DriverError: the launch is refused.
        """
        spec = self._spec(grid, block, parameters, queue, cluster, programmatic)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", spec)
        self._driver.launch(spec)

    def bind(
        self,
        grid: int | Dim3,
        block: int | Dim3,
        parameters: bytes,
        *,
        cluster: Dim3 = (1, 1, 1),
        programmatic: bool = False,
    ) -> LaunchAt:
        """``launch`` with all but the parameters and the queue settled; any thread may call it.

        Args:
            parameters: an example, for its size. The others are ``launch``'s.
        """
        spec = self._spec(grid, block, parameters, 0, cluster, programmatic)
        launch = self._driver.bind(spec)

        def launch_at(parameters: bytes, queue: int) -> None:
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s", spec._replace(parameters=parameters, queue=queue))
            launch(parameters, queue)

        return launch_at

    def resident_clusters(self, block: int, cluster: int) -> int:
        """How many clusters of that many blocks of so many threads the device holds at once."""
        key = (block, cluster)
        if key not in self._resident:
            parameters = bytes(self._parameter_bytes or 0)
            spec = self._spec(cluster, block, parameters, 0, (cluster, 1, 1), False)
            self._resident[key] = self._driver.resident_clusters(spec)
        return self._resident[key]

    def _spec(
        self,
        grid: int | Dim3,
        block: int | Dim3,
        parameters: bytes,
        queue: int,
        cluster: Dim3,
        programmatic: bool,
    ) -> LaunchSpec:
        if self._parameter_bytes not in (None, len(parameters)):
            raise ValueError(
                f"{self._entry}: got {len(parameters)} bytes of parameters; "
                f"want {self._parameter_bytes}"
            )
        return LaunchSpec(
            self.function,
            self._entry,
            self.device,
            (grid, 1, 1) if isinstance(grid, int) else grid,
            (block, 1, 1) if isinstance(block, int) else block,
            self._shared_bytes,
            queue,
            parameters,
            cluster,
            programmatic,
        )


_loaded: WeakKeyDictionary[Driver, dict[tuple[int, KernelConfig], LoadedKernel]] = (
    WeakKeyDictionary()
)


def load_kernel(
    device: int, config: KernelConfig, *, cache: CubinCache | None = None
) -> LoadedKernel:
    """The kernel on that device, loaded once per driver.

    Args:
        device: device ordinal, as torch counts.
        cache: where cubins come from; None: the process's cache.

    Raises:
        CompileError, DriverError. NativeLibraryError: no driver or compiler, or the cubin's sizes
            are not those of the configuration.
    """
    driver = current_driver()
    kernels = _loaded.setdefault(driver, {})
    key = (device, config)
    kernel = kernels.get(key)
    if kernel is None:
        source = KernelSource.of(config, config.target(compute_capability(device)))
        if driver.image_kind == "ptx":
            image = _ptx(source)
        else:
            image = (cache or default_cache()).get(source)
        kernel = LoadedKernel(driver, device, config=config, source=source, image=image)
        kernels[key] = kernel
    return kernel


def loaded_kernels() -> tuple[LoadedKernel, ...]:
    """Those that the driver in use has loaded, in the order in which it did."""
    return tuple(_loaded.get(current_driver(), {}).values())


@lru_cache(maxsize=64)
def _ptx(source: KernelSource) -> bytes:
    """With source lines, for the reports of whoever reads it."""
    headers = dict(source.headers)
    return compile_ptx(
        source.text,
        name=source.name,
        target=source.target,
        headers=headers,
        options=["-lineinfo"],
    ).encode()


def compute_capability(device: int) -> tuple[int, int]:
    """(9, 0) for Hopper."""
    driver = current_driver()
    return (
        driver.attribute(device, "compute_capability_major"),
        driver.attribute(device, "compute_capability_minor"),
    )


def current_queue(device: int) -> int:
    """The queue that torch's current work on the device goes to."""
    return current_driver().current_queue(device)


def _check_sizes(
    driver: Driver, module: int, source: KernelSource, sizes: Mapping[str, int]
) -> None:
    for name, expected in sizes.items():
        try:
            compiled = int.from_bytes(driver.constant(module, name), "little")
        except KeyError:
            raise NativeLibraryError(f"{source.entry} exports no variable {name!r}") from None
        if compiled != expected:
            raise NativeLibraryError(
                f"{source.entry} for {source.target}: {name} is {compiled} in the cubin, "
                f"{expected} in its configuration"
            )


def log_to_stderr() -> None:
    """Shows the launch log, line by line as it is written: the last line names what hangs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)


if env.log_launches():
    log_to_stderr()
