"""NVFP4 grouped GEMM for the public problem nvfp4_group_gemm, on a B200.

NVRTC compiles the kernel when a configuration is first needed; libcuda launches it on the default
queue. Both are called by ctypes. How a shape is launched (configuration, grid, parameters, tensor
maps) is kept by shape. A call puts its tensors' addresses in and launches, so that nothing but the
kernel reaches the GPU's queue: once per call, or twice where "wide_deep" finds wide and narrow
groups together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nibblas.backends.base import Operands
from nibblas.backends.sm100_launch import Sm100Choice, Sm100Launch, shared_launches
from nibblas.backends.sm100_params import address_words
from nibblas.competition.kernel_text import kernel_text
from nibblas.competition.task import Group, TaskData, checked_groups
from nibblas.errors import bad_value
from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100 import DEFAULT_PRESET, Preset, choose_configs, source_of
from nibblas.plan.sm100_config import ENTRY_BYTES, Sm100Config
from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.launcher import Launcher, max_active_clusters
from nibblas.runtime.records import RecordTemplate
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, TensorMapSpec

PRESET: Preset = DEFAULT_PRESET
"""The set of configurations: "fused_persistent", "wide_deep" or "swapped"."""

DEVICE = 0
SHAPES_KEPT = 256

_ATTRIBUTES = {"sms": 16, "compute_capability_major": 75, "compute_capability_minor": 76}
_MAX_DYNAMIC_SHARED_BYTES = 8
_DATA_TYPES = ("uint8",)
_SWIZZLES = ("none", "32b", "64b", "128b")
_L2_PROMOTIONS = ("none", "l2_64b", "l2_128b", "l2_256b")


class Cuda:
    """The GPU, through libcuda. Numbers are those of cuda.h."""

    image_kind = "cubin"

    @cached_property
    def _library(self) -> ctypes.CDLL:
        """libcuda, with torch's context of the device current in this thread."""
        library = ctypes.CDLL("libcuda.so.1")
        context = c_void_p()
        _check(library, "cuInit", 0)
        _check(library, "cuDevicePrimaryCtxRetain", byref(context), DEVICE)
        _check(library, "cuCtxSetCurrent", context)
        return library

    @cached_property
    def _launcher(self) -> Launcher:
        return Launcher(self._address("cuLaunchKernelEx"))

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), c_void_p).value or 0

    def attribute(self, device: int, name: str) -> int:
        value = c_int()
        _check(self._library, "cuDeviceGetAttribute", byref(value), _ATTRIBUTES[name], device)
        return value.value

    def load(self, device: int, image: bytes) -> int:
        module = c_void_p()
        _check(self._library, "cuModuleLoadData", byref(module), image)
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        function = c_void_p()
        arguments = byref(function), c_void_p(module), name.encode()
        _check(self._library, "cuModuleGetFunction", *arguments)
        return function.value or 0

    def set_shared_memory(self, function: int, num_bytes: int) -> None:
        arguments = c_void_p(function), _MAX_DYNAMIC_SHARED_BYTES, num_bytes
        _check(self._library, "cuFuncSetAttribute", *arguments)

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """128 bytes; the driver wants to write them to a multiple of 64."""
        room = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
        start = -ctypes.addressof(room) % TENSOR_MAP_BYTES
        rank = len(spec.dims)
        _check(
            self._library,
            "cuTensorMapEncodeTiled",
            byref(room, start),
            _DATA_TYPES.index(spec.data_type),
            rank,
            c_void_p(address),
            (c_uint64 * rank)(*spec.dims),
            (c_uint64 * rank)(*spec.stride_bytes),
            (c_uint32 * rank)(*spec.box),
            (c_uint32 * rank)(*spec.steps),
            0,  # not interleaved
            _SWIZZLES.index(spec.swizzle),
            _L2_PROMOTIONS.index(spec.l2_promotion),
            0,  # zeros where the tensor has nothing
        )
        return room.raw[start : start + TENSOR_MAP_BYTES]

    def resident_clusters(self, spec: LaunchSpec) -> int:
        name = "cuOccupancyMaxActiveClusters"
        status, count = max_active_clusters(self._address(name), spec)
        if status:
            raise RuntimeError(f"{name}: status {status}")
        return count

    def launch(self, spec: LaunchSpec) -> None:
        status = self._launcher.launch(spec)
        if status:
            raise RuntimeError(
                f"cuLaunchKernelEx: status {status}, {spec.kernel}, grid {spec.grid}"
            )


gpu: Any = Cuda()
"""What loads, encodes and launches. Anything with Cuda's methods that is put here before the first
call takes its place; its ``image_kind`` "ptx" asks for PTX text instead of a cubin."""


def _check(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: status {status}")


def _nvrtc() -> ctypes.CDLL:
    """The newest NVRTC of the wheels beside torch's, else the system's; from 12.9 on."""
    wheels = Path(torch.__file__).parents[1].glob("nvidia/*/lib/libnvrtc.so.*")
    newest = max(wheels, key=lambda path: int(path.suffix[1:]), default=None)
    return ctypes.CDLL(str(newest or find_library("nvrtc") or "libnvrtc.so"))


@cache
def _compiled(config_header: str, target: str, kind: str) -> bytes:
    """The kernel in one configuration: a cubin or PTX."""
    nvrtc, program = _nvrtc(), c_void_p()

    def result(getter: str) -> bytes:
        size = c_size_t()
        _check(nvrtc, f"{getter}Size", program, byref(size))
        text = ctypes.create_string_buffer(size.value)
        _check(nvrtc, getter, program, text)
        return text.raw

    header, name = (c_char_p * 1)(config_header.encode()), (c_char_p * 1)(b"config.h")
    source = byref(program), KERNEL.encode(), b"kernel.cu", 1, header, name
    _check(nvrtc, "nvrtcCreateProgram", *source)
    architecture = target if kind == "cubin" else target.replace("sm", "compute")
    options = [f"--gpu-architecture={architecture}".encode(), b"-std=c++17", b"-lineinfo"]
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), (c_char_p * 3)(*options)):
            log = result("nvrtcGetProgramLog").rstrip(b"\0").decode()
            raise RuntimeError(f"the kernel does not compile for {target}: {log}")
        return result("nvrtcGetCUBIN" if kind == "cubin" else "nvrtcGetPTX")
    finally:
        _check(nvrtc, "nvrtcDestroyProgram", byref(program))


