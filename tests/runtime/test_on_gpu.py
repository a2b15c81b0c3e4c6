"""The same seam on a real device. Skipped where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nibblas.errors import NativeLibraryError
from nibblas.runtime import source
from nibblas.runtime.cache import CubinCache
from nibblas.runtime.cuda_driver import CudaDriver
from nibblas.runtime.driver import DriverError
from nibblas.runtime.kernel import LoadedKernel, current_queue, load_kernel
from nibblas.runtime.tensormap import TensorMaps
from tests.runtime.configs import KERNELS, PARAMS, ScaleConfig, target_of
from tests.runtime.test_tensormap import CODES

LENGTH = 1000
BLOCK = 128


@pytest.fixture(scope="module")
def driver() -> CudaDriver:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    try:
        return CudaDriver.open()
    except NativeLibraryError as error:
        pytest.skip(str(error))


@pytest.fixture
def kernel(
    driver: CudaDriver, warm_cubins: CubinCache, monkeypatch: pytest.MonkeyPatch
) -> LoadedKernel:
    capability = torch.cuda.get_device_capability()
    try:
        target_of(capability)
    except ValueError:
        pytest.skip(f"the tests' kernels are not built for compute capability {capability}")
    monkeypatch.setattr(source, "KERNELS", KERNELS)
    return load_kernel(torch.cuda.current_device(), ScaleConfig(), cache=warm_cubins)


def scale(kernel: LoadedKernel, x: torch.Tensor, out: torch.Tensor) -> None:
    parameters = PARAMS.pack(x.data_ptr(), out.data_ptr(), x.numel())
    kernel.launch(-(-x.numel() // BLOCK), BLOCK, parameters, current_queue(x.device.index))


def tensors(device: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(LENGTH, dtype=torch.int32, device=f"cuda:{device}")
    return x, torch.full_like(x, -1)


def test_attributes_are_torchs(driver: CudaDriver) -> None:
    properties = torch.cuda.get_device_properties(0)
    major = driver.attribute(0, "compute_capability_major")
    minor = driver.attribute(0, "compute_capability_minor")
    assert (major, minor) == (properties.major, properties.minor)
    assert driver.attribute(0, "sms") == properties.multi_processor_count
    assert driver.device_count() == torch.cuda.device_count()
    assert driver.attribute(0, "max_shared_bytes_per_block") >= 48 * 1024


def test_a_kernel_computes(kernel: LoadedKernel) -> None:
    x, out = tensors()
    scale(kernel, x, out)
    assert torch.equal(out, 3 * x)


def test_launches_follow_torchs_queue(kernel: LoadedKernel) -> None:
    x, out = tensors()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert current_queue(0) == side.cuda_stream
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        scale(kernel, x, out)
    side.synchronize()
    assert torch.equal(out, 3 * (torch.arange(LENGTH, dtype=torch.int32, device="cuda:0") + 1))


def test_a_launch_is_captured_and_replayed(kernel: LoadedKernel) -> None:
    x, out = tensors()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(kernel, x, out)
    out.fill_(-1)
    x.fill_(7)
    graph.replay()
    assert torch.equal(out, torch.full_like(out, 21))


@pytest.mark.usefixtures("kernel")
def test_a_kernel_may_be_loaded_during_capture(warm_cubins: CubinCache) -> None:
    config = ScaleConfig(factor=11)
    device = torch.cuda.current_device()
    warm_cubins.get(source.KernelSource.of(config, target_of(torch.cuda.get_device_capability())))
    x, out = tensors()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(load_kernel(device, config, cache=warm_cubins), x, out)
    graph.replay()
    assert torch.equal(out, 11 * x)


def test_the_current_device_stays(driver: CudaDriver, warm_cubins: CubinCache) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    with pytest.MonkeyPatch.context() as patch, torch.cuda.device(0):
        patch.setattr(source, "KERNELS", KERNELS)
        kernel = load_kernel(1, ScaleConfig(), cache=warm_cubins)
        x, out = tensors(1)
        scale(kernel, x, out)
        assert torch.cuda.current_device() == 0
    assert torch.equal(out, 3 * x)


def test_programmatic_launch_is_accepted(kernel: LoadedKernel) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters and programmatic launch begin with compute capability 9.0")
    x, out = tensors()
    parameters = PARAMS.pack(x.data_ptr(), out.data_ptr(), LENGTH)
    kernel.launch(8, BLOCK, parameters, current_queue(0), cluster=(2, 1, 1), programmatic=True)
    assert torch.equal(out, 3 * x)


def test_a_refused_launch_names_the_kernel(kernel: LoadedKernel) -> None:
    with pytest.raises(
        DriverError, match=r"cuLaunchKernelEx: .*launching tiny_scale .*\(0, 1, 1\)"
    ):
        kernel.launch(0, BLOCK, PARAMS.pack(0, 0, 0), current_queue(0))


def test_a_patched_tensor_map_equals_a_fresh_one(driver: CudaDriver) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps begin with compute capability 9.0")
    memory = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    maps = TensorMaps(driver)
    for spec in (CODES, replace(CODES, dims=(2048, 1)), replace(CODES, swizzle="none")):
        for offset in (0, 16, 4096):
            address = memory.data_ptr() + offset
            assert maps.get(spec, address) == driver.encode_tensor_map(spec, address)
