"""Tensor copies (TMA): swizzles, tails, ranks, strides, stores, reductions, multicast.

Every innermost coordinate is a multiple of 16 bytes; the H200 ends any other as an illegal
instruction. What is least known of comes last: a case that faults costs its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nibblas.runtime.tensormap import ELEMENT_BYTES, SWIZZLE_BYTES, DataType, TensorMapSpec
from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw

_FILL = 0x5A
_POLLS = 1 << 18
"""Of a barrier that may never complete: some milliseconds."""


def _packed(data_type: Any, dims: tuple[int, ...], box: tuple[int, ...], **modes: Any):
    """A map over a tensor whose rows follow each other, padded to 16 bytes."""
    size = ELEMENT_BYTES[data_type]
    strides, step = [], -(-int(dims[0] * size) // 16) * 16
    for extent in dims[1:]:
        strides.append(step)
        step *= extent
    return TensorMapSpec(data_type, dims, tuple(strides), box, **modes), step


def _box_bytes(spec: TensorMapSpec) -> int:
    return _box_rows(spec) * int(spec.box[0] * ELEMENT_BYTES[spec.data_type])


def _tile_bytes(spec: TensorMapSpec) -> int:
    """Of shared memory: a row takes its swizzle's width even if it is narrower."""
    return max(_box_bytes(spec), _box_rows(spec) * SWIZZLE_BYTES.get(spec.swizzle, 0))


