"""Tensor copies of sm_100: CTA pairs, four rows by index, sub-byte elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nibblas.emulator import (
    BarrierError,
    Deadlock,
    Device,
    EmulationError,
    IllegalOperation,
    OutOfBounds,
    UnfinishedWork,
    UnsupportedInstruction,
)
from nibblas.emulator.errors import Site
from nibblas.emulator.machine.mbarrier import find_barrier, init_barrier
from nibblas.emulator.machine.memory import Memory
from nibblas.emulator.machine.tensor_map import TensorMap, decode, encode
from nibblas.runtime.tensormap import ELEMENT_BYTES, DataType, TensorMapSpec
from tests.emulator.conftest import entry, every_order
from tests.emulator.test_tensors import BEGIN, COPY_OUT, LOAD, PARAMS, WAIT, box_of, numbers

ROW, ROWS = 128, 8
"""Bytes of a row and rows of the boxes below."""

#: Clusters of four. %r20: rank; %r15: the mbarrier of the pair's even CTA; %p3: thread 0 of it.
PAIRS = (
    BEGIN.format(base=0)
    + """
    mov.u32 %r20, %cluster_ctarank;
    and.b32 %r15, %r11, 0xFEFFFFFF;
    and.b32 %r4, %r20, 1;
    setp.eq.u32 %p3, %r4, {parity};
    and.pred %p3, %p3, %p0;
    setp.eq.u32 %p4, %r20, {issuer};
    and.pred %p4, %p4, %p0;
    mul.lo.u32 %r5, %r20, 8;
    mov.u32 %r6, 0;
    mov.u16 %h1, {mask};
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {bytes};
"""
)
#: The CTA whose barrier counts waits; the cluster's barrier passes it on.
LEADER_WAITS = """
    @!%p3 bra arrived;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], 0;
    @!%p1 bra wait;
arrived:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""
OWN_ROWS = """
    @%p0 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r10], [%rd5, {%r6, %r5}], [%r15];
"""
MULTICAST = """
    @%p4 cp.async.bulk.tensor.2d.shared::cluster.global.{counted}.multicast::cluster.cta_group::2
        [%r10], [%rd5, {%r6, %r5}], [%r15], %h1;
""".replace("{counted}", "mbarrier::complete_tx::bytes")
#: Every CTA stores its box to its part of out.
OUT_BY_CTA = """
    mov.u32 %r7, %ctaid.x;
    mul.wide.u32 %rd6, %r7, 1024;
    add.s64 %rd0, %rd0, %rd6;
""" + COPY_OUT.format(bytes=ROW * ROWS)


def run_pairs(
    body: str,
    *,
    arch: str = "sm_100",
    order: str = "round_robin",
    parity: int = 0,
    issuer: int = 0,
    mask: int = 0,
    num_bytes: int = 2 * ROW * ROWS,
) -> tuple[np.ndarray, np.ndarray]:
    """Out, one box of every CTA, and the tensor: 32 rows, 8 for each of four CTAs."""
    dev = Device(arch, order=order)
    data = numbers(32, ROW, dtype=np.uint8)
    found = dev.tensor_map(dev.from_numpy(data, name="tensor"), box=[ROW, ROWS])
    out = dev.empty((4, ROWS, ROW), np.uint8, name="out")
    begin = PAIRS.format(parity=parity, issuer=issuer, mask=mask, bytes=num_bytes)
    text = entry(begin + body, params=PARAMS)
    dev.load_ptx(text).kernel("k").launch(4, 64, [out, found], cluster=(4, 1, 1))
    return out.to_numpy(), data


@every_order
def test_both_ctas_of_a_pair_count_on_the_even_one(order: str) -> None:
    """What CUTLASS does: bit 24 of the mbarrier's address is cleared."""
    found, data = run_pairs(OWN_ROWS + LEADER_WAITS + OUT_BY_CTA, order=order)
    assert (found == data.reshape(4, ROWS, ROW)).all()


@pytest.mark.parametrize(
    "modifiers",
    [
        "mbarrier::complete_tx::bytes.cta_group::2",
        "tile.mbarrier::complete_tx::bytes.cta_group::2",
        "mbarrier::complete_tx::bytes.tile.cta_group::2",
        "cta_group::2.tile.mbarrier::complete_tx::bytes",
    ],
)
def test_compilers_write_the_modifiers_in_other_orders(modifiers: str) -> None:
    body = OWN_ROWS.replace(".cta_group::2", "").replace("mbarrier::complete_tx::bytes", modifiers)
    assert modifiers in body
    found, data = run_pairs(body + LEADER_WAITS + OUT_BY_CTA)
    assert (found == data.reshape(4, ROWS, ROW)).all()


