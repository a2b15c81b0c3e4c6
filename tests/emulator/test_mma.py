"""mma.sync and the matrix loads and stores: layouts, types, sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nibblas.emulator import Device
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.emulator.errors import Misaligned, OutOfBounds, UnsupportedInstruction
from tests.emulator.conftest import HEADER, Lanes, entry

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f64": np.float64,
    "f32": np.float32,
    "s32": np.int32,
}


def fragments(kind: str, matrix: np.ndarray, role: str) -> np.ndarray:
    """[lanes 32, registers]: a matrix spread as the figures of the PTX ISA draw it."""
    dtype = np.dtype(DTYPES[kind])
    word = 8 if kind == "f64" else 4
    e = word // dtype.itemsize
    rows, columns = matrix.shape
    out = np.zeros((32, matrix.size // 32), dtype)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        values = []
        if role == "a":
            for k in range(0, columns, 4 * e):
                for row in range(g, rows, 8):
                    values += [matrix[row, k + t * e + j] for j in range(e)]
        elif role == "b":
            for k in range(0, rows, 4 * e):
                values += [matrix[k + t * e + j, g] for j in range(e)]
        else:
            for row in range(g, rows, 8):
                values += [matrix[row, 2 * t + j] for j in range(2)]
        out[lane] = values
    return out.view(f"u{word}")


def run_mma(name: str, a, b, c, *, kinds: tuple[str, str, str], arch: str = "sm_90"):
    """D [M, N] of the instruction on matrices."""
    parts = [fragments(k, m, r) for k, m, r in zip(kinds, (a, b, c), "abc", strict=True)]
    dev = Device(arch)
    buffers = [dev.from_numpy(p) for p in parts]
    result = dev.empty(parts[2].shape, parts[2].dtype)
    lines, names = [], []
    bits = parts[0].itemsize * 8
    for i, part in enumerate(parts):
        count = part.shape[1]
        names.append("{" + ", ".join(f"%m{i}_{j}" for j in range(count)) + "}")
        lines.append(f".reg .b{bits} " + ", ".join(f"%m{i}_{j}" for j in range(count)) + ";")
        lines.append(f"ld.param.u64 %rd1, [p{i}]; mad.wide.u32 %rd1, %r0, {part[0].nbytes}, %rd1;")
        lines += [f"ld.global.b{bits} %m{i}_{j}, [%rd1+{j * bits // 8}];" for j in range(count)]
    lines.append(f"{name} {names[2]}, {names[0]}, {names[1]}, {names[2]};")
    lines.append(f"ld.param.u64 %rd1, [p3]; mad.wide.u32 %rd1, %r0, {parts[2][0].nbytes}, %rd1;")
    lines += [
        f"st.global.b{bits} [%rd1+{j * bits // 8}], %m2_{j};" for j in range(parts[2].shape[1])
    ]
    body = "mov.u32 %r0, %tid.x;" + "\n".join(lines)
    params = ", ".join(f".param .u64 p{i}" for i in range(4))
    dev.load_ptx(entry(body, params=params)).kernel("k").launch(1, 32, [*buffers, result])
    values = result.to_numpy().view(DTYPES[kinds[2]])
    d = np.zeros(c.shape, c.dtype)
    for lane in range(32):
        for i, value in enumerate(values[lane]):
            d[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = value
    return d


def integers(rng, shape: tuple[int, int], kind: str, most: int) -> np.ndarray:
    low = 0 if kind == "u8" else -most
    return rng.integers(low, most + 1, shape).astype(DTYPES[kind])


@pytest.mark.parametrize(
    ("shape", "a", "b", "c"),
    [
        ((16, 8, 16), "f16", "f16", "f32"),
        ((16, 8, 8), "f16", "f16", "f32"),
        ((16, 8, 16), "f16", "f16", "f16"),
        ((16, 8, 16), "bf16", "bf16", "f32"),
        ((16, 8, 8), "bf16", "bf16", "f32"),
        ((16, 8, 8), "tf32", "tf32", "f32"),
        ((16, 8, 4), "tf32", "tf32", "f32"),
        ((16, 8, 32), "e4m3", "e4m3", "f32"),
        ((16, 8, 32), "e5m2", "e4m3", "f32"),
        ((16, 8, 16), "e4m3", "e5m2", "f32"),
        ((16, 8, 32), "s8", "u8", "s32"),
        ((16, 8, 16), "u8", "s8", "s32"),
        ((8, 8, 16), "s8", "s8", "s32"),
        ((8, 8, 4), "f64", "f64", "f64"),
        ((16, 8, 16), "f64", "f64", "f64"),
    ],
)
def test_every_shape_multiplies_small_integers_exactly(shape, a: str, b: str, c: str) -> None:
    rng = np.random.default_rng(1)
    m, n, k = shape
    most = 7 if a[0] in "eft" or a == "bf16" else 100
    left, right = integers(rng, (m, k), a, most), integers(rng, (k, n), b, most)
    start = integers(rng, (m, n), c, 50)
    name = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{c}.{a}.{b}.{c}"
    found = run_mma(name, left, right, start, kinds=(a, b, c))
    expected = left.astype(np.float64) @ right.astype(np.float64) + start.astype(np.float64)
    assert (found.astype(np.float64) == expected).all()


@pytest.mark.parametrize(("kind", "k"), [("f16", 16), ("bf16", 16), ("tf32", 8), ("e4m3", 32)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_sums_are_the_models(kind: str, k: int, arch: str) -> None:
    rng = np.random.default_rng(2)
    a = (rng.standard_normal((16, k)) * 4).astype(DTYPES[kind])
    b = (rng.standard_normal((k, 8)) * 4).astype(DTYPES[kind])
    c = rng.standard_normal((16, 8)).astype(np.float32)
    name = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32"
    found = run_mma(name, a, b, c, kinds=(kind, kind, "f32"), arch=arch)
    word = f"u{np.dtype(DTYPES[kind]).itemsize}"
    left, right = (expanded(np.ascontiguousarray(x).view(word), kind) for x in (a.T, b))
    expected = multiply_add(left, right, np.ascontiguousarray(c.T), accumulation(arch, kind))
    assert (found == expected.T).all()


def test_integer_saturation() -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((32, 8), 127, np.int8)
    c = np.full((16, 8), 2**31 - 5, np.int32)
    name = "mma.sync.aligned.m16n8k32.row.col{}.s32.s8.s8.s32"
    kinds = ("s8", "s8", "s32")
    assert (run_mma(name.format(".satfinite"), a, b, c, kinds=kinds) == 2**31 - 1).all()
    assert (run_mma(name.format(""), a, b, c, kinds=kinds) < 0).all()


def test_double_is_a_chain_of_fma() -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.standard_normal((8, 4)), rng.standard_normal((4, 8)), np.zeros((8, 8))
    name = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    found = run_mma(name, a, b, c, kinds=("f64", "f64", "f64"))
    longs = np.longdouble
    for i, j in np.ndindex(8, 8):
        total = 0.0
        for x, y in zip(a[i], b[:, j], strict=True):
            total = float(np.float64(longs(x) * longs(y) + longs(total)))
        assert found[i, j] == pytest.approx(total, rel=1e-15)


def test_wrong_number_of_registers_is_refused() -> None:
    body = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1}, {%r0}, {%r1}, {%f0,%f1};"
    with pytest.raises(UnsupportedInstruction, match="2 registers; want 4"):
        Device("sm_90").load_ptx(entry(body)).kernel("k")


MATRICES = np.random.default_rng(5).integers(0, 2**16, (4, 8, 8), dtype=np.uint16)


def through_shared(count: int, middle: str, *, arch: str = "sm_90") -> np.ndarray:
    """``middle`` between filling 4 matrices of shared memory and reading %d0.. or memory back."""
    dev = Device(arch)
    source, out = dev.from_numpy(MATRICES), dev.empty((32, 4), np.uint32)
    registers = ", ".join(f"%d{i}" for i in range(4))
    text = f"""{HEADER}