def _box_rows(spec: TensorMapSpec) -> int:
    rows = 1
    for extent, step in zip(spec.box[1:], spec.steps[1:], strict=True):
        rows *= -(-extent // step)
    return rows


def _coordinates(coordinates: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, str, str]:
    """[CTAs, 8] int32, the lines that load a CTA's into %r20 and up, and their list."""
    table = np.zeros((len(coordinates), 8), np.int32)
    for row, coordinate in zip(table, coordinates, strict=True):
        row[: len(coordinate)] = coordinate
    rank = len(coordinates[0])
    lines = "".join(f"    ld.global.b32 %r{20 + i}, [%rd10+{4 * i}];\n" for i in range(rank))
    return table, lines, "{" + ", ".join(f"%r{20 + i}" for i in range(rank)) + "}"


_BEGIN = """
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd10, %r1, 32;
    add.s64 %rd10, %rd10, %rd1;
    mov.u32 %r10, bar;
    mov.u32 %r11, tile;
    setp.eq.u32 %p1, %r0, 0;
    mov.b64 %rd11, map0;
    cvta.param.u64 %rd11, %rd11;
"""


def load(name: str, spec: TensorMapSpec, num_bytes: int, where: Sequence[tuple[int, ...]]) -> Case:
    """One CTA per coordinate loads its box and writes the bytes as they lie in shared memory."""
    size = _box_bytes(spec)
    table, coordinates, listed = _coordinates(where)
    body = (
        _BEGIN
        + coordinates
        + f"""
    mul.wide.u32 %rd21, %r1, {size};
    add.s64 %rd21, %rd21, %rd20;
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p1 bra wait;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {size};
    cp.async.bulk.tensor.{spec.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r11], [%rd11, {listed}], [%r10];
wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    mul.lo.u32 %r2, %r0, 4;
copy:
    setp.ge.u32 %p3, %r2, {size};
    @%p3 bra done;
    add.u32 %r3, %r11, %r2;
    ld.shared.b32 %r4, [%r3];
    cvt.u64.u32 %rd12, %r2;
    add.s64 %rd12, %rd12, %rd21;
    st.global.b32 [%rd12], %r4;
    add.u32 %r2, %r2, 128;
    bra copy;
done:
"""
    )
    shared = f".shared .align 1024 .b8 tile[{size}]; .shared .b64 bar;"
    tensor = Draw(len(name)).integers(0, 256, num_bytes, np.uint8)
    text = module(body, maps=1, inputs=2, shared=shared)
    return Case(name, text, (tensor, table), size * len(where), len(where), maps=((spec, 0),))


def narrow(name: str, spec: TensorMapSpec, num_bytes: int, where: tuple[int, ...]) -> Case:
    """A box whose rows are narrower than their swizzle. The output: the tile, and if all came.

    CUDA C++ Programming Guide, "TMA swizzle": shared memory holds the full swizzle's width. How
    many bytes the barrier counts is not said: the wait is for a box's, and is given up.
    """
    span = SWIZZLE_BYTES[spec.swizzle]
    size = _box_rows(spec) * span
    table, coordinates, listed = _coordinates([where])
    body = (
        _BEGIN
        + coordinates
        + f"""
    mul.lo.u32 %r2, %r0, 4;
clear:
    setp.ge.u32 %p3, %r2, {size};
    @%p3 bra cleared;
    add.u32 %r3, %r11, %r2;
    st.shared.b32 [%r3], {_FILL * 0x01010101};
    add.u32 %r2, %r2, 128;
    bra clear;
cleared:
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {_box_bytes(spec)};
    @%p1 cp.async.bulk.tensor.{spec.rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r11], [%rd11, {listed}], [%r10];
    bar.sync 0;
    mov.u32 %r5, 0;
wait:
    add.u32 %r5, %r5, 1;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r10], 0;
    setp.lt.and.u32 %p3, %r5, {_POLLS}, !%p2;
    @%p3 bra wait;
    selp.u32 %r6, 1, 0, %p2;
    mul.lo.u32 %r2, %r0, 4;
    cvt.u64.u32 %rd12, %r2;
    add.s64 %rd12, %rd12, %rd20;
    st.global.b32 [%rd12+{size}], %r6;
copy:
    setp.ge.u32 %p3, %r2, {size};
    @%p3 bra done;
    add.u32 %r3, %r11, %r2;
    ld.shared.b32 %r4, [%r3];
    cvt.u64.u32 %rd12, %r2;
    add.s64 %rd12, %rd12, %rd20;
    st.global.b32 [%rd12], %r4;
    add.u32 %r2, %r2, 128;
    bra copy;
done:
"""
    )
    shared = f".shared .align 1024 .b8 tile[{size}]; .shared .b64 bar;"
    tensor = Draw(len(name)).integers(0, 256, num_bytes, np.uint8)
    text = module(body, maps=1, inputs=2, shared=shared)
    return Case(name, text, (tensor, table), size + 128, maps=((spec, 0),))


def store(
    name: str, spec: TensorMapSpec, num_bytes: int, where: Sequence[tuple[int, ...]], op: str
):
    """One CTA writes or reduces its box at one coordinate after the other; the output: the tensor.

    ``op``: "" stores; else the first coordinate is stored to, the others reduce onto what is there.
    """
    size = _tile_bytes(spec)
    table, _, _ = _coordinates(where)
    listed = "{" + ", ".join(f"%r{20 + i}" for i in range(spec.rank)) + "}"
    body = (
        _BEGIN
        + f"""
    mul.lo.u32 %r2, %r0, 4;
fill:
    setp.ge.u32 %p3, %r2, {size};
    @%p3 bra filled;
    add.u32 %r3, %r11, %r2;
    cvt.u64.u32 %rd12, %r2;
    add.s64 %rd12, %rd12, %rd0;
    ld.global.b32 %r4, [%rd12];
    st.shared.b32 [%r3], %r4;
    add.u32 %r2, %r2, 128;
    bra fill;
filled:
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p1 bra done;
"""
    )
    place = f"[%rd11, {listed}], [%r11]"
    plain = f"cp.async.bulk.tensor.{spec.rank}d.global.shared::cta.tile.bulk_group {place};"
    reduces = (
        f"cp.reduce.async.bulk.tensor.{spec.rank}d.global.shared::cta.{op}.tile.bulk_group {place};"
    )
    for i in range(len(where)):
        for j in range(spec.rank):
            body += f"    ld.global.b32 %r{20 + j}, [%rd10+{32 * i + 4 * j}];\n"
        body += f"    {reduces if op and i else plain}\n"
        body += "    cp.async.bulk.commit_group;\n    cp.async.bulk.wait_group 0;\n"
    body += "done:\n"
    shared = f".shared .align 1024 .b8 tile[{size}]; .shared .b64 bar;"
    data = Draw(len(name)).integers(0, 256, size, np.uint8)
    if op == "add" and "float" in spec.data_type:
        data.view(np.uint16)[:] = data.view(np.uint16) & 0x8FFF | 0x3000
    text = module(body, maps=1, inputs=2, shared=shared)
    return Case(name, text, (data, table), num_bytes, maps=((spec, -1),))


def multicast() -> Case:
    """Each CTA of a cluster of 4 sends rows of its own to the CTAs of its mask."""
    spec, num_bytes = _packed("uint16", (64, 40), (32, 8), swizzle="64b")
    size = _box_bytes(spec)
    masks = (0b1111, 0b0101, 0b1000, 0b0110)
    arriving = [sum(mask >> rank & 1 for mask in masks) for rank in range(4)]
    table = np.zeros((4, 8), np.int32)
    for rank, mask in enumerate(masks):
        table[rank, :4] = (16 * rank, 9 * rank, mask, arriving[rank] * size)
    total = 4 * size
    copy = (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster"
    )
    body = (
        _BEGIN
        + f"""
    ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd10];
    cvt.u16.u32 %h0, %r22;
    mul.lo.u32 %r2, %r0, 4;
clear:
    setp.ge.u32 %p3, %r2, {total};
    @%p3 bra cleared;
    add.u32 %r3, %r11, %r2;
    st.shared.b32 [%r3], {_FILL * 0x01010101};
    add.u32 %r2, %r2, 128;
    bra clear;
cleared:
    @%p1 mbarrier.init.shared.b64 [%r10], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], %r23;
    mad.lo.u32 %r12, %r1, {size}, %r11;
    @%p1 {copy} [%r12], [%rd11, {{%r20, %r21}}], [%r10], %h0;
wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra wait;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mul.wide.u32 %rd21, %r1, {total};
    add.s64 %rd21, %rd21, %rd20;
    mul.lo.u32 %r2, %r0, 4;
copy:
    setp.ge.u32 %p3, %r2, {total};
    @%p3 bra done;
    add.u32 %r3, %r11, %r2;
    ld.shared.b32 %r4, [%r3];
    cvt.u64.u32 %rd12, %r2;
    add.s64 %rd12, %rd12, %rd21;
    st.global.b32 [%rd12], %r4;
    add.u32 %r2, %r2, 128;
    bra copy;
done:
"""
    )
    shared = f".shared .align 1024 .b8 tile[{total}]; .shared .b64 bar;"
    tensor = Draw(11).integers(0, 256, num_bytes, np.uint8)
    text = module(body, maps=1, inputs=2, shared=shared)
    return Case("tma_multicast", text, (tensor, table), 4 * total, 4, cluster=4, maps=((spec, 0),))


def cases() -> list[Case]:
    return [
        *_loads(),
        *_stores(),
        multicast(),
        *_rarer_stores(),
        *_rarer_loads(),
        *_tail_stores(),
        *_narrow_rows(),
        *_reduced_types(),
    ]


def _load_packed(
    name: str,
    where: Sequence[tuple[int, ...]],
    data_type: DataType,
    dims: tuple[int, ...],
    box: tuple[int, ...],
    **modes: Any,
) -> Case:
    spec, size = _packed(data_type, dims, box, **modes)
    return load(f"tma_load_{name}", spec, size, where)


def _loads() -> list[Case]:
    made = []
    corners = [(0, 0), (16, 7), (48, 20), (-8, -3), (8, 3), (64, 0), (-16, 24), (0, -5), (0, 22)]
    corners += [(200, 5), (0, -40), (24, 0), (40, 1), (-24, 2), (56, 0), (32, 0), (72, 0)]
    for swizzle, inner in (("none", 32), ("32b", 16), ("64b", 32), ("128b", 64)):
        name = f"{swizzle}_{inner}"
        made.append(_load_packed(name, corners, "uint16", (70, 25), (inner, 16), swizzle=swizzle))
    where: Sequence[tuple[int, ...]]
    where = [(0, 0), (896, 4), (1008, 0), (-16, 2), (16, 1), (992, 0)]
    made.append(_load_packed("bytes", where, "uint8", (1000, 9), (128, 8), swizzle="128b"))
    where = [(0,), (60,), (-4,), (-60,), (36,), (-8,), (96,), (4,)]
    made.append(_load_packed("1d", where, "float32", (100,), (64,)))
    where = [(0, 0, 0), (8, 7, 4), (-8, -1, 2), (16, 3, -1), (-24, -1, 2)]
    made.append(_load_packed("3d", where, "float16", (40, 9, 5), (32, 4, 2), swizzle="64b"))
    where = [(0, 0, 0, 0), (16, 4, 3, 2), (-4, -1, 1, -1), (4, 1, 2, 1), (12, -1, 1, -1)]
    made.append(_load_packed("4d", where, "uint32", (20, 5, 4, 3), (8, 2, 2, 2), swizzle="32b"))
    where = [(0, 0, 0, 0, 0), (16, 3, 2, 2, 2), (-8, 0, 1, -1, 0), (8, 1, 1, 1, 1)]
    where += [(24, 0, 0, 0, 0), (-8, 0, 1, -1, 2)]
    made.append(_load_packed("5d", where, "uint16", (24, 4, 3, 3, 3), (16, 2, 2, 2, 2)))
    where = [(0, 0), (8, 1), (48, 20), (-8, -2), (0, 5), (40, 1)]
    steps = (1, 3)
    made.append(_load_packed("strided", where, "uint16", (70, 25), (32, 16), element_strides=steps))
    where, fill = [(48, 20), (0, 0), (-16, -2), (64, 20)], "nan_request_zero_fma"
    made.append(_load_packed("nan", where, "float16", (70, 25), (32, 16), oob_fill=fill))
    made.append(_load_packed("nan_bf16", where, "bfloat16", (70, 25), (32, 16), oob_fill=fill))
    made.append(_load_packed("nan_f32", where, "float32", (70, 25), (32, 16), oob_fill=fill))
    return made


def _stores() -> list[Case]:
    """No box begins left of or above the tensor: CUDA Programming Guide, "Negative indices"."""
    made = []
    for swizzle, inner in (("none", 32), ("32b", 16), ("64b", 32), ("128b", 64)):
        spec, size = _packed("uint16", (100, 40), (inner, 16), swizzle=swizzle)
        where = [(0, 0), (80, 30), (32, 10), (88, 0), (40, 16), (24, 10), (8, 20), (96, 36)]
        made.append(store(f"tma_store_{swizzle}", spec, size, where, ""))
    again = [(0, 0), (80, 30), (8, 3), (0, 0), (32, 10), (16, 3), (24, 10), (88, 0), (96, 36)]
    for data_type, op in (
        *((kind, "add") for kind in ("uint32", "float16", "bfloat16")),
        *(("uint32", op) for op in ("min", "max", "and", "or", "xor", "inc", "dec")),
    ):
        inner = 16 if data_type == "uint32" else 32
        spec, size = _packed(data_type, (100, 40), (inner, 16), swizzle="64b")
        made.append(store(f"tma_{op}_{data_type}", spec, size, again, op))
    return made


def _rarer_stores() -> list[Case]:
    """Other types and ranks; boxes that lie right of or below the tensor as a whole."""
    made = []
    again = [(0, 0), (80, 30), (8, 3), (0, 0), (32, 10), (16, 3), (24, 10), (88, 0), (96, 36)]
    kinds: tuple[tuple[DataType, str], ...]
    kinds = (("float32", "add"), ("float16", "min"), ("float16", "max"))
    for data_type, op in (*kinds, ("bfloat16", "min"), ("bfloat16", "max")):
        inner = 16 if data_type == "float32" else 32
        spec, size = _packed(data_type, (100, 40), (inner, 16), swizzle="64b")
        made.append(store(f"tma_{op}_{data_type}", spec, size, again, op))
    where: list[tuple[int, ...]]
    spec, size = _packed("float32", (100,), (64,))
    made.append(store("tma_store_1d", spec, size, [(0,), (60,), (36,), (96,)], ""))
    spec, size = _packed("float16", (40, 9, 5), (32, 4, 2), swizzle="64b")
    where = [(0, 0, 0), (8, 7, 4), (16, 3, 1)]
    made.append(store("tma_store_3d", spec, size, where, ""))
    spec, size = _packed("uint32", (20, 5, 4, 3), (8, 2, 2, 2), swizzle="32b")
    where = [(0, 0, 0, 0), (16, 4, 3, 2), (4, 1, 2, 1), (0, 0, 0, 0)]
    made.append(store("tma_add_4d", spec, size, where, "add"))
    spec, size = _packed("uint16", (24, 4, 3, 3, 3), (16, 2, 2, 2, 2))
    where = [(0, 0, 0, 0, 0), (16, 3, 2, 2, 2), (8, 1, 1, 1, 1)]
    made.append(store("tma_store_5d", spec, size, where, ""))
    spec, size = _packed("uint16", (100, 40), (32, 16))
    where = [(0, 0), (104, 0), (200, 5), (0, 40), (32, 100), (200, 60)]
    made.append(store("tma_store_outside", spec, size, where, ""))
    return made


def _reduced_types() -> list[Case]:
    """Signed types and those of 64 bits, with every operation that an H200 accepts."""
    made = []
    kinds: dict[DataType, tuple[str, ...]]
    kinds = {
        "int32": ("add", "min", "max", "and", "or", "xor"),
        "uint64": ("add", "min", "max", "and", "or", "xor"),
        "int64": ("min", "max"),
        "float64": ("add",),
    }
    where: list[tuple[int, ...]]
    where = [(0, 0), (80, 30), (8, 3), (0, 0), (32, 10), (16, 3), (24, 10), (96, 36)]
    for data_type, ops in kinds.items():
        inner = int(64 / ELEMENT_BYTES[data_type])
        spec, size = _packed(data_type, (100, 40), (inner, 16), swizzle="64b")
        for op in ops:
            made.append(store(f"tma_{op}_{data_type}", spec, size, where, op))
    return made


def _tail_stores() -> list[Case]:
    """Rows that end within 16 bytes, and are further apart than that: how much is written."""
    made = []
    where: list[tuple[int, ...]]
    where = [(0, 0), (72, 2), (96, 8), (72, 10), (88, 5)]
    kinds: tuple[tuple[DataType, int, str], ...]
    kinds = (("uint16", 99, ""), ("bfloat16", 97, "add"), ("float16", 101, "max"))
    for data_type, width, op in kinds:
        spec = TensorMapSpec(data_type, (width, 12), (256,), (32, 4), swizzle="64b")
        made.append(store(f"tma_tail_{op or 'store'}_{data_type}", spec, 12 * 256, where, op))
    spec = TensorMapSpec("uint32", (99, 12), (512,), (16, 4))
    made.append(store("tma_tail_add_uint32", spec, 12 * 512, where, "add"))
    spec = TensorMapSpec("uint8", (97, 3, 3), (128, 512), (64, 2, 2))
    where = [(0, 0, 0), (64, 1, 1), (80, 2, 2)]
    made.append(store("tma_tail_store_uint8", spec, 3 * 512, where, ""))
    spec = TensorMapSpec("uint8", (101,), (), (64,))
    made.append(store("tma_tail_store_1d", spec, 256, [(64,), (96,)], ""))
    return made


def _narrow_rows() -> list[Case]:
    """Boxes narrower than their swizzle: tails of loads, and stores."""
    made = []
    for swizzle, inner in (("64b", 16), ("128b", 24)):
        spec, size = _packed("uint16", (70, 25), (inner, 16), swizzle=swizzle)
        made.append(narrow(f"tma_narrow_tail_{swizzle}_{inner}", spec, size, (64, 20)))
    where = [(0, 0), (80, 30), (32, 10), (88, 0), (96, 36)]
    for swizzle, inner in (("32b", 8), ("64b", 24), ("128b", 16)):
        spec, size = _packed("uint16", (100, 40), (inner, 16), swizzle=swizzle)
        made.append(store(f"tma_narrow_store_{swizzle}_{inner}", spec, size, where, ""))
    return made


def _rarer_loads() -> list[Case]:
    """Boxes left of the tensor, any strides, packed codes, rows narrower than their swizzle."""
    made = []
    left = [(-64, 0), (-72, 0), (-32, 3), (-200, 1), (-72, -40), (8, 3)]
    for swizzle, inner in (("none", 32), ("128b", 64)):
        name = f"left_{swizzle}"
        made.append(_load_packed(name, left, "uint16", (70, 25), (inner, 16), swizzle=swizzle))
    for strides in ((32, 0), (0, 1056), (32, 1072)):
        spec = TensorMapSpec("uint8", (32, 33, 3), strides, (16, 4, 2))
        at = [(0, 0, 0), (16, 5, 1), (-16, -1, -1), (16, 31, 2)]
        made.append(load(f"tma_load_strides_{strides[0]}_{strides[1]}", spec, 3 * 1072, at))
    where = [(0, 0), (256, 4), (-32, 2), (32, 0), (64, 0), (480, 3)]
    made.append(_load_packed("packed4", where, "16u4_align8b", (500, 9), (256, 8), swizzle="128b"))
    for swizzle, inner in (("32b", 8), ("128b", 32)):
        spec, size = _packed("uint16", (70, 25), (inner, 16), swizzle=swizzle)
        made.append(narrow(f"tma_narrow_{swizzle}_{inner}", spec, size, (16, 7)))
    return made
