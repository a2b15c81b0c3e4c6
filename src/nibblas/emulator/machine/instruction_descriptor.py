"""Instruction descriptors of tcgen05.mma. PTX ISA, "Instruction descriptor".

    bits     kind::f16, tf32, f8f6f4, i8       kind::mxf8f6f4        kind::mxf4, mxf4nvf4
    0-1      sparsity selector                 zero                  zero
    2        sparse                            sparse                sparse
    3        saturate (i8)                     zero                  zero
    4-5      type of D                         scale id of B         scale id of B
    7-9      type of A                         type of A             1: E2M1
    10-12    type of B                         type of B             1: E2M1 (bit 12: zero)
    13, 14   negate A, B                       the same              the same
    15, 16   A, B are MN-major                 the same              zero
    17-22    N / 8                             the same              the same
    23       zero                              1: UE8M0              1: UE8M0, 0: UE4M3
    24-28    M / 16                            27-28: M / 128        27-28: M / 128
    29-31    zero; 30-31: shift of .ws         29-30: scale id of A  the same; 31: K = 96

Bit 6 and what the table leaves out are zero. Which shapes a kind has: "Matrix Shape", table of
kinds and shapes; which types of scales and ids of them: "Block Scaling for tcgen05.mma".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nibblas.emulator.errors import IllegalOperation

_TABLE = 'PTX ISA, "Instruction descriptor"'
_SHAPES = 'PTX ISA, "Matrix Shape"'
_SCALES = 'PTX ISA, "Valid combinations of scale_vectorsize with types and MMA-Kind"'

_NARROW = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_ELEMENTS = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _NARROW,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _NARROW,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
_RESULTS = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""Of a dense operation, by kind: 32 bytes of a row."""

BLOCK_SCALED = frozenset({"mxf8f6f4", "mxf4", "mxf4nvf4"})


@dataclass(frozen=True)
class InstructionDescriptor:
    """A decoded descriptor.

    Attributes:
        kind: "mxf4nvf4". m, n: of the whole operation, of both CTAs for cta_group::2.
        a, b, d: types of the elements: "e2m1"; of results: "f32", "f16", "s32".
        saturates: integers. scale: type of the scales, "ue4m3" or "ue8m0"; "" for kinds without.
        sfa_id, sfb_id: first byte, of the four in a word of tensor memory, of the scales.
    """

    kind: str
    m: int
    n: int
    a: str
    b: str
    d: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    saturates: bool = False
    scale: str = ""
    sfa_id: int = 0
    sfb_id: int = 0

    @property
    def k(self) -> int:
        return K[self.kind]


