"""The warm path: ``cuLaunchKernelEx`` through ctypes, on structures that live as long as a thread.

The structures are CUlaunchConfig and CUlaunchAttribute of the CUDA Driver API ("Execution Control"
and "Data types"). The driver copies the parameters before a launch returns.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_void_p
from functools import lru_cache

from nibblas.runtime.driver import Dim3, LaunchSpec

LAUNCH_CONFIG = struct.Struct("@7I4xQQI4x")
"""CUlaunchConfig: grid x, y, z, block x, y, z, shared bytes, queue, attributes, their number."""

QUEUE_OFFSET = 32
"""Bytes before the queue in a CUlaunchConfig."""

LAUNCH_ATTRIBUTE = struct.Struct("@I4x3I52x")
"""CUlaunchAttribute: its id, and the three words in use of a union of 64 bytes."""

CLUSTER_DIMENSION = 4
PROGRAMMATIC_SERIALIZATION = 6

_OCCUPANCY = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)


class _Structures(threading.local):
    """What one thread's launch reads; the interpreter lock is free while it does."""

    def __init__(self) -> None:
        self.config = ctypes.create_string_buffer(LAUNCH_CONFIG.size)
        self.config_address = ctypes.addressof(self.config)
        self.parameters = (c_char_p * 1)()
        self.parameters_address = ctypes.addressof(self.parameters)


class Launcher:
    """Launches kernels through the function at an address, which is ``cuLaunchKernelEx``."""

    def __init__(self, launch_kernel_ex: int) -> None:
        self._launch: Callable[..., int] = _LAUNCH(launch_kernel_ex)
        self._structures = _Structures()

    def launch(self, spec: LaunchSpec) -> int:
        """The CUresult; the function's context must be current."""
        mine = self._structures
        _pack_config(mine.config, spec)
        mine.parameters[0] = spec.parameters
        return self._launch(mine.config_address, spec.function, mine.parameters_address, None)

    def bind(self, spec: LaunchSpec) -> Callable[[bytes, int], int]:
        """``launch`` of this spec with other parameters on another queue, with less to pack."""
        attributes, count, storage = _attributes(spec.cluster, spec.programmatic)
        config = LAUNCH_CONFIG.pack(
            *spec.grid, *spec.block, spec.shared_bytes, 0, attributes, count
        )
        before, after = config[:QUEUE_OFFSET], config[QUEUE_OFFSET + 8 :]
        pack = struct.Struct(f"={len(before)}sQ{len(after)}s").pack_into
        call, function, structures = self._launch, spec.function, self._structures

        def launch(parameters: bytes, queue: int, _alive: object = storage) -> int:
            mine = structures
            pack(mine.config, 0, before, queue, after)
            mine.parameters[0] = parameters
            return call(mine.config_address, function, mine.parameters_address, None)

        return launch


def max_active_clusters(occupancy: int, spec: LaunchSpec) -> tuple[int, int]:
    """The CUresult, and how many clusters of a launch the device holds at once.

    Args:
        occupancy: address of ``cuOccupancyMaxActiveClusters``.
    """
    config = ctypes.create_string_buffer(LAUNCH_CONFIG.size)
    _pack_config(config, spec)
    count = c_int()
    found = ctypes.addressof(count)
    status = _OCCUPANCY(occupancy)(found, spec.function, ctypes.addressof(config))
    return status, count.value


def _pack_config(config: ctypes.Array[ctypes.c_char], spec: LaunchSpec) -> None:
    attributes, count, _ = _attributes(spec.cluster, spec.programmatic)
    LAUNCH_CONFIG.pack_into(
        config, 0, *spec.grid, *spec.block, spec.shared_bytes, spec.queue, attributes, count
    )


@lru_cache(maxsize=64)
def _attributes(cluster: Dim3, programmatic: bool) -> tuple[int, int, ctypes.Array[ctypes.c_char]]:
    """(address, number, storage) of the attributes, which are never written again."""
    packed = []
    if cluster != (1, 1, 1):
        packed.append(LAUNCH_ATTRIBUTE.pack(CLUSTER_DIMENSION, *cluster))
    if programmatic:
        packed.append(LAUNCH_ATTRIBUTE.pack(PROGRAMMATIC_SERIALIZATION, 1, 0, 0))
    storage = ctypes.create_string_buffer(b"".join(packed))
    return ctypes.addressof(storage), len(packed), storage
