"""Tensor copies: boxes of 1 to 5 dimensions, swizzles, tails, fills, stores, maps that change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UnfinishedWork,
    UnsupportedInstruction,
)
from nibblas.emulator.driver import EmulatedDriver
from nibblas.emulator.machine.tensor_map import decode, encode
from nibblas.runtime.driver import DriverError
from nibblas.runtime.tensormap import TensorMapSpec
from tests.emulator.conftest import entry, every_order

#: Loads one box at coordinates from the constants c0..c4 and writes the shared image to out.
BEGIN = """
    .shared .align 1024 .b8 box[16384];
    .shared .align 8 .b64 full;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [out];
    mov.u32 %r10, box;
    add.u32 %r10, %r10, {base};
    mov.u32 %r11, full;
    mov.b64 %rd5, map;
    cvta.param.u64 %rd5, %rd5;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r11], 1;
    fence.proxy.async;
    bar.sync 0;
"""
LOAD = """
    @%p0 prefetch.tensormap [%rd5];
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {bytes};
    @%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r10], [%rd5, {{{coordinates}}}], [%r11];
"""
WAIT = """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], 0;
    @!%p1 bra wait;
"""
COPY_OUT = """
    mov.u32 %r1, 0;
copy:
    mad.lo.u32 %r2, %r0, 4, %r1;
    setp.ge.u32 %p2, %r2, {bytes};
    @%p2 bra done;
    add.u32 %r3, %r10, %r2;
    ld.shared.u32 %r4, [%r3];
    cvt.u64.u32 %rd2, %r2;
    add.s64 %rd1, %rd0, %rd2;
    st.global.u32 [%rd1], %r4;
    add.u32 %r1, %r1, 256;
    bra copy;
