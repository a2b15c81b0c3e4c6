"""wgmma: every operand layout, type and width, and registers and memory touched too early."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import (
    DataRace,
    Deadlock,
    Device,
    IllegalOperation,
    OutOfBounds,
    UnfinishedWork,
    UninitialisedRead,
    UnsupportedInstruction,
)
from tests.emulator.conftest import entry, every_order

PARAMS = ".param .u64 out, .param .u64 a, .param .u64 b"
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


class Layout:
    """How an operand lies in shared memory: LBO, SBO, bytes, and its image."""

    def __init__(self, rows: int, size: int, *, span: int, mn_major: bool = False) -> None:
        self.rows, self.size, self.span, self.mn_major = rows, size, span, mn_major
        self.k = 32 // size
        if not mn_major:
            self.lbo, self.sbo = (16, span * 8) if span else (rows * 16, 128)
            self.num_bytes = rows * (span or 32)
        elif span:
            self.lbo, self.sbo = self.k * span, 8 * span
            self.num_bytes = -(-rows * size // span) * self.k * span
        else:
            self.lbo, self.sbo = rows // 8 * 128, 128
            self.num_bytes = rows * 32

    def place(self, row: int, k: int) -> int:
        """Of an element, before swizzling, from the pictures of the PTX ISA."""
        size, span = self.size, self.span
        if not self.mn_major and span:
            return row * span + k * size
        if not self.mn_major:  # core matrices of 8 rows and 16 bytes, along the rows first
            return k * size // 16 * self.lbo + row // 8 * 128 + row % 8 * 16 + k * size % 16
        if span:  # each row of the image is one k; blocks of `span` bytes of the rows
            block, within = divmod(row * size, span)
            return block * self.lbo + k * span + within
        return k // 8 * self.lbo + row * size // 16 * 128 + k % 8 * 16 + row * size % 16

    def image(self, matrix: np.ndarray) -> np.ndarray:
        """uint8 [num_bytes] of codes [rows, K]."""
        found = np.zeros(self.num_bytes, np.uint8)
        for row, k in np.ndindex(self.rows, self.k):
            at = self.place(row, k)
            if self.span:
                at ^= (at // 128 % (self.span // 16)) * 16
            found[at : at + self.size] = matrix[row, k : k + 1].view(np.uint8)
        return found

    @property
    def bits(self) -> int:
        return self.lbo >> 4 << 16 | self.sbo >> 4 << 32 | MODES[self.span] << 62


def registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def begin(a: Layout, b: Layout, kind: str, d_registers: int) -> str:
    """Both images in shared memory, descriptors in %rd10 and %rd11; %r0: the thread."""
    b_at = -(-a.num_bytes // 1024) * 1024
    return f"""
    .reg .{kind} %d<{d_registers}>;
    .reg .pred %one;
    .shared .align 1024 .b8 box[{b_at + b.num_bytes}];
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [out];
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r10, box;
    add.u32 %r11, %r10, {b_at};
    {fill("%r10", "%rd1", a.num_bytes, 0)}
    {fill("%r11", "%rd2", b.num_bytes, 1)}
    fence.proxy.async.shared::cta;
    bar.sync 0;
    {describe("%r10", "%rd10", a.bits)}
    {describe("%r11", "%rd11", b.bits)}
    setp.eq.u32 %one, %r0, %r0;
"""


def fill(to: str, source: str, num_bytes: int, n: int) -> str:
    return f"""
    mul.lo.u32 %r1, %r0, 4;
fill{n}:
    setp.ge.u32 %p1, %r1, {num_bytes};
    @%p1 bra filled{n};
    cvt.u64.u32 %rd3, %r1;
    add.s64 %rd3, {source}, %rd3;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r3, {to}, %r1;
    st.shared.u32 [%r3], %r2;
    add.u32 %r1, %r1, 512;
    bra fill{n};
