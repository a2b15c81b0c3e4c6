"""Numbers that stand for names in the records which native kernels take: CPU and GPU alike."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

#: Element types; uint8 holds two E2M1 codes. NibblasType of abi.h, ElementType of product.cuh.
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.uint8: 3}
#: NibblasScaleLayout of abi.h, ScaleLayout of product.cuh.
SCALE_LAYOUTS = {"linear": 0, "blocked": 1}
#: GroupStart of common/scale_layout.h.
SCALE_STARTS = {"torch": 0, "flashinfer": 1, "stacked": 2}


def address(tensor: Tensor | None) -> int:
    """The tensor's own address; 0 for an absent one."""
    return 0 if tensor is None else tensor.data_ptr()


class RecordTemplate:
    """A native record of which nothing but addresses changes from call to call.

    Args:
        record: the whole record, its fields in the machine's byte order.
        words: where each address stands, counted in words of 8 bytes; at least two.
    """

    def __init__(self, record: bytes, words: Sequence[int]) -> None:
        places = [8 * word for word in sorted(words)]
        begins, ends = [0, *(place + 8 for place in places)], [*places, len(record)]
        between = [record[begin:end] for begin, end in zip(begins, ends, strict=True)]
        # Bytes as they are, address, bytes as they are, ...: one call of pack makes a record.
        self._pack = struct.Struct("=" + "Q".join(f"{len(piece)}s" for piece in between)).pack
        self._values: list[Any] = [value for piece in between for value in (piece, 0)][:-1]
        self._addresses = slice(1, None, 2)
        self._sorted = itemgetter(*sorted(range(len(words)), key=words.__getitem__))

    def filled(self, addresses: Sequence[int]) -> bytes:
        """The record with other addresses, in the order of ``words``."""
        values = self._values.copy()
        values[self._addresses] = self._sorted(addresses)
        return self._pack(*values)
