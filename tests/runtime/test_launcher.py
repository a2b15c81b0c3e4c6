"""The structures handed to cuLaunchKernelEx, seen by a function that stands in its place."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from ctypes import c_int, c_void_p
from typing import Any

import pytest

from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.launcher import (
    CLUSTER_DIMENSION,
    LAUNCH_ATTRIBUTE,
    LAUNCH_CONFIG,
    PROGRAMMATIC_SERIALIZATION,
    Launcher,
)

SPEC = LaunchSpec(
    function=0x300,
    kernel="kernel",
    device=0,
    grid=(11, 12, 13),
    block=(21, 22, 23),
    shared_bytes=31,
    queue=2**63 + 5,
    parameters=b"0123456789abcdef",
)


class Receiver:
    """Stands in for cuLaunchKernelEx: keeps the words of every launch, and answers ``status``.

    ``pause`` is called after the launch has begun and before its words are read.
    """

    def __init__(
        self,
        parameter_bytes: int = 16,
        status: int = 0,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.attributes: list[list[tuple[int, ...]]] = []
        self._parameter_bytes = parameter_bytes
        self._status = status
        self._pause = pause
        prototype = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
        self._function = prototype(self._receive)
        self.address = ctypes.cast(self._function, c_void_p).value or 0

    def _receive(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        self._pause()
        *words, attributes, count = LAUNCH_CONFIG.unpack(
            ctypes.string_at(config, LAUNCH_CONFIG.size)
        )
        (pointer,) = struct.unpack("@P", ctypes.string_at(parameters, 8))
        data = ctypes.string_at(pointer, self._parameter_bytes)
        self.launches.append((*words, function, data, extra))
        packed = ctypes.string_at(attributes, count * LAUNCH_ATTRIBUTE.size)
        self.attributes.append(list(LAUNCH_ATTRIBUTE.iter_unpack(packed)))
        return self._status


def test_every_field_arrives() -> None:
    receiver = Receiver()
    assert Launcher(receiver.address).launch(SPEC) == 0
    words = (11, 12, 13, 21, 22, 23, 31, 2**63 + 5)
    assert receiver.launches == [(*words, 0x300, b"0123456789abcdef", None)]
    assert receiver.attributes == [[]]


def test_cluster_and_programmatic_launch_are_attributes() -> None:
    receiver = Receiver()
    launcher = Launcher(receiver.address)
    cluster, programmatic = (CLUSTER_DIMENSION, 2, 4, 1), (PROGRAMMATIC_SERIALIZATION, 1, 0, 0)
    launcher.launch(SPEC._replace(cluster=(2, 4, 1), programmatic=True))
    launcher.launch(SPEC._replace(cluster=(2, 4, 1)))
    launcher.launch(SPEC._replace(programmatic=True))
    launcher.launch(SPEC)
    assert receiver.attributes == [[cluster, programmatic], [cluster], [programmatic], []]


def test_a_bound_launch_hands_over_what_a_launch_does() -> None:
    receiver = Receiver()
    launcher = Launcher(receiver.address)
    spec = SPEC._replace(cluster=(2, 4, 1), programmatic=True)
    bound = launcher.bind(spec._replace(queue=0, parameters=b""))
    launcher.launch(spec)
    assert bound(spec.parameters, spec.queue) == 0
    launcher.launch(SPEC)  # the structures are shared; what is settled must be written each time
    bound(spec.parameters, spec.queue)
    first, second, _, again = zip(receiver.launches, receiver.attributes, strict=True)
    assert first == second == again


def test_threads_share_a_bound_launch_and_do_not_mix() -> None:
    all_have_begun = threading.Barrier(4)
    receiver = Receiver(parameter_bytes=4, pause=all_have_begun.wait)
    bound = Launcher(receiver.address).bind(SPEC)

    def launch(thread: int) -> None:
        for step in range(10):
            mark = 1000 * (thread + 1) + step
            bound(mark.to_bytes(4, "little"), mark)

    threads = [threading.Thread(target=launch, args=[index]) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marks = {queue for *_, queue, _, _, _ in receiver.launches}
    assert len(marks) == len(receiver.launches) == 40
    for *_, queue, _, data, _ in receiver.launches:
        assert queue == int.from_bytes(data, "little")


def test_status_is_returned() -> None:
    launcher = Launcher(Receiver(status=719).address)
    assert launcher.launch(SPEC) == 719
    assert launcher.bind(SPEC)(SPEC.parameters, SPEC.queue) == 719


def test_parameters_with_zero_bytes_arrive_whole() -> None:
    receiver = Receiver(parameter_bytes=64)
    parameters = bytes(32) + bytes(range(32))
    Launcher(receiver.address).launch(SPEC._replace(parameters=parameters))
    assert receiver.launches[0][-2] == parameters


def test_threads_do_not_mix_their_launches() -> None:
    all_have_begun = threading.Barrier(4)
    receiver = Receiver(parameter_bytes=4, pause=all_have_begun.wait)
    launcher = Launcher(receiver.address)

    def launch(thread: int) -> None:
        for step in range(10):
            mark = 1000 * (thread + 1) + step
            data = mark.to_bytes(4, "little")
            launcher.launch(SPEC._replace(grid=(mark, 1, 1), queue=mark, parameters=data))

    threads = [threading.Thread(target=launch, args=[index]) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marks = set()
    for grid_x, *_, queue, _, data, _ in receiver.launches:
        assert grid_x == queue == int.from_bytes(data, "little")
        marks.add(grid_x)
    assert len(marks) == len(receiver.launches) == 40


def test_layouts_are_those_of_the_cuda_bindings() -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 11, 12, 13
    config.blockDimX, config.blockDimY, config.blockDimZ = 21, 22, 23
    config.sharedMemBytes, config.hStream, config.numAttrs = 31, cuda.CUstream(77), 0
    expected = LAUNCH_CONFIG.pack(11, 12, 13, 21, 22, 23, 31, 77, 0, 0)
    assert ctypes.string_at(config.getPtr(), LAUNCH_CONFIG.size) == expected

    attribute = cuda.CUlaunchAttribute()
    identifiers = cuda.CUlaunchAttributeID
    attribute.id = identifiers.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert int(attribute.id) == CLUSTER_DIMENSION
    cluster = attribute.value.clusterDim
    cluster.x, cluster.y, cluster.z = 2, 4, 1
    expected = LAUNCH_ATTRIBUTE.pack(CLUSTER_DIMENSION, 2, 4, 1)
    assert ctypes.string_at(attribute.getPtr(), LAUNCH_ATTRIBUTE.size) == expected
    programmatic = identifiers.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert int(programmatic) == PROGRAMMATIC_SERIALIZATION
