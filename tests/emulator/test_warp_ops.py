"""shfl, vote, match, elect, redux, activemask: definitions, segments, divergence, masks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nibblas.emulator.errors import Deadlock, IllegalOperation, UnsupportedInstruction
from tests.emulator.conftest import Lanes, every_order
from tests.emulator.instructions import edge_integers, execute
from tests.emulator.oracle import edge_floats

LANE = np.arange(32)


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Source lane and predicate. PTX ISA, "shfl.sync", pseudocode."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    most, least = lane & segment | clamp & ~segment & 31, lane & segment
    if mode == "up":
        source, inside = lane - b, lane - b >= most
    elif mode == "down":
        source, inside = lane + b, lane + b <= most
    elif mode == "bfly":
        source, inside = lane ^ b, lane ^ b <= most
    else:
        source = least | b & ~segment & 31
        inside = source <= most
    return (source if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 4, 2, 1])
def test_shuffle_segments(mode: str, width: int) -> None:
    values = edge_integers(32, 1024, 5)
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    amounts = np.repeat(np.arange(32, dtype=np.uint32), 32)
    if mode == "idx":
        amounts = np.random.default_rng(0).integers(0, 64, 1024).astype(np.uint32)
    body = f"""
        shfl.sync.{mode}.b32 %r3|%p1, %a0, %a1, {c}, -1;
        selp.u32 %r4, 1, 0, %p1;
        cvt.u64.u32 %rd1, %r4; shl.b64 %rd1, %rd1, 32; cvt.u64.u32 %rd2, %r3;
        or.b64 %d, %rd1, %rd2;"""
    found = execute(body, values, amounts, result="u8")
    for i, got in enumerate(found.tolist()):
        lane, base = i % 32, i // 32 * 32
        source, inside = shuffled(mode, lane, int(amounts[i]), c)
        assert got == int(inside) << 32 | int(values[base + source])


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle_with_any_clamp_and_segment(mode: str) -> None:
    values, amounts = edge_integers(32, 1024, 5), edge_integers(32, 1024, 6)
    c = np.repeat(edge_integers(32, 32, 7), 32)
    found = execute(f"shfl.sync.{mode}.b32 %d, %a0, %a1, %a2, -1;", values, amounts, c)
    for i, got in enumerate(found.tolist()):
        source, _ = shuffled(mode, i % 32, int(amounts[i]), int(c[i]))
        assert got == values[i // 32 * 32 + source]


@every_order
def test_shuffle_waits_for_diverged_members(lanes: Lanes, order: str) -> None:
    body = """
        setp.lt.u32 %p1, %r0, 16;
        mul.lo.u32 %r2, %r0, 10;
        @%p1 bra A;
        add.u32 %r2, %r2, 1;
        shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;
        bra B;
    A:  shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;
    B:
    """
    with pytest.raises(Deadlock):  # two different instructions: they never meet
        lanes(body, order=order)
    body = body.replace("shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;\n", "\n", 2)
    body += "shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;"
    expected = 10 * (LANE ^ 16) + ((LANE ^ 16) >= 16)
    assert lanes(body, order=order).tolist() == expected.tolist()


def test_shuffle_among_some_lanes(lanes: Lanes) -> None:
    body = """
        mov.u32 %r1, 99;
        setp.lt.u32 %p1, %r0, 8;
        @%p1 shfl.sync.down.b32 %r1, %r0, 1, 31, 0xff;
    """
    found = lanes(body).tolist()
    assert found[:7] == [1, 2, 3, 4, 5, 6, 7]
    assert found[7] == 0xBAADF00D  # lane 8 does not take part
    assert found[8:] == [99] * 24


def test_two_groups_exchange_apart(lanes: Lanes) -> None:
    body = """
        setp.lt.u32 %p1, %r0, 16;
        selp.b32 %r2, 0xffff, 0xffff0000, %p1;
        redux.sync.add.u32 %r1, %r0, %r2;
    """
    assert lanes(body).tolist() == [sum(range(16))] * 16 + [sum(range(16, 32))] * 16


def test_a_lane_outside_its_mask_is_reported(lanes: Lanes) -> None:
    with pytest.raises(IllegalOperation, match="leaves out lanes"):
        lanes("vote.sync.ballot.b32 %r1, 1, 0xf;".replace(" 1,", " %p1,"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("vote.sync.ballot.b32 %r1, %p1, -1;", 0x92492492),
        ("vote.sync.ballot.b32 %r1, !%p2, -1;", 0),
        ("vote.sync.all.pred %p3, %p1, -1; selp.u32 %r1, 1, 0, %p3;", 0),
        ("vote.sync.all.pred %p3, %p2, -1; selp.u32 %r1, 1, 0, %p3;", 1),
        ("vote.sync.any.pred %p3, %p1, -1; selp.u32 %r1, 1, 0, %p3;", 1),
        ("vote.sync.any.pred %p3, !%p2, -1; selp.u32 %r1, 1, 0, %p3;", 0),
        ("vote.sync.uni.pred %p3, %p1, -1; selp.u32 %r1, 1, 0, %p3;", 0),
        ("vote.sync.uni.pred %p3, !%p2, -1; selp.u32 %r1, 1, 0, %p3;", 1),
    ],
)
def test_votes(lanes: Lanes, body: str, expected: int) -> None:
    """%p1 holds in every third lane from lane 1, %p2 in all."""
    before = "rem.u32 %r2, %r0, 3; setp.eq.u32 %p1, %r2, 1; setp.lt.u32 %p2, %r0, 32;"
    assert set(lanes(before + body).tolist()) == {expected}


def test_activemask_in_a_branch(lanes: Lanes) -> None:
    body = """
        mov.u32 %r1, 0;
        setp.lt.u32 %p1, %r0, 5;
        @!%p1 bra B;
        activemask.b32 %r1;
    B:
    """
    assert lanes(body).tolist() == [0x1F] * 5 + [0] * 27


@pytest.mark.parametrize(("threads", "members"), [(32, 0xFFFFFFFF), (20, 0xFFFFF)])
def test_elect_names_one_lane(lanes: Lanes, threads: int, members: int) -> None:
    body = f"elect.sync %r2|%p1, {members:#x}; selp.u32 %r1, 100, %r2, %p1;"
    assert lanes(body, threads=threads).tolist() == [100] + [0] * (threads - 1)


def test_match(lanes: Lanes) -> None:
    value = LANE % 5
    expected = [sum(1 << j for j in LANE if value[j] == v) for v in value]
    found = lanes("rem.u32 %r2, %r0, 5; match.any.sync.b32 %r1, %r2, -1;")
    assert found.tolist() == expected
    body = """
        mov.u64 %rd5, 77; match.all.sync.b64 %r1|%p1, %rd5, -1;
        @!%p1 bra B;
        cvt.u64.u32 %rd5, %r0; match.all.sync.b64 %r2|%p2, %rd5, -1;
        @%p2 mov.u32 %r1, 3;
        add.u32 %r1, %r1, %r2;
    B:
    """
    assert set(lanes(body).tolist()) == {0xFFFFFFFF}


@pytest.mark.parametrize(
    ("operation", "reduce"),
    [
        ("add.u32", lambda v: int(v.astype(np.uint64).sum()) & 0xFFFFFFFF),
        ("add.s32", lambda v: int(v.astype(np.uint64).sum()) & 0xFFFFFFFF),
        ("min.u32", lambda v: int(v.min())),
        ("max.u32", lambda v: int(v.max())),
        ("min.s32", lambda v: int(v.view("i4").min()) & 0xFFFFFFFF),
        ("max.s32", lambda v: int(v.view("i4").max()) & 0xFFFFFFFF),
        ("and.b32", lambda v: int(np.bitwise_and.reduce(v))),
        ("or.b32", lambda v: int(np.bitwise_or.reduce(v))),
        ("xor.b32", lambda v: int(np.bitwise_xor.reduce(v))),
    ],
)
def test_redux(operation: str, reduce) -> None:
    values = edge_integers(32, 256, 9)
    found = execute(f"redux.sync.{operation} %d, %a0, -1;", values).reshape(-1, 32)
    for row, got in zip(values.reshape(-1, 32), found, strict=True):
        assert set(got.tolist()) == {reduce(row)}


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("absolute", ["", ".abs"])
@pytest.mark.parametrize("propagate", ["", ".NaN"])
def test_redux_of_floats(name: str, absolute: str, propagate: str) -> None:
    values = edge_floats("f32", 512, 4)
    values[:32] = np.nan  # a group of nothing else
    values[32:64] = np.resize([0.0, -0.0], 32)
    values[64:96] = np.abs(np.nan_to_num(values[64:96])) + 1  # one without
    operation = f"redux.sync.{name}{absolute}{propagate}.f32"
    found = execute(f"{operation} %d, %a0, -1;", values, target="sm_100").reshape(-1, 32)
    for row, got in zip(values.reshape(-1, 32), found, strict=True):
        numbers = [abs(x) if absolute else x for x in row.tolist() if x == x]
        assert len(set(got.tolist())) == 1
        if not numbers or (propagate and len(numbers) < 32):
            assert got[0] == 0x7FFFFFFF
            continue
        pick = min if name == "min" else max
        want = pick(numbers, key=lambda x: (x, math.copysign(1, x)))
        assert got[0] == np.float32(want).view(np.uint32)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_redux_of_floats_is_of_sm_100(arch: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=f"needs sm_100 or sm_103.*{arch}"):
        execute("redux.sync.max.f32 %d, %a0, -1;", np.zeros(32, "f4"), target=arch)


@every_order
@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [("popc", "u32", 27), ("and", "pred", 0), ("or", "pred", 1)],
)
def test_barrier_reductions(lanes: Lanes, order: str, name: str, kind: str, expected: int) -> None:
    """96 threads, of which 27 bring a true predicate; twice, so that phases stay apart."""
    target = "%r1" if kind == "u32" else "%p2"
    body = f"""
        setp.lt.u32 %p1, %r0, 27;
        barrier.cta.red.{name}.aligned.{kind} {target}, 1, !%p1;
        bar.red.{name}.{kind} {target}, 1, 96, %p1;
    """
    body += "" if kind == "u32" else "selp.u32 %r1, 1, 0, %p2;"
    assert set(lanes(body, threads=96, order=order).tolist()) == {expected}