@every_order
@pytest.mark.parametrize("parity", [0, 1])
def test_multicast_signals_the_even_or_the_odd_ctas(order: str, parity: int) -> None:
    """Issued by CTA 2 for all: each pair's barrier of that parity counts two boxes."""
    body = MULTICAST if parity == 0 else MULTICAST.replace("%r15", "%r16")
    body = "or.b32 %r16, %r11, 0x01000000;" + body
    found, data = run_pairs(
        body + LEADER_WAITS + OUT_BY_CTA, order=order, parity=parity, issuer=2, mask=15
    )
    assert (found == data[16:24]).all()


def test_multicast_to_some_signals_the_pairs_of_those() -> None:
    """CTAs 1 and 2 receive: the barriers of CTAs 0 and 2 count one box each."""
    body = MULTICAST + LEADER_WAITS + "setp.ne.u32 %p5, %r20, 1; setp.ne.u32 %p6, %r20, 2;"
    body += "and.pred %p5, %p5, %p6; @%p5 bra done;" + OUT_BY_CTA
    found, data = run_pairs(body, mask=6, num_bytes=ROW * ROWS)
    assert (found[1:3] == data[:8]).all()


def test_cta_group_1_counts_where_the_bytes_go() -> None:
    body = OWN_ROWS.replace("cta_group::2", "cta_group::1").replace("[%r15]", "[%r11]")
    body += "@%p0 mbarrier.expect_tx.shared::cta.b64 [%r11], 0;"
    wait = LEADER_WAITS.replace("@!%p3 bra arrived;", "")
    begin = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 1024;"
    found, data = run_pairs(begin + body + wait + OUT_BY_CTA, parity=9)
    assert (found == data.reshape(4, ROWS, ROW)).all()


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("cta_group::2", "cta_group::1", BarrierError, r"one pair with \.cta_group::2"),
        (".cta_group::2", "", BarrierError, r"one pair with \.cta_group::2"),
        ("[%r15]", "[%r16]", BarrierError, "want both in one pair"),
        ("shared::cluster", "shared::cta", IllegalOperation, r"a \.shared::cta address"),
    ],
)
def test_barriers_elsewhere_are_reported(
    old: str, new: str, error: type[Exception], text: str
) -> None:
    body = "xor.b32 %r16, %r11, 0x02000000;" + OWN_ROWS.replace(old, new)
    with pytest.raises(error, match=text):
        run_pairs(body + LEADER_WAITS)


def test_a_pair_that_expects_one_box_of_two_is_noticed() -> None:
    with pytest.raises(EmulationError):
        run_pairs(OWN_ROWS + LEADER_WAITS + OUT_BY_CTA, num_bytes=ROW * ROWS)


def test_a_pair_that_expects_too_much_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="1024 bytes"):
        run_pairs(OWN_ROWS + LEADER_WAITS, num_bytes=3 * ROW * ROWS)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_other_architectures_have_no_pairs(arch: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=f"needs sm_100 or sm_103.*{arch}"):
        run_pairs(OWN_ROWS, arch=arch)


GATHER = LOAD.replace(".global.tile.", ".global.tile::gather4.")


def gather(
    data: np.ndarray, at: str, *, arch: str = "sm_100", body: str = GATHER, **spec
) -> np.ndarray:
    """The shared image of four rows, uint8."""
    dev = Device(arch)
    found = dev.tensor_map(dev.from_numpy(data, name="tensor"), **spec)
    size = 4 * spec["box"][0] * data.itemsize
    out = dev.empty(size, np.uint8, name="out")
    text = (BEGIN + body + WAIT + COPY_OUT).format(base=0, bytes=size, rank=2, coordinates=at)
    dev.load_ptx(entry(text, params=PARAMS)).kernel("k").launch(1, 64, [out, found])
    return out.to_numpy()


@pytest.mark.parametrize("rows", [(3, 17, 5, 5), (0, 40, -1, 39)])
def test_gather_takes_four_rows_by_index(rows: tuple[int, ...]) -> None:
    data = numbers(40, 64)
    found = gather(data, f"8, {', '.join(map(str, rows))}", box=[32, 1])
    want = np.stack([box_of(data, [8, row], [32, 1])[0] for row in rows])
    assert (found.view(np.uint16).reshape(4, 32) == want).all()


def test_gathered_rows_are_swizzled_by_address() -> None:
    data = numbers(16, 64)
    found = gather(data, "0, 9, 2, 4, 1", box=[64, 1], swizzle="128b")
    want = data[[9, 2, 4, 1]].view(np.uint8).reshape(4, 8, 16)
    place = np.arange(8) ^ np.arange(4)[:, None]
    assert (found.reshape(4, 8, 16) == want[np.arange(4)[:, None], place]).all()