filled{n}:"""


def describe(address: str, to: str, bits: int) -> str:
    return f"""
    shr.u32 %r4, {address}, 4;
    cvt.u64.u32 {to}, %r4;
    mov.u64 %rd4, {bits};
    or.b64 {to}, {to}, %rd4;"""


def zero(kind: str, count: int) -> str:
    return "".join(f"    mov.b32 %d{i}, 0;\n" for i in range(count))


def out(count: int) -> str:
    body = f"    mul.wide.u32 %rd5, %r0, {4 * count};\n    add.s64 %rd5, %rd0, %rd5;\n"
    return body + "".join(f"    st.global.b32 [%rd5+{4 * i}], %d{i};\n" for i in range(count))


FENCE = "    wgmma.fence.sync.aligned;\n"
WAIT = "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"


def mma(n: int, kind: str, count: int, *, d: str = "f32", a: str = "%rd10", tail: str = "") -> str:
    shape = f"m64n{n}k{32 // SIZES[kind]}"
    return (
        f"    wgmma.mma_async.sync.aligned.{shape}.{d}.{kind}.{kind} "
        f"{registers('d', count)}, {a}, %rd11, %one{tail};\n"
    )


def launch(body: str, a: np.ndarray, b: np.ndarray, count: int, *, threads=128, **device):
    dev = Device("sm_90", **device)
    target = dev.empty((threads, count), np.uint32, name="out")
    kernel = dev.load_ptx(entry(body, params=PARAMS)).kernel("k")
    report = kernel.launch(1, threads, [target, dev.from_numpy(a), dev.from_numpy(b)])
    assert report.events.get("tensor operations", 0) > 0
    return target.to_numpy()


def matrix_of(registers_: np.ndarray, n: int) -> np.ndarray:
    """[64, n] from [128 threads, n / 2 registers]: PTX ISA, figure of the D fragment."""
    found = np.zeros((64, n), registers_.dtype)
    for thread, i in np.ndindex(*registers_.shape):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * (i % 4 // 2)
        found[row, i // 4 * 8 + lane % 4 * 2 + i % 2] = registers_[thread, i]
    return found


def operands(kind: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes of A [64, K] and B [n, K] of small whole numbers, and A B^T."""
    rng = np.random.default_rng(seed)
    k = 32 // SIZES[kind]
    values = [rng.integers(0 if kind == "u8" else -4, 5, (rows, k)) for rows in (64, n)]
    a, b = (codes(v, kind) for v in values)
    return a, b, values[0] @ values[1].T


