"""Which register of which lane is which cell of tensor memory, for every shape of ld and st.

The layouts are those that CUTLASS states as CuTe layouts (cute/atom/copy_traits_sm100.hpp), written
down again here: a map from (thread, bit of its registers) to a bit of the data, whose rows are as
many bits long as the instruction moves of each lane.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nibblas.emulator import IllegalOperation, OutOfBounds, UnsupportedInstruction
from tests.emulator.conftest import every_order
from tests.emulator.tensor_kernels import (
    fill_cells,
    load_cells,
    run,
    store_registers,
    tensor_kernel,
    vector,
)

NUMS = (1, 2, 4, 8, 16, 32, 64, 128)
PER_REPETITION = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
CASES = [
    (shape, num, packed)
    for shape, registers in PER_REPETITION.items()
    for num in NUMS
    for packed in (False, True)
    if registers * num <= 128
]
every_case = pytest.mark.parametrize(("shape", "num", "packed"), CASES)


def cute(index: int, shape: Sequence[int], stride: Sequence[int]) -> int:
    """What a flat CuTe layout gives for an index: the first mode runs fastest."""
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        total += index % extent * step
        index //= extent
    return total


def layout(shape: str, n: int) -> tuple[int, tuple[list[int], list[int]], tuple[list, list]]:
    """(bits of a row, layout of the thread, layout of the thread's bit)."""
    if shape == "32x32b":
        return 32 * n, ([32], [32 * n]), ([32 * n], [1])
    if shape == "16x64b":
        return 64 * n, ([2, 2, 8], [8 * 64 * n, 32, 64 * n]), ([32, n], [1, 64])
    if shape == "16x128b":
        return 128 * n, ([4, 8], [32, 128 * n]), ([32, 2, n], [1, 8 * 128 * n, 128])
    if shape == "16x256b":
        return 256 * n, ([4, 8], [64, 256 * n]), ([64, 2, n], [1, 8 * 256 * n, 256])
    return 64 * n, ([16, 2], [64 * n, 32 * n]), ([32 * n], [1])


def cells_of(shape: str, n: int, packed: bool) -> np.ndarray:
    """(row, column) of the cell or the two cells of each register. [32, registers, 1 or 2, 2]"""
    row_bits, thread_layout, bit_layout = layout(shape, n)
    piece = 16 if packed else 32
    registers = PER_REPETITION[shape] * n
    found = np.zeros((32, registers, 32 // piece, 2), int)
    for thread in range(32):
        start = cute(thread, *thread_layout)
        for register, part in np.ndindex(registers, 32 // piece):
            bit = start + cute(32 * register + piece * part, *bit_layout)
            found[thread, register, part] = bit // row_bits, bit % row_bits // piece
    return found


def suffix(shape: str, num: int, packed: bool) -> str:
    """Of the split offset, so that both halves lie side by side."""
    return f", {2 * num if packed else num}" if shape == "16x32bx2" else ""


@every_case
def test_ld_brings_the_cells_that_cute_names(shape: str, num: int, packed: bool) -> None:
    registers = PER_REPETITION[shape] * num
    first_lane = 16 if shape.startswith("16") else 0
    cells = cells_of(shape, num, packed)
    text = tensor_kernel(f"""
{fill_cells(int(cells[..., 1].max()) + 1)}
    add.u32 %at, %here, {first_lane << 16};
    tcgen05.ld.sync.aligned.{shape}.x{num}{".pack::16b" if packed else ""}.b32
        {vector(0, registers)}, [%at]{suffix(shape, num, packed)};
    tcgen05.wait::ld.sync.aligned;
{store_registers(registers)}""")
    warp = np.arange(4)[:, None, None, None]
    values = 512 * (32 * warp + first_lane + cells[..., 0]) + cells[..., 1]
    if packed:
        low = values & 0xFFFF
        expected = low[..., 0] | low[..., 1] << 16
    else:
        expected = values[..., 0]
    found = run(text, out=(128, registers))
    np.testing.assert_array_equal(found, expected.reshape(128, registers))


@every_case
def test_st_leaves_the_registers_where_ld_finds_them(shape: str, num: int, packed: bool) -> None:
    registers = PER_REPETITION[shape] * num
    cells = cells_of(shape, num, packed)
    columns = int(cells[..., 1].max()) + 1
    code = [f"    mov.b32 %v{i}, {i * 0x10001};" for i in range(128)]
    rows = 32 if shape == "32x32b" else 16
    text = tensor_kernel(f"""
{fill_cells(columns)}
    shl.b32 %r10, %tid, 8;
    mad.lo.u32 %r10, %r10, 65537, 0;
{chr(10).join(code)}
{chr(10).join(f"    add.u32 %v{i}, %v{i}, %r10;" for i in range(registers))}
    tcgen05.st.sync.aligned.{shape}.x{num}{".unpack::16b" if packed else ""}.b32
        [%here]{suffix(shape, num, packed)}, {vector(0, registers)};
    tcgen05.wait::st.sync.aligned;
    add.u32 %at, %here, {max(0, columns - 128)};
{load_cells(min(128, columns), at="%at")}
{store_registers(min(128, columns))}""")
    found = run(text, out=(128, min(128, columns))).reshape(4, 32, -1)
    window = max(0, columns - 128)
    expected = 512 * np.arange(128)[:, None] + np.arange(window, columns)
    expected = expected.reshape(4, 32, -1)
    for warp, thread, register, part in np.ndindex(4, *cells.shape[:3]):
        row, column = cells[thread, register, part]
        value = ((32 * warp + thread) * 256 + register) * 0x10001
        if packed:
            value &= 0xFFFF
        if column >= window:
            expected[warp, row, column - window] = value & 0xFFFF_FFFF
    assert len(np.unique(cells.reshape(-1, 2), axis=0)) == rows * columns
    np.testing.assert_array_equal(found, expected)


@every_order
@pytest.mark.parametrize("split", [1, 7, 200])
def test_the_halves_of_16x32bx2_lie_where_the_offset_says(split: int, order: str) -> None:
    text = tensor_kernel(f"""
{fill_cells(256)}
    tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {{%v0}}, [%here], {split};
    tcgen05.wait::ld.sync.aligned;
{store_registers(1)}""")
    lane = np.arange(128)
    row = lane // 32 * 32 + lane % 16
    expected = 512 * row + np.where(lane % 32 < 16, 0, split)
    np.testing.assert_array_equal(run(text, order=order)[:, 0], expected)


def load(operands: str, shape: str = "32x32b.x2") -> str:
    return tensor_kernel(f"""
{fill_cells(2)}
    {operands}
    tcgen05.ld.sync.aligned.{shape}.b32 {{%v0, %v1}}, [%at];
    tcgen05.wait::ld.sync.aligned;
{store_registers(2)}""")


def test_a_warp_reaches_its_own_lanes_only_by_the_text() -> None:
    with pytest.raises(IllegalOperation, match=r"reaches lanes .* only.*Access restrictions"):
        run(load("mov.b32 %at, %base;"))


@pytest.mark.parametrize("offset", [0, 128, 192])
def test_devices_take_the_quarter_from_the_warp(offset: int) -> None:
    text = load(f"add.u32 %at, %here, {offset << 16};")
    for at in (text, load("mov.b32 %at, %base;")):
        found = run(at, out=(128, 2), rules="hardware")
        np.testing.assert_array_equal(found, 512 * np.arange(128)[:, None] + [0, 1])


@pytest.mark.parametrize(("shape", "lane"), [("32x32b.x2", 16), ("16x128b.x1", 8)])
@pytest.mark.parametrize("rules", ["ptx", "hardware"])
def test_the_first_lane_is_a_multiple_of_the_lanes(shape: str, lane: int, rules: str) -> None:
    with pytest.raises(IllegalOperation, match="want a multiple of"):
        run(load(f"add.u32 %at, %here, {lane << 16};", shape), out=(128, 2), rules=rules)


def test_columns_past_the_last_are_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds, match=r"columns 511 to 512 .* 512 columns"):
        run(load("add.u32 %at, %here, 511;"), out=(128, 2))


def test_addresses_that_differ_between_lanes_are_refused() -> None:
    with pytest.raises(IllegalOperation, match="differs between the lanes"):
        run(load("add.u32 %at, %here, %tid;"), out=(128, 2))


def test_the_number_of_registers_must_fit() -> None:
    with pytest.raises(UnsupportedInstruction, match="got 2 registers; want 4"):
        run(load("mov.b32 %at, %here;", "32x32b.x4"))
    with pytest.raises(UnsupportedInstruction, match=r"\.16x256b has no \.x64"):
        run(load("mov.b32 %at, %here;", "16x256b.x64"))


def test_the_guard_is_the_same_for_the_whole_warp() -> None:
    text = tensor_kernel(f"""
{fill_cells(1)}
    @%one tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%here];
{store_registers(1)}""")
    with pytest.raises(IllegalOperation, match="guard"):
        run(text)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_other_devices_have_no_tensor_memory(arch: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=f"{arch} has no tcgen05"):
        run(load("mov.b32 %at, %here;"), arch=arch)
