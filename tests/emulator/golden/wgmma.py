"""wgmma: both sources of A, all swizzles and majors, several K steps, hard sums."""

from __future__ import annotations

import numpy as np

from tests.emulator.golden.case import Case, module
from tests.emulator.golden.warpwide import STYLES, floats

_SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}
_STEPS = 2


def canonical(matrix: np.ndarray, span: int) -> np.ndarray:
    """Bytes of a K-major matrix [rows, k_bytes] as wgmma reads them.

    Groups of 8 rows x ``span`` bytes (16 without swizzle); groups follow each other along the rows,
    then along K. Within a group the 16-byte pieces of row r are permuted by r, as TMA does.
    """
    rows, k_bytes = matrix.shape
    width = span or 16
    out = []
    for column in range(0, k_bytes, width):
        for row in range(0, rows, 8):
            group = matrix[row : row + 8, column : column + width].copy()
            if span:
                pieces = group.reshape(8, width // 16, 16)
                swapped = np.empty_like(pieces)
                for r in range(8):
                    at = r * width // 128  # rows that share 128 bytes share a permutation
                    for piece in range(width // 16):
                        swapped[r, piece ^ at] = pieces[r, piece]
                group = swapped.reshape(8, width)
            out.append(group.reshape(-1))
    return np.concatenate(out)


def wgmma(
    kind: str, n: int, span: int, *, a_from: str = "shared", style: str, d: str = "f32"
) -> Case:
    """One warpgroup: D[64, n] of two K steps, the second added to the first.

    Both operands K-major, K tile as wide as the swizzle's span (or two steps, if that is wider).
    """
    size = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}[kind]
    step_bytes = 32
    k_bytes = max(_STEPS * step_bytes, span)
    k = k_bytes // size
    ctas = 3
    a_parts, b_parts = [], []
    for cta in range(ctas):
        a_parts.append(floats(kind, (64, k), style, 10 * cta))
        b_parts.append(floats(kind, (n, k), style, 10 * cta + 1))
    bits = np.concatenate
    a_all = bits([canonical(p.view(np.uint8).reshape(64, k_bytes), span) for p in a_parts])
    b_all = bits([canonical(p.view(np.uint8).reshape(n, k_bytes), span) for p in b_parts])
    a_bytes, b_bytes = 64 * k_bytes, n * k_bytes
    c_all = floats("f32", (ctas, 128, n // 2), "normal", 5)
    inputs: tuple[np.ndarray, ...] = (a_all, b_all, c_all)
    fragments = np.zeros((ctas, 128, _STEPS, 4), np.uint32)
    for cta, part in enumerate(a_parts):
        words = part.view(np.uint8).reshape(64, k_bytes).view(np.uint32)
        for thread in range(128):
            row, word = 16 * (thread // 32) + thread % 32 // 4, thread % 4
            for step in range(_STEPS):
                at = 8 * step + word
                fragments[cta, thread, step] = (
                    words[row, at],
                    words[row + 8, at],
                    words[row, at + 4],
                    words[row + 8, at + 4],
                )
    if a_from == "registers":
        inputs = (*inputs, fragments)
    registers = n // 2 if d == "f32" else n // 4
    width = span or 16
    # Stride: from one group of 8 rows to the next. Leading: from one 16-byte column to the next.
    stride, a_lead, b_lead = 8 * width, 64 * 16, n * 16
    step_at = [step_bytes * s for s in range(_STEPS)]
    if not span:
        a_at = [2 * a_lead * s for s in range(_STEPS)]
        b_at = [2 * b_lead * s for s in range(_STEPS)]
    elif span < k_bytes:
        a_at = [s * step_bytes // span * 64 * span + s * step_bytes % span for s in range(_STEPS)]
        b_at = [s * step_bytes // span * n * span + s * step_bytes % span for s in range(_STEPS)]
    else:
        a_at = b_at = step_at
    code = _SWIZZLE_CODE[span]
    high_a = (stride >> 4) << 32 | (a_lead >> 4 if not span else 1) << 16 | code << 62
    high_b = (stride >> 4) << 32 | (b_lead >> 4 if not span else 1) << 16 | code << 62
    lines = [
        "mov.u32 %r1, %ctaid.x;",
        "mov.u32 %r10, a_tile;",
        "mov.u32 %r11, b_tile;",
    ]
    for label, source, register, num_bytes in (
        ("a", 0, "%r10", a_bytes),
        ("b", 1, "%r11", b_bytes),
    ):
        lines += [
            f"mul.wide.u32 %rd10, %r1, {num_bytes};",
            f"add.s64 %rd10, %rd10, %rd{source};",
            "mul.lo.u32 %r2, %r0, 16;",
            f"{label}_fill:",
            f"setp.ge.u32 %p1, %r2, {num_bytes};",
            f"@%p1 bra {label}_filled;",
            "cvt.u64.u32 %rd11, %r2;",
            "add.s64 %rd11, %rd11, %rd10;",
            "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd11];",
            f"add.u32 %r3, {register}, %r2;",
            "st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};",
            "add.u32 %r2, %r2, 2048;",
            f"bra {label}_fill;",
            f"{label}_filled:",
        ]
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    lines += ["mad.lo.u32 %r2, %r1, 128, %r0;", f"mad.wide.u32 %rd10, %r2, {2 * n}, %rd2;"]
    out = [f"%f{i}" if d == "f32" else f"%d{i}" for i in range(registers)]
    lines += [f"ld.global.b32 {out[i]}, [%rd10+{4 * i}];" for i in range(registers)]
    if d == "f16":  # bits of finite halves
        lines += [f"and.b32 {r}, {r}, 0xBBFFBBFF;" for r in out]
    if a_from == "registers":
        lines.append(f"mad.wide.u32 %rd10, %r2, {16 * _STEPS}, %rd3;")
        for i in range(4 * _STEPS):
            lines.append(f"ld.global.b32 %r{30 + i}, [%rd10+{4 * i}];")
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(_STEPS):
        descriptors = [("%rd30", "%r10", a_at[step], high_a), ("%rd31", "%r11", b_at[step], high_b)]
        for register, base, at, high in descriptors:
            lines += [
                f"add.u32 %r20, {base}, {at};",
                "shr.u32 %r20, %r20, 4;",
                "and.b32 %r20, %r20, 0x3fff;",
                f"cvt.u64.u32 {register}, %r20;",
                f"or.b64 {register}, {register}, {high:#x};",
            ]
        a = "%rd30"
        if a_from == "registers":
            a = "{" + ", ".join(f"%r{30 + 4 * step + i}" for i in range(4)) + "}"
        keeps = step > 0 or style != "normal"
        lines.append(f"setp.eq.u32 %p3, {int(keeps)}, 1;")
        majors = ", 0, 0" if kind in ("f16", "bf16") and a_from == "shared" else ""
        majors = ", 0" if kind in ("f16", "bf16") and a_from == "registers" else majors
        negate = ", 1, 1" if step == 0 or kind in ("e4m3", "e5m2") else ", -1, 1"
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{step_bytes // size}.{d}.{kind}.{kind} "
            f"{{{', '.join(out)}}}, {a}, %rd31, %p3{negate}{majors};"
        )
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    lines.append(f"mad.wide.u32 %rd21, %r2, {4 * registers}, %rd20;")
    lines += [f"st.global.b32 [%rd21+{4 * i}], {out[i]};" for i in range(registers)]
    shared = (
        f".shared .align 1024 .b8 a_tile[{a_bytes}]; .shared .align 1024 .b8 b_tile[{b_bytes}];"
    )
    if d == "f16":
        shared += f" .reg .b32 %d<{registers}>;"
    text = module("    " + "\n    ".join(lines), inputs=len(inputs), shared=shared)
    name = f"wgmma_{kind}_{d}_n{n}_{span}b_{a_from}_{style}"
    return Case(name, text, inputs, 4 * registers * 128 * ctas, grid=ctas, block=128)


def transposed(kind: str, n: int) -> Case:
    """B stored by rows of K (N-major) with the 128-byte swizzle; A from registers.

    Groups of 8 rows of K x 64 columns; groups follow each other along K, then along N.
    """
    k, ctas = 32, 2
    parts = [floats(kind, (k, n), "wide", 50 + cta) for cta in range(ctas)]
    tiles = [
        np.concatenate(
            [
                canonical(np.ascontiguousarray(part[:, column : column + 64]).view(np.uint8), 128)
                for column in range(0, n, 64)
            ]
        )
        for part in parts
    ]
    a = floats(kind, (ctas, 128, 2, 8), "normal", 60).view(np.uint32)
    high = 1024 >> 4 << 32 | (k * 128 >> 4) << 16 | 1 << 62
    out = [f"%f{i}" for i in range(n // 2)]
    size = 2 * k * n
    lines = [
        "mov.u32 %r1, %ctaid.x;",
        "mov.u32 %r11, b_tile;",
        f"mul.wide.u32 %rd10, %r1, {size};",
        "add.s64 %rd10, %rd10, %rd0;",
        "mul.lo.u32 %r2, %r0, 16;",
        "fill:",
        f"setp.ge.u32 %p1, %r2, {size};",
        "@%p1 bra filled;",
        "cvt.u64.u32 %rd11, %r2;",
        "add.s64 %rd11, %rd11, %rd10;",
        "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd11];",
        "add.u32 %r3, %r11, %r2;",
        "st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};",
        "add.u32 %r2, %r2, 2048;",
        "bra fill;",
        "filled:",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "mad.lo.u32 %r2, %r1, 128, %r0;",
        "mad.wide.u32 %rd10, %r2, 32, %rd1;",
    ]
    lines += [f"ld.global.b32 %r{30 + i}, [%rd10+{4 * i}];" for i in range(8)]
    lines += [f"mov.f32 {r}, 0f00000000;" for r in out]
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(2):
        lines += [
            f"add.u32 %r20, %r11, {2048 * step};",
            "shr.u32 %r20, %r20, 4;",
            "and.b32 %r20, %r20, 0x3fff;",
            "cvt.u64.u32 %rd31, %r20;",
            f"or.b64 %rd31, %rd31, {high:#x};",
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{', '.join(out)}}}, "
            f"{{%r{30 + 4 * step}, %r{31 + 4 * step}, %r{32 + 4 * step}, %r{33 + 4 * step}}}, "
            f"%rd31, 1, 1, 1, 1;",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    lines.append(f"mad.wide.u32 %rd21, %r2, {2 * n}, %rd20;")
    lines += [f"st.global.b32 [%rd21+{4 * i}], {out[i]};" for i in range(n // 2)]
    shared = f".shared .align 1024 .b8 b_tile[{size}];"
    text = module("    " + "\n    ".join(lines), inputs=2, shared=shared)
    inputs = (np.concatenate(tiles), a)
    name = f"wgmma_{kind}_n{n}_transposed"
    return Case(name, text, inputs, 2 * n * 128 * ctas, grid=ctas, block=128)


def cases() -> list[Case]:
    made = [transposed("f16", 64), transposed("bf16", 128)]
    for kind in ("f16", "bf16"):
        for span in (0, 32, 64, 128):
            made.append(wgmma(kind, 8, span, style=STYLES[span // 32 % 4]))
        for style in STYLES:
            made.append(wgmma(kind, 16, 128, a_from="registers", style=style))
            made.append(wgmma(kind, 24, 128, style=style))
    made.append(wgmma("f16", 128, 128, style="wide"))
    made.append(wgmma("bf16", 256, 128, a_from="registers", style="cancel"))
    made.append(wgmma("f16", 32, 64, style="wide", d="f16"))
    made.append(wgmma("f16", 32, 64, a_from="registers", style="cancel", d="f16"))
    made.append(wgmma("tf32", 16, 128, style="wide"))
    made.append(wgmma("e4m3", 16, 128, style="wide"))
    made.append(wgmma("e4m3", 16, 128, style="normal"))
    made.append(wgmma("e5m2", 16, 64, style="wide"))
    return made