@cache
def _function(config: Sm100Config) -> int:
    """The kernel's handle on the device."""
    parts = ("compute_capability_major", "compute_capability_minor")
    major, minor = (gpu.attribute(DEVICE, part) for part in parts)
    image = _compiled(config.render(), config.target((major, minor)), gpu.image_kind)
    function: int = gpu.function(gpu.load(DEVICE, image), config.entry)
    gpu.set_shared_memory(function, config.shared_bytes)
    return function


class _Maps:
    """Tensor maps of a shape, encoded once."""

    def get(self, spec: TensorMapSpec, address: int) -> bytes:
        tensor_map: bytes = gpu.encode_tensor_map(spec, address)
        return tensor_map


@dataclass(frozen=True)
class _Launch:
    """A launch of a shape, complete but for the addresses."""

    spec: LaunchSpec
    record: RecordTemplate
    pick: Callable[[Sequence[int]], Sequence[int]]
    """The record's addresses, from those of the call's tensors."""

    def run(self, addresses: Sequence[int]) -> None:
        gpu.launch(self.spec._replace(parameters=self.record.filled(self.pick(addresses))))


_NAMES = ("x", "x_scales", "w", "w_scales", "out")
"""Fields of Operands, in the order in which ``custom_kernel`` lists a group's tensors."""


def _operands(group: Group) -> Operands:
    return Operands(
        x=group.a.view(torch.uint8),
        x_scales=group.sfa.view(torch.uint8),
        x_scale_layout="blocked",
        x_scale_start="torch",
        x_global=None,
        w=group.b.view(torch.uint8)[None],
        w_scales=group.sfb.view(torch.uint8)[None],
        w_scale_layout="blocked",
        w_global=None,
        offs=None,
        max_m=0,
        alpha=None,
        row_scale=None,
        bias=None,
        out=group.c[:, :, 0],
    )


def _spec(config: Sm100Config, ctas: int) -> LaunchSpec:
    return LaunchSpec(
        _function(config),
        config.entry,
        DEVICE,
        grid=(ctas, 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        queue=0,
        parameters=b"",
        cluster=(config.cluster, 1, 1),
        programmatic=config.programmatic,
    )


def _resident(config: Sm100Config) -> int:
    count: int = gpu.resident_clusters(_spec(config, config.cluster))
    return count


def _launches(groups: Sequence[Group]) -> list[_Launch]:
    """The launches of a shape, from one of its calls."""
    products = [_operands(group) for group in groups]
    if not products:
        return []
    if products[0].x.get_device() > DEVICE:
        raise bad_value("data", given=f"device {products[0].x.device}", wanted=f"device {DEVICE}")
    sms = gpu.attribute(DEVICE, "sms")
    shapes = [GroupShape(product.m, product.n, product.k) for product in products]
    choice = Sm100Choice(PRESET, choose_configs(shapes, PRESET, sms))
    places = {id(product): len(_NAMES) * i for i, product in enumerate(products)}
    launches = []
    for together, planned in shared_launches(products, choice):
        launch = Sm100Launch.of(together, planned, sms=sms, resident=_resident, maps=_Maps())
        config = launch.config
        picked, words = [], []
        for entry, product in enumerate(together):
            for name, word in address_words(_NAMES, config):
                picked.append(places[id(product)] + _NAMES.index(name))
                words.append(word + entry * (ENTRY_BYTES // 8))
        record = RecordTemplate(launch.params, words)
        launches.append(_Launch(_spec(config, launch.ctas), record, itemgetter(*picked)))
    return launches


_launches_by_shape: dict[object, list[_Launch]] = {}


def custom_kernel(data: TaskData) -> list[Tensor]:
    """Fills every group's c with ``a @ b.T``; returns the list of c, in group order.

    Raises:
        TypeError, ValueError: the data does not fit the contract; nothing has been written.
    """
    try:
        groups = zip(data[0], data[2], strict=True)
        tensors = [t for (a, b, c), (sfa, sfb) in groups for t in (a, sfa, b, sfb, c)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        layouts = [
            (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), address % 16)
            for tensor, address in zip(tensors, addresses, strict=True)
        ]
        shape = (tuple(layouts), tuple(map(tuple, data[3])))
        launches = _launches_by_shape.get(shape)
    except Exception:
        checked_groups(data)  # says what is wrong
        raise
    if launches is None:
        launches = _launches(checked_groups(data))
        if len(_launches_by_shape) >= SHAPES_KEPT:
            _launches_by_shape.clear()
        _launches_by_shape[shape] = launches
    for launch in launches:
        launch.run(addresses)
    return [c for _, _, c in data[0]]


KERNEL = kernel_text(source_of(PRESET))
"""CUDA C++. It includes the text of ``Sm100Config.render``."""