.visible .entry k(.param .u64 source, .param .u64 out)
{{
    .shared .align 16 .b8 tile[512];
    .reg .b32 %r<8>, {registers}, %row;
    .reg .b64 %rd<8>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mad.lo.u32 %row, %r0, 16, %r1;
    ld.param.u64 %rd0, [source];
    mad.wide.u32 %rd1, %r0, 16, %rd0;
    ld.global.v4.u32 {{{registers}}}, [%rd1];
    st.shared.v4.u32 [%row], {{{registers}}};
    bar.warp.sync -1;
    {middle}
    ld.param.u64 %rd0, [out];
    mad.wide.u32 %rd1, %r0, 16, %rd0;
    st.global.v4.u32 [%rd1], {{{registers}}};
    ret;
}}"""
    dev.load_ptx(text).kernel("k").launch(1, 32, [source, out])
    return out.to_numpy()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(count: int, trans: str) -> None:
    names = ", ".join(f"%d{i}" for i in range(count))
    found = through_shared(
        count, f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%row];"
    )
    for q in range(count):
        matrix = MATRICES[q].T if trans else MATRICES[q]
        for lane in range(32):
            low, high = matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].tolist()
            assert found[lane, q] == low | high << 16


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("form", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_ldmatrix_gives_every_narrow_element_a_byte(count: int, form: str, bits: int) -> None:
    """The element in the low bits; CUTLASS shifts 4-bit ones to where mma.sync wants them."""
    names = ", ".join(f"%d{i}" for i in range(count))
    load = f"ldmatrix.sync.aligned.m8n16.x{count}.shared.b8x16.{form} {{{names}}}, [%row];"
    found = through_shared(count, load, arch="sm_120")
    for q in range(count):
        for lane in range(32):
            row = int.from_bytes(MATRICES[q][lane // 4].tobytes(), "little")
            first = 4 * (lane % 4)
            codes = [row >> bits * e & (1 << bits) - 1 for e in range(first, first + 4)]
            assert found[lane, q].tobytes() == bytes(codes)
    with pytest.raises(UnsupportedInstruction, match=rf"\.{form} needs sm_100"):
        through_shared(count, load)


@pytest.mark.parametrize(
    "form",
    [
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%d0, %d1}, [%row]",
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%row], {%d0}",
    ],
)
def test_shapes_of_bytes_are_refused(form: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="not modelled"):
        through_shared(1, form + ";", arch="sm_120")


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_undoes_ldmatrix(count: int, trans: str) -> None:
    names = ", ".join(f"%d{i}" for i in range(count))
    middle = f"""
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%row];
        mov.u32 %r2, 0; mov.u32 %r3, 0;
        st.shared.v4.u32 [%row], {{%r2, %r2, %r2, %r2}};
        bar.warp.sync -1;
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%row], {{{names}}};
        bar.warp.sync -1;
        ld.shared.v4.u32 {{%d0, %d1, %d2, %d3}}, [%row];"""
    found = through_shared(count, middle).view(np.uint16).reshape(4, 8, 8)
    assert (found[:count] == MATRICES[:count]).all()
    assert (found[count:] == 0).all()


def test_movmatrix_transposes(lanes: Lanes) -> None:
    found = lanes("movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;").view(np.uint16).reshape(8, 8)
    assert (found == np.arange(32, dtype=np.uint32).view(np.uint16).reshape(8, 8).T).all()


@pytest.mark.parametrize(
    ("prepare", "address", "error"),
    [
        ("add.u32 %row, %row, 8;", ".shared.b16 {%d0}, [%row]", Misaligned),
        ("add.u32 %row, %row, 512;", ".shared.b16 {%d0}, [%row]", OutOfBounds),
        ("", ".b16 {%d0}, [%rd1]", OutOfBounds),
    ],
)
def test_wrong_rows_are_reported(prepare: str, address: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        through_shared(1, f"{prepare} ldmatrix.sync.aligned.m8n8.x1{address};")


def test_generic_rows() -> None:
    middle = """cvt.u64.u32 %rd2, %row; cvta.shared.u64 %rd2, %rd2;
        ldmatrix.sync.aligned.m8n8.x1.trans.b16 {%d0}, [%rd2];"""
    found = through_shared(1, middle)[:, 0].copy()
    assert (found.view(np.uint16).reshape(8, 8) == MATRICES[0].T).all()


def test_a_and_b_through_ldmatrix_multiply_rows_and_columns() -> None:
    """A by .x4 from row-major memory, B by .x2.trans from row-major: the usual kernel's way."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-9, 9, s).astype(np.float16) for s in ((16, 16), (16, 8)))
    dev = Device("sm_90")
    out = dev.empty((32, 4), np.float32)
    text = f"""{HEADER}
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out)
{{
    .shared .align 16 .b8 ta[512]; .shared .align 16 .b8 tb[256];
    .reg .b32 %r<8>, %a<4>, %b<2>; .reg .f32 %c<4>; .reg .b64 %rd<8>; .reg .pred %p;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, ta; mov.u32 %r2, tb;
    ld.param.u64 %rd0, [a]; mad.wide.u32 %rd1, %r0, 16, %rd0;
    ld.global.v4.u32 {{%a0, %a1, %a2, %a3}}, [%rd1];
    mad.lo.u32 %r3, %r0, 16, %r1;
    st.shared.v4.u32 [%r3], {{%a0, %a1, %a2, %a3}};
    setp.lt.u32 %p, %r0, 16;
    ld.param.u64 %rd0, [b]; mad.wide.u32 %rd1, %r0, 16, %rd0;
    @%p ld.global.v4.u32 {{%a0, %a1, %a2, %a3}}, [%rd1];
    mad.lo.u32 %r4, %r0, 16, %r2;
    @%p st.shared.v4.u32 [%r4], {{%a0, %a1, %a2, %a3}};
    bar.warp.sync -1;
    and.b32 %r5, %r0, 15; shl.b32 %r5, %r5, 5; shr.u32 %r6, %r0, 4; shl.b32 %r6, %r6, 4;
    add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a0, %a1, %a2, %a3}}, [%r5];
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%b0, %b1}}, [%r4];
    mov.f32 %c0, 0f00000000; mov.f32 %c1, %c0; mov.f32 %c2, %c0; mov.f32 %c3, %c0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%c0, %c1, %c2, %c3}},
        {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%c0, %c1, %c2, %c3}};
    ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, 16, %rd0;
    st.global.v4.f32 [%rd1], {{%c0, %c1, %c2, %c3}};
    ret;
}}"""
    dev.load_ptx(text).kernel("k").launch(1, 32, [dev.from_numpy(a), dev.from_numpy(b), out])
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for lane, values in enumerate(out.to_numpy()):
        g, t = lane // 4, lane % 4
        assert values[:2].tolist() == expected[g, 2 * t : 2 * t + 2].tolist()
        assert values[2:].tolist() == expected[g + 8, 2 * t : 2 * t + 2].tolist()
