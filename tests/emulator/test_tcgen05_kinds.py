"""tcgen05.mma of every kind: types, layouts of operands and accumulators, what the operands scale.

Numbers are small integers, so that results are exact whatever the order of addition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

from nibblas.emulator import IllegalOperation, UnsupportedInstruction
from tests.emulator.canonical import bits_of, image, strides
from tests.emulator.tensor_core import LANES, Mma, run
from tests.emulator.test_instruction_descriptor import bits_of as idesc_of

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "s8": np.int8,
    "u8": np.uint8,
}
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
SCALED = {"mxf8f6f4": "block32", "mxf4": "block32", "mxf4nvf4": "block16"}
A_ROOM, B_ROOM = 32768, 32768
A_COLUMN, D_COLUMN, SFA, SFB = 176, 32, 160, 168


@dataclass(frozen=True)
class Case:
    """One operation. ``modes``: swizzles of A and B; ``majors``: whether they are MN-major."""

    kind: str
    a: str
    b: str
    d: str = "f32"
    group: int = 1
    m: int = 128
    n: int = 64
    modes: tuple[str, str] = ("128", "128")
    majors: tuple[bool, bool] = (False, False)
    a_in_tensor_memory: bool = False
    lane: int = 0
    enable: bool = True
    fields: tuple[tuple[str, int], ...] = ()
    tail: str = ""

    @property
    def size(self) -> int:
        """Bytes of an element's container; 0: two to a byte."""
        if "mxf4" in self.kind:
            return 0
        return np.dtype(DTYPES[self.a]).itemsize

    @property
    def k(self) -> int:
        return 32 // self.size if self.size else 64


def d_place(case: Case, row: int, column: int) -> tuple[int, int, int]:
    """(CTA, lane, column) of an element of D. PTX ISA, "Data Path Layout Organization"."""
    if case.group == 1:
        lane = row if case.m == 128 else row // 16 * 32 + row % 16 + case.lane
        return 0, lane, column
    if case.m == 256:
        return row // 128, row % 128, column
    half = case.n // 2
    return row // 64, row % 64 + 64 * (column // half), column % half


def a_places(case: Case, row: int) -> list[tuple[int, int]]:
    """(CTA, lane) of a row of A in tensor memory."""
    cta, lane, _ = d_place(case, row, 0)
    return [(cta, lane), (cta, lane + 64)] if case.group == 2 and case.m == 128 else [(cta, lane)]


