"""tcgen05.mma: every legal N with random codes and scales, one CTA and two, against the model."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator.block_scaled import multiply_add_fp4
from tests.emulator.tensor_core import Mma, run

FP4 = (
    "tcgen05.mma.cta_group::{}.kind::{}.block_scale.{} "
    "[%d], %a, %b, %idesc, [%sfa], [%sfb], %enable;"
)
SFA, SFB = 256, 264
A_AT, B_AT = 0, 128 * 128


def swizzled(matrix: np.ndarray, room: int) -> np.ndarray:
    """uint8 [room]: rows of 32 bytes, K-major, in rows of 128 with 128-byte swizzling."""
    found = np.zeros(room, np.uint8)
    row, byte = np.indices(matrix.shape)
    at = row * 128 + byte
    found[at ^ ((at >> 7 & 7) << 4)] = matrix
    return found


def descriptor(start: int) -> int:
    return start >> 4 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61


def put_scales(tensor: np.ndarray, column: int, scales: np.ndarray, first: int = 0) -> None:
    """Bytes [rows, count] of one CTA's tensor memory, in all quarters of the lanes."""
    cells = tensor.view(np.uint8).reshape(128, -1, 4)
    for row, found in enumerate(scales):
        cells[row % 32 :: 32, column + row // 32, first : first + len(found)] = found


def fp4(
    group: int, m: int, n: int, *, seed: int = 0, enable: bool = False
) -> tuple[Mma, np.ndarray]:
    """A kind::mxf4nvf4 operation of random operands, and D by the model. [M, N]"""
    rng = np.random.default_rng(seed + 1000 * group + n)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (m, n))
    sfa, sfb = (rng.integers(0, 127, (rows, 4)).astype(np.uint8) for rows in (m, n))
    c = rng.standard_normal((m, n)).astype(np.float32) * 100
    tensor = rng.integers(0, 1 << 32, (group, 128, 512), np.uint64).astype(np.uint32)
    shared = np.zeros((group, B_AT + 256 * 128), np.uint8)
    rows, columns = m // group, n // group
    for cta in range(group):
        mine = slice(cta * rows, (cta + 1) * rows)
        shared[cta, :B_AT] = swizzled(a[mine], B_AT)
        shared[cta, B_AT:] = swizzled(b[cta * columns :][:columns], 256 * 128)
        put_scales(tensor[cta], SFA, sfa[mine])
        put_scales(tensor[cta], SFB, sfb)
        tensor[cta, :, :n] = c[mine].view(np.uint32)
    name = FP4.format(group, "mxf4nvf4", "block16")
    idesc = 1 << 7 | 1 << 10 | n >> 3 << 17 | m >> 7 << 27
    mma = Mma(
        name, group, tensor, shared, idesc, sfa=SFA, sfb=SFB,
        a=descriptor(A_AT), b=descriptor(B_AT), enable=enable,
    )  # fmt: skip
    start = c if enable else np.zeros_like(c)
    return mma, multiply_add_fp4(a, b, start, sfa, sfb, "ue4m3")


@pytest.mark.parametrize(
    ("group", "n"),
    [*((1, n) for n in range(8, 257, 8)), *((2, n) for n in range(16, 257, 16))],
)
def test_nvfp4_of_every_n(group: int, n: int) -> None:
    m = 128 * group
    mma, expected = fp4(group, m, n, enable=n % 32 == 0)
    found = run(mma)
    assert (found[:, :, :n].reshape(m, n).view(np.float32) == expected).all()
    assert (found[:, :, n:] == mma.tensor[:, :, n:]).all()
