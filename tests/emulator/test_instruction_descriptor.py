"""Instruction descriptors of tcgen05.mma: every field of the PTX ISA's tables, legal and not."""

from __future__ import annotations

import pytest

from nibblas.emulator import IllegalOperation
from nibblas.emulator.machine.instruction_descriptor import decode

TYPES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "i8": {"u8": 0, "s8": 1},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
RESULTS = {"f16": 0, "f32": 1, "s32": 2}
SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
BLOCKS = {"mxf8f6f4": 32, "mxf4": 32, "mxf4nvf4": 16}


def bits_of(
    kind: str, m: int, n: int, a: str, b: str, d: str = "f32", *, scale: str = "ue8m0", **fields
) -> int:
    """By the tables "Instruction descriptor format for ..."."""
    bits = TYPES[kind][a] << 7 | TYPES[kind][b] << 10 | n >> 3 << 17
    if kind in SCALED:
        bits |= (scale == "ue8m0") << 23 | m >> 7 << 27
    else:
        bits |= RESULTS[d] << 4 | m >> 4 << 24
    places = {"negate_a": 13, "negate_b": 14, "a_major": 15, "b_major": 16, "saturate": 3}
    places |= {"sfb_id": 4, "sfa_id": 29}
    for name, value in fields.items():
        bits |= value << places[name]
    return bits


def plain(kind: str, **fields) -> int:
    element = next(iter(TYPES[kind]))
    return bits_of(kind, 128, 64, element, element, "s32" if kind == "i8" else "f32", **fields)


@pytest.mark.parametrize("kind", TYPES)
def test_every_legal_shape_and_type(kind: str) -> None:
    block = BLOCKS.get(kind, 0)
    for group in (1, 2):
        rows = (128,) if kind in SCALED else (64, 128)
        for m in rows if group == 1 else (128, 256):
            for n in range(8, 257, 8):
                legal = n % (8 * group) == 0
                if kind == "i8":
                    legal = n % 32 == 0 if group == 2 else n in (8, 24) or n % 16 == 0
                for a in TYPES[kind]:
                    bits = bits_of(kind, m, n, a, a, "s32" if kind == "i8" else "f32")
                    if not legal:
                        with pytest.raises(IllegalOperation, match=f"N = {n} .*Matrix Shape"):
                            decode(bits, kind, cta_group=group, block=block)
                        continue
                    found = decode(bits, kind, cta_group=group, block=block)
                    assert (found.m, found.n, found.a, found.b) == (m, n, a, a)
                    assert (
                        found.k * {"f16": 16, "tf32": 32, "mxf4": 4, "mxf4nvf4": 4}.get(kind, 8)
                        == 256
                    )


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("m", [0, 16, 32, 64, 96, 128, 192, 256, 384])
def test_rows(kind: str, m: int) -> None:
    bits = plain(kind) & ~(31 << 24) | (m >> 7 << 27 if kind in SCALED else m >> 4 << 24)
    given = m >> 7 << 7 if kind in SCALED else m
    for group in (1, 2):
        legal = {1: (128,) if kind in SCALED else (64, 128), 2: (128, 256)}[group]
        if given in legal:
            assert decode(bits, kind, cta_group=group, block=BLOCKS.get(kind, 0)).m == given
        else:
            with pytest.raises(IllegalOperation, match=f"M = {given} "):
                decode(bits, kind, cta_group=group, block=BLOCKS.get(kind, 0))


@pytest.mark.parametrize("kind", TYPES)
def test_flags(kind: str) -> None:
    flags = {"negate_a": kind != "i8", "negate_b": kind != "i8"}
    flags |= {"a_major": kind not in ("mxf4", "mxf4nvf4"), "b_major": "mxf4" not in kind}
    flags |= {"saturate": kind == "i8"}
    flags["b_major"] = flags["a_major"]
    attributes = {"a_major": "a_mn_major", "b_major": "b_mn_major", "saturate": "saturates"}
    for name, legal in flags.items():
        bits = plain(kind, **{name: 1})
        if legal:
            found = decode(bits, kind, cta_group=1, block=BLOCKS.get(kind, 0))
            for other in flags:
                assert getattr(found, attributes.get(other, other)) == (other == name)
        else:
            with pytest.raises(IllegalOperation, match="must be zero"):
                decode(bits, kind, cta_group=1, block=BLOCKS.get(kind, 0))


