"""Tensor copies to global memory: stores and reductions, tails, narrow rows, element types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nibblas.emulator import DataRace, IllegalOperation, OutOfBounds, UninitialisedRead
from nibblas.emulator.machine.reductions import reduced
from nibblas.runtime.tensormap import ELEMENT_BYTES
from tests.emulator.conftest import every_order
from tests.emulator.test_tensors import FILL, REDUCE, STORE, load_box, numbers, run


@every_order
@pytest.mark.parametrize("at", [[0, 0], [8, 3], [28, 5], [48, 0], [0, 10]])
@pytest.mark.parametrize("swizzle", ["none", "128b"])
def test_store_writes_what_lies_inside(at: list[int], swizzle: str, order: str) -> None:
    data = numbers(10, 48, dtype=np.uint32)
    body = FILL.format(plus=7) + STORE.format(coordinates=", ".join(map(str, at)))
    found = run(body, data, box=[32, 8], swizzle=swizzle, order=order)
    as_bytes = (4 * np.arange(256, dtype=np.uint32) + 7).view(np.uint8)
    if swizzle == "128b":
        place = np.arange(1024)
        as_bytes = as_bytes[place ^ (place // 128 % 8) * 16]
    image = as_bytes.view(np.uint32).reshape(8, 32)
    want = data.copy()
    for i, j in np.ndindex(8, 32):
        if 0 <= i + at[1] < 10 and 0 <= j + at[0] < 48:
            want[i + at[1], j + at[0]] = image[i, j]
    assert (found == want).all()


@pytest.mark.parametrize("copy", ["store", "reduction"])
def test_rows_are_written_in_whole_pieces_of_16_bytes(copy: str) -> None:
    """42 elements are 168 bytes: up to byte 176 is written, and not to the next row at 192."""
    data = numbers(10, 48, dtype=np.uint32)
    body = FILL.format(plus=7) + (REDUCE if copy == "reduction" else STORE)
    shape: dict[str, Any] = {"dims": [42, 10], "strides": [192], "box": [32, 8]}
    found = run(body.format(coordinates="16, 3"), data, **shape)
    image = 4 * np.arange(256, dtype=np.uint32).reshape(8, 32)[:7, :28] + 7
    want = data.copy()
    want[3:, 16:44] = image + (want[3:, 16:44] if copy == "reduction" else 0)
    assert (found == want).all()


def test_last_piece_of_a_tensor_is_written_too() -> None:
    data = numbers(8 * 48 - 3, dtype=np.uint32)
    body = FILL.format(plus=7) + STORE.format(coordinates="16, 0")
    with pytest.raises(OutOfBounds, match="byte 1535 of tensor, .* whole pieces of 16 bytes"):
        run(body, data, dims=[45, 8], strides=[192], box=[32, 8])
    run(body.replace("16, 0", "8, 0"), data, dims=[45, 8], strides=[192], box=[32, 8])


def test_rows_narrower_than_their_swizzle_keep_its_width_in_shared_memory() -> None:
    data = numbers(10, 48, dtype=np.uint32)
    body = FILL.format(plus=7) + STORE.format(coordinates="8, 1")
    found = run(body, data, box=[16, 8], swizzle="128b")
    image = (4 * np.arange(256, dtype=np.uint32) + 7).reshape(8, 8, 4)
    place = np.arange(4) ^ np.arange(8)[:, None]
    want = data.copy()
    want[1:9, 8:24] = image[np.arange(8)[:, None], place].reshape(8, 16)
    assert (found == want).all()


def test_what_narrow_rows_leave_alone_stays_unwritten() -> None:
    with pytest.raises(UninitialisedRead, match="never written"):
        load_box(numbers(10, 48), [0, 0], box=[32, 8], swizzle="128b")


@every_order
def test_stores_without_a_proxy_fence_are_reported(order: str) -> None:
    body = FILL.format(plus=0).replace("fence.proxy.async.shared::cta;", "")
    with pytest.raises(DataRace, match=r"must execute fence\.proxy\.async"):
        run(body + STORE.format(coordinates="0, 0"), numbers(8, 32), box=[32, 8], order=order)


def test_tensor_reduction_adds() -> None:
    data = numbers(8, 32, dtype=np.uint32)
    body = FILL.format(plus=1) + REDUCE.format(coordinates="0, 0")
    found = run(body, data, box=[32, 8])
    assert (found == data + 4 * np.arange(256, dtype=np.uint32).reshape(8, 32) + 1).all()


NO_REDUCTIONS = [
    *(("float32", op) for op in ("min", "max", "and", "xor", "inc")),
    *(("float64", op) for op in ("min", "max", "and", "inc")),
    *(("float16", op) for op in ("and", "xor", "inc")),
    *(("bfloat16", op) for op in ("or", "dec")),
    *(("int64", op) for op in ("add", "and", "inc")),
    *((kind, "inc") for kind in ("int32", "uint64")),
    *(("uint16", op) for op in ("add", "min", "and")),
    *(("uint8", op) for op in ("add", "xor")),
]


@pytest.mark.parametrize(("kind", "op"), NO_REDUCTIONS)
def test_reductions_that_a_type_has_not_are_reported(kind: str, op: str) -> None:
    """Each ends as an illegal instruction on an H200."""
    data = numbers(
        8, 64 // int(ELEMENT_BYTES[kind]), dtype="uint16" if kind == "bfloat16" else kind
    )
    body = FILL.format(plus=1) + REDUCE.format(coordinates="0, 0").replace(".add.", f".{op}.")
    with pytest.raises(IllegalOperation, match=f".{op} of {kind} elements"):
        run(body, data, dtype=kind, box=[32 // int(ELEMENT_BYTES[kind]), 8])


@pytest.mark.parametrize(
    ("kind", "op", "combine"),
    [
        ("int32", "min", np.minimum),
        ("int64", "max", np.maximum),
        ("uint64", "add", np.add),
        ("uint64", "xor", np.bitwise_xor),
        ("float64", "add", np.add),
    ],
)
def test_reductions_take_signed_and_64_bit_elements(kind: str, op: str, combine: np.ufunc) -> None:
    columns = 128 // np.dtype(kind).itemsize
    data = numbers(8, 32, dtype=np.uint32).view(kind)
    body = FILL.format(plus=0x80000001) + REDUCE.format(coordinates="0, 0").replace(
        ".add.", f".{op}."
    )
    image = (4 * np.arange(256, dtype=np.uint32) + 0x80000001).view(kind).reshape(8, columns)
    found = run(body, data, box=[columns, 8])
    assert (found == combine(data, image)).all()


def test_a_reduction_that_gives_nan_gives_one_nan() -> None:
    """Whatever the payload, as on an H200; the smaller of NaN and a number is the number."""
    values = np.array([0x7E01, 0xFC01, 0x7E01, 0x3C00], np.uint16).view(np.uint8)
    others = np.array([0x3C00, 0x7FFE, 0x7FFE, 0xFE00], np.uint16).view(np.uint8)
    added = reduced("add", "f16", values, others).view(np.uint16)
    assert added.tolist() == [0x7FFF, 0x7FFF, 0x7FFF, 0x7FFF]
    least = reduced("min", "f16", values, others).view(np.uint16)
    assert least.tolist() == [0x3C00, 0x7FFF, 0x7FFF, 0x3C00]
    single = np.array([0xFFC12345], np.uint32).view(np.uint8)
    assert reduced("add", "f32", single, single).view(np.uint32).tolist() == [0x7FFF_FFFF]


@pytest.mark.parametrize("at", ["-8, 0", "0, -3", "-32, 0", "4, -8"])
@pytest.mark.parametrize("copy", [STORE, REDUCE], ids=["store", "reduction"])
def test_no_copy_to_global_memory_begins_before_the_tensor(copy: str, at: str) -> None:
    body = FILL.format(plus=0) + copy.format(coordinates=at)
    with pytest.raises(IllegalOperation, match=f"coordinates {at} .* want none negative"):
        run(body, numbers(8, 32, dtype=np.uint32), box=[32, 8])