@lru_cache(maxsize=1024)
def decode(bits: int, kind: str, *, cta_group: int, block: int = 0) -> InstructionDescriptor:
    """The fields of a descriptor, checked against the instruction.

    Args:
        kind: of the instruction, "mxf4nvf4". cta_group: 1 or 2.
        block: values per scale, 16 or 32, of kinds with block scaling.

    Raises:
        IllegalOperation: a reserved bit is set, a field has no such value, or the fields contradict
            each other or the instruction; the message names the field and the table.
    """
    found = f"instruction descriptor {bits:#010x} of kind::{kind}"

    def refuse(what: str, where: str = _TABLE) -> IllegalOperation:
        return IllegalOperation(f"{found}: {what} ({where})")

    def choose(first: int, width: int, what: str, values: dict[int, str]) -> str:
        value = bits >> first & (1 << width) - 1
        if value not in values:
            wanted = ", ".join(f"{code} ({name})" for code, name in values.items())
            raise refuse(f"{what}, bits {first}-{first + width - 1}, is {value}; want {wanted}")
        return values[value]

    scaled = kind in BLOCK_SCALED
    if bits >> 2 & 1:
        raise refuse("bit 2 says that A is sparse; the instruction is dense")
    reserved = _reserved(kind)
    if bits & reserved:
        raise refuse(f"bits {bits & reserved:#x} must be zero")
    a = choose(7, 3, "the type of A", _ELEMENTS[kind])
    b = choose(10, 3, "the type of B", _ELEMENTS[kind])
    d = "f32" if scaled else choose(4, 2, "the type of D", _RESULTS[kind])
    if kind == "f16" and d == "f16" and (a, b) != ("f16", "f16"):
        raise refuse(f"D of .f16 needs A and B of .f16, not .{a} and .{b}", _SHAPES)
    m = (bits >> 27 & 3) * 128 if scaled else (bits >> 24 & 31) * 16
    n = (bits >> 17 & 63) * 8
    problem = _shape_problem(kind, m, n, cta_group)
    if problem:
        raise refuse(problem, _SHAPES)
    a_mn_major, b_mn_major = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
    for major, name, element in ((a_mn_major, "A", a), (b_mn_major, "B", b)):
        if major and element in ("e2m3", "e3m2", "e2m1"):
            raise refuse(
                f"{name} of .{element} cannot be MN-major",
                'PTX ISA, "Valid Combinations of Type-Size, Major-ness and Swizzling"',
            )
    if b_mn_major and K[kind] == 32 and n % (16 * cta_group):
        raise refuse(
            f"N = {n} with an MN-major B of 8 bits; want multiples of {16 * cta_group}",
            'PTX ISA, "Transpose and Negate operations"',
        )
    scale, sfa_id, sfb_id = "", 0, 0
    if scaled:
        scale = "ue8m0" if bits >> 23 & 1 else "ue4m3"
        sfa_id, sfb_id = bits >> 29 & 3, bits >> 4 & 3
        problem = _scale_problem(kind, scale, block, (sfa_id, sfb_id))
        if problem:
            raise refuse(problem, _SCALES)
    return InstructionDescriptor(
        kind, m, n, a, b, d, bool(bits >> 13 & 1), bool(bits >> 14 & 1), a_mn_major, b_mn_major,
        not scaled and bool(bits >> 3 & 1), scale, sfa_id, sfb_id,
    )  # fmt: skip


def _reserved(kind: str) -> int:
    """Bits that must be zero in a dense operation that is not .ws."""
    if kind in BLOCK_SCALED:
        common = 3 | 1 << 3 | 1 << 6 | 7 << 24 | 1 << 31
        return common if kind == "mxf8f6f4" else common | 1 << 12 | 3 << 15
    common = 3 | 1 << 6 | 1 << 23 | 7 << 29
    return common | 3 << 13 if kind == "i8" else common | 1 << 3


def _shape_problem(kind: str, m: int, n: int, cta_group: int) -> str:
    rows = {1: (128,) if kind in BLOCK_SCALED else (64, 128), 2: (128, 256)}[cta_group]
    if m not in rows:
        return f"M = {m} with cta_group::{cta_group}; want {' or '.join(map(str, rows))}"
    if kind == "i8":
        fits = n % 32 == 0 if cta_group == 2 else n % 16 == 0 or n in (8, 24)
    else:
        fits = n % (8 * cta_group) == 0
    if not fits or not 8 <= n <= 256:
        step = 8 * cta_group if kind != "i8" else 16 * cta_group
        return f"N = {n} with cta_group::{cta_group}; want multiples of {step}, at most 256"
    return ""


def _scale_problem(kind: str, scale: str, block: int, ids: tuple[int, int]) -> str:
    wanted = {
        ("mxf8f6f4", 32): ("ue8m0",),
        ("mxf4", 32): ("ue8m0",),
        ("mxf4nvf4", 32): ("ue8m0",),
        ("mxf4nvf4", 16): ("ue8m0", "ue4m3"),
    }[kind, block]
    if scale not in wanted:
        return f"scales of .{scale} (bit 23) with blocks of {block}; want .{' or .'.join(wanted)}"
    bytes_each = K[kind] // block
    for name, value in zip("AB", ids, strict=True):
        if value % bytes_each:
            return (
                f"the scale id of {name} is {value}: its {bytes_each} scales of a row begin at a "
                f"multiple of {bytes_each} bytes of a word"
            )
    return ""
