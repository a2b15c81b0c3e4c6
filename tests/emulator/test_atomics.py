"""Atomic operations: every operation and type, conflicts between lanes, spaces."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from nibblas.emulator import Device
from tests.emulator.conftest import HEADER, every_order
from tests.emulator.instructions import edge_integers, execute

M32 = 0xFFFF_FFFF


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda old, b: b,
    "add.u32": lambda old, b: old + b & M32,
    "add.s32": lambda old, b: old + b & M32,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda old, b: min(old, b, key=lambda v: signed(v, 32)),
    "max.s32": lambda old, b: max(old, b, key=lambda v: signed(v, 32)),
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
    "and.b64": lambda old, b: old & b,
    "xor.b64": lambda old, b: old ^ b,
    "exch.b64": lambda old, b: b,
    "add.u64": lambda old, b: old + b & (1 << 64) - 1,
    "min.s64": lambda old, b: min(old, b, key=lambda v: signed(v, 64)),
    "max.u64": max,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("space", ["shared", "global", ""])
def test_returns_the_old_and_leaves_the_new(name: str, space: str) -> None:
    """Lanes of one warp act on 4 cells; cells begin with their number."""
    bits = int(name[-2:])
    values = edge_integers(bits, 32, 3)
    cells, where = [5, 6, 7, 8], np.random.default_rng(1).integers(0, 4, 32)
    dot = f".{space}" if space else ""
    memory = ".global" if space == "global" else ".shared"
    window = "cvta.shared.u64 %rd3, %rd3;" if space == "" else ""
    step = bits // 8
    body = f"""
        mov.u64 %rd3, cells; {window}
        mad.wide.u32 %rd4, %a1, {step}, %rd3;
        setp.lt.u32 %p1, %index, 4;
        @!%p1 bra A;
        mad.wide.u32 %rd5, %index, {step}, %rd3;
        add.u32 %r5, %index, 5; cvt.u64.u32 %rd6, %r5;
        {"st" + dot}.b{bits} [%rd5], {"%r5" if bits == 32 else "%rd6"};
    A:  bar.sync 0;
        atom{dot}.{name} %d, [%rd4], %a0;
    """
    before = f"{memory} .align 16 .b8 cells[64];"
    found = execute(body, values, where.astype(np.uint32), result=f"u{step}", before=before)
    for index, value, got in zip(where.tolist(), values.tolist(), found.tolist(), strict=True):
        assert got == cells[index]
        cells[index] = OPERATIONS[name](cells[index], value)


def cells_after(body: str, start: np.ndarray, *, threads: int = 32, order: str = "round_robin"):
    """The buffer ``cells`` after ``body``; %rd0 is its address, %r0 the thread's number."""
    dev = Device("sm_90", order=order)
    cells = dev.from_numpy(start)
    text = f"""{HEADER}
.visible .entry k(.param .u64 cells)
{{
    .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<8>; .reg .b16 %h<8>; .reg .b128 %q<4>;
    ld.param.u64 %rd0, [cells]; mov.u32 %r0, %tid.x;
    {body}
    ret;
}}"""
    dev.load_ptx(text).kernel("k").launch(1, threads, [cells])
    return cells.to_numpy()


@every_order
def test_no_update_is_lost(order: str) -> None:
    start = np.zeros(1, np.uint32)
    body = "red.relaxed.gpu.global.add.u32 [%rd0], %r0; atom.global.add.u32 %r1, [%rd0], 1;"
    assert cells_after(body, start, threads=128, order=order)[0] == 127 * 64 + 128


def test_compare_and_swap_builds_a_lock() -> None:
    body = """
    L:  atom.global.acquire.gpu.cas.b32 %r1, [%rd0], 0, 1;
    """.replace("global.acquire.gpu", "acquire.gpu.global")
    body += """.reg .pred %p1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;
        ld.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, %r0; st.global.u32 [%rd0+4], %r2;
        atom.release.gpu.global.exch.b32 %r1, [%rd0], 0;"""
    assert cells_after(body, np.zeros(2, np.uint32), threads=64)[1] == 63 * 32


def test_cas_of_16_and_128_bits() -> None:
    body = """
        cvt.u16.u32 %h1, %r0; mov.u16 %h2, 3;
        atom.global.cas.b16 %h3, [%rd0], %h2, %h1;
        mov.u64 %rd1, 9; mov.u64 %rd2, 8; mov.b128 %q0, {%rd1, %rd2};
        mov.u64 %rd3, 0; mov.b128 %q1, {%rd3, %rd3};
        atom.global.cas.b128 %q2, [%rd0+16], %q1, %q0;
        atom.global.exch.b128 %q3, [%rd0+32], %q2;
    """
    found = cells_after(body, np.array([3, 0, 0, 0, 0, 0], np.uint64))
    assert found.tolist() == [0, 0, 9, 8, 9, 8]


def test_float_sums() -> None:
    start = np.array([0.5, 2.0**-130], np.float32)
    body = """
        cvt.rn.f32.u32 %f1, %r0; atom.global.add.f32 %f2, [%rd0], %f1;
        mov.f32 %f3, 0f00000001; red.global.add.f32 [%rd0+4], %f3;
    """
    assert cells_after(body, start).tolist() == [496.5, 0.0]  # global sums flush subnormals
    shared = """
        .shared .align 4 .f32 cell;
        mov.f32 %f3, 0f00000001; mov.f32 %f4, 0f00000000;
        st.shared.f32 [cell], %f4; bar.warp.sync -1;
        atom.shared.add.f32 %f5, [cell], %f3; bar.warp.sync -1;
        ld.shared.f32 %f6, [cell]; st.global.f32 [%rd0], %f6;
    """
    assert cells_after(shared, start)[0] == np.float32(32 * 2.0**-149)
    assert cells_after("red.global.add.f64 [%rd0], 0d3FF8000000000000;", np.zeros(1))[0] == 48.0


def test_half_sums_do_not_flush() -> None:
    start = np.array([1.0, 2.0**-24], np.float16)
    body = "mov.b32 %r1, {%h1, %h2}; atom.global.add.noftz.f16x2 %r2, [%rd0], %r1;"
    body = "mov.u16 %h1, 0x3c00; mov.u16 %h2, 1;" + body
    assert cells_after(body, start).tolist() == [33.0, 33 * 2.0**-24]
    start = np.array([1.0, 0.0], ml_dtypes.bfloat16)
    body = "mov.u16 %h1, 0x3f80; red.global.add.noftz.bf16 [%rd0], %h1;"
    assert cells_after(body, start.view(np.uint16)).view(ml_dtypes.bfloat16)[0] == 33.0


def test_vectors() -> None:
    body = """
        mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0f40000000;
        red.global.add.v4.f32 [%rd0], {%f1, %f2, %f1, %f2};
        atom.global.add.v2.f32 {%f3, %f4}, [%rd0+16], {%f2, %f1};
        mov.u16 %h1, 0x3c00; mov.u16 %h2, 0x4000;
        red.global.max.noftz.v2.f16 [%rd0+24], {%h1, %h2};
    """
    found = cells_after(body, np.zeros(8, np.float32))
    assert found[:6].tolist() == [32.0, 64.0, 32.0, 64.0, 64.0, 32.0]
    assert found[6:7].view(np.float16).tolist() == [1.0, 2.0]
