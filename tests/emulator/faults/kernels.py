"""The unbroken kernels: how each is launched and what it must answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nibblas.emulator import Buffer, Device, EmulationError
from nibblas.emulator.compile import cuda_ptx

FOLDER = Path(__file__).parent / "kernels"
HEADERS = {path.name: path.read_text() for path in FOLDER.glob("*.h")}

Launch = Callable[[Device, str], tuple[Buffer, np.ndarray]]
"""Runs PTX text on a device; returns the output and what it should be."""


@dataclass(frozen=True)
class Kernel:
    """A file of kernels/ and its launch."""

    name: str
    launch: Launch
    arch: str = "sm_90"

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.cu").read_text()


@cache
def compiled(source: str, arch: str) -> str:
    return cuda_ptx(source, headers=HEADERS, target=f"{arch}a")


def complaint(kernel: Kernel, source: str, **device: object) -> str:
    """What the emulator has against a text under one order: an error's class, or a wrong result."""
    dev = Device(kernel.arch, **device)  # type: ignore[arg-type]
    try:
        out, wanted = kernel.launch(dev, compiled(source, kernel.arch))
    except EmulationError as error:
        return f"{type(error).__name__}: {error}"
    if not out.written().all():
        return "outputs were not written"
    wrong = out.to_numpy() != wanted
    return f"{int(wrong.sum())} outputs are wrong" if wrong.any() else ""


def _numbers(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.uint32) * np.uint32(2654435761)).reshape(shape)


def _tma_ring(dev: Device, text: str, tiles: int = 7) -> tuple[Buffer, np.ndarray]:
    values = _numbers(16 * tiles, 32)
    x = dev.from_numpy(values, name="x")
    out = dev.empty(values.shape, np.uint32, name="out")
    box = dev.tensor_map(
        x, dtype="uint32", dims=(32, 16 * tiles), strides=(128,), box=(32, 16), swizzle="128b"
    )
    dev.load_ptx(text).kernel("k").launch(1, 160, [box, out, tiles])
    return out, values + np.uint32(1)


def _bulk_store(dev: Device, text: str, tiles: int = 4) -> tuple[Buffer, np.ndarray]:
    values = _numbers(tiles, 64)
    out = dev.empty(values.shape, np.uint32, name="out")
    dev.load_ptx(text).kernel("k").launch(1, 64, [dev.from_numpy(values, name="in"), out, tiles])
    return out, 3 * values


def _multicast(dev: Device, text: str, tiles: int = 5) -> tuple[Buffer, np.ndarray]:
    values = _numbers(16 * tiles, 16)
    x = dev.from_numpy(values, name="x")
    out = dev.empty((2, tiles + 1, 256), np.uint32, name="out")
    box = dev.tensor_map(x, dtype="uint32", dims=(16, 16 * tiles), strides=(64,), box=(16, 8))
    dev.load_ptx(text).kernel("k").launch(2, 96, [box, out, tiles], cluster=(2, 1, 1))
    wanted = np.zeros((2, tiles + 1, 256), np.uint32)
    wanted[:, :tiles] = values.reshape(tiles, 256)
    wanted[:, tiles, ::4] = values.reshape(tiles, 256)[-1, ::4]
    return out, wanted


def _cp_async_ring(dev: Device, text: str, tiles: int = 6) -> tuple[Buffer, np.ndarray]:
    values = _numbers(tiles, 64, 4)
    out = dev.empty(values.shape, np.uint32, name="out")
    dev.load_ptx(text).kernel("k").launch(1, 64, [dev.from_numpy(values, name="in"), out, tiles])
    return out, values[:, ::-1]


