"""Tensor maps (CUtensorMap): what TMA knows of a tensor in global memory and of the box it copies.

Rules: CUDA Driver API, "Tensor Map Object Management", cuTensorMapEncodeTiled. The driver answers
any violation with one CUDA_ERROR_INVALID_VALUE; ``TensorMapSpec.check`` names the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from nibblas.errors import bad_value
from nibblas.runtime.bounded import BoundedCache

if TYPE_CHECKING:
    from nibblas.runtime.driver import Driver

DataType = Literal[
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "16u4_align8b",
    "16u4_align16b",
    "16u6_align16b",
]
Swizzle = Literal["none", "32b", "64b", "128b"]
Interleave = Literal["none", "16b", "32b"]
L2Promotion = Literal["none", "l2_64b", "l2_128b", "l2_256b"]
OobFill = Literal["none", "nan_request_zero_fma"]

ELEMENT_BYTES = {
    "uint8": Fraction(1),
    "uint16": Fraction(2),
    "uint32": Fraction(4),
    "int32": Fraction(4),
    "uint64": Fraction(8),
    "int64": Fraction(8),
    "float16": Fraction(2),
    "bfloat16": Fraction(2),
    "float32": Fraction(4),
    "float64": Fraction(8),
    "16u4_align8b": Fraction(1, 2),
    "16u4_align16b": Fraction(1, 2),
    "16u6_align16b": Fraction(3, 4),
}
"""In global memory."""
SUB_BYTE = ("16u4_align8b", "16u4_align16b", "16u6_align16b")
"""Types of Blackwell: for an H200, driver 580.159.04 refuses maps of "16u4_align8b"."""
UNPACKED = ("16u4_align16b", "16u6_align16b")
"""Types of which 16 elements take 16 bytes of shared memory, the data first, then a gap."""
NAN_FILLED = ("float16", "bfloat16", "float32")
"""Types whose fill may be NaN; float64 has not been tried."""
SWIZZLE_BYTES = {"32b": 32, "64b": 64, "128b": 128}
TENSOR_MAP_BYTES = 128

_MAX_RANK = 5
_MAX_DIM = 2**32
_MAX_STRIDE_BYTES = 2**40
_MAX_BOX = 256
_MAX_ELEMENT_STRIDE = 8
_ADDRESS_BYTES = 8
_MAPS_KEPT = 256


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map but for the tensor's address. Sequences begin with the innermost dimension.

    Attributes:
        data_type: type of an element. Packed E2M1 is "uint8" of two codes, or "16u4_align8b".
            Sizes of "16u..." types are in elements.
        dims: elements of the tensor.
        stride_bytes: from one index to the next, of every dimension but the innermost. Zero, and
            strides that are no multiples of each other, are taken too (driver 580.159.04, H200:
            encoded, and loads are right).
        box: elements that one copy takes; those outside of the tensor read as zero.
        element_strides: step between copied elements; empty: 1 in every dimension.
        swizzle: pattern of the box's bytes in shared memory.
        interleave: layout NC/8HWC8 ("16b") or NC/16HWC16 ("32b").
        l2_promotion: the least that a miss in L2 fetches.
        oob_fill: "nan_request_zero_fma" fills with NaN instead of zero.
    """

    data_type: DataType
    dims: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = "none"
    interleave: Interleave = "none"
    l2_promotion: L2Promotion = "none"
    oob_fill: OobFill = "none"

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def steps(self) -> tuple[int, ...]:
        """``element_strides``, spelt out."""
        return self.element_strides or (1,) * self.rank

    @property
    def alignment_bytes(self) -> int:
        """What the address and the strides must be multiples of."""
        wide = self.interleave == "32b" or self.data_type in UNPACKED
        return 32 if wide else 16

    def check(self) -> None:
        """Raises ValueError, naming the field, if the driver would refuse the map."""
        _check_rank(self)
        _check_range("dims", self.dims, most=_MAX_DIM)
        _check_range("box", self.box, most=_MAX_BOX)
        _check_range("element_strides", self.steps, most=_MAX_ELEMENT_STRIDE)
        _check_strides(self)
        _check_inner(self)
        _check_modes(self)

    def check_address(self, address: int) -> None:
        """Raises ValueError if the tensor cannot lie at that address."""
        if address % self.alignment_bytes:
            wanted = f"a multiple of {self.alignment_bytes}"
            raise bad_value("address", given=f"{address:#x}", wanted=wanted)


