"""The public interface, end to end: CUDA C++ through NVRTC, launches, arguments, reports."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device, LaunchError, UnsupportedInstruction
from nibblas.emulator.compile import cuda_ptx, kernel_ptx
from nibblas.emulator.ptx import parse
from nibblas.plan.portable import all_configs
from tests.emulator.conftest import HEADER, OUT, entry, every_order

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the CUDA C++ of these tests")

SOURCE = r"""
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
__constant__ int weights[4] = {1, 2, 3, 4};
extern "C" __global__ void weighted_sum(const int* a, int* out, int n) {
  __shared__ int sums[256];
  int t = threadIdx.x;
  sums[t] = t < n ? a[t] * weights[t & 3] : 0;
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) {
    if (t < k) sums[t] += sums[t + k];
    __syncthreads();
  }
  if (t == 0) *out = sums[0];
}
"""


@pytest.fixture(scope="module")
def text() -> str:
    return cuda_ptx(SOURCE)


@every_order
def test_vector_add(text: str, order: str) -> None:
    dev = Device("sm_90", order=order, seed=11)
    n = 1000
    a, b = (np.random.default_rng(s).standard_normal(n).astype(np.float32) for s in (1, 2))
    c = dev.empty(n, np.float32)
    kernel = dev.load_ptx(text).kernel("add")
    report = kernel.launch(8, 128, [dev.from_numpy(a), dev.from_numpy(b), c, n])
    assert (c.to_numpy() == a + b).all()
    assert report.bytes_by_path["load global"] == 2 * 4 * n
    assert report.bytes_by_path["store global"] == 4 * n
    assert report.instructions["floating"] == 32  # one of every warp; guarded for none
    assert report.total_instructions == sum(report.instructions.values())


@pytest.mark.parametrize(
    ("arch", "target"),
    [
        *(("sm_100", "sm_100f"), ("sm_100", "sm_100a"), ("sm_103", "sm_100f")),
        *(("sm_103", "sm_103a"), ("sm_120", "sm_120f"), ("sm_120", "sm_120a")),
    ],
)
def test_blackwell_runs_text_for_its_targets(arch: str, target: str) -> None:
    dev = Device(arch)
    a = np.arange(100, dtype=np.float32)
    c = dev.empty(100, np.float32)
    kernel = dev.load_ptx(cuda_ptx(SOURCE, target=target)).kernel("add")
    kernel.launch(1, 128, [dev.from_numpy(a), dev.from_numpy(a), c, 100])
    assert (c.to_numpy() == 2 * a).all()


@pytest.mark.parametrize(
    ("arch", "sms", "shared_kib", "cluster"),
    [("sm_100", 148, 227, 16), ("sm_103", 148, 227, 16), ("sm_120", 188, 99, 8)],
)
def test_blackwell_limits(text: str, arch: str, sms: int, shared_kib: int, cluster: int) -> None:
    dev = Device(arch)
    kernel = dev.load_ptx(text).kernel("add")
    a, c = dev.from_numpy(np.zeros(1, np.float32)), dev.empty(1, np.float32)
    assert dev.num_sms == sms
    kernel.launch(cluster, 32, [a, a, c, 1], cluster=(cluster, 1, 1), smem=shared_kib << 10)
    with pytest.raises(LaunchError, match="cluster: got"):
        kernel.launch(2 * cluster, 32, [a, a, c, 1], cluster=(2 * cluster, 1, 1))
    with pytest.raises(LaunchError, match="smem: got"):
        kernel.launch(1, 32, [a, a, c, 1], smem=(shared_kib << 10) + 1)


@every_order
def test_sum_through_shared_memory(text: str, order: str) -> None:
    dev = Device("sm_90", order=order, seed=5)
    values = np.arange(200, dtype=np.int32)
    out = dev.empty(1, np.int32)
    report = (
        dev.load_ptx(text)
        .kernel("weighted_sum")
        .launch(1, 256, [dev.from_numpy(values), out, len(values)])
    )
    assert out.to_numpy()[0] == (values * np.tile([1, 2, 3, 4], 50)).sum()
    assert report.shared_bytes_per_cta == 1024
    assert report.events["waits"] > 0


def test_every_portable_kernel_parses() -> None:
    config = next(c for c in all_configs() if c.built_for == "sm_90a")
    module = parse(kernel_ptx(config, "sm_90a"))
    assert config.entry in module.functions
    assert "nibblas_shared_bytes" in module.variables


def test_module_variables_have_their_initial_contents(text: str) -> None:
    weights = Device().load_ptx(text).variable("weights").to_numpy()
    assert weights.view(np.int32).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("launch", "complaint"),
    [
        (dict(grid=1, block=2048, args=[0]), "block: got"),
        (dict(grid=0, block=32, args=[0]), "grid: got"),
        (dict(grid=1, block=32, args=[]), "args: got 0; want 1"),
        (dict(grid=1, block=32, args=[b"1234"]), r"args\[0\]: got 4 bytes; want 8"),
        (dict(grid=1, block=32, args=[1 << 64]), "want a number of 8 bytes"),
        (dict(grid=1, block=32, args=[0], smem=300_000), "smem: got 300000"),
        (dict(grid=3, block=32, args=[0], cluster=(2, 1, 1)), "want multiples of the cluster"),
        (dict(grid=32, block=32, args=[0], cluster=(32, 1, 1)), "cluster: got"),
    ],
)
def test_launches_that_do_not_fit_are_refused(launch: dict, complaint: str) -> None:
    kernel = Device().load_ptx(entry("")).kernel("k")
    with pytest.raises(LaunchError, match=complaint):
        kernel.launch(**launch)


def test_limits_that_the_kernel_declares() -> None:
    text = HEADER + ".entry k() .maxntid 64 { ret; }\n.entry e() .reqntid 32, 2 { ret; }"
    module = Device().load_ptx(text)
    module.kernel("k").launch(1, 64)
    with pytest.raises(LaunchError, match="maxntid"):
        module.kernel("k").launch(1, 96)
    with pytest.raises(LaunchError, match="reqntid"):
        module.kernel("e").launch(1, 64)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="arch: got 'sm_75'"):
        Device("sm_75")
    with pytest.raises(ValueError, match="order: got 'x'"):
        Device(order="x")
    with pytest.raises(KeyError, match="no such entry"):
        Device().load_ptx(entry("")).kernel("other")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("frobnicate.u32 %r1, %r2;", "no handler for 'frobnicate'"),
        ("add.u128 %r1, %r2, %r3;", "these modifiers are not modelled"),
        ("add.u32 %r1, %r2;", "got 2 operands; want 3"),
        ("add.u32 %r1, %r2, %rd3;", "%rd3 has 64 bits; .u32 has 32"),
        ("add.f32 %f1, %f2, 1;", "an integer constant as .f32 operand"),
        ("mov.u32 %tid.x, 0;", "%tid.x cannot be written"),
        ("mov.u32 %r1, nothing;", "nothing is not declared"),
        ("bra nowhere;", "'nowhere' is not a label"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_line(body: str, complaint: str) -> None:
    text = entry(OUT + body)
    with pytest.raises(ValueError, match=complaint) as caught:
        Device().load_ptx(text).kernel("k")
    line = text[: text.index(body)].count("\n") + 1
    assert f"PTX line {line}:" in str(caught.value)


def test_a_refusal_lists_what_is_accepted() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"accepted: .*add type:u16\|u32"):
        Device().load_ptx(entry("add.wrong %r1, %r2, %r3;")).kernel("k")
