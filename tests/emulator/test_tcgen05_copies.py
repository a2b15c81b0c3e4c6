"""tcgen05.cp and shift: where every byte goes, what may be in flight beside them."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    IllegalOperation,
    OutOfBounds,
    UninitialisedRead,
    UnsupportedInstruction,
)
from tests.emulator.conftest import every_order
from tests.emulator.tensor_kernels import (
    commit,
    fill_cells,
    load_cells,
    run,
    store_registers,
    tensor_kernel,
    wait,
)

SHAPES = {
    "128x256b": (128, 32),
    "128x128b": (128, 16),
    "64x128b.warpx2::02_13": (64, 16),
    "64x128b.warpx2::01_23": (64, 16),
    "32x128b.warpx4": (32, 16),
}
WARPS_OF_HALF = {
    "64x128b.warpx2::02_13": ((0, 2), (1, 3)),
    "64x128b.warpx2::01_23": ((0, 1), (2, 3)),
}
MODES = {0: 0, 128: 2, 64: 4, 32: 6}
BOX = 32768


def describe(lbo: int, sbo: int, span: int = 0, to: str = "%rd10", start: int = 0) -> str:
    """The descriptor of ``box + start``."""
    fixed = lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | MODES[span] << 61
    return f"""
    mov.u32 %r20, box;
    add.u32 %r20, %r20, {start};
    shr.u32 %r20, %r20, 4;
    cvt.u64.u32 {to}, %r20;
    or.b64 {to}, {to}, {fixed};"""


def image_of(matrix: np.ndarray, span: int) -> tuple[np.ndarray, int, int]:
    """(bytes in shared memory, LBO, SBO) of uint8 [rows, row bytes], K-major."""
    rows, row_bytes = matrix.shape
    sbo = 8 * span if span else 128
    lbo = 16 if span else 128 * rows // 8
    image = np.zeros(BOX, np.uint8)
    for row, byte in np.ndindex(rows, row_bytes):
        if span:
            at = row * span + byte
            at ^= (at // 128 % (span // 16)) * 16
        else:
            at = byte // 16 * lbo + row * 16 + byte % 16
        image[at] = matrix[row, byte]
    return image, lbo, sbo


def placed(matrix: np.ndarray, shape: str) -> np.ndarray:
    """What the 128 lanes hold, uint8 [128, row bytes], by the words of the PTX ISA."""
    if shape == "32x128b.warpx4":
        return np.concatenate([matrix] * 4)
    if shape in WARPS_OF_HALF:
        found = np.zeros((128, matrix.shape[1]), np.uint8)
        for half, warps in enumerate(WARPS_OF_HALF[shape]):
            for warp in warps:
                found[32 * warp : 32 * warp + 32] = matrix[32 * half : 32 * half + 32]
        return found
    return matrix


def copy_and_read(shape: str, row_bytes: int, descriptor: str, fmt: str = "") -> str:
    columns = row_bytes // 4
    return tensor_kernel(
        f"""
{descriptor}
    add.u32 %at, %base, 8;
    @%one tcgen05.cp.cta_group::1.{shape}{fmt} [%at], %rd10;
{commit()}
{wait()}
    add.u32 %at, %here, 8;
{load_cells(columns, at="%at")}
{store_registers(columns)}""",
        columns=32,
        box=BOX,
    )


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_goes_where_the_shape_says(shape: str, span: int) -> None:
    rows, row_bytes = SHAPES[shape]
    matrix = np.random.default_rng(rows).integers(0, 256, (rows, row_bytes), np.uint8)
    image, lbo, sbo = image_of(matrix, span)
    text = copy_and_read(shape, row_bytes, describe(lbo, sbo, span))
    found = run(text, image, out=(128, row_bytes // 4)).view(np.uint8)
    np.testing.assert_array_equal(found, placed(matrix, shape))


@every_order
@pytest.mark.parametrize("rules", ["ptx", "hardware"])
def test_a_copy_that_is_waited_for_is_right_under_every_order(order: str, rules: str) -> None:
    matrix = np.random.default_rng(1).integers(0, 256, (32, 16), np.uint8)
    image, lbo, sbo = image_of(matrix, 0)
    text = copy_and_read("32x128b.warpx4", 16, describe(lbo, sbo))
    for seed in range(3):
        found = run(text, image, out=(128, 4), order=order, seed=seed, rules=rules)
        np.testing.assert_array_equal(found.view(np.uint8), np.concatenate([matrix] * 4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("fmt", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_compressed_codes_land_in_the_middle_of_their_bytes(
    shape: str, fmt: str, bits: int
) -> None:
    rows, row_bytes = SHAPES[shape]
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (rows, row_bytes), np.uint8)
    matrix = np.zeros((rows, row_bytes), np.uint8)
    for row, group in np.ndindex(rows, row_bytes // 16):
        number = sum(int(c) << bits * i for i, c in enumerate(codes[row, 16 * group :][:16]))
        data = number.to_bytes(2 * bits, "little")
        matrix[row, 16 * group : 16 * group + 2 * bits] = np.frombuffer(data, np.uint8)
    image, lbo, sbo = image_of(matrix, 0)
    text = copy_and_read(shape, row_bytes, describe(lbo, sbo), f".b8x16.{fmt}")
    found = run(text, image, out=(128, row_bytes // 4)).view(np.uint8)
    np.testing.assert_array_equal(found, placed(codes << (8 - bits) // 2, shape))


def test_4x256b_fills_one_lane_of_each_quarter() -> None:
    matrix = np.random.default_rng(4).integers(0, 256, (4, 32), np.uint8)
    image = np.zeros(BOX, np.uint8)
    image[:64] = matrix[:, :16].ravel()
    image[256:320] = matrix[:, 16:].ravel()
    text = tensor_kernel(
        f"""
{fill_cells(8)}
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
{describe(256, 128)}
    add.u32 %at, %base, {5 << 16};
    @%one tcgen05.cp.cta_group::1.4x256b [%at], %rd10;
{commit()}
{wait()}
{load_cells(8)}
{store_registers(8)}""",
        box=BOX,
    )
    expected = 512 * np.arange(128, dtype=np.uint32)[:, None] + np.arange(8, dtype=np.uint32)
    expected[5::32] = matrix.view(np.uint32)
    np.testing.assert_array_equal(run(text, image, out=(128, 8)), expected)


def filled(columns: int) -> str:
    """Cells that hold 512 lane + column, ordered before what any thread issues next."""
    return f"""
{fill_cells(columns)}
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;"""


@every_order
def test_shift_moves_all_rows_of_a_quarter_but_the_last_one_down(order: str) -> None:
    text = tensor_kernel(f"""
{filled(16)}
    add.u32 %at, %base, {(64 << 16) + 1};
    @%one tcgen05.shift.cta_group::1.down [%at];
{commit()}
{wait()}
{load_cells(16)}
{store_registers(16)}""")
    expected = 512 * np.arange(128)[:, None] + np.arange(16)
    expected[65:96, 1:9] -= 512
    np.testing.assert_array_equal(run(text, out=(128, 16), order=order), expected)


SCALES = describe(16, 128)


def copying(body: str, *, box: int = 1024, before: str = SCALES) -> str:
    return tensor_kernel(before + body, columns=32, box=box)


def copy(at: str = "%base", shape: str = "32x128b.warpx4", source: str = "%rd10") -> str:
    return f"    @%one tcgen05.cp.cta_group::1.{shape} [{at}], {source};\n"


@every_order
def test_two_copies_to_the_same_cells_are_in_order_on_devices_only(order: str) -> None:
    second = describe(16, 128, to="%rd11", start=512)
    text = copying(
        second
        + copy()
        + copy(source="%rd11")
        + commit()
        + wait()
        + load_cells(4)
        + store_registers(4)
    )
    with pytest.raises(DataRace, match=r"cp -> cp is no pipelined pair.*Pipelined tcgen05"):
        run(text, out=(128, 4), order=order)
    image = np.arange(1024, dtype=np.uint8)
    found = run(text, image, out=(128, 4), order=order, rules="hardware").view(np.uint8)
    np.testing.assert_array_equal(found, np.tile(image[512:].reshape(32, 16), (4, 1)))


def test_copies_to_other_cells_need_no_order() -> None:
    text = copying(
        describe(16, 128, to="%rd11", start=512)
        + "    add.u32 %at, %base, 4;\n"
        + copy()
        + copy("%at", source="%rd11")
        + commit()
        + wait()
        + load_cells(8)
        + store_registers(8)
    )
    image = np.random.default_rng(0).integers(0, 256, 1024, np.uint8)
    expected = np.concatenate([image[:512].reshape(32, 16), image[512:].reshape(32, 16)], axis=1)
    for seed in range(8):
        found = run(text, image, out=(128, 8), order="random", seed=seed).view(np.uint8)
        np.testing.assert_array_equal(found, np.tile(expected, (4, 1)))


def test_all_128_lanes_begin_at_lane_0() -> None:
    with pytest.raises(IllegalOperation, match="want lane 0"):
        run(copying("    add.u32 %at, %base, 0x200000;\n" + copy("%at")))
    with pytest.raises(IllegalOperation, match="want one below 32"):
        run(
            copying(
                "    add.u32 %at, %base, 0x200000;\n" + copy("%at", "4x256b"),
                before=describe(256, 128),
            )
        )


def test_columns_that_are_not_allocated_are_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds, match=r"columns \d+ to \d+ of .*allocated: columns"):
        run(copying("    add.u32 %at, %base, 29;\n" + copy("%at")))


def test_a_source_outside_shared_memory_is_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds, match=r"tcgen05\.cp\.32x128b\.warpx4 reaches bytes"):
        run(copying(copy(), before=describe(16, 0x3FFF0)))


def test_the_source_is_read_through_the_async_proxy() -> None:
    dirty = "    mov.u32 %r30, box;\n    @%one st.shared.u32 [%r30], %tid;\n    bar.sync 0;\n"
    with pytest.raises(DataRace, match=r"fence\.proxy\.async"):
        run(copying(dirty + copy()))


def test_a_source_that_nothing_has_written_is_reported() -> None:
    with pytest.raises(UninitialisedRead, match="never written"):
        run(copying(copy(), before=describe(16, 128, start=-512)))


def test_rows_that_overlap_contradict_the_layout_by_the_text() -> None:
    overlapping = describe(16, 64)
    with pytest.raises(IllegalOperation, match="overlap"):
        run(copying(copy(), before=overlapping))
    text = copying(copy() + commit() + wait(), before=overlapping)
    run(text, rules="hardware")


def test_a_row_may_not_cross_the_span_of_its_swizzle() -> None:
    with pytest.raises(IllegalOperation, match="cross the swizzle's span"):
        run(copying(copy(shape="128x256b"), box=BOX, before=describe(16, 512, 64, start=48)))


def test_the_formats_of_source_and_destination_go_together() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"needs \.b8x16"):
        run(copying(copy(shape="32x128b.warpx4.b8x16")))


def test_shift_begins_at_a_quarter() -> None:
    with pytest.raises(IllegalOperation, match="want a multiple of 32"):
        run(
            tensor_kernel(
                "    add.u32 %at, %base, 0x100000;\n"
                "    @%one tcgen05.shift.cta_group::1.down [%at];"
            )
        )


def test_shift_reads_cells_that_must_hold_something() -> None:
    with pytest.raises(UninitialisedRead, match=r"tcgen05\.shift reads lane 0"):
        run(tensor_kernel("    @%one tcgen05.shift.cta_group::1.down [%base];"))


@every_order
def test_shift_then_4x256b_are_a_pipelined_pair(order: str) -> None:
    """The refresh of the rows that a shift leaves behind: cp -> shift is none."""
    shift = "    @%one tcgen05.shift.cta_group::1.down [%base];\n"
    refresh = copy(shape="4x256b")
    image = np.arange(1024, dtype=np.uint8)
    end = commit() + wait() + load_cells(8) + store_registers(8)
    begin = filled(8) + describe(512, 128)
    text = tensor_kernel(begin + shift + refresh + end)
    found = run(text, image, out=(128, 8), order=order)
    expected = 512 * np.arange(128)[:, None] + np.arange(8)
    expected[1:32] -= 512
    rows = np.concatenate([image[:64].reshape(4, 16), image[512:576].reshape(4, 16)], axis=1)
    expected[::32] = np.ascontiguousarray(rows).view(np.uint32)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(DataRace, match="no pipelined pair"):
        run(tensor_kernel(begin + refresh + shift + end), image, out=(128, 8), order=order)


@every_order
def test_a_copy_of_a_pair_serves_both_ctas_from_their_own_shared_memory(order: str) -> None:
    text = tensor_kernel(
        SCALES
        + "    and.pred %p0, %one, %even;\n"
        + "    @%p0 tcgen05.cp.cta_group::2.32x128b.warpx4 [%base], %rd10;\n"
        + "    mov.b16 %h0, 3;\n"
        + "    @%p0 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
        + ".multicast::cluster.b64 [bar], %h0;\n"
        + wait()
        + load_cells(4)
        + store_registers(4),
        columns=32,
        group=2,
        cluster_end=True,
    )
    image = np.random.default_rng(0).integers(0, 256, (2, 1024), np.uint8)
    found = run(text, image, out=(256, 4), cluster=2, order=order).view(np.uint8)
    for rank in range(2):
        expected = np.tile(image[rank, :512].reshape(32, 16), (4, 1))
        np.testing.assert_array_equal(found[128 * rank : 128 * rank + 128], expected)
