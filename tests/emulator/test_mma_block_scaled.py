"""mma.sync with block scaling and with narrow floats: fragments, scale selectors, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device
from nibblas.emulator.block_scaled import multiply_add_fp4, multiply_add_scaled
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.errors import IllegalOperation, UnsupportedInstruction
from tests.emulator.conftest import entry

NARROW = {"e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}


def spread_a(rows: np.ndarray) -> np.ndarray:
    """uint32 [32 lanes, 4] of bytes [16, 32]: PTX ISA, fragments for mma.m16n8k32 and .m16n8k64."""
    found = np.zeros((32, 4, 4), np.uint8)
    for lane, i in np.ndindex(32, 16):
        group, thread = divmod(lane, 4)
        row = group if i < 4 or 8 <= i < 12 else group + 8
        found[lane, i // 4, i % 4] = rows[row, thread * 4 + i % 4 + (16 if i >= 8 else 0)]
    return found.view(np.uint32)[..., 0]


def spread_b(columns: np.ndarray) -> np.ndarray:
    """uint32 [32 lanes, 2] of bytes [8, 32]."""
    found = np.zeros((32, 2, 4), np.uint8)
    for lane, i in np.ndindex(32, 8):
        group, thread = divmod(lane, 4)
        found[lane, i // 4, i % 4] = columns[group, thread * 4 + i % 4 + (16 if i >= 4 else 0)]
    return found.view(np.uint32)[..., 0]


def spread_c(c: np.ndarray) -> np.ndarray:
    found = np.zeros((32, 4), np.float32)
    for lane, i in np.ndindex(32, 4):
        found[lane, i] = c[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]
    return found.view(np.uint32)


def gathered(d: np.ndarray) -> np.ndarray:
    found = np.zeros((16, 8), np.float32)
    for lane, i in np.ndindex(32, 4):
        found[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = d.view(np.float32)[lane, i]
    return found


def run(name: str, a, b, c, scales=None, selectors=("0, 0", "0, 0"), arch="sm_120"):
    """D [16, 8] of A [16, 32 bytes], B [8, 32 bytes]; scales: words per lane of A and B."""
    dev = Device(arch)
    parts = [spread_a(a), spread_b(b), spread_c(c)]
    parts += [] if scales is None else [scale.reshape(32, 1) for scale in scales]
    lines, names = ["mov.u32 %r0, %tid.x;"], []
    for i, part in enumerate(parts):
        count = part.shape[1]
        registers = [f"%m{i}_{j}" for j in range(count)]
        lines += [f".reg .b32 {', '.join(registers)};"]
        lines += [f"ld.param.u64 %rd1, [p{i}]; mad.wide.u32 %rd1, %r0, {4 * count}, %rd1;"]
        lines += [f"ld.global.b32 {r}, [%rd1+{4 * j}];" for j, r in enumerate(registers)]
        names.append("{" + ", ".join(registers) + "}")
    tail = ""
    if scales is not None:
        tail = f", %m3_0, {{{selectors[0]}}}, {{%m4_0}}, {{{selectors[1]}}}"  # either way will do
    lines += [f"{name} {names[2]}, {names[0]}, {names[1]}, {names[2]}{tail};"]
    lines += ["ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r0, 16, %rd1;"]
    lines += [f"st.global.b32 [%rd1+{4 * j}], %m2_{j};" for j in range(4)]
    params = ", ".join([".param .u64 out", *(f".param .u64 p{i}" for i in range(len(parts)))])
    target = dev.empty((32, 4), np.uint32)
    kernel = dev.load_ptx(entry("\n".join(lines), params=params)).kernel("k")
    report = kernel.launch(1, 32, [target, *(dev.from_numpy(p) for p in parts)])
    assert report.events["tensor operations"] == 1
    return gathered(target.to_numpy())


def scale_words(rows: np.ndarray, scales: int, byte: int, thread: int, of_a: bool) -> np.ndarray:
    """uint32 [32]: scales [rows, scales] where the selectors look, junk elsewhere."""
    words = np.random.default_rng(99).integers(0, 256, (32, 4)).astype(np.uint8)
    for row, found in enumerate(rows):
        lane = row % 8 * 4 + (2 * thread + row // 8 if of_a else thread)
        words[lane, byte : byte + scales] = found
    return words.view(np.uint32).ravel()


CASES = [
    ("kind::mxf4nvf4", "scale_vec::4X", "ue4m3", 4, 0),
    ("kind::mxf4nvf4", "scale_vec::4X", "ue8m0", 4, 0),
    ("kind::mxf4nvf4", "scale_vec::2X", "ue8m0", 2, 2),
    ("kind::mxf4", "scale_vec::2X", "ue8m0", 2, 0),
    ("kind::mxf4", "", "ue8m0", 2, 2),
]


@pytest.mark.parametrize(("kind", "vector", "scale", "count", "byte"), CASES)
@pytest.mark.parametrize("threads", [(0, 0), (1, 3)])
@pytest.mark.parametrize("kind_first", [True, False])
def test_fp4(kind, vector, scale, count, byte, threads, kind_first) -> None:
    rng = np.random.default_rng(count + byte)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (16, 8))
    low, high = (0, 127) if scale == "ue4m3" else (110, 140)
    sfa, sfb = (rng.integers(low, high, (rows, count)).astype(np.uint8) for rows in (16, 8))
    c = rng.standard_normal((16, 8)).astype(np.float32)
    words = [
        scale_words(sfa, count, byte, threads[0], True),
        scale_words(sfb, count, byte, threads[1], False),
    ]
    qualifiers = f".{kind}.block_scale" + (f".{vector}" if vector else "")
    middle = ".m16n8k64.row.col"
    name = "mma.sync.aligned" + (qualifiers + middle if kind_first else middle + qualifiers)
    found = run(
        f"{name}.f32.e2m1.e2m1.f32.{scale}", a, b, c, words,
        (f"{byte}, {threads[0]}", f"{byte}, {threads[1]}"),
    )  # fmt: skip
    assert (found == multiply_add_fp4(a, b, c, sfa, sfb, scale)).all()


def containers(kind: str, codes: np.ndarray) -> np.ndarray:
    """PTX ISA, "mma": .e2m1 in the middle of its byte; the padding is not looked at."""
    junk = np.random.default_rng(1).integers(0, 256, codes.shape).astype(np.uint8)
    if kind == "e2m1":
        return junk & 0xC3 | codes << 2
    return junk & 0xC0 | codes if NARROW[kind] == 6 else codes


@pytest.mark.parametrize("a_kind", NARROW)
@pytest.mark.parametrize("b_kind", NARROW)
def test_narrow_types_with_and_without_scales(a_kind: str, b_kind: str) -> None:
    rng = np.random.default_rng(5)
    usable = {k: 1 << bits if bits < 8 else 120 for k, bits in NARROW.items()}
    a = rng.integers(0, usable[a_kind], (16, 32)).astype(np.uint8)
    b = rng.integers(0, usable[b_kind], (8, 32)).astype(np.uint8)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    model = accumulation("sm_120", "e4m3")
    left, right = expanded(a.T, a_kind), expanded(b.T, b_kind)
    raw = containers(a_kind, a), containers(b_kind, b)
    name = f"mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.{a_kind}.{b_kind}.f32"
    assert (run(name, *raw, c) == multiply_add(left, right, c.T.copy(), model).T).all()

    sfa, sfb = (rng.integers(110, 140, (rows, 1)).astype(np.uint8) for rows in (16, 8))
    words = [scale_words(sfa, 1, 3, 1, True), scale_words(sfb, 1, 1, 2, False)]
    name = (
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        f".f32.{a_kind}.{b_kind}.f32.ue8m0"
    )
    found = run(name, *raw, c, words, ("3, 1", "1, 2"))
    expected = multiply_add_scaled(left, right, c.T.copy(), sfa[:, 0], sfb[:, 0], model).T
    assert (found == expected).all()


FP4 = "mma.sync.aligned.m16n8k64.row.col.kind::{}.block_scale{}.f32.e2m1.e2m1.f32.{}"
ZEROS = (np.zeros((16, 32), np.uint8), np.zeros((8, 32), np.uint8), np.zeros((16, 8), np.float32))
NO_SCALES = [np.zeros(32, np.uint32)] * 2


@pytest.mark.parametrize(
    ("name", "selectors", "words"),
    [
        (FP4.format("mxf4nvf4", ".scale_vec::4X", "ue4m3"), ("2, 0", "0, 0"), "byte-id-a is 2"),
        (FP4.format("mxf4nvf4", ".scale_vec::4X", "ue4m3"), ("0, 2", "0, 0"), "thread-id-a is 2"),
        (FP4.format("mxf4nvf4", ".scale_vec::4X", "ue4m3"), ("0, 0", "0, 4"), "thread-id-b is 4"),
        (FP4.format("mxf4", ".scale_vec::2X", "ue8m0"), ("0, 0", "1, 0"), "byte-id-b is 1"),
    ],
)
def test_wrong_selectors(name: str, selectors, words: str) -> None:
    with pytest.raises(IllegalOperation, match=words):
        run(name, *ZEROS, NO_SCALES, selectors)


@pytest.mark.parametrize(
    "name",
    [
        FP4.format("mxf4nvf4", "", "ue8m0"),
        FP4.format("mxf4nvf4", ".scale_vec::2X", "ue4m3"),
        FP4.format("mxf4", ".scale_vec::4X", "ue8m0"),
        FP4.format("mxf4", "", "ue4m3"),
        FP4.format("mxf4nvf4", ".scale_vec::1X", "ue8m0"),
    ],
)
def test_combinations_that_do_not_exist(name: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        run(name, *ZEROS, NO_SCALES)


def test_other_devices_do_not_have_them() -> None:
    with pytest.raises(UnsupportedInstruction, match="needs sm_120; the device is sm_100"):
        run(FP4.format("mxf4", "", "ue8m0"), *ZEROS, NO_SCALES, arch="sm_100")