done:
"""
PARAMS = ".param .u64 out, .param .align 64 .b8 map[128]"


def load_box(
    data: np.ndarray,
    at: list[int],
    *,
    base: int = 0,
    order: str = "round_robin",
    arch: str = "sm_90",
    **spec,
):
    """The shared image of one box, uint8, its map, and the device."""
    dev = Device(arch, order=order)
    tensor = dev.from_numpy(data, name="tensor")
    found = dev.tensor_map(tensor, **spec)
    size = _box_bytes(found.spec)
    out = dev.empty(size, np.uint8, name="out")
    body = (BEGIN + LOAD + WAIT + COPY_OUT).format(
        base=base, bytes=size, rank=len(at), coordinates=", ".join(map(str, at))
    )
    dev.load_ptx(entry(body, params=PARAMS)).kernel("k").launch(1, 64, [out, found])
    return out.to_numpy()


def _box_bytes(spec: TensorMapSpec) -> int:
    counts = [-(-b // s) for b, s in zip(spec.box, (1, *spec.steps[1:]), strict=True)]
    bits = 4 if spec.data_type == "16u4_align8b" else 8 * np.dtype(_numpy(spec.data_type)).itemsize
    return int(np.prod(counts)) * bits // 8


def _numpy(kind: str) -> str:
    return {"bfloat16": "uint16", "16u4_align8b": "uint8"}.get(kind, kind)


def box_of(data: np.ndarray, at: list[int], box: list[int], fill=0) -> np.ndarray:
    """What the box holds, outermost dimension first: an independent loop over elements."""
    found = np.full(box[::-1], fill, data.dtype)
    for index in np.ndindex(*box[::-1]):
        place = tuple(i + c for i, c in zip(index, at[::-1], strict=True))
        if all(0 <= p < n for p, n in zip(place, data.shape, strict=True)):
            found[index] = data[place]
    return found


def numbers(*shape: int, dtype=np.uint16) -> np.ndarray:
    return (np.arange(np.prod(shape)) * 37 % 60013 + 1).astype(dtype).reshape(shape)


@every_order
def test_box_of_two_dimensions(order: str) -> None:
    data = numbers(40, 64)
    found = load_box(data, [8, 16], box=[32, 16], order=order)
    assert (found.view(np.uint16) == box_of(data, [8, 16], [32, 16]).reshape(-1)).all()


@pytest.mark.parametrize(
    ("shape", "at", "box"),
    [
        ([256], [32], [64]),
        ([256], [-16], [64]),
        ([256], [224], [64]),
        ([12, 64], [-8, -3], [32, 8]),
        ([12, 64], [48, 9], [32, 8]),
        ([12, 64], [-104, 100], [32, 8]),
        ([5, 6, 32], [16, 2, -1], [16, 5, 3]),
        ([3, 4, 5, 16], [0, 2, 1, 1], [16, 4, 2, 3]),
        ([2, 3, 4, 5, 16], [8, -1, 2, 1, 1], [8, 3, 3, 3, 2]),
    ],
)
def test_what_lies_outside_reads_as_zero(shape: list[int], at: list[int], box: list[int]) -> None:
    data = numbers(*shape)
    found = load_box(data, at, box=box)
    assert (found.view(np.uint16) == box_of(data, at, box).reshape(-1)).all()


@pytest.mark.parametrize(
    ("kind", "dtype", "nan"), [("float16", np.uint16, 0x7FF7), ("float32", np.uint32, 0x7FF77FF7)]
)
def test_nan_fill(kind: str, dtype: type, nan: int) -> None:
    data = numbers(8, 32, dtype=dtype)
    found = load_box(data, [16, 4], box=[32, 8], dtype=kind, oob_fill="nan_request_zero_fma")
    assert (found.view(dtype) == box_of(data, [16, 4], [32, 8], nan).reshape(-1)).all()


@every_order
@pytest.mark.parametrize("span", [32, 64, 128])
def test_swizzles_permute_16_byte_pieces_by_address(span: int, order: str) -> None:
    data = numbers(32, 256, dtype=np.uint8)
    found = load_box(data, [64, 4], box=[span, 16], swizzle=f"{span}b", order=order)
    plain = box_of(data, [64, 4], [span, 16])
    for row in range(16):
        for piece in range(span // 16):
            address = row * span + piece * 16
            moved = address ^ (address // 128 % (span // 16)) * 16
            assert (found[moved : moved + 16] == plain[row, piece * 16 : piece * 16 + 16]).all()


def test_swizzle_counts_from_the_address_not_from_the_box() -> None:
    data = numbers(32, 128, dtype=np.uint8)
    found = load_box(data, [0, 0], base=384, box=[128, 4], swizzle="128b")
    for row in range(4):
        for piece in range(8):
            want = data[row, 16 * piece : 16 * piece + 16]
            at = 128 * row + 16 * (piece ^ row + 3)
            assert (found[at : at + 16] == want).all()


def test_element_strides_skip_rows() -> None:
    data = numbers(40, 32)
    found = load_box(data, [0, 3], box=[32, 15], element_strides=[1, 2])
    assert (found.view(np.uint16).reshape(8, 32) == data[3:19:2]).all()


def test_pitch_larger_than_a_row_and_a_tensor_within_the_buffer() -> None:
    data = numbers(20, 64)
    found = load_box(
        data, [8, 6], box=[16, 8], dims=[24, 10], strides=[128], dtype="bfloat16", offset=128 * 3
    )
    assert (found.view(np.uint16) == box_of(data[3:13, :24], [8, 6], [16, 8]).reshape(-1)).all()


def test_four_bit_elements_are_of_blackwell() -> None:
    spec: dict[str, Any] = {
        "dtype": "16u4_align8b",
        "dims": [128, 16],
        "strides": [64],
        "box": [64, 16],
    }
    data = numbers(16, 64, dtype=np.uint8)
    found = load_box(data, [32, 4], arch="sm_100", **spec)
    assert (found == box_of(data, [16, 4], [32, 16]).reshape(-1)).all()
    with pytest.raises(ValueError, match="data_type: .* wider on sm_90"):
        load_box(data, [32, 4], **spec)
    driver, encodes = EmulatedDriver(), TensorMapSpec("16u4_align8b", (64,), (), (32,))
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        driver.encode_tensor_map(encodes, 1 << 20)


def run(body: str, data: np.ndarray, *, order: str = "round_robin", out: int = 1024, **spec):
    """Launches ``body`` after BEGIN with a map over ``data``; returns the tensor afterwards."""
    dev = Device("sm_90", order=order)
    tensor = dev.from_numpy(data, name="tensor")
    found = dev.tensor_map(tensor, **spec)
    text = entry(BEGIN.format(base=0) + body, params=PARAMS)
    dev.load_ptx(text).kernel("k").launch(1, 64, [dev.empty(out, name="out"), found])
    return tensor.to_numpy()


def test_load_counts_the_bytes_of_the_whole_box() -> None:
    """A box that is mostly outside: expecting only what lies inside never completes."""
    body = LOAD.format(bytes=64, rank=2, coordinates="0, 7") + WAIT
    with pytest.raises(Deadlock, match="an expect_tx for 448 bytes that have come"):
        run(body, numbers(8, 32), box=[32, 8])


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("[%r10], [", "[%r10+64], [", Misaligned, "multiple of 128"),
        ("[%r10], [", "[%r10+16384], [", OutOfBounds, "outside shared memory"),
        ("[%rd5, {0, 0}]", "[%rd5+8, {0, 0}]", Misaligned, "multiple of 64"),
        ("[%rd5, {0, 0}]", "[%rd0, {0, 0}]", Exception, "never written"),
        ("[%rd5, {0, 0}]", "[%rd5, {0, 0, 0}]", UnsupportedInstruction, "3 coordinates"),
        ("tensor.2d", "tensor.1d", UnsupportedInstruction, "2 coordinates"),
        (".tile.", ".im2col.", UnsupportedInstruction, "not modelled"),
        (
            "complete_tx::bytes\n",
            "complete_tx::bytes.cta_group::2\n",
            UnsupportedInstruction,
            "needs sm_100 or sm_103",
        ),
    ],
)
def test_misused_load(old: str, new: str, error: type[Exception], text: str) -> None:
    body = LOAD.format(bytes=512, rank=2, coordinates="0, 0")
    assert body.count(old) == 1
    with pytest.raises(error, match=text):
        run(body.replace(old, new) + WAIT, numbers(8, 32), box=[32, 8])


def test_map_of_another_rank_is_reported() -> None:
    body = LOAD.format(bytes=512, rank=1, coordinates="0") + WAIT
    with pytest.raises(IllegalOperation, match="rank 2 for a .1d copy"):
        run(body, numbers(8, 32), box=[32, 8])


def test_map_larger_than_its_tensor_is_reported_where_it_matters() -> None:
    body = LOAD.format(bytes=512, rank=2, coordinates="0, 6") + WAIT
    with pytest.raises(OutOfBounds, match="larger than the allocation"):
        run(body, numbers(8, 32), box=[32, 8], dims=[32, 9])


@pytest.mark.parametrize(
    "spec",
    [
        {"box": [32, 257]},
        {"box": [4, 8]},
        {"box": [32, 8], "strides": [72]},
        {"box": [32, 8], "offset": 8},
        {"box": [32, 8], "swizzle": "32b"},
        {"box": [32], "dims": [32, 8]},
    ],
)
def test_maps_that_the_driver_refuses(spec: dict) -> None:
    dev = Device()
    with pytest.raises(ValueError, match="got"):
        dev.tensor_map(dev.from_numpy(numbers(8, 32)), **spec)


def test_first_bytes_of_a_map_are_the_address() -> None:
    dev = Device()
    tensor = dev.from_numpy(numbers(8, 32))
    data = dev.tensor_map(tensor, box=[32, 8]).tobytes()
    assert len(data) == 128
    assert int.from_bytes(data[:8], "little") == tensor.address


FILL = """
    mov.u32 %r1, 0;