@pytest.mark.parametrize("kind", TYPES)
def test_reserved_bits_and_sparsity(kind: str) -> None:
    reserved = {0, 1, 6}
    if kind in SCALED:
        reserved |= {3, 24, 25, 26, 31} | ({12, 15, 16} if kind != "mxf8f6f4" else set())
    else:
        reserved |= {23, 29, 30, 31} | ({13, 14} if kind == "i8" else {3})
    for bit in reserved:
        with pytest.raises(IllegalOperation, match=r"must be zero .*Instruction descriptor"):
            decode(plain(kind) | 1 << bit, kind, cta_group=1, block=BLOCKS.get(kind, 0))
    with pytest.raises(IllegalOperation, match="sparse"):
        decode(plain(kind) | 4, kind, cta_group=1, block=BLOCKS.get(kind, 0))


@pytest.mark.parametrize("kind", TYPES)
def test_types_that_a_kind_lacks(kind: str) -> None:
    codes = set(TYPES[kind].values())
    for first, name in ((7, "A"), (10, "B")):
        for code in range(8):
            bits = plain(kind) & ~(7 << first) | code << first
            if code in codes:
                decode(bits, kind, cta_group=1, block=BLOCKS.get(kind, 0))
            else:
                with pytest.raises(IllegalOperation, match=f"the type of {name}|must be zero"):
                    decode(bits, kind, cta_group=1, block=BLOCKS.get(kind, 0))
    if kind in SCALED:
        return
    legal = {"f16": (0, 1), "tf32": (1,), "f8f6f4": (0, 1), "i8": (2,)}[kind]
    for code in range(4):
        bits = plain(kind) & ~(3 << 4) | code << 4
        if code in legal:
            decode(bits, kind, cta_group=1)
        else:
            with pytest.raises(IllegalOperation, match="the type of D"):
                decode(bits, kind, cta_group=1)


def test_half_results_need_half_operands() -> None:
    with pytest.raises(IllegalOperation, match=r"D of .f16 needs A and B of .f16"):
        decode(bits_of("f16", 128, 64, "bf16", "f16", "f16"), "f16", cta_group=1)


@pytest.mark.parametrize(
    ("kind", "block", "scale", "ids"),
    [
        ("mxf8f6f4", 32, "ue8m0", (0, 1, 2, 3)),
        ("mxf8f6f4", 32, "ue4m3", ()),
        ("mxf4", 32, "ue8m0", (0, 2)),
        ("mxf4", 32, "ue4m3", ()),
        ("mxf4nvf4", 32, "ue8m0", (0, 2)),
        ("mxf4nvf4", 32, "ue4m3", ()),
        ("mxf4nvf4", 16, "ue8m0", (0,)),
        ("mxf4nvf4", 16, "ue4m3", (0,)),
    ],
)
def test_scale_types_and_ids(kind: str, block: int, scale: str, ids: tuple[int, ...]) -> None:
    element = next(iter(TYPES[kind]))
    for sfa in range(4):
        for sfb in range(4):
            bits = bits_of(kind, 128, 64, element, element, scale=scale, sfa_id=sfa, sfb_id=sfb)
            if sfa in ids and sfb in ids:
                found = decode(bits, kind, cta_group=1, block=block)
                assert (found.scale, found.sfa_id, found.sfb_id) == (scale, sfa, sfb)
            else:
                with pytest.raises(IllegalOperation, match=r"scale.*scale_vectorsize"):
                    decode(bits, kind, cta_group=1, block=block)


def test_mn_major_operands() -> None:
    for element in ("e2m3", "e3m2", "e2m1"):
        bits = bits_of("f8f6f4", 128, 64, element, "e4m3", a_major=1)
        with pytest.raises(IllegalOperation, match="A of .* cannot be MN-major"):
            decode(bits, "f8f6f4", cta_group=1)
    for group, n in ((1, 24), (2, 48)):
        with pytest.raises(IllegalOperation, match="MN-major B of 8 bits"):
            decode(bits_of("f8f6f4", 128, n, "e4m3", "e4m3", b_major=1), "f8f6f4", cta_group=group)


def test_the_published_nvfp4_descriptor() -> None:
    """M = 256, N = 128, E2M1 both, UE4M3: bits 7 and 10, 16 << 17, 2 << 27."""
    found = decode(0x1020_0480, "mxf4nvf4", cta_group=2, block=16)
    assert (found.m, found.n, found.a, found.b, found.scale) == (256, 128, "e2m1", "e2m1", "ue4m3")
