"""Tensor copies (TMA): swizzles, tails, ranks, strides, stores, reductions, multicast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nibblas.runtime.tensormap import ELEMENT_BYTES, TensorMapSpec
from tests.emulator.golden.case import Case, module
from tests.emulator.golden.draw import Draw

_FILL = 0x5A


def _packed(data_type: Any, dims: tuple[int, ...], box: tuple[int, ...], **modes: Any):
    """A map over a tensor whose rows follow each other, padded to 16 bytes."""
    size = ELEMENT_BYTES[data_type]
    strides, step = [], -(-int(dims[0] * size) // 16) * 16
    for extent in dims[1:]:
        strides.append(step)
        step *= extent
    return TensorMapSpec(data_type, dims, tuple(strides), box, **modes), step


def _box_bytes(spec: TensorMapSpec) -> int:
    total = ELEMENT_BYTES[spec.data_type]
    for extent, step in zip(spec.box, spec.steps, strict=True):
        total *= -(-extent // step)
    return int(total)


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


def store(
    name: str, spec: TensorMapSpec, num_bytes: int, where: Sequence[tuple[int, ...]], op: str
):
    """One CTA writes or reduces its box at one coordinate after the other; the output: the tensor.

    ``op``: "" stores; else the first coordinate is stored to, the others reduce onto what is there.
    """
    size = _box_bytes(spec)
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
    if op == "add" and spec.data_type != "uint32":
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
    made = []
    corners = [(0, 0), (16, 7), (48, 20), (-8, -3), (8, 3), (64, 0), (-16, 24), (0, -5), (0, 22)]
    corners += [(200, 5), (-70, 0), (0, -40), (3, 0), (5, 1), (-3, 2), (2, 0), (4, 0)]
    for swizzle, inner in (
        ("none", 32),
        ("32b", 8),
        ("32b", 16),
        ("64b", 32),
        ("128b", 64),
        ("128b", 32),
    ):
        spec, size = _packed("uint16", (70, 25), (inner, 16), swizzle=swizzle)
        made.append(load(f"tma_load_{swizzle}_{inner}", spec, size, corners))
    spec, size = _packed("uint8", (1000, 9), (128, 8), swizzle="128b")
    made.append(
        load("tma_load_bytes", spec, size, [(0, 0), (896, 4), (1000, 0), (-16, 2), (16, 1), (1, 0)])
    )
    spec, size = _packed("16u4_align8b", (500, 9), (256, 8), swizzle="128b")
    made.append(
        load("tma_load_packed4", spec, size, [(0, 0), (256, 4), (-32, 2), (32, 0), (2, 0), (16, 0)])
    )
    spec, size = _packed("float32", (100,), (64,))
    made.append(
        load("tma_load_1d", spec, size, [(0,), (60,), (-4,), (-64,), (36,), (-5,), (99,), (1,)])
    )
    spec, size = _packed("float16", (40, 9, 5), (32, 4, 2), swizzle="64b")
    made.append(
        load(
            "tma_load_3d", spec, size, [(0, 0, 0), (8, 7, 4), (-8, -1, 2), (16, 3, -1), (-3, -1, 2)]
        )
    )
    spec, size = _packed("uint32", (20, 5, 4, 3), (8, 2, 2, 2), swizzle="32b")
    made.append(
        load(
            "tma_load_4d",
            spec,
            size,
            [(0, 0, 0, 0), (16, 4, 3, 2), (-4, -1, 1, -1), (4, 1, 2, 1), (-2, -1, 1, -1)],
        )
    )
    spec, size = _packed("uint16", (24, 4, 3, 3, 3), (8, 2, 2, 2, 2))
    made.append(
        load(
            "tma_load_5d",
            spec,
            size,
            [
                (0, 0, 0, 0, 0),
                (16, 3, 2, 2, 2),
                (-8, 0, 1, -1, 0),
                (8, 1, 1, 1, 1),
                (20, 0, 0, 0, 0),
                (-1, 0, 1, -1, 0),
            ],
        )
    )
    spec, size = _packed("uint16", (70, 25), (32, 16), element_strides=(1, 3))
    made.append(
        load("tma_load_strided", spec, size, [(0, 0), (8, 1), (48, 20), (-8, -2), (0, 5), (5, 1)])
    )
    spec, size = _packed("float16", (70, 25), (32, 16), oob_fill="nan_request_zero_fma")
    made.append(load("tma_load_nan", spec, size, [(48, 20), (0, 0), (-16, -2), (60, 20)]))
    spec, size = _packed("bfloat16", (70, 25), (32, 16), oob_fill="nan_request_zero_fma")
    made.append(load("tma_load_nan_bf16", spec, size, [(48, 20), (0, 0), (-16, -2), (60, 20)]))
    for swizzle, inner in (("none", 32), ("32b", 16), ("64b", 32), ("128b", 64)):
        spec, size = _packed("uint16", (100, 40), (inner, 16), swizzle=swizzle)
        where = [(0, 0), (80, 30), (-8, -3), (32, 10), (88, 0), (40, 16), (30, 10), (5, 20)]
        made.append(store(f"tma_store_{swizzle}", spec, size, where, ""))
    again = [(0, 0), (80, 30), (8, 3), (0, 0), (-8, -3), (32, 10), (5, 3), (30, 10)]
    for data_type, op in (
        *((kind, "add") for kind in ("uint32", "float16", "bfloat16")),
        *(("uint32", op) for op in ("min", "max", "and", "or", "xor", "inc", "dec")),
    ):
        inner = 16 if data_type == "uint32" else 32
        spec, size = _packed(data_type, (100, 40), (inner, 16), swizzle="64b")
        made.append(store(f"tma_{op}_{data_type}", spec, size, again, op))
    return [*made, multicast()]
