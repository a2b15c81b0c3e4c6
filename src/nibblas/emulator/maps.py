"""Tensor maps for tests and scripts: ``Device.tensor_map``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nibblas.emulator.machine.tensor_map import encode
from nibblas.errors import bad_value
from nibblas.runtime.tensormap import (
    ELEMENT_BYTES,
    DataType,
    Interleave,
    L2Promotion,
    OobFill,
    Swizzle,
    TensorMapSpec,
)

if TYPE_CHECKING:
    from nibblas.emulator.device import Buffer

_BY_NUMPY: dict[str, DataType] = {
    "uint8": "uint8",
    "int8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "int32": "int32",
    "uint64": "uint64",
    "int64": "int64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
}


@dataclass(frozen=True)
class TensorMap:
    """A map over a tensor; an argument of a launch. ``spec``: all but the address."""

    spec: TensorMapSpec
    address: int

    def tobytes(self) -> bytes:
        """128 bytes in the emulator's own encoding; the first eight are the address."""
        return encode(self.spec, self.address)


def make_map(
    buffer: Buffer,
    *,
    box: Sequence[int],
    dtype: DataType | None,
    dims: Sequence[int] | None,
    strides: Sequence[int] | None,
    element_strides: Sequence[int],
    swizzle: Swizzle,
    interleave: Interleave,
    l2_promotion: L2Promotion,
    oob_fill: OobFill,
    offset: int,
) -> TensorMap:
    """See ``Device.tensor_map``."""
    kind = dtype or _BY_NUMPY.get(np.dtype(buffer.dtype).name)
    if kind is None:
        raise bad_value("dtype", given="None", wanted=f"a type for {buffer.dtype} elements")
    if kind not in ELEMENT_BYTES:
        raise bad_value("dtype", given=repr(dtype), wanted=f"one of {', '.join(ELEMENT_BYTES)}")
    extents = tuple(dims) if dims is not None else tuple(reversed(buffer.shape))
    if strides is None:
        pitch, dense = ELEMENT_BYTES[kind], []
        for extent in extents[:-1]:
            pitch *= extent
            dense.append(int(pitch))
        strides = dense
    spec = TensorMapSpec(
        kind,
        extents,
        tuple(strides),
        tuple(box),
        tuple(element_strides),
        swizzle=swizzle,
        interleave=interleave,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    )
    spec.check()
    spec.check_address(buffer.address + offset)
    return TensorMap(spec, buffer.address + offset)
