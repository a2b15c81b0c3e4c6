"""tcgen05.mma with block scaling: every legal N, random codes and scales, against exact sums."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from nibblas.emulator import IllegalOperation, OutOfBounds, UninitialisedRead
from nibblas.emulator.block_scaled import multiply_add_fp4
from tests.emulator.conftest import every_order
from tests.emulator.tensor_core import Mma, run

A_AT, B_AT = 0, 128 * 128
ROOM = B_AT + 256 * 128


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


@dataclass
class Problem:
    """Operands of one multiplication.

    Attributes:
        a, b: uint8 [M, 32], [N, 32], packed codes. c: float32 [M, N].
        sfa, sfb: uint8 [M, scales], [N, scales]. scale: their type. kind: of the instruction.
        sfa_id, sfb_id: first byte of a row's scales in a cell.
    """

    group: int
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    sfa: np.ndarray
    sfb: np.ndarray
    scale: str = "ue4m3"
    kind: str = "mxf4nvf4"
    sfa_id: int = 0
    sfb_id: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.c.shape

    @property
    def columns(self) -> int:
        """Of tensor memory: the accumulator in the first half, scales in the second."""
        return next(2 * half for half in (64, 128, 256) if half >= self.shape[1])

    @property
    def sfa_at(self) -> int:
        return self.columns // 2

    @property
    def sfb_at(self) -> int:
        return self.sfa_at + 8

    @property
    def idesc(self) -> int:
        m, n = self.shape
        bits = 1 << 7 | 1 << 10 | n >> 3 << 17 | m >> 7 << 27
        return bits | self.sfb_id << 4 | self.sfa_id << 29 | (self.scale == "ue8m0") << 23

    def mma(self, *, enable: bool = False) -> Mma:
        group, (m, n) = self.group, self.shape
        rng = np.random.default_rng(9)
        tensor = rng.integers(0, 1 << 32, (group, 128, self.columns), np.uint64).astype(np.uint32)
        shared = np.zeros((group, ROOM), np.uint8)
        rows, columns = m // group, n // group
        for cta in range(group):
            mine = slice(cta * rows, (cta + 1) * rows)
            shared[cta, :B_AT] = swizzled(self.a[mine], B_AT)
            shared[cta, B_AT:] = swizzled(self.b[cta * columns :][:columns], ROOM - B_AT)
            put_scales(tensor[cta], self.sfa_at, self.sfa[mine], self.sfa_id)
            self._put_scales_of_b(tensor[cta])
            self._put_accumulator(tensor[cta], self.c[mine])
        block = 64 // self.sfa.shape[1]
        name = (
            f"tcgen05.mma.cta_group::{group}.kind::{self.kind}.block_scale.block{block} "
            "[%d], %a, %b, %idesc, [%sfa], [%sfb], %enable;\n"
        )
        return Mma(
            name, group, tensor, shared, self.idesc, sfa=self.sfa_at, sfb=self.sfb_at,
            a=descriptor(A_AT), b=descriptor(B_AT), enable=enable,
        )  # fmt: skip

    @property
    def split(self) -> bool:
        """Two CTAs and M = 128: each half of the lanes works on half of the columns."""
        return self.group == 2 and self.shape[0] == 128

    def _put_scales_of_b(self, tensor: np.ndarray) -> None:
        if not self.split:
            put_scales(tensor, self.sfb_at, self.sfb, self.sfb_id)
            return
        for lanes, half in zip((slice(0, 64), slice(64, 128)), np.split(self.sfb, 2), strict=True):
            whole = np.zeros_like(tensor)
            put_scales(whole, self.sfb_at, half, self.sfb_id)
            columns = slice(self.sfb_at, self.sfb_at + 4)
            tensor[lanes, columns] = whole[lanes, columns]

    def _put_accumulator(self, tensor: np.ndarray, c: np.ndarray) -> None:
        if self.split:
            c = np.concatenate(np.split(c, 2, axis=1))
        tensor[:, : c.shape[1]] = c.view(np.uint32)

    def d_of(self, tensor: np.ndarray) -> np.ndarray:
        """[M, N] of tensor memory, by the layouts A, B and D of the PTX ISA."""
        n = self.shape[1]
        if self.split:
            parts = [np.concatenate(np.split(t[:, : n // 2], 2), axis=1) for t in tensor]
        else:
            parts = [t[:, :n] for t in tensor]
        return np.concatenate(parts).view(np.float32)

    def by_model(self, c: np.ndarray | float = 0) -> np.ndarray:
        start = np.zeros(self.shape, np.float32) + np.float32(c)
        with np.errstate(all="ignore"):
            return multiply_add_fp4(self.a, self.b, start, self.sfa, self.sfb, self.scale)

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """A B^T, exact in float64, and the largest sum of scales' exponents, as a power of 2.

        Codes and scales are decoded by ml_dtypes. .ue4m3 only.
        """
        values, powers = [], []
        for codes, scales in ((self.a, self.sfa), (self.b, self.sfb)):
            nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), 64)
            scale = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
            value = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
            values.append(value * np.repeat(scale, 64 // scales.shape[1], axis=1))
            powers.append(2.0 ** np.floor(np.log2(np.maximum(scale, 2.0**-6))))
        largest = (powers[0][:, None, :] * powers[1][None, :, :]).max(axis=2)
        return values[0] @ values[1].T, largest


def random_problem(group: int, m: int, n: int, *, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed + 1000 * group + n)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (m, n))
    sfa, sfb = (rng.integers(0, 127, (rows, 4)).astype(np.uint8) for rows in (m, n))
    c = (rng.standard_normal((m, n)) * 100).astype(np.float32)
    return Problem(group, a, b, c, sfa, sfb)


EVERY_N = [*((1, n) for n in range(8, 257, 8)), *((2, n) for n in range(16, 257, 16))]


@pytest.mark.parametrize(("group", "n"), EVERY_N)
def test_nvfp4_of_every_n(group: int, n: int) -> None:
    """Bit for bit the model; within its cuts of the exact sums; nothing else written."""
    problem = random_problem(group, 128 * group, n)
    enable = n % 32 == 0
    mma = problem.mma(enable=enable)
    found = run(mma)
    d = problem.d_of(found)
    c = problem.c if enable else np.zeros_like(problem.c)
    assert (d == problem.by_model(c)).all()
    assert (found[:, :, n:] == mma.tensor[:, :, n:]).all()
    exact, largest = problem.exact()
    exact = exact + c
    largest = np.maximum(largest, np.abs(c))
    assert (np.abs(d - exact) <= 2.0**-23 * np.abs(exact) + 5 * 2.0**-35 * largest).all()


@pytest.mark.parametrize("n", [128, 256])
def test_two_ctas_with_128_rows(n: int) -> None:
    problem = random_problem(2, 128, n, seed=5)
    assert (problem.d_of(run(problem.mma(enable=True))) == problem.by_model(problem.c)).all()


def test_two_ctas_with_128_rows_of_other_widths() -> None:
    problem = random_problem(2, 128, 64)
    with pytest.raises(IllegalOperation, match="known for N = 128 and 256 only"):
        run(problem.mma())


@pytest.mark.parametrize("kind", ["mxf4", "mxf4nvf4"])
@pytest.mark.parametrize(("sfa_id", "sfb_id"), [(0, 0), (2, 0), (0, 2), (2, 2)])
@pytest.mark.parametrize("group", [1, 2])
def test_blocks_of_32(kind: str, sfa_id: int, sfb_id: int, group: int) -> None:
    rng = np.random.default_rng(sfa_id + 3 * sfb_id)
    problem = random_problem(group, 128 * group, 48)
    problem.sfa, problem.sfb = (
        rng.integers(110, 150, (rows, 2)).astype(np.uint8) for rows in problem.shape
    )
    problem.scale, problem.kind = "ue8m0", kind
    problem.sfa_id, problem.sfb_id = sfa_id, sfb_id
    assert (problem.d_of(run(problem.mma())) == problem.by_model()).all()


def test_blocks_of_16_with_powers_of_two() -> None:
    problem = random_problem(1, 128, 64)
    problem.scale = "ue8m0"
    problem.sfa, problem.sfb = problem.sfa // 4 + 110, problem.sfb // 4 + 110
    assert (problem.d_of(run(problem.mma())) == problem.by_model()).all()


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("k", [0, 31, 63])
def test_every_code_with_every_scale(side: str, k: int) -> None:
    """16 codes against scale bytes 0x00 to 0x7E: one-hot in k, all other operands 1."""
    problem = random_problem(1, 128, 128)
    scaled, codes = np.zeros((128, 64), np.uint8), np.zeros((128, 64), np.uint8)
    scaled[:, k], codes[:, k] = 2, np.arange(128) % 16
    pack = [x[:, ::2] | x[:, 1::2] << 4 for x in (scaled, codes)]
    scales = np.repeat(np.minimum(np.arange(128), 126).astype(np.uint8)[:, None], 4, axis=1)
    ones = np.full((128, 4), 0x38, np.uint8)
    problem.a, problem.b = pack if side == "a" else pack[::-1]
    problem.sfa, problem.sfb = (scales, ones) if side == "a" else (ones, scales)
    d = problem.d_of(run(problem.mma()))
    assert (d == problem.exact()[0]).all()
    assert len(np.unique(np.abs(d))) > 200


def test_nan_scales_reach_their_own_rows_and_columns() -> None:
    problem = random_problem(2, 256, 96)
    problem.sfa[[3, 200], [0, 3]] = 0x7F
    problem.sfb[[5, 95], [1, 2]] = 0xFF
    problem.a[3] = 0
    d = problem.d_of(run(problem.mma()))
    expected = np.zeros(problem.shape, bool)
    expected[[3, 200]] = expected[:, [5, 95]] = True
    assert (np.isnan(d) == expected).all()
    assert (d.view(np.uint32)[expected] == 0x7FFF_FFFF).all()
    assert (d[~expected] == problem.by_model()[~expected]).all()


@pytest.mark.parametrize("rules", ["ptx", "hardware"])
@pytest.mark.parametrize("group", [1, 2])
@every_order
def test_a_chain_accumulates_in_order(order: str, group: int, rules: str) -> None:
    problem = random_problem(group, 128 * group, 32)
    mma = problem.mma(enable=True).but(times=3)
    expected = problem.c
    for _ in range(3):
        expected = problem.by_model(expected)
    found = run(mma, order=order, seed=3, rules=rules)
    assert (problem.d_of(found) == expected).all()


def test_scales_that_differ_between_quarters_of_the_lanes() -> None:
    problem = random_problem(1, 128, 40)
    for column, row in ((problem.sfa_at + 3, 7), (problem.sfb_at + 1, 7)):
        mma = problem.mma()
        mma.tensor[0, 64 + row, column] ^= 1
        with pytest.raises(IllegalOperation, match=r"differ between the quarters.*Block Scaling"):
            run(mma)
    mma = problem.mma()
    mma.tensor[0, 64 + 8, problem.sfb_at + 1] ^= 1  # column 40 of B: there is none
    assert (problem.d_of(run(mma)) == problem.by_model()).all()


def test_tensor_memory_that_nothing_wrote_or_allocated() -> None:
    problem = random_problem(1, 128, 64)
    mma = problem.mma()
    with pytest.raises(UninitialisedRead, match="tcgen05.mma reads lane 0, column .* of tensor"):
        run(mma.but(stored=64))
    with pytest.raises(OutOfBounds, match="tcgen05.mma reaches columns .*; allocated: columns"):
        run(mma.but(sfa=126))
    with pytest.raises(OutOfBounds, match="tcgen05.mma reaches columns .*; allocated: columns"):
        run(mma.but(d=96))


def test_scale_ids_in_the_address_are_ignored() -> None:
    """CUTLASS leaves them in bits 30-31."""
    problem = random_problem(1, 128, 64)
    mma = problem.mma()
    found = run(mma.but(sfa=problem.sfa_at | 2 << 30, sfb=problem.sfb_at | 1 << 31))
    assert (problem.d_of(found) == problem.by_model()).all()
    with pytest.raises(IllegalOperation, match="the scales of B begin on lane 32"):
        run(mma.but(sfb=problem.sfb_at | 32 << 16))
