"""The headers in kernels/common against their Python twins and against independent decoders."""

from __future__ import annotations

import ctypes
import itertools
import random

import ml_dtypes
import numpy as np
import pytest
import torch

from nibblas.formats import e2m1, e4m3, scale_layout
from nibblas.formats.scale_layout import GroupStart
from nibblas.plan import schedule
from nibblas.runtime.cpu_library import CpuLibrary

HALVES = {0: torch.bfloat16, 1: torch.float16}


@pytest.fixture(scope="module")
def twins(library: CpuLibrary) -> ctypes.CDLL:
    native = library.native
    i64, i32s = ctypes.c_int64, ctypes.POINTER(ctypes.c_int32)
    i64s = ctypes.POINTER(ctypes.c_int64)
    declared = {
        "decode_e2m1": (ctypes.c_float, [ctypes.c_uint32]),
        "decode_e4m3": (ctypes.c_float, [ctypes.c_uint32]),
        "from_half": (ctypes.c_float, [i64, ctypes.c_uint16]),
        "to_half": (ctypes.c_uint16, [i64, ctypes.c_float]),
        "blocked_offset": (i64, [i64, i64, i64]),
        "group_start_rows": (None, [ctypes.c_int32, i32s, i64, i64, i64s]),
        "find_run": (None, [i32s, *[i64] * 7, i64s]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(native, f"nibblas_twin_{name}")
        function.restype, function.argtypes = result, arguments
    return native


def test_decode_e2m1_of_all_16_codes(twins: ctypes.CDLL) -> None:
    decoded = [twins.nibblas_twin_decode_e2m1(code) for code in range(16)]
    assert decoded == list(e2m1.VALUES)
    assert decoded == np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).tolist()


def test_decode_e4m3_of_all_256_bytes(twins: ctypes.CDLL) -> None:
    codes = np.arange(256, dtype=np.uint8)
    decoded = np.array([twins.nibblas_twin_decode_e4m3(int(c)) for c in codes], dtype=np.float32)
    independent = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    twin = e4m3.decode(torch.from_numpy(codes)).numpy()
    for want in (independent, twin):
        np.testing.assert_array_equal(decoded, want)
        zero = want == 0
        np.testing.assert_array_equal(np.signbit(decoded[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("code", HALVES)
def test_widening_of_all_65536_halves(twins: ctypes.CDLL, code: int) -> None:
    raw = np.arange(65536, dtype=np.uint16)
    widened = np.array([twins.nibblas_twin_from_half(code, int(h)) for h in raw], dtype=np.float32)
    want = torch.from_numpy(raw.view(np.int16)).view(HALVES[code]).float().numpy()
    np.testing.assert_array_equal(widened, want)


@pytest.mark.parametrize("code", HALVES)
def test_narrowing_rounds_to_nearest_even(twins: ctypes.CDLL, code: int) -> None:
    """Every half, its midpoint to the next one, and the floats beside both; random floats too."""
    raw = torch.arange(0, 0x7C00 if code else 0x7F80, 7, dtype=torch.int16)
    exact = raw.view(HALVES[code]).float()
    middle = (exact.double() + (raw + 1).view(HALVES[code]).double()).mul(0.5).float()
    bits = torch.cat([exact, middle]).view(torch.int32)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**31), 2**31, (20000,), generator=generator).to(torch.int32)
    values = torch.cat([bits, bits + 1, bits - 1, drawn]).view(torch.float32)
    values = values[~values.isnan()]
    got = [twins.nibblas_twin_to_half(code, v) for v in values.tolist()]
    want = values.to(HALVES[code]).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(np.array(got, dtype=np.uint16), want)


@pytest.mark.parametrize("k_blocks", [1, 3, 4, 5, 16, 17])
def test_blocked_offset(twins: ctypes.CDLL, k_blocks: int) -> None:
    for row, k_block in itertools.product(range(0, 300, 7), range(k_blocks)):
        want = scale_layout.blocked_offset(row, k_block, k_blocks)
        assert twins.nibblas_twin_blocked_offset(row, k_block, k_blocks) == want


def test_blocked_offset_beyond_2_to_the_31(twins: ctypes.CDLL) -> None:
    row, k_blocks = 2**25, 448
    assert twins.nibblas_twin_blocked_offset(row, 0, k_blocks) == row * k_blocks


@pytest.mark.parametrize(("number", "rule"), [(0, "torch"), (1, "flashinfer")])
def test_group_start_rows(twins: ctypes.CDLL, number: int, rule: GroupStart) -> None:
    rng = random.Random(number)
    for _ in range(200):
        sizes = [rng.choice([0, 1, 5, 127, 128, 129, 300]) for _ in range(rng.randint(1, 9))]
        ends = list(itertools.accumulate(sizes))
        starts = (ctypes.c_int64 * len(ends))()
        offs = (ctypes.c_int32 * len(ends))(*ends)
        twins.nibblas_twin_group_start_rows(number, offs, len(ends), 0, starts)
        want = scale_layout.group_start_rows(torch.tensor(ends, dtype=torch.int32), rule)
        assert list(starts) == want.tolist()


def random_offs(rng: random.Random) -> list[int]:
    sizes = [rng.choice([0, 0, 1, 3, 17, 256, 5000]) for _ in range(rng.randint(1, 12))]
    return list(itertools.accumulate(sizes))


def find_run(twins: ctypes.CDLL, offs: list[int], rows: int, *numbers: int) -> schedule.TileRun:
    run = (ctypes.c_int64 * 4)()
    array = (ctypes.c_int32 * len(offs))(*offs)
    twins.nibblas_twin_find_run(array, len(offs), rows, *numbers, run)
    return schedule.TileRun(
        schedule.TilePosition(run[0], run[1]), schedule.TilePosition(run[2], run[3])
    )


def test_find_run_agrees_with_its_twin(twins: ctypes.CDLL) -> None:
    rng = random.Random(1)
    for _ in range(500):
        offs, tiles, fixed = random_offs(rng), rng.choice([1, 2, 7, 64]), rng.choice([0, 1, 9])
        rows, workers = rng.choice([offs[-1], offs[-1] // 2]), rng.choice([1, 2, 5, 132])
        groups = schedule.packed_tiles(offs, rows, tiles_per_group=tiles, fixed=fixed, per_token=2)
        for worker in range(workers):
            got = find_run(twins, offs, rows, tiles, fixed, 2, worker, workers)
            assert got == schedule.find_run(groups, worker, workers)


def test_wild_offs_stay_inside_the_rows(twins: ctypes.CDLL) -> None:
    offs = [-5, 2**31 - 1, 3, -(2**31)]
    groups = schedule.packed_tiles(offs, 10, tiles_per_group=4, fixed=1, per_token=1)
    assert [group.cost for group in groups] == [0, 11, 0, 0]
    assert find_run(twins, offs, 10, 4, 1, 1, 0, 1) == schedule.find_run(groups, 0, 1)


def test_costs_beyond_2_to_the_53(twins: ctypes.CDLL) -> None:
    offs, tiles, per_token = [2**31 - 1], 2**20, 2**10
    groups = schedule.packed_tiles(
        offs, offs[0], tiles_per_group=tiles, fixed=1, per_token=per_token
    )
    for worker in (0, 1, 1000, 2047):
        got = find_run(twins, offs, offs[0], tiles, 1, per_token, worker, 2048)
        assert got == schedule.find_run(groups, worker, 2048)
