"""Where bad block scales and global scales are refused, under ``validate="strict"``."""

from __future__ import annotations

import torch
from torch import Tensor

from nibblas.errors import bad_value
from nibblas.formats.nvfp4 import NVFP4Array


def check_scale_contents(
    array: NVFP4Array,
    name: str,
    *,
    offs: Tensor | None = None,
    rows_in_use: Tensor | None = None,
) -> None:
    """Refuses NaN or signed block scales that are in use, and unusable global scales.

    Padding is not looked at. Reads contents on the host.

    Args:
        array: weights ``(G, N, K)`` or tokens.
        name: the public argument's name, "x" or "w".
        offs: cumulative ends, for tokens packed by group with blocked scales.
        rows_in_use: bool, one per row of all matrices; rows that are False are not looked at.
    """
    scales = array.linear_scales(offs).view(torch.uint8).flatten(0, -2).cpu()
    bad = scales > 0x7E
    if rows_in_use is not None:
        bad &= rows_in_use[:, None]
    if bool(bad.any()):
        row, k_block = (int(i) for i in bad.nonzero()[0])
        where = f"row {row % array.rows}, k block {k_block}"
        if array.ndim == 3:
            where = f"group {row // array.rows}, {where}"
        raise bad_value(
            f"{name}.scales",
            given=f"byte 0x{int(scales[row, k_block]):02X} at {where}",
            wanted="E4M3 scales 0x00..0x7E: neither NaN nor negative",
        )
    usable = array.global_scale.isfinite() & (array.global_scale >= 0)
    if not bool(usable.all()):
        raise bad_value(
            f"{name}.global_scale",
            given=f"{float(array.global_scale[~usable].flatten()[0])}",
            wanted="finite values that are not negative",
        )
