"""PTX as Triton emits it for kernels like its tutorials': it runs right, unmodified.

The texts in triton/ were made by lab/emulator/third_party/triton_kernels.py with Triton 3.9.0 and
TRITON_DISABLE_LINE_INFO=1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nibblas.emulator import Device
from tests.emulator.conftest import every_order
from tests.emulator.third_party.triton_launch import launch

both = pytest.mark.parametrize("arch", ["sm_80", "sm_90"])


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@both
@every_order
def test_vector_add(arch: str, order: str) -> None:
    dev = Device(arch, order=order, seed=1)
    x, y = numbers(1100, seed=1), numbers(1100, seed=2)
    out = dev.empty(1100, np.float32)
    launch(dev, "add", 3, dev.from_numpy(x), dev.from_numpy(y), out, 1100)
    assert (out.to_numpy() == x + y).all()


@both
@pytest.mark.parametrize("columns", [1, 100, 1000])
def test_softmax(arch: str, columns: int) -> None:
    dev = Device(arch)
    x = 4 * numbers(5, 1008)
    out = dev.from_numpy(np.full_like(x, 7))
    launch(dev, "softmax", 5, dev.from_numpy(x), out, 1008, columns)
    y = out.to_numpy()
    assert (y[:, columns:] == 7).all()
    e = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].max(1, keepdims=True))
    np.testing.assert_allclose(y[:, :columns], e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-12)


def check_matmul(dev: Device, name: str, m: int, n: int, k: int, *, b_by_rows: bool) -> None:
    a, b = numbers(m, k, dtype=np.float16, seed=3), numbers(k, n, dtype=np.float16, seed=4)
    c = dev.empty((m, n), np.float16)
    stored = b if b_by_rows else np.ascontiguousarray(b.T)
    grid = (-(-m // 64), -(-n // 64), 1)
    launch(dev, name, grid, dev.from_numpy(a), dev.from_numpy(stored), c, m, n, k)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert c.written().all()
    # fp32 sums cut at 2^-24 of the largest term, then rounded to half.
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    error = np.abs(c.to_numpy().astype(np.float64) - exact)
    assert (error <= 2.0**-11 * np.abs(exact) + 2.0**-20 * bound + 2.0**-24).all()


@both
def test_matmul_of_whole_tiles(arch: str) -> None:
    check_matmul(Device(arch), "matmul", 128, 64, 96, b_by_rows=True)


@both
def test_matmul_with_tails(arch: str) -> None:
    check_matmul(Device(arch), "matmul_tails", 70, 33, 50, b_by_rows=True)


@both
@every_order
def test_matmul_in_every_order(arch: str, order: str) -> None:
    check_matmul(Device(arch, order=order, seed=5), "matmul", 64, 64, 96, b_by_rows=True)


@every_order
def test_matmul_by_tensor_copies(order: str) -> None:
    check_matmul(Device("sm_90", order=order, seed=5), "matmul_tma", 64, 64, 96, b_by_rows=False)


def test_matmul_by_tensor_copies_with_tails() -> None:
    check_matmul(Device("sm_90"), "matmul_tma", 80, 96, 80, b_by_rows=False)