def values(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [M, K], B [N, K], C [M, N]: small integers."""
    rng = np.random.default_rng(seed)
    low = {name: 0 if name == "u8" else -4 for name in DTYPES}
    a = rng.integers(low[case.a], 5, (case.m, case.k))
    b = rng.integers(low[case.b], 5, (case.n, case.k))
    return a, b, rng.integers(-50, 51, (case.m, case.n))


def raw(case: Case, element: str, matrix: np.ndarray, *, packed: bool = True) -> np.ndarray:
    """uint8 [rows, 32]: as it lies in shared memory (packed) or tensor memory."""
    codes = matrix.astype(np.float32).astype(DTYPES[element]).view(np.uint8)
    rows = len(matrix)
    if case.size == 0:
        return codes[:, ::2] | codes[:, 1::2] << 4
    if element not in ("e2m1", "e2m3", "e3m2"):
        return codes.reshape(rows, 32)
    if not packed:
        return codes << 2 if element == "e2m1" else codes << 1
    junk = np.random.default_rng(1).integers(0, 256, (rows, 2, 16)).astype(np.uint8)
    bits = np.unpackbits(codes.reshape(rows, 2, 16, 1), axis=3, bitorder="little")
    width = 4 if element == "e2m1" else 6
    data = np.packbits(bits[..., :width].reshape(rows, 2, 16 * width), axis=2, bitorder="little")
    junk[:, :, : data.shape[2]] = data
    return junk.reshape(rows, 32)


def operands_of(case: Case) -> str:
    words = ""
    if case.tail.startswith("{"):
        words, _, _ = case.tail.partition("|")
    rest = case.tail.partition("|")[2] if words else case.tail
    a = "[%at]" if case.a_in_tensor_memory else "%a"
    scales = ", [%sfa], [%sfb]" if case.kind in SCALED else ""
    return f"[%d], {a}, %b, %idesc{scales}{', ' + words if words else ''}, %enable{rest};"


def build(case: Case, seed: int = 0, *, collector: str = "") -> tuple[Mma, np.ndarray]:
    """The operation, and A B^T (+ C)."""
    a, b, c = values(case, seed)
    element_bits = 8 * case.size or 4
    rows, columns = case.m // case.group, case.n // case.group
    shared = np.zeros((case.group, A_ROOM + B_ROOM), np.uint8)
    tensor = np.full((case.group, LANES, 256), 0xABAB_ABAB, np.uint32)
    left, right = raw(case, case.a, a), raw(case, case.b, b)
    for cta in range(case.group):
        shared[cta, :A_ROOM] = image(
            left[cta * rows :][:rows], A_ROOM, case.modes[0], case.majors[0], element_bits
        )
        shared[cta, A_ROOM:] = image(
            right[cta * columns :][:columns], B_ROOM, case.modes[1], case.majors[1], element_bits
        )
    if case.a_in_tensor_memory:
        words = raw(case, case.a, a, packed=False).copy().view(np.uint32)
        for row in range(case.m):
            for cta, lane in a_places(case, row):
                tensor[cta, lane, A_COLUMN : A_COLUMN + 8] = words[row]
    start = c.astype(RESULTS[case.d])
    start = start.view(np.uint16 if case.d == "f16" else np.uint32)
    for row, column in np.ndindex(case.m, case.n):
        cta, lane, at = d_place(case, row, column)
        high = 0xABAB_0000 if case.d == "f16" else 0
        tensor[cta, lane, D_COLUMN + at] = int(start[row, column]) | high
    tensor[:, :, SFA : SFA + 16] = 0x3838_3838 if case.kind == "mxf4nvf4" else 0x7F7F_7F7F
    descriptors = [
        bits_of(base, *strides(mode, major, element_bits, count), mode)
        for base, mode, major, count in zip(
            (0, A_ROOM), case.modes, case.majors, (rows, columns), strict=True
        )
    ]
    qualifiers = f".block_scale.{SCALED[case.kind]}" if case.kind in SCALED else ""
    name = f"tcgen05.mma.cta_group::{case.group}.kind::{case.kind}{qualifiers}{collector} "
    idesc = idesc_of(
        case.kind, case.m, case.n, case.a, case.b, case.d,
        scale="ue4m3" if case.kind == "mxf4nvf4" else "ue8m0",
        a_major=int(case.majors[0]), b_major=int(case.majors[1]), **dict(case.fields),
    )  # fmt: skip
    mma = Mma(
        name + operands_of(case), case.group, tensor, shared, idesc,
        d=case.lane << 16 | D_COLUMN, at=case.lane << 16 | A_COLUMN, sfa=SFA, sfb=SFB,
        a=descriptors[0], b=descriptors[1], enable=case.enable,
    )  # fmt: skip
    return mma, a @ b.T + (c if case.enable else 0)


def d_of(case: Case, tensor: np.ndarray) -> np.ndarray:
    """D [M, N] of tensor memory."""
    found = np.zeros((case.m, case.n), np.uint32)
    for row, column in np.ndindex(case.m, case.n):
        cta, lane, at = d_place(case, row, column)
        found[row, column] = tensor[cta, lane, D_COLUMN + at]
    if case.d == "f16":
        return found.astype(np.uint16).view(np.float16)
    return found.view(RESULTS[case.d])


def check(case: Case, *, arch: str = "sm_100") -> None:
    mma, expected = build(case)
    found = run(mma, arch=arch)
    assert (d_of(case, found).astype(np.float64) == expected).all()
    touched = np.zeros(mma.tensor.shape, bool)
    for row, column in np.ndindex(case.m, case.n):
        cta, lane, at = d_place(case, row, column)
        touched[cta, lane, D_COLUMN + at] = True
    assert (found[~touched] == mma.tensor[~touched]).all()


F8 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
TYPES = [
    ("f16", "f16", "f16", "f32"),
    ("f16", "f16", "f16", "f16"),
    ("f16", "bf16", "bf16", "f32"),
    ("f16", "bf16", "f16", "f32"),
    ("tf32", "tf32", "tf32", "f32"),
    *(("f8f6f4", a, b, "f32") for a in F8 for b in F8 if a == b or "e4m3" in (a, b)),
    ("f8f6f4", "e2m1", "e3m2", "f16"),
    *(("mxf8f6f4", a, "e4m3", "f32") for a in F8),
    ("i8", "s8", "u8", "s32"),
    ("i8", "u8", "s8", "s32"),
    ("mxf4", "e2m1", "e2m1", "f32"),
    ("mxf4nvf4", "e2m1", "e2m1", "f32"),
]


@pytest.mark.parametrize(("kind", "a", "b", "d"), TYPES)
def test_types(kind: str, a: str, b: str, d: str) -> None:
    check(Case(kind, a, b, d, n=32))


@pytest.mark.parametrize("enable", [False, True])
@pytest.mark.parametrize(
    ("kind", "element", "group", "m", "n", "lane"),
    [
        ("f16", "f16", 1, 64, 48, 0),
        ("f16", "f16", 1, 64, 8, 16),
        ("f16", "bf16", 2, 128, 96, 0),
        ("tf32", "tf32", 2, 256, 48, 0),
        ("f8f6f4", "e4m3", 1, 64, 40, 16),
        ("f8f6f4", "e5m2", 2, 128, 32, 0),
        ("i8", "s8", 1, 64, 24, 0),
        ("i8", "u8", 2, 128, 64, 0),
        ("i8", "s8", 2, 256, 32, 0),
        ("mxf8f6f4", "e4m3", 2, 256, 48, 0),
        ("mxf4", "e2m1", 2, 256, 80, 0),
        ("mxf4nvf4", "e2m1", 2, 128, 128, 0),
        ("mxf8f6f4", "e3m2", 2, 128, 128, 0),
    ],
)
def test_accumulator_layouts(kind, element, group, m, n, lane, enable) -> None:
    d = "s32" if kind == "i8" else "f32"
    check(Case(kind, element, element, d, group, m, n, lane=lane, enable=enable))


@pytest.mark.parametrize(
    ("kind", "element", "modes", "majors"),
    [
        ("f16", "f16", ("none", "32"), (False, False)),
        ("f16", "f16", ("64", "none"), (False, True)),
        ("f16", "bf16", ("128", "32"), (True, True)),
        ("f16", "f16", ("none", "64"), (True, True)),
        ("tf32", "tf32", ("128/32", "128/32"), (True, True)),
        ("tf32", "tf32", ("128/32", "32"), (True, False)),
        ("f8f6f4", "e4m3", ("128", "64"), (True, True)),
        ("mxf8f6f4", "e5m2", ("32", "128"), (True, True)),
        ("i8", "s8", ("none", "128"), (True, True)),
        ("f8f6f4", "e2m1", ("64", "32"), (False, False)),
        ("mxf4nvf4", "e2m1", ("64", "none"), (False, False)),
        ("mxf4", "e2m1", ("32", "128"), (False, False)),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_operand_layouts(kind, element, modes, majors, group) -> None:
    d = "s32" if kind == "i8" else "f32"
    check(Case(kind, element, element, d, group, 128 * group, 64, modes, majors))


@pytest.mark.parametrize(
    ("kind", "element", "group", "m", "lane"),
    [
        ("f16", "f16", 1, 128, 0),
        ("f16", "bf16", 1, 64, 16),
        ("f16", "f16", 2, 128, 0),
        ("f16", "f16", 2, 256, 0),
        ("tf32", "tf32", 1, 128, 0),
        ("f8f6f4", "e2m1", 1, 128, 0),
        ("f8f6f4", "e3m2", 2, 256, 0),
        ("i8", "u8", 1, 64, 0),
        ("mxf8f6f4", "e2m3", 1, 128, 0),
        ("mxf4nvf4", "e2m1", 1, 128, 0),
        ("mxf4", "e2m1", 2, 256, 0),
    ],
)
def test_a_in_tensor_memory(kind, element, group, m, lane) -> None:
    d = "s32" if kind == "i8" else "f32"
    check(Case(kind, element, element, d, group, m, 32, lane=lane, a_in_tensor_memory=True))


@pytest.mark.parametrize(
    ("element", "formats"),
    [("e2m1", ".b8x16.b4x16_p64"), ("e2m3", ".b8x16.b6x16_p32"), ("e4m3", "")],
)
def test_a_that_a_copy_brings_and_unpacks(element: str, formats: str) -> None:
    case = Case("f8f6f4", element, "e4m3", n=16, a_in_tensor_memory=True)
    mma, expected = build(case)
    mma.tensor[0, :, A_COLUMN : A_COLUMN + 8] = 0xEEEE_EEEE
    copy = f"tcgen05.cp.cta_group::1.128x256b{formats} [%at], %a;\n"
    assert (d_of(case, run(mma.but(name=copy + mma.name), operations=2)) == expected).all()


def test_other_devices() -> None:
    check(Case("mxf4nvf4", "e2m1", "e2m1"), arch="sm_103")
    with pytest.raises(UnsupportedInstruction, match="kind::i8 needs sm_100"):
        check(Case("i8", "s8", "s8", "s32"), arch="sm_103")
    for arch in ("sm_90", "sm_120"):
        with pytest.raises(UnsupportedInstruction, match="tcgen05"):
            check(Case("f16", "f16", "f16"), arch=arch)


@pytest.mark.parametrize("kind", ["f16", "f8f6f4", "mxf4nvf4", "mxf8f6f4"])
def test_negation(kind: str) -> None:
    element = {"f16": "f16", "mxf4nvf4": "e2m1"}.get(kind, "e4m3")
    for fields, sign in (
        ((("negate_a", 1),), -1),
        ((("negate_b", 1),), -1),
        ((("negate_a", 1), ("negate_b", 1)), 1),
    ):
        case = Case(kind, element, element, n=16, enable=False, fields=fields)
        mma, expected = build(case)
        assert (d_of(case, run(mma)) == sign * expected).all()


def test_integers_wrap_or_saturate() -> None:
    for saturate in (0, 1):
        case = Case("i8", "s8", "s8", "s32", n=8, fields=(("saturate", saturate),))
        mma, _ = build(case)
        a, b, _ = values(case, 0)
        mma.tensor[0, :, D_COLUMN : D_COLUMN + 8] = 0x7FFF_FFFF
        total = a @ b.T + 0x7FFF_FFFF
        expected = np.minimum(total, 0x7FFF_FFFF) if saturate else total.astype(np.int32)
        assert (total > 0x7FFF_FFFF).any()
        assert (d_of(case, run(mma)) == expected).all()


@pytest.mark.parametrize(
    ("kind", "element", "d"),
    [("f16", "f16", "f32"), ("f16", "f16", "f16"), ("tf32", "tf32", "f32")],
)
def test_scaled_accumulator(kind: str, element: str, d: str) -> None:
    case = Case(kind, element, element, d, n=16, tail=", 3")
    mma, _ = build(case)
    a, b, c = values(case, 0)
    assert (d_of(case, run(mma)) == a @ b.T + c / 8).all()


@pytest.mark.parametrize(("group", "m"), [(1, 128), (1, 64), (2, 256), (2, 128)])
def test_disabled_lanes_keep_what_they_hold(group: int, m: int) -> None:
    rng = np.random.default_rng(m)
    words = tuple(int(w) for w in rng.integers(0, 1 << 32, 8))
    names = "{" + ", ".join(f"%w{i}" for i in range(4 * group)) + "}"
    case = Case("f16", "f16", "f16", group=group, m=m, n=32, tail=names + "|")
    mma, expected = build(case)
    found = run(mma.but(words=words))
    for row, column in np.ndindex(case.m, case.n):
        cta, lane, at = d_place(case, row, column)
        cell = cta, lane, D_COLUMN + at
        if words[4 * cta + lane // 32] >> lane % 32 & 1:
            assert found[cell] == mma.tensor[cell]
        else:
            assert found[cell].view(np.float32) == expected[row, column]


def test_lanes_that_an_accumulator_may_not_begin_on() -> None:
    for case in (
        Case("f16", "f16", "f16", m=64, n=8, lane=8),
        Case("f16", "f16", "f16", n=8, lane=16),
    ):
        mma, _ = build(replace(case, lane=0))
        with pytest.raises(IllegalOperation, match=r"D begins on lane .*Data Path Layout"):
            run(mma.but(d=case.lane << 16 | D_COLUMN))


def test_a_and_d_begin_on_one_lane() -> None:
    case = Case("f16", "f16", "f16", m=64, n=8, a_in_tensor_memory=True)
    mma, _ = build(case)
    with pytest.raises(IllegalOperation, match="A begins on lane 16, D on lane 0"):
        run(mma.but(at=16 << 16 | A_COLUMN))


def test_copies_of_a_must_be_equal() -> None:
    case = Case("f16", "f16", "f16", group=2, m=128, n=32, a_in_tensor_memory=True)
    mma, _ = build(case)
    mma.tensor[1, 64 + 5, A_COLUMN + 7] ^= 1
    with pytest.raises(IllegalOperation, match=r"differs between lanes 0-63 and 64-127.*layout B"):
        run(mma)


def test_collector() -> None:
    """Filled, used twice, the last time for good: as if A were read each time."""
    case = Case("f16", "f16", "f16", n=16)
    ops = {
        op: build(case, collector=f".collector::a::{op}")[0].name
        for op in ("fill", "use", "lastuse")
    }
    mma, _ = build(case)
    a, b, c = values(case, 0)
    found = run(mma.but(name=ops["fill"] + ops["use"] + ops["lastuse"]), operations=3)
    assert (d_of(case, found) == 3 * (a @ b.T) + c).all()
    for names in ("use", "lastuse"):
        with pytest.raises(IllegalOperation, match="the collector buffer holds nothing"):
            run(mma.but(name=ops[names]))
    with pytest.raises(IllegalOperation, match="holds nothing"):
        run(mma.but(name=ops["fill"] + ops["lastuse"] + ops["use"]))
    with pytest.raises(IllegalOperation, match="holds nothing"):
        run(mma.but(name=ops["fill"] + mma.name + ops["use"]))
    other = "add.s64 %a, %a, 2;\n"
    with pytest.raises(IllegalOperation, match="holds another A"):
        run(mma.but(name=ops["fill"] + other + ops["use"]))


F16 = "tcgen05.mma{}.cta_group::1.kind::f16{} {}, %enable{};"


@pytest.mark.parametrize(
    "name",
    [
        F16.format(".sp", "", "[%d], %a, %b, [%at], %idesc", ""),
        F16.format(".ws", "", "[%d], %a, %b, %idesc", ""),
        F16.format("", ".ashift", "[%d], [%at], %b, %idesc", ""),
        F16.format("", "", "[%d], %a, %b, %idesc", ", 16"),
        F16.format("", "", "[%d], %a, %b, %idesc, {%w0, %w1, %w2}", ""),
        F16.format("", "", "[%d], %a, %b, %idesc, {%w0, %w1, %w2, %w3, %w4, %w5, %w6, %w7}", ""),
        "tcgen05.mma.cta_group::1.kind::f8f6f4 [%d], %a, %b, %idesc, %enable, 1;",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale"
        " [%d], %a, %b, %idesc, [%sfa], [%sfb], %enable;",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16"
        " [%d], %a, %b, %idesc, [%sfa], [%sfb], %enable;",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X"
        " [%d], %a, %b, %idesc, [%sfa], [%sfb], %enable;",
    ],
)  # fmt: skip
def test_forms_that_do_not_exist_or_are_not_modelled(name: str) -> None:
    mma, _ = build(Case("f16", "f16", "f16"))
    with pytest.raises(UnsupportedInstruction):
        run(mma.but(name=name))