def test_gather_on_other_architectures() -> None:
    data = numbers(16, 64)
    own = GATHER.replace("shared::cluster", "shared::cta")
    assert gather(data, "0, 1, 2, 3, 4", arch="sm_120", body=own, box=[32, 1]).any()
    for arch, body in (("sm_120", GATHER), ("sm_90", own)):
        with pytest.raises(UnsupportedInstruction, match=f"gather4 needs .*{arch}"):
            gather(data, "0, 1, 2, 3, 4", arch=arch, body=body, box=[32, 1])


@pytest.mark.parametrize(
    ("at", "box", "error", "text"),
    [
        ("0, 1, 2, 3", [32, 1], UnsupportedInstruction, "got 4 coordinates; want 5"),
        ("0, 1, 2, 3, 4", [32, 2], IllegalOperation, "want rank 2, a box of one row"),
        ("4, 1, 2, 3, 4", [32, 1], IllegalOperation, "coordinate 4 .* 8 bytes .* multiple of 16"),
    ],
)
def test_misused_gather(at: str, box: list[int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gather(numbers(16, 64), at, box=box)


def test_gather_needs_two_dimensions() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"needs \.2d"):
        gather(numbers(16, 64), "0, 1, 2, 3, 4", body=GATHER.replace("{rank}d", "3d"), box=[32, 1])


def test_a_gather_prefetches() -> None:
    prefetch = """
    @%p0 cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%rd5, {{{coordinates}}}];
    """
    data = numbers(16, 64)
    assert gather(data, "0, 1, 2, 3, 4", body=prefetch + GATHER, box=[32, 1]).any()
    with pytest.raises(UnsupportedInstruction, match="gather4 needs sm_100 or sm_103; .*sm_120"):
        gather(data, "0, 1, 2, 3, 4", arch="sm_120", body=prefetch, box=[32, 1])


SCATTER = """
    mad.lo.u32 %r2, %r0, 4, %r10;
    add.u32 %r3, %r0, 1000;
    st.shared.u32 [%r2], %r3;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
        [%rd5, {4, 7, 0, 99, 2}], [%r10];
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group 0;
"""


def scatter(arch: str) -> tuple[np.ndarray, np.ndarray]:
    dev = Device(arch)
    data = numbers(10, 24, dtype=np.uint32)
    tensor = dev.from_numpy(data, name="tensor")
    found = dev.tensor_map(tensor, box=[16, 1])
    text = entry(BEGIN.format(base=0) + SCATTER, params=PARAMS)
    dev.load_ptx(text).kernel("k").launch(1, 64, [dev.empty(4), found])
    return tensor.to_numpy(), data


def test_scatter_stores_four_rows_by_index() -> None:
    """Row 99 lies outside and is left out."""
    found, want = scatter("sm_100")
    image = 1000 + np.arange(64, dtype=np.uint32).reshape(4, 16)
    for row, index in ((0, 7), (1, 0), (3, 2)):
        want[index, 4:20] = image[row]
    assert (found == want).all()


def test_scatter_is_of_sm_100() -> None:
    with pytest.raises(UnsupportedInstruction, match="scatter4 needs sm_100 or sm_103"):
        scatter("sm_120")


def load_codes(dtype: DataType, at: list[int], data: np.ndarray, *, dims: list[int], **spec):
    """The shared image of a box of codes that takes 128 bytes a row."""
    dev = Device("sm_100")
    found = dev.tensor_map(
        dev.from_numpy(data, name="tensor"), dtype=dtype, dims=dims, strides=[data.shape[1]], **spec
    )
    rows = spec["box"][1]
    out = dev.empty((rows, 128), np.uint8, name="out")
    counted = int(rows * spec["box"][0] * ELEMENT_BYTES[dtype])
    text = (BEGIN + LOAD + WAIT).format(
        base=0, bytes=counted, rank=2, coordinates=", ".join(map(str, at))
    ) + COPY_OUT.format(bytes=128 * rows)
    dev.load_ptx(entry(text, params=PARAMS)).kernel("k").launch(1, 64, [out, found])
    return out.to_numpy()


def test_packed_codes_fill_a_swizzled_row_with_256_values() -> None:
    data = numbers(16, 256, dtype=np.uint8)
    found = load_codes("16u4_align8b", [256, 4], data, dims=[512, 16], box=[256, 8], swizzle="128b")
    image = data[4:12, 128:].reshape(8, 8, 16)
    place = np.arange(8) ^ np.arange(8)[:, None]
    assert (found.reshape(8, 8, 16) == image[np.arange(8)[:, None], place]).all()


@pytest.mark.parametrize(("dtype", "group"), [("16u4_align16b", 8), ("16u6_align16b", 12)])
@pytest.mark.parametrize("row", [0, 12])
def test_unpacked_codes_have_gaps(dtype: DataType, group: int, row: int) -> None:
    """16 codes and their gap take 16 bytes of shared memory; rows past the end are zeros.

    The gaps are not counted: DeepGEMM and CUTLASS expect the bytes of the codes alone.
    """
    data = numbers(16, 64 * group // 4, dtype=np.uint8)
    found = load_codes(dtype, [128, row], data, dims=[256, 16], box=[128, 8])
    half = data.shape[1] // 2
    for i, j in np.ndindex(8, 8):
        chunk = found[i, 16 * j : 16 * j + group]
        at = half + group * j
        want = data[row + i, at : at + group] if row + i < 16 else np.zeros(group, np.uint8)
        assert (chunk == want).all()


@pytest.mark.parametrize("dtype", ["16u4_align16b", "16u6_align16b"])
def test_unpacked_codes_begin_at_multiples_of_128(dtype: DataType) -> None:
    data = numbers(16, 192, dtype=np.uint8)
    with pytest.raises(IllegalOperation, match="coordinate 64 .* multiple of 128"):
        load_codes(dtype, [64, 0], data, dims=[256, 16], box=[128, 8])


@pytest.mark.parametrize(("column", "begin"), [(3, "1.5"), (2, "1"), (16, "8"), (-31, "-15.5")])
def test_packed_codes_begin_at_16_bytes(column: int, begin: str) -> None:
    data = numbers(16, 128, dtype=np.uint8)
    with pytest.raises(IllegalOperation, match=rf"coordinate {column} .* {begin} bytes from"):
        load_codes("16u4_align8b", [column, 0], data, dims=[256, 16], box=[256, 8])


def test_unpacked_codes_are_not_stored() -> None:
    dev = Device("sm_100")
    tensor = dev.from_numpy(numbers(8, 64, dtype=np.uint8), name="tensor")
    found = dev.tensor_map(tensor, dtype="16u4_align16b", dims=[128, 8], strides=[64], box=[128, 8])
    body = """
    @%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd5, {0, 0}], [%r10];
    """
    kernel = dev.load_ptx(entry(BEGIN.format(base=0) + body, params=PARAMS)).kernel("k")
    with pytest.raises(IllegalOperation, match="16u4_align16b to global memory"):
        kernel.launch(1, 64, [dev.empty(4), found])


@pytest.mark.parametrize("dtype", ["16u4_align8b", "16u4_align16b", "16u6_align16b"])
def test_maps_of_codes_survive_encoding(dtype: DataType) -> None:
    spec = TensorMapSpec(dtype, dims=(256, 4), stride_bytes=(192,), box=(128, 4))
    assert decode(encode(spec, 1 << 20)).spec == replace(spec, element_strides=(1, 1))


def test_a_map_larger_than_its_tensor_is_reported_for_rows_too() -> None:
    dev = Device("sm_100")
    tensor = dev.from_numpy(numbers(4, 32), name="tensor")
    good = dev.tensor_map(tensor, box=[32, 1])
    wide = replace(good.spec, dims=(32, 64))
    text = (BEGIN + GATHER).format(base=0, bytes=256, rank=2, coordinates="0, 0, 1, 2, 50")
    kernel = dev.load_ptx(entry(text, params=PARAMS)).kernel("k")
    with pytest.raises(OutOfBounds, match="larger than the allocation"):
        kernel.launch(1, 64, [dev.empty(4), encode(wide, tensor.address)])


def test_a_box_of_four_rows_is_kept_with_its_map() -> None:
    spec = TensorMapSpec("uint8", dims=(64, 8), stride_bytes=(64,), box=(64, 1))
    found = TensorMap(spec, 0)
    assert found.four_rows is found.four_rows
    assert found.four_rows.num_bytes == 4 * found.num_bytes


@every_order
def test_an_even_cta_that_leaves_before_its_pair_is_loaded_is_noticed(order: str) -> None:
    """Its barrier is to count the odd CTA's bytes; the odd one stays."""
    body = OWN_ROWS + "setp.eq.u32 %p5, %r4, 0; @%p5 ret;"
    body += "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    with pytest.raises((UnfinishedWork, OutOfBounds)):
        run_pairs(body, order=order)


def test_a_barrier_is_not_signalled_after_its_cta_has_left() -> None:
    memory = Memory("shared memory of CTA (0, 0, 0)", 0, 64)
    site = Site("k", (0, 0, 0), 0, 1, "mbarrier.init", 1)
    init_barrier(memory, 0, 2, site)
    barrier = find_barrier(memory, 0)
    barrier.arrive()
    barrier.gone = True
    for signal in (barrier.arrive, lambda: barrier.complete(16), lambda: barrier.expect(16)):
        with pytest.raises(UnfinishedWork, match="signalled after its CTA has exited"):
            signal()
