"""Where the scale of (row, k block) lies: the one place where its byte address is computed.

*linear*: ``(rows, K/16)``, row-major; what checkpoints store.

*blocked* (128x4; cuBLAS "block scaling factors layout", PyTorch ``SWIZZLE_32_4_4``)::

    atom = 128 rows x 4 k blocks = 512 bytes      byte(row, kb) = 16*(row % 32) + 4*(row // 32) + kb

                      byte 0..3     4..7          8..11         12..15
      16-byte line 0: row 0, kb 0-3 row 32        row 64        row 96
      16-byte line 1: row 1         row 33        row 65        row 97
         ...
      line 31:        row 31        row 63        row 95        row 127

    rows padded to 128, k blocks to 4; the atoms of 128 rows are contiguous along K, the next
    128 rows follow.

Of tokens packed by group, every group's scales start at a row that is a multiple of 128
(``group_start_rows``). Padding bytes may hold anything and never reach a result.

Functions take and return uint8 or float8_e4m3fn, work on any device and never synchronise.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value

ScaleLayout = Literal["linear", "blocked"]
GroupStart = Literal["torch", "flashinfer"]

BLOCK = 16
"""Values along K that share a scale."""
ATOM_ROWS = 128
ATOM_K_BLOCKS = 4
ATOM_BYTES = ATOM_ROWS * ATOM_K_BLOCKS
_LINES = 32
_QUARTERS = ATOM_ROWS // _LINES
_LINE_BYTES = _QUARTERS * ATOM_K_BLOCKS

IntOrTensor = TypeVar("IntOrTensor", int, Tensor)


def _round_up(count: IntOrTensor, multiple: int) -> IntOrTensor:
    return (count + (multiple - 1)) // multiple * multiple


def padded_rows(rows: IntOrTensor) -> IntOrTensor:
    """``rows`` rounded up to whole atoms, a multiple of 128."""
    return _round_up(rows, ATOM_ROWS)


def padded_k_blocks(k_blocks: IntOrTensor) -> IntOrTensor:
    """``k_blocks`` (K/16) rounded up to whole atoms, a multiple of 4."""
    return _round_up(k_blocks, ATOM_K_BLOCKS)


def blocked_offset(row: IntOrTensor, k_block: IntOrTensor, k_blocks: int) -> IntOrTensor:
    """Byte offset of the scale of (row, k_block) in a blocked buffer of ``k_blocks`` columns."""
    k_atoms = padded_k_blocks(k_blocks) // ATOM_K_BLOCKS
    atom = row // ATOM_ROWS * k_atoms + k_block // ATOM_K_BLOCKS
    line = row % _LINES
    quarter = row % ATOM_ROWS // _LINES
    return (
        atom * ATOM_BYTES + line * _LINE_BYTES + quarter * ATOM_K_BLOCKS + k_block % ATOM_K_BLOCKS
    )


def to_blocked(scales: Tensor, fill_byte: int = 0) -> Tensor:
    """Blocked ``(..., padded_rows, padded_kb)`` of linear scales ``(..., rows, kb)``.

    Args:
        fill_byte: what the padding holds, 0..255.
    """
    _check_scales("scales", scales)
    rows, k_blocks = scales.shape[-2:]
    stack = scales.shape[:-2]
    shape = (padded_rows(rows), padded_k_blocks(k_blocks))
    encoded = scales.view(torch.uint8)
    padded = encoded.new_full((*stack, *shape), fill_byte)
    padded[..., :rows, :k_blocks] = encoded
    atoms = padded.reshape(
        *stack, shape[0] // ATOM_ROWS, _QUARTERS, _LINES, shape[1] // ATOM_K_BLOCKS, ATOM_K_BLOCKS
    )
    # (..., row atom, quarter, line, k atom, k) -> (..., row atom, k atom, line, quarter, k)
    blocked = atoms.movedim((-2, -3, -4), (-4, -3, -2))
    return blocked.reshape(*stack, *shape).view(scales.dtype)


def from_blocked(blocked: Tensor, rows: int, k_blocks: int) -> Tensor:
    """Linear ``(..., rows, k_blocks)`` of blocked scales ``(..., padded_rows, padded_kb)``."""
    _check_scales("blocked", blocked)
    shape = (padded_rows(rows), padded_k_blocks(k_blocks))
    if tuple(blocked.shape[-2:]) != shape:
        raise bad_value(
            "blocked",
            given=f"shape {tuple(blocked.shape)}",
            wanted=f"(..., {shape[0]}, {shape[1]}) for {rows} rows of {k_blocks} k blocks",
        )
    stack = blocked.shape[:-2]
    atoms = blocked.view(torch.uint8).reshape(
        *stack, shape[0] // ATOM_ROWS, shape[1] // ATOM_K_BLOCKS, _LINES, _QUARTERS, ATOM_K_BLOCKS
    )
    padded = atoms.movedim((-4, -3, -2), (-2, -3, -4)).reshape(*stack, *shape)
    return padded[..., :rows, :k_blocks].contiguous().view(blocked.dtype)


def group_start_rows(offs: Tensor, rule: GroupStart) -> Tensor:
    """First scale row of each group in a packed blocked buffer, int64 ``(G,)``.

    Args:
        offs: int32 or int64 ``(G,)``, cumulative ends of the groups.
        rule: "torch": the groups before it, each rounded up to 128 rows
            (``torch.nn.functional.scaled_grouped_mm``). "flashinfer":
            ``(start + 127 * g) // 128 * 128`` (``group_gemm_nvfp4_nt_groupwise``).
    """
    starts, sizes = _group_extents(offs)
    if rule == "torch":
        padded = padded_rows(sizes)
        return padded.cumsum(0) - padded
    if rule == "flashinfer":
        group = torch.arange(offs.shape[0], device=offs.device)
        return (starts + (ATOM_ROWS - 1) * group) // ATOM_ROWS * ATOM_ROWS
    raise bad_value("rule", given=repr(rule), wanted="'torch' or 'flashinfer'")


def packed_rows_bound(m: int, groups: int) -> int:
    """Rows that hold the packed blocked scales of ``m`` rows in ``groups`` groups by either rule.

    Every group of m_g rows takes ceil(m_g/128) <= (m_g + 127)/128 atoms; the sum is an integer.
    """
    return (m + (ATOM_ROWS - 1) * groups) // ATOM_ROWS * ATOM_ROWS


def to_blocked_by_group(
    scales: Tensor, offs: Tensor, *, rule: GroupStart, fill_byte: int = 0
) -> Tensor:
    """Packed blocked ``(packed_rows_bound(M, G), padded_kb)`` of linear scales ``(M, kb)``.

    Args:
        scales: one row per token; rows past ``offs[-1]`` are left out.
        offs: int32 or int64 ``(G,)``, cumulative ends of the groups.
        fill_byte: what every byte outside the groups holds, 0..255.
    """
    _check_scales("scales", scales, ndim=2)
    m = scales.shape[0]
    first = group_start_rows(offs, rule)
    starts, sizes = _group_extents(offs)
    row = torch.arange(packed_rows_bound(m, offs.shape[0]), device=scales.device)
    group = torch.searchsorted(first, row, right=True) - 1
    within = row - first[group]
    token = (starts[group] + within).clamp(0, max(m - 1, 0))
    packed = _rows_or_filler(scales, token, within < sizes[group], fill_byte)
    return to_blocked(packed, fill_byte).view(scales.dtype)


def from_blocked_by_group(
    blocked: Tensor, offs: Tensor, *, rule: GroupStart, rows: int, k_blocks: int
) -> Tensor:
    """Linear ``(rows, k_blocks)`` of packed blocked scales ``(padded rows, padded_kb)``.

    Args:
        blocked: any whole number of 128-row atoms that holds the groups.
        offs: int32 or int64 ``(G,)``, cumulative ends of the groups.
        rows: tokens; those past ``offs[-1]`` read as zero.
    """
    _check_scales("blocked", blocked, ndim=2)
    linear = from_blocked(blocked, blocked.shape[0], k_blocks)
    first = group_start_rows(offs, rule)
    starts, _ = _group_extents(offs)
    token = torch.arange(rows, device=blocked.device)
    group = torch.searchsorted(offs.long(), token, right=True).clamp_(max=offs.shape[0] - 1)
    row = (first[group] + token - starts[group]).clamp(0, max(linear.shape[0] - 1, 0))
    return _rows_or_filler(linear, row, token < offs[-1], 0).view(blocked.dtype)


def competition_view(blocked: Tensor) -> Tensor:
    """The 6-D view ``[32, 4, rm, 4, rk, L]`` of blocked scales; no copy.

    The shape in which the ``nvfp4_group_gemm`` problem hands over its reordered scales: element
    ``[r, q, i, j, b, l]`` is the scale of row ``128*i + 32*q + r``, k block ``4*b + j``, matrix l;
    strides ``(16, 4, rk*512, 1, 512, rm*rk*512)``.

    Args:
        blocked: contiguous ``(L, padded_rows, padded_kb)``, or 2-D for L = 1.
    """
    _check_scales("blocked", blocked)
    stack = blocked if blocked.ndim == 3 else blocked.unsqueeze(0)
    if stack.ndim != 3 or stack.shape[1] % ATOM_ROWS or stack.shape[2] % ATOM_K_BLOCKS:
        raise bad_value(
            "blocked",
            given=f"shape {tuple(blocked.shape)}",
            wanted="(L, padded_rows, padded_kb) or (padded_rows, padded_kb)",
        )
    if not stack.is_contiguous():
        raise bad_value("blocked", given=f"strides {blocked.stride()}", wanted="contiguous bytes")
    count, row_atoms, k_atoms = (
        stack.shape[0],
        stack.shape[1] // ATOM_ROWS,
        stack.shape[2] // ATOM_K_BLOCKS,
    )
    atoms = stack.view(count, row_atoms, k_atoms, _LINES, _QUARTERS, ATOM_K_BLOCKS)
    return atoms.permute(3, 4, 1, 5, 2, 0)


def from_competition_view(view6: Tensor) -> Tensor:
    """Blocked ``(L, padded_rows, padded_kb)`` over the same bytes; inverse of ``competition_view``.

    Raises:
        ValueError: the strides are not those of blocked scales, so that a copy would be needed.
    """
    shape = tuple(view6.shape)
    if len(shape) != 6 or (shape[0], shape[1], shape[3]) != (_LINES, _QUARTERS, ATOM_K_BLOCKS):
        raise bad_value("view6", given=f"shape {shape}", wanted="[32, 4, rm, 4, rk, L]")
    atoms = view6.permute(5, 2, 4, 0, 1, 3)
    count, row_atoms, k_atoms = atoms.shape[:3]
    if not all(atoms[i].is_contiguous() for i in range(count)):
        raise bad_value(
            "view6",
            given=f"strides {view6.stride()}",
            wanted=f"(16, 4, {k_atoms * ATOM_BYTES}, 1, {ATOM_BYTES}, any)",
        )
    return atoms.view(count, row_atoms * ATOM_ROWS, k_atoms * ATOM_K_BLOCKS)


def _group_extents(offs: Tensor) -> tuple[Tensor, Tensor]:
    """First row and number of rows of each group, int64 ``(G,)``."""
    if not isinstance(offs, Tensor):
        raise bad_type("offs", given=offs, wanted="a torch.Tensor")
    if offs.dtype not in (torch.int32, torch.int64):
        raise bad_type("offs", given=str(offs.dtype), wanted="torch.int32")
    if offs.ndim != 1 or offs.shape[0] == 0:
        raise bad_value("offs", given=f"shape {tuple(offs.shape)}", wanted="(G,) with G >= 1")
    ends = offs.long()
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    return starts, ends - starts


def _rows_or_filler(scales: Tensor, row: Tensor, used: Tensor, fill_byte: int) -> Tensor:
    """``scales[row]`` where ``used``, else rows of ``fill_byte``; uint8."""
    encoded = scales.view(torch.uint8)
    filler = encoded.new_full((1, encoded.shape[1]), fill_byte)
    return torch.cat([encoded, filler])[torch.where(used, row, scales.shape[0])]


def _check_scales(argument: str, scales: Tensor, ndim: int | None = None) -> None:
    if not isinstance(scales, Tensor):
        raise bad_type(argument, given=scales, wanted="a torch.Tensor")
    if scales.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise bad_type(argument, given=str(scales.dtype), wanted="torch.uint8 or float8_e4m3fn")
    if scales.ndim < 2 or scales.ndim != (ndim or scales.ndim):
        raise bad_value(
            argument,
            given=f"shape {tuple(scales.shape)}",
            wanted=f"{ndim or '2 or more'} dimensions",
        )
