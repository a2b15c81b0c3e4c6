"""The submission's calls of libcuda, seen by functions with the signatures of cuda.h.

Handles and addresses are beyond 32 bits: a number that ctypes would pass as an int arrives cut.
Source of the signatures: CUDA Driver API, cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any

import pytest

from nibblas.competition import submission
from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.launcher import LAUNCH_ATTRIBUTE, LAUNCH_CONFIG
from nibblas.runtime.tensormap import TensorMapSpec

CONTEXT, MODULE, FUNCTION, ADDRESS = (0x7F00_0000_0000 + 0x1000 * i for i in range(1, 5))
SPEC = TensorMapSpec(
    "uint8",
    dims=(64, 20, 3),
    stride_bytes=(2**33, 2**34),
    box=(128, 32, 1),
    swizzle="128b",
    l2_promotion="l2_256b",
)


class FakeCuda:
    """libcuda as ctypes sees it: functions without declared arguments.

    Args:
        status: what ``failing`` answers.
    """

    def __init__(self, failing: str = "", status: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.parameters = b""
        self._failing, self._status = failing, status
        self._alive: list[Any] = []
        handle, words, halves = POINTER(c_void_p), POINTER(c_uint64), POINTER(c_uint32)
        self._define("cuInit", [c_uint32], lambda flags: self._note("cuInit", flags))
        self._define("cuDevicePrimaryCtxRetain", [handle, c_int], self._retain)
        self._define("cuCtxSetCurrent", [c_void_p], lambda c: self._note("cuCtxSetCurrent", c))
        self._define("cuDeviceGetAttribute", [POINTER(c_int), c_int, c_int], self._attribute)
        self._define("cuModuleLoadData", [handle, c_char_p], self._load)
        self._define("cuModuleGetFunction", [handle, c_void_p, c_char_p], self._function)
        self._define(
            "cuFuncSetAttribute",
            [c_void_p, c_int, c_int],
            lambda *words: self._note("cuFuncSetAttribute", *words),
        )
        encode = [c_void_p, c_int, c_uint32, c_void_p, words, words, halves, halves, *[c_int] * 4]
        self._define("cuTensorMapEncodeTiled", encode, self._encode)
        occupancy = [POINTER(c_int), c_void_p, c_void_p]
        self._define("cuOccupancyMaxActiveClusters", occupancy, self._occupancy)
        self._define("cuLaunchKernelEx", [c_void_p, c_void_p, handle, handle], self._launch)

    def _define(self, name: str, arguments: Sequence[Any], answer: Callable[..., int]) -> None:
        function = ctypes.CFUNCTYPE(c_int, *arguments)(answer)
        self._alive.append(function)
        address = ctypes.cast(function, c_void_p).value or 0
        setattr(self, name, ctypes.CFUNCTYPE(c_int)(address))

    def _note(self, name: str, *arguments: Any) -> int:
        self.calls.append((name, *arguments))
        return self._status if name == self._failing else 0

    def _retain(self, context: Any, device: int) -> int:
        context[0] = CONTEXT
        return self._note("cuDevicePrimaryCtxRetain", device)

    def _attribute(self, value: Any, attribute: int, device: int) -> int:
        value[0] = 100 + attribute
        return self._note("cuDeviceGetAttribute", attribute, device)

    def _load(self, module: Any, image: bytes) -> int:
        module[0] = MODULE
        return self._note("cuModuleLoadData", image)

    def _function(self, function: Any, module: int, name: bytes) -> int:
        function[0] = FUNCTION
        return self._note("cuModuleGetFunction", module, name)

    def _encode(self, to: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        dims, strides, box, steps, *modes = rest
        assert to % 64 == 0, "the driver refuses another alignment"
        ctypes.memmove(to, bytes(range(128)), 128)
        sizes = (dims[:rank], strides[: rank - 1], box[:rank], steps[:rank])
        return self._note("cuTensorMapEncodeTiled", kind, rank, address, *sizes, *modes)

    def _occupancy(self, clusters: Any, function: int, config: int) -> int:
        clusters[0] = 33
        words = LAUNCH_CONFIG.unpack(ctypes.string_at(config, LAUNCH_CONFIG.size))
        return self._note("cuOccupancyMaxActiveClusters", function, words[:8], words[9])

    def _launch(self, config: int, function: int, parameters: Any, extra: Any) -> int:
        *words, attributes, count = LAUNCH_CONFIG.unpack(
            ctypes.string_at(config, LAUNCH_CONFIG.size)
        )
        packed = ctypes.string_at(attributes, count * LAUNCH_ATTRIBUTE.size)
        self.parameters = ctypes.string_at(parameters[0], 9)
        listed = list(LAUNCH_ATTRIBUTE.iter_unpack(packed))
        return self._note("cuLaunchKernelEx", words, function, listed, bool(extra))


def cuda_on(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> submission.Cuda:
    def open_library(name: str) -> FakeCuda:
        assert name == "libcuda.so.1"
        return fake

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    return submission.Cuda()


def spec(**fields: Any) -> LaunchSpec:
    given: dict[str, Any] = {"grid": (32, 1, 1), "block": (192, 1, 1), "cluster": (4, 1, 1)}
    return LaunchSpec(
        FUNCTION, "k", 0, shared_bytes=1234, queue=0, parameters=b"parameter", **given | fields
    )


def test_the_calls_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    cuda = cuda_on(fake, monkeypatch)
    assert cuda.attribute(0, "sms") == 116
    module = cuda.load(0, b"cubin")
    function = cuda.function(module, "entry")
    cuda.set_shared_memory(function, 1234)
    cuda.launch(spec())
    assert function == FUNCTION
    assert fake.calls == [
        ("cuInit", 0),
        ("cuDevicePrimaryCtxRetain", 0),
        ("cuCtxSetCurrent", CONTEXT),
        ("cuDeviceGetAttribute", 16, 0),
        ("cuModuleLoadData", b"cubin"),
        ("cuModuleGetFunction", MODULE, b"entry"),
        ("cuFuncSetAttribute", FUNCTION, 8, 1234),
        (
            "cuLaunchKernelEx",
            [32, 1, 1, 192, 1, 1, 1234, 0],
            FUNCTION,
            [(4, 4, 1, 1)],
            False,
        ),
    ]
    assert fake.parameters == b"parameter"


def test_how_many_clusters_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    assert cuda_on(fake, monkeypatch).resident_clusters(spec()) == 33
    words, attributes = (32, 1, 1, 192, 1, 1, 1234, 0), 1
    assert fake.calls[-1] == ("cuOccupancyMaxActiveClusters", FUNCTION, words, attributes)


def test_a_tensor_map(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    encoded = cuda_on(fake, monkeypatch).encode_tensor_map(SPEC, ADDRESS)
    assert encoded == bytes(range(128))
    sizes = ([64, 20, 3], [2**33, 2**34], [128, 32, 1], [1, 1, 1])
    uint8, not_interleaved, swizzle_128b, l2_256b, zeros = 0, 0, 3, 3, 0
    modes = (not_interleaved, swizzle_128b, l2_256b, zeros)
    assert fake.calls[-1] == ("cuTensorMapEncodeTiled", uint8, 3, ADDRESS, *sizes, *modes)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("cuInit", lambda cuda: cuda.attribute(0, "sms")),
        ("cuDevicePrimaryCtxRetain", lambda cuda: cuda.attribute(0, "sms")),
        ("cuDeviceGetAttribute", lambda cuda: cuda.attribute(0, "sms")),
        ("cuModuleLoadData", lambda cuda: cuda.load(0, b"")),
        ("cuModuleGetFunction", lambda cuda: cuda.function(MODULE, "k")),
        ("cuFuncSetAttribute", lambda cuda: cuda.set_shared_memory(FUNCTION, 1)),
        ("cuTensorMapEncodeTiled", lambda cuda: cuda.encode_tensor_map(SPEC, ADDRESS)),
        ("cuOccupancyMaxActiveClusters", lambda cuda: cuda.resident_clusters(spec())),
        ("cuLaunchKernelEx", lambda cuda: cuda.launch(spec())),
    ],
)
def test_a_failed_call_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[submission.Cuda], Any]
) -> None:
    cuda = cuda_on(FakeCuda(failing=name, status=719), monkeypatch)
    with pytest.raises(RuntimeError, match=f"^{name}: status 719"):
        act(cuda)


def test_numbers_are_those_of_cuda_h() -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    attributes = cuda.CUdevice_attribute
    assert submission._ATTRIBUTES == {
        "sms": attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        "compute_capability_major": attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        "compute_capability_minor": attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    }
    shared = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert shared == submission._MAX_DYNAMIC_SHARED_BYTES
    for names, kind, prefix in (
        (submission._DATA_TYPES, cuda.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE"),
        (submission._SWIZZLES, cuda.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE"),
        (submission._L2_PROMOTIONS, cuda.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION"),
    ):
        for number, name in enumerate(names):
            assert getattr(kind, f"{prefix}_{name.upper()}") == number