def codes(values: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("s8", "u8"):
        return values.astype(np.int8)
    single = values.astype(np.float32)
    if kind == "tf32":
        return single
    if kind == "bf16":
        return (single.view(np.uint32) >> 16).astype(np.uint16)
    half = single.astype(np.float16)
    if kind == "f16":
        return half
    if kind == "e5m2":
        return (half.view(np.uint16) >> 8).astype(np.uint8)
    table = {v: c for c in range(256) if (v := e4m3(c)) is not None}
    return np.vectorize(table.__getitem__, otypes=[np.uint8])(values.astype(float))


def e4m3(code: int) -> float | None:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code in (0x7F, 0xFF, 0x80):
        return None
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -value if code & 0x80 else value


TAILS = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0", "s8": "", "u8": ""}


def multiply(
    kind: str, n: int, *, a_layout: Layout | None = None, b_layout: Layout | None = None, tail=None,
    **device,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What the emulator and numpy say."""
    size, d = SIZES[kind], "s32" if kind in ("s8", "u8") else "f32"
    a_layout = a_layout or Layout(64, size, span=0)
    b_layout = b_layout or Layout(n, size, span=0)
    a, b, want = operands(kind, n)
    count = n // 2
    body = begin(a_layout, b_layout, "b32", count) + zero("b32", count) + FENCE
    body += mma(n, kind, count, d=d, tail=TAILS.get(kind, ", 1, 1") if tail is None else tail)
    body += WAIT + out(count)
    found = launch(body, a_layout.image(a), b_layout.image(b), count, **device)
    return matrix_of(found.view(np.int32 if d == "s32" else np.float32), n), want


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_k_major_operands_of_every_type(kind: str, span: int) -> None:
    layouts = [Layout(rows, SIZES[kind], span=span) for rows in (64, 32)]
    found, want = multiply(kind, 32, a_layout=layouts[0], b_layout=layouts[1])
    assert (found == want).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_mn_major_operands(kind: str, span: int) -> None:
    layouts = [Layout(rows, 2, span=span, mn_major=True) for rows in (64, 128)]
    tail = ", 1, 1, 1, 1"
    found, want = multiply(kind, 128, a_layout=layouts[0], b_layout=layouts[1], tail=tail)
    assert (found == want).all()


@pytest.mark.parametrize("n", [8, 24, 96, 200, 256])
def test_every_width(n: int) -> None:
    found, want = multiply("f16", n)
    assert (found == want).all()


@every_order
def test_every_order(order: str) -> None:
    found, want = multiply("bf16", 64, order=order)
    assert (found == want).all()


@pytest.mark.parametrize(("tail", "sign"), [(", -1, 1, 0, 0", -1), (", -1, -1, 0, 0", 1)])
def test_scales_negate(tail: str, sign: int) -> None:
    found, want = multiply("f16", 16, tail=tail)
    assert (found == sign * want).all()


def chain(
    n: int = 16, kind: str = "f16"
) -> tuple[str, str, str, np.ndarray, np.ndarray, np.ndarray]:
    """(begin with zeros, one wgmma, out, image of A, of B, product) to build upon."""
    a_layout, b_layout = Layout(64, 2, span=0), Layout(n, 2, span=0)
    a, b, want = operands(kind, n)
    head = begin(a_layout, b_layout, "b32", n // 2) + zero("b32", n // 2)
    one = mma(n, kind, n // 2, tail=", 1, 1, 0, 0")
    return head, one, out(n // 2), a_layout.image(a), b_layout.image(b), want


@every_order
def test_accumulators_pass_from_one_to_the_next_without_a_wait(order: str) -> None:
    head, one, tail, a, b, want = chain()
    found = launch(head + FENCE + 3 * one + WAIT + tail, a, b, 8, order=order)
    assert (matrix_of(found.view(np.float32), 16) == 3 * want).all()


@every_order
def test_scale_d_of_zero_forgets_what_was_there(order: str) -> None:
    head, one, tail, a, b, want = chain()
    fresh = "    setp.ne.u32 %p2, %r0, %r0;\n" + one.replace("%one", "%p2")
    found = launch(head + FENCE + one + fresh + one + WAIT + tail, a, b, 8, order=order)
    assert (matrix_of(found.view(np.float32), 16) == 2 * want).all()


@every_order
def test_plain_moves_may_rename_accumulators_in_flight(order: str) -> None:
    """As compilers do between two wgmma."""
    head, one, tail, a, b, want = chain()
    head = head.replace("%d<8>", "%d<16>")
    moves = "".join(f"    mov.b32 %d{8 + i}, %d{i};\n" for i in range(8))
    two = one.replace(registers("d", 8), "{" + ", ".join(f"%d{8 + i}" for i in range(8)) + "}")
    back = "".join(f"    mov.b32 %d{i}, %d{8 + i};\n" for i in range(8))
    found = launch(head + FENCE + one + moves + two + WAIT + back + tail, a, b, 8, order=order)
    assert (matrix_of(found.view(np.float32), 16) == 2 * want).all()


@every_order
def test_earlier_groups_may_be_read_while_later_ones_run(order: str) -> None:
    head, one, _, a, b, want = chain()
    head = head.replace("%d<8>", "%d<16>")
    head += "".join(f"    mov.b32 %d{8 + i}, 0;\n" for i in range(8))
    commit = "    wgmma.commit_group.sync.aligned;\n"
    two = one.replace(registers("d", 8), "{" + ", ".join(f"%d{8 + i}" for i in range(8)) + "}")
    body = head + FENCE + one + commit + two + two + commit
    body += "    wgmma.wait_group.sync.aligned 1;\n" + out(8)
    body += "    wgmma.wait_group.sync.aligned 0;\n"
    body += "".join(f"    mov.b32 %d{i}, %d{8 + i};\n" for i in range(8)) + out(8)
    found = launch(body, a, b, 8, order=order)
    assert (matrix_of(found.view(np.float32), 16) == 2 * want).all()


def a_from_registers(n: int = 16) -> tuple[str, str, np.ndarray, np.ndarray, np.ndarray]:
    """A comes from %d8..%d11, four registers of two halves by lane."""
    b_layout = Layout(n, 2, span=0)
    a, b, want = operands("f16", n)
    image = np.zeros((128, 4, 2), np.float16)
    for thread, r, j in np.ndindex(128, 4, 2):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * (r % 2)
        image[thread, r, j] = a[row, r // 2 * 8 + lane % 4 * 2 + j]
    head = begin(Layout(64, 2, span=0), b_layout, "b32", n // 2 + 4) + zero("b32", n // 2)
    head += "    mul.wide.u32 %rd6, %r0, 16;\n    add.s64 %rd6, %rd1, %rd6;\n"
    head += "    ld.global.v4.b32 {%d8, %d9, %d10, %d11}, [%rd6];\n"
    one = mma(n, "f16", n // 2, a="{%d8, %d9, %d10, %d11}", tail=", 1, 1, 0")
    return head, one, image, b_layout.image(b), want


@every_order
def test_a_from_registers(order: str) -> None:
    head, one, a, b, want = a_from_registers()
    found = launch(head + FENCE + one + WAIT + out(8), a, b, 8, order=order)
    assert (matrix_of(found.view(np.float32), 16) == want).all()


@pytest.mark.parametrize("form", [".satfinite.s32.s8.s8", ".s32.s8.s8.satfinite"])
def test_integers_saturate_or_wrap(form: str) -> None:
    """From accumulators near the end of the range."""
    a_layout, b_layout = (Layout(rows, 1, span=0) for rows in (64, 16))
    a, b, want = operands("s8", 16)
    near = 2**31 - 20
    body = begin(a_layout, b_layout, "b32", 8)
    body += "".join(f"    mov.b32 %d{i}, {near};\n" for i in range(8)) + FENCE
    one = mma(16, "s8", 8, d="s32")
    for text, result in (
        (one, (near + want).astype(np.int64).astype(np.int32)),
        (one.replace(".s32.s8.s8", form), np.minimum(near + want, 2**31 - 1)),
    ):
        found = launch(body + text + WAIT + out(8), a_layout.image(a), b_layout.image(b), 8)
        assert (matrix_of(found.view(np.int32), 16) == result).all()
    assert (near + want > 2**31 - 1).any()


def test_half_results() -> None:
    a_layout, b_layout = Layout(64, 2, span=0), Layout(16, 2, span=0)
    a, b, want = operands("f16", 16)
    body = begin(a_layout, b_layout, "b32", 4) + zero("b32", 4) + FENCE
    body += mma(16, "f16", 4, d="f16", tail=", 1, 1, 0, 0") + WAIT + out(4)
    found = launch(body, a_layout.image(a), b_layout.image(b), 4)
    assert (matrix_of(found.view(np.float16).astype(np.float32), 16) == want).all()


def fails(body: str, a: np.ndarray, b: np.ndarray, error: type[Exception], text: str, **device):
    with pytest.raises(error, match=text):
        launch(body, a, b, 8, **device)


@every_order
@pytest.mark.parametrize("use", ["add.f32 %f1, %d3, %d3;", "st.global.b32 [%rd0], %d3;"])
def test_accumulator_read_before_the_wait(use: str, order: str) -> None:
    head, one, _, a, b, _ = chain()
    body = head + FENCE + one
    fails(body + use + WAIT, a, b, DataRace, "%d3 is an accumulator of a wgmma in flight")


@every_order
def test_accumulator_written_before_the_wait(order: str) -> None:
    head, one, tail, a, b, _ = chain()
    body = head + FENCE + one + "mov.b32 %d3, 0;" + WAIT + tail
    fails(body, a, b, DataRace, "%d3 was written while a wgmma", order=order)


@every_order
def test_accumulator_used_after_a_wait_for_too_few(order: str) -> None:
    head, one, tail, a, b, _ = chain()
    body = (
        head + FENCE + one + WAIT.replace("wait_group.sync.aligned 0", "wait_group.sync.aligned 1")
    )
    fails(body + tail, a, b, DataRace, "in flight", order=order)


@every_order
def test_register_of_a_written_before_the_wait(order: str) -> None:
    head, one, a, b, _ = a_from_registers()
    body = head + FENCE + one + "mov.b32 %d9, %r0;" + WAIT + out(8)
    fails(body, a, b, DataRace, "%d9 was written while a wgmma that reads A", order=order)


def test_missing_fence_before_the_first() -> None:
    head, one, tail, a, b, _ = chain()
    fails(head + one + WAIT + tail, a, b, DataRace, "no wgmma.fence orders")


def test_missing_fence_after_registers_were_written() -> None:
    head, one, tail, a, b, _ = chain()
    change = "    cvt.rn.f32.u32 %d3, %r0;\n"
    body = head + FENCE + one + WAIT + change + one + WAIT + tail
    fails(body, a, b, DataRace, "%d3, which was written after the last wgmma.fence")
    launch(head + FENCE + one + WAIT + change + FENCE + one + WAIT + tail, a, b, 8)


def test_missing_proxy_fence_is_reported() -> None:
    head, one, tail, a, b, _ = chain()
    body = head.replace("fence.proxy.async.shared::cta;", "") + FENCE + one + WAIT + tail
    fails(body, a, b, DataRace, r"must execute fence\.proxy\.async")


@every_order
def test_operand_written_before_the_wait(order: str) -> None:
    head, one, tail, a, b, _ = chain()
    body = head + FENCE + one + "bar.sync 0; st.shared.u32 [%r11], %r0;" + WAIT + tail
    fails(body, a, b, DataRace, "in flight reads", order=order)


@every_order
def test_exit_before_the_wait_is_reported(order: str) -> None:
    head, one, _, a, b, _ = chain()
    fails(head + FENCE + one, a, b, UnfinishedWork, "wgmma.mma_async, which reads", order=order)


def test_three_warps_wait_for_the_fourth() -> None:
    head, one, _, a, b, _ = chain()
    body = head + "setp.ge.u32 %p3, %r0, 96; @%p3 bra skip;" + FENCE + one + WAIT + "skip:\n"
    fails(body + "bar.sync 0;", a, b, Deadlock, r"warps \[3\] have not executed")


def test_warps_with_different_descriptors() -> None:
    head, one, tail, a, b, _ = chain()
    body = head + "setp.ge.u32 %p3, %r0, 96; @%p3 add.s64 %rd10, %rd10, 1;" + FENCE + one
    fails(body + WAIT + tail, a, b, IllegalOperation, "execute different wgmma")


def test_warpgroup_of_two_warps() -> None:
    head, one, _, a, b, _ = chain()
    fails(head + FENCE + one + WAIT, a, b, IllegalOperation, "a warpgroup has 4", threads=64)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ("or.b64 %rd11, %rd11, 0x4000;", IllegalOperation, "must be zero"),
        ("or.b64 %rd11, %rd11, 0x2000000000000;", IllegalOperation, "needs a swizzle"),
        ("and.b64 %rd11, %rd11, 0xFFFFFFFF;", IllegalOperation, "overlap"),
        ("or.b64 %rd11, %rd11, 0x3fff;", OutOfBounds, "reaches bytes"),
        (
            "or.b64 %rd10, %rd10, 0x4000000000000000; add.s64 %rd10, %rd10, 7;",
            IllegalOperation,
            "cross",
        ),
    ],
)
def test_contradictory_descriptors(change: str, error: type[Exception], text: str) -> None:
    head, one, tail, a, b, _ = chain()
    fails(head + change + FENCE + one + WAIT + tail, a, b, error, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "m64n20k16"),
        (", 1, 1, 0, 0", ", 2, 1, 0, 0"),
        (", 1, 1, 0, 0", ", 1, 1, 0"),
        ("%d0, ", ""),
        ("f32.f16.f16", "f32.f16.bf16"),
    ],
)
def test_forms_that_do_not_exist_are_refused(old: str, new: str) -> None:
    head, one, tail, a, b, _ = chain()
    assert old in one
    fails(head + FENCE + one.replace(old, new) + WAIT + tail, a, b, UnsupportedInstruction, "m64n")


def test_missing_barrier_between_the_warps_that_write_and_multiply() -> None:
    """Each warp has written and fenced its own part; nothing orders it before the others."""
    head, one, tail, a, b, _ = chain()
    body = head.replace("bar.sync 0;", "") + FENCE + one + WAIT + tail
    with pytest.raises((DataRace, UninitialisedRead)):
        launch(body, a, b, 8, order="round_robin")