fill:
    mad.lo.u32 %r2, %r0, 4, %r1;
    add.u32 %r3, %r10, %r2;
    add.u32 %r4, %r2, {plus};
    st.shared.u32 [%r3], %r4;
    add.u32 %r1, %r1, 256;
    setp.lt.u32 %p2, %r1, 1024;
    @%p2 bra fill;
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
STORE = """
    @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group
        [%rd5, {{{coordinates}}}], [%r10];
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group.read 0;
"""


REDUCE = STORE.replace("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor").replace(
    "shared::cta.tile", "shared::cta.add.tile"
)


MULTICAST = """
    mov.u16 %h0, 1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {bytes};
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.COUNTED.multicast::cluster
        [%r10], [%rd5, {{{coordinates}}}], [%r11], %h0;
""".replace("COUNTED", "mbarrier::complete_tx::bytes")
PREFETCH = """
    @%p0 cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd5, {{{coordinates}}}];
"""


@pytest.mark.parametrize("column", [-70, -1, 1, 2, 30, 1001])
@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(LOAD + WAIT, id="load"),
        pytest.param(MULTICAST + WAIT, id="multicast"),
        pytest.param(FILL.format(plus=0) + STORE, id="store"),
        pytest.param(FILL.format(plus=0) + REDUCE, id="reduction"),
        pytest.param(PREFETCH, id="prefetch"),
    ],
)
def test_boxes_begin_at_multiples_of_16_bytes(copy: str, column: int) -> None:
    """Inside of the tensor and outside, before a byte is copied."""
    data = numbers(8, 32, dtype=np.uint32)
    run(copy.format(bytes=1024, rank=2, coordinates="4, 0"), data, box=[32, 8])
    want = rf"coordinate {column} of a map of uint32 is {4 * column} bytes .*multiple of 16 bytes"
    with pytest.raises(IllegalOperation, match=want):
        run(copy.format(bytes=1024, rank=2, coordinates=f"{column}, 0"), data, box=[32, 8])