class TensorMaps:
    """Maps by spec, at most ``maxsize``: the warm path patches an address into an encoded map.

    A map holds the address in its first eight bytes and nowhere else: on an H200 with driver 580, a
    patched map equals a fresh one byte for byte. Encoding takes ten times as long as patching.
    """

    def __init__(self, driver: Driver, *, maxsize: int = _MAPS_KEPT) -> None:
        self._driver = driver
        self._maps: BoundedCache[TensorMapSpec, bytes] = BoundedCache(maxsize)

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, spec: TensorMapSpec, address: int) -> bytes:
        """The 128 bytes of a map over the tensor at ``address``.

        Raises:
            ValueError: the spec or the address breaks a rule of the driver.
        """
        spec.check_address(address)
        encoded = self._maps.get_or_make(spec, lambda: self._encode(spec, address))
        return address.to_bytes(_ADDRESS_BYTES, "little") + encoded[_ADDRESS_BYTES:]

    def _encode(self, spec: TensorMapSpec, address: int) -> bytes:
        spec.check()
        return self._driver.encode_tensor_map(spec, address)


def _check_rank(spec: TensorMapSpec) -> None:
    least = 1 if spec.interleave == "none" else 3
    if not least <= spec.rank <= _MAX_RANK:
        reason = "" if least == 1 else ", as the layout is interleaved"
        raise bad_value("dims", given=spec.dims, wanted=f"{least} to {_MAX_RANK} sizes{reason}")
    lengths = {
        "stride_bytes": (spec.stride_bytes, spec.rank - 1),
        "box": (spec.box, spec.rank),
        "element_strides": (spec.steps, spec.rank),
    }
    for name, (values, length) in lengths.items():
        if len(values) != length:
            raise bad_value(name, given=values, wanted=f"{length} values for rank {spec.rank}")


def _check_range(name: str, values: Sequence[int], *, most: int) -> None:
    if not all(1 <= value <= most for value in values):
        raise bad_value(name, given=values, wanted=f"values from 1 to {most}")


def _check_multiple(name: str, values: Iterable[int], multiple: int, reason: str) -> None:
    values = tuple(values)
    if any(value % multiple for value in values):
        raise bad_value(name, given=values, wanted=f"multiples of {multiple}: {reason}")


def _check_strides(spec: TensorMapSpec) -> None:
    alignment = spec.alignment_bytes
    _check_multiple("stride_bytes", spec.stride_bytes, alignment, "TMA reads aligned rows")
    if not all(0 <= stride < _MAX_STRIDE_BYTES for stride in spec.stride_bytes):
        raise bad_value("stride_bytes", given=spec.stride_bytes, wanted="values below 2**40")


def _check_inner(spec: TensorMapSpec) -> None:
    """The innermost dimension, whose bytes are what alignment and swizzling are about."""
    if spec.data_type == "16u4_align8b":
        _check_multiple("dims", spec.dims[:1], 2, "two codes share a byte")
    if spec.data_type in UNPACKED:
        _check_multiple("dims", spec.dims[:1], 128, "the type is unpacked 128 codes at a time")
        if spec.box[0] != 128:
            raise bad_value("box", given=spec.box, wanted="128 innermost elements for this type")
    if spec.interleave != "none":
        return
    inner_bytes = spec.box[0] * ELEMENT_BYTES[spec.data_type]
    if inner_bytes % 16:
        raise bad_value(
            "box", given=f"{float(inner_bytes):g} innermost bytes", wanted="a multiple of 16 bytes"
        )
    most = SWIZZLE_BYTES.get(spec.swizzle)
    if most is not None and inner_bytes > most:
        raise bad_value(
            "box",
            given=f"{int(inner_bytes)} innermost bytes",
            wanted=f"at most {most}, the span of swizzle {spec.swizzle!r}",
        )


def _check_modes(spec: TensorMapSpec) -> None:
    if spec.interleave == "32b" and spec.swizzle != "32b":
        raise bad_value("swizzle", given=repr(spec.swizzle), wanted="'32b' with interleave '32b'")
    if spec.data_type in UNPACKED and spec.swizzle not in ("none", "128b"):
        wanted = f"'none' or '128b' for {spec.data_type}"
        raise bad_value("swizzle", given=repr(spec.swizzle), wanted=wanted)
    if spec.oob_fill != "none" and spec.data_type not in NAN_FILLED:
        wanted = f"'none' for {spec.data_type}"
        raise bad_value("oob_fill", given=repr(spec.oob_fill), wanted=wanted)
