"""An oracle that shares no code with the library: numpy, ml_dtypes and plain loops.

Decoding goes through ml_dtypes' float4_e2m1fn and float8_e4m3fn, scale addresses through the
published 128x4 formula, sums through float64.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch


def decode_codes(packed: torch.Tensor) -> np.ndarray:
    """float64 E2M1 values ``(..., K)`` of packed codes ``(..., K/2)``; low nibble = even k."""
    raw = packed.numpy()
    nibbles = np.stack([raw & 0xF, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)
    return nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def decode_scales(scales: torch.Tensor) -> np.ndarray:
    """float64 values of E4M3 bytes."""
    return scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def blocked_address(row: int, k_block: int, k_blocks: int) -> int:
    """Byte address of a scale in the 128x4 layout."""
    atoms_along_k = -(-k_blocks // 4)
    atom = (row // 128) * atoms_along_k + k_block // 4
    return atom * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + k_block % 4


def unblock(flat: np.ndarray, first_row: int, rows: int, k_blocks: int) -> np.ndarray:
    """Row-major scales of ``rows`` rows that start at ``first_row`` of a blocked buffer."""
    result = np.empty((rows, k_blocks))
    for row in range(rows):
        for k_block in range(k_blocks):
            result[row, k_block] = flat[blocked_address(first_row + row, k_block, k_blocks)]
    return result


def group_scale_rows(ends: list[int], rule: str) -> list[int]:
    """First scale row of each group of packed tokens."""
    starts, first, begin = [], 0, 0
    for g, end in enumerate(ends):
        starts.append(first if rule == "torch" else (begin + 127 * g) // 128 * 128)
        first += -(-(end - begin) // 128) * 128
        begin = end
    return starts


def matrix_values(array: object, g: int | None = None) -> np.ndarray:
    """float64 ``code * scale`` of a 2-D NVFP4Array, or of matrix g of a stack."""
    codes, scales = array.codes, array.scales  # type: ignore[attr-defined]
    if g is not None:
        codes, scales = codes[g], scales[g]
    values = decode_codes(codes)
    rows, k = values.shape
    block_scales = decode_scales(scales)
    if array.scale_layout == "blocked":  # type: ignore[attr-defined]
        block_scales = unblock(block_scales.reshape(-1), 0, rows, k // 16)
    return values * np.repeat(block_scales, 16, axis=1)


def token_values(x: object, ends: list[int]) -> np.ndarray:
    """float64 values of tokens ``(M, K)``: a 16-bit tensor or a packed NVFP4Array."""
    if isinstance(x, torch.Tensor):
        return x.double().numpy()
    rule = x.group_start  # type: ignore[attr-defined]
    if rule is None:
        return matrix_values(x)
    values = decode_codes(x.codes)  # type: ignore[attr-defined]
    flat = decode_scales(x.scales).reshape(-1)  # type: ignore[attr-defined]
    begin = 0
    for end, first in zip(ends, group_scale_rows(ends, rule), strict=True):
        scales = unblock(flat, first, end - begin, values.shape[1] // 16)
        values[begin:end] *= np.repeat(scales, 16, axis=1)
        begin = end
    return values


def grouped_mm(
    x: object,
    w: object,
    ends: list[int],
    *,
    alpha: torch.Tensor | None = None,
    row_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> np.ndarray:
    """The packed product in float64, ``(ends[-1], N)``."""
    tokens = token_values(x, ends)
    n = w.codes.shape[1]  # type: ignore[attr-defined]
    result = np.zeros((ends[-1], n))
    x_global: Any = 1.0 if isinstance(x, torch.Tensor) else x.global_scale.double().numpy()  # type: ignore[attr-defined]
    w_global = w.global_scale.double().numpy()  # type: ignore[attr-defined]
    begin = 0
    for g, end in enumerate(ends):
        y = tokens[begin:end] @ matrix_values(w, g).T
        columns = w_global if w_global.ndim == 0 else w_global[g]
        if np.ndim(columns) == 1:
            columns = np.repeat(columns, n // columns.shape[0])
        y = y * columns * (x_global if np.ndim(x_global) == 0 else x_global[g])
        if alpha is not None:
            y = y * float(alpha[g])
        if row_scale is not None:
            y = y * row_scale[begin:end].double().numpy()[:, None]
        if bias is not None:
            y = y + (bias if bias.ndim == 1 else bias[g]).double().numpy()
        result[begin:end] = y
        begin = end
    return result