def _reduce(dev: Device, text: str, n: int = 300) -> tuple[Buffer, np.ndarray]:
    values = _numbers(n)
    blocks = -(-n // 128)
    sums, copies = dev.empty(blocks, np.uint32, name="sums"), dev.empty(n, np.uint32, name="copies")
    inputs = dev.from_numpy(values, name="in")
    dev.load_ptx(text).kernel("k").launch(blocks, 128, [inputs, sums, copies, n])
    padded = np.zeros(128 * blocks, np.uint32)
    padded[:n] = values
    return sums, padded.reshape(blocks, 128).sum(1, dtype=np.uint32)


def _wgmma(dev: Device, text: str) -> tuple[Buffer, np.ndarray]:
    a = (np.arange(64 * 32).reshape(64, 32) % 13 - 6).astype(np.float16)
    b = (np.arange(8 * 32).reshape(8, 32) % 7 - 3).astype(np.float16)
    # [rows / 8, 8, steps, 2, 8] -> [steps, rows / 8, 2, 8, 8]: core matrices of 8 x 16 bytes.
    cores = [m.reshape(-1, 8, 2, 2, 8).transpose(2, 0, 3, 1, 4) for m in (a, b)]
    out = dev.empty((64, 8), np.float32, name="out")
    inputs = [dev.from_numpy(np.ascontiguousarray(core)) for core in cores]
    dev.load_ptx(text).kernel("k").launch(1, 128, [*inputs, out])
    return out, a.astype(np.float32) @ b.astype(np.float32).T


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E4M3 = {0x30: 0.5, 0x38: 1.0, 0x40: 2.0}


def _nvfp4(rows: int, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(packed codes [rows, 128 steps], scales [steps, rows / 32 or more, 2048], values)."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, 256 * steps), np.uint8)
    scales = rng.choice(np.array(list(_E4M3), np.uint8), (rows, 16 * steps))
    values = _E2M1[codes & 7] * np.where(codes & 8, np.float32(-1), np.float32(1))
    factors = np.vectorize(_E4M3.get, otypes=[np.float32])(scales)
    padded = np.full((-(-rows // 128) * 128, 16 * steps), 0x7F, np.uint8)
    padded[:rows] = scales
    # [128-row tile, row / 32, row % 32, step, atom, 4] -> [step, tile, atom, row % 32, row / 32, 4]
    atoms = padded.reshape(-1, 4, 32, steps, 4, 4).transpose(3, 0, 4, 2, 1, 5)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    return packed, np.ascontiguousarray(atoms).reshape(-1, 128), values * factors.repeat(16, 1)


def _pair_mma(dev: Device, text: str, steps: int = 3) -> tuple[Buffer, np.ndarray]:
    maps, values = [], []
    for rows, seed in ((256, 1), (64, 2)):
        codes, scales, value = _nvfp4(rows, steps, seed)
        codes_map = dev.tensor_map(dev.from_numpy(codes), box=[128, rows // 2], swizzle="128b")
        maps.append((codes_map, dev.tensor_map(dev.from_numpy(scales), box=[128, 16])))
        values.append(value)
    (a, a_scales), (b, b_scales) = maps
    out = dev.empty((256, 64), np.float32, name="out")
    dev.load_ptx(text).kernel("k").launch(
        2, 192, [a, b, a_scales, b_scales, out, steps], cluster=(2, 1, 1), smem=2 * 24576
    )
    return out, values[0] @ values[1].T


def _tensor_store(dev: Device, text: str, rounds: int = 2) -> tuple[Buffer, np.ndarray]:
    a = (np.arange(rounds * 128 * 16).reshape(rounds, 128, 16) % 13 - 6).astype(np.float16)
    b = (np.arange(16 * 16).reshape(16, 16) % 7 - 3).astype(np.float16)
    weights = np.ascontiguousarray(b.reshape(2, 8, 2, 8).transpose(0, 2, 1, 3))
    out = dev.empty((rounds, 2, 128, 16), np.float32, name="out")
    inputs = [dev.from_numpy(a.view(np.uint32)), dev.from_numpy(weights.view(np.uint32))]
    dev.load_ptx(text).kernel("k").launch(1, 128, [*inputs, out])
    row = np.arange(128)
    shifted = a[:, np.where(row % 32, row - 1, row)]
    both = np.stack([a, shifted], axis=1).astype(np.float32)
    return out, both @ b.astype(np.float32).T


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("tma_ring", _tma_ring),
        Kernel("bulk_store", _bulk_store),
        Kernel("multicast", _multicast),
        Kernel("cp_async_ring", _cp_async_ring),
        Kernel("reduce", _reduce),
        Kernel("wgmma", _wgmma),
        Kernel("pair_mma", _pair_mma, "sm_100"),
        Kernel("tensor_store", _tensor_store, "sm_100"),
    )
}