def test_load_into_a_box_still_read_by_a_store_is_a_race() -> None:
    body = FILL.format(plus=1) + STORE.format(coordinates="0, 0").replace(
        "@%p0 cp.async.bulk.wait_group.read 0;", ""
    )
    body += LOAD.format(bytes=1024, rank=2, coordinates="0, 8")
    with pytest.raises(DataRace, match="nothing has waited for it"):
        run(body, numbers(16, 32, dtype=np.uint32), box=[32, 8])


def test_load_never_waited_for_is_unfinished() -> None:
    with pytest.raises(UnfinishedWork, match=r"cp\.async\.bulk\.tensor"):
        run(LOAD.format(bytes=512, rank=2, coordinates="0, 0"), numbers(8, 32), box=[32, 8])


#: Builds a map over ``out`` in shared memory from zeros, and publishes it in global memory.
MAKE_MAP = """
    .shared .align 128 .b8 draft[128];
    mov.u32 %r12, draft;
    mad.lo.u32 %r13, %r0, 4, %r12;
    mov.u32 %r14, 0;
    setp.lt.u32 %p3, %r0, 32;
    @%p3 st.shared.u32 [%r13], %r14;
    bar.sync 0;
    mov.u64 %rd8, 128;
    @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r12], %rd6;
    @%p0 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r12], 1;
    @%p0 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r12], 2;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r12], 0, 32;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r12], 1, 8;
    @%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r12], 0, %rd8;
    @%p0 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r12], 0, 32;
    @%p0 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r12], 1, 8;
    @%p0 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r12], 0, 1;
    @%p0 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r12], 1, 1;
    @%p0 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r12], 0;
    bar.sync 0;
    @%p3 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%rd0], [%r12], 128;
    bar.sync 0;
    mov.u64 %rd5, %rd0;
"""
ACQUIRE = "    @%p0 fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;\n"


@pytest.mark.parametrize("fenced", [True, False])
def test_map_made_by_the_kernel(fenced: bool) -> None:
    """%rd6, the tensor's address, is read from the map in the parameters."""
    body = "    ld.global.u64 %rd6, [%rd5];\n" + MAKE_MAP + ACQUIRE * fenced
    body += (
        LOAD.format(bytes=1024, rank=2, coordinates="0, 0").replace("@%p0 prefetch", "// ") + WAIT
    )
    data = numbers(8, 32, dtype=np.uint32)
    if fenced:
        assert (run(body, data, box=[32, 8]) == data).all()
    else:
        with pytest.raises(DataRace, match=r"fence\.proxy\.tensormap::generic\.acquire"):
            run(body, data, box=[32, 8])


def test_emulated_driver_encodes_and_refuses_as_the_real_one() -> None:
    driver = EmulatedDriver("sm_90")
    spec = TensorMapSpec("bfloat16", (64, 8), (128,), (64, 8), swizzle="128b")
    encoded = driver.encode_tensor_map(spec, 0x1_0000)
    assert len(encoded) == 128
    assert decode(encoded).spec.box == (64, 8)
    assert driver.encode_tensor_map(spec, 0x2_0000)[8:] == encoded[8:]
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        driver.encode_tensor_map(spec, 0x1_0008)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        driver.encode_tensor_map(replace(spec, box=(128, 8)), 0x1_0000)


def test_all_that_a_map_holds_is_in_its_first_half() -> None:
    """CUTLASS's grouped GEMMs copy 64 bytes of a parameter and publish what they made of them."""
    largest = TensorMapSpec(
        "float16",
        (2**32,) * 5,
        (2**40 - 16,) * 4,
        (64, 1, 4, 32, 2),
        (1, 8, 1, 8, 1),
        swizzle="128b",
        l2_promotion="l2_256b",
        oob_fill="nan_request_zero_fma",
    )
    data = encode(largest, 2**64 - 16)
    assert data[64:] == bytes(64) and data[:8] == (2**64 - 16).to_bytes(8, "little")
    found = decode(data)
    assert found.spec == largest and found.address == 2**64 - 16
