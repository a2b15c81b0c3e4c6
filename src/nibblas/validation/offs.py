"""Where bad group sizes are refused: ``offs`` of packed rows, ``masked_m`` of the masked form."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.scale_layout import (
    GroupStart,
    group_start_rows,
    packed_rows_bound,
    padded_rows,
)


def check_offs_metadata(offs: Tensor, groups: int, device: torch.device, name: str) -> None:
    """Refuses a wrong type, dtype, shape or device; reads no contents.

    Args:
        offs: should be int32 ``(groups,)``, contiguous, on ``device``.
        name: the public argument's name, "offs" or "masked_m".
    """
    if not isinstance(offs, Tensor):
        raise bad_type(name, given=offs, wanted="an int32 torch.Tensor")
    if offs.dtype != torch.int32:
        wanted = f"torch.int32; convert with {name}.to(torch.int32)"
        raise bad_type(name, given=str(offs.dtype), wanted=wanted)
    if tuple(offs.shape) != (groups,):
        raise bad_value(
            name,
            given=f"shape {tuple(offs.shape)}",
            wanted=f"({groups},), one entry per group"
            + ("; leave out the leading 0" if tuple(offs.shape) == (groups + 1,) else ""),
        )
    if offs.device != device:
        raise bad_value(name, given=f"device {offs.device}", wanted=f"{device}, where x is")
    if not offs.is_contiguous():
        raise bad_value(name, given=f"strides {offs.stride()}", wanted="a contiguous tensor")


def check_masked_m_contents(masked_m: Tensor, max_m: int) -> None:
    """Refuses rows in use outside ``0..max_m``; reads them on the host."""
    in_use = masked_m.tolist()
    if min(in_use) >= 0 and max(in_use) <= max_m:
        return
    for g, used in enumerate(in_use):
        if not 0 <= used <= max_m:
            raise bad_value(
                "masked_m", given=f"{used} at group {g}", wanted=f"0..{max_m}, the rows of x[g]"
            )


def check_offs_contents(offs: Tensor, rows: int) -> None:
    """Refuses cumulative ends that break ``0 <= offs[0] <= ... <= offs[-1] <= rows``.

    Reads them on the host: a device tensor synchronises.
    """
    ends = offs.tolist()
    if ends[0] >= 0 and ends[-1] <= rows and ends == sorted(ends):
        return
    previous = 0
    for g, end in enumerate(ends):
        if end < previous:
            raise bad_value(
                "offs",
                given=f"{end} at group {g} after {previous}",
                wanted="cumulative ends: not negative and never decreasing",
            )
        if end > rows:
            raise bad_value(
                "offs", given=f"{end} at group {g}", wanted=f"at most {rows}, rows of x"
            )
        previous = end


def check_group_sizes(
    offs: Tensor, rows: int, max_m: int, scale_rows: int | None, scale_start: str
) -> None:
    """Refuses the contents of a product's ``offs``, which are read on the host.

    Args:
        offs: cumulative ends, or rows in use when ``max_m`` > 0.
        rows: rows of x. max_m: 0 when packed.
        scale_rows: rows of x's blocked scales; None: x has none.
        scale_start: their rule; "stacked" ones have one shape only, which needs no contents.
    """
    if max_m:
        check_masked_m_contents(offs, max_m)
        return
    check_offs_contents(offs, rows)
    if scale_rows is not None:
        check_packed_scale_rows(offs, rows, scale_rows, scale_start)


def check_packed_scale_rows(offs: Tensor, rows: int, scale_rows: int, rule: str) -> None:
    """Refuses a blocked scale buffer of packed x that ends before the last group's atoms do.

    Args:
        offs: cumulative ends, already checked; read on the host unless the buffer is large enough
            for any.
        rows: rows of x. scale_rows: rows of the buffer.
        rule: "torch" or "flashinfer".
    """
    if scale_rows >= packed_rows_bound(rows, offs.shape[0]):
        return
    starts = group_start_rows(offs, cast(GroupStart, rule))
    first_rows = torch.cat([offs.new_zeros(1), offs[:-1]])
    needed = int((starts + padded_rows((offs - first_rows).long())).max())
    if scale_rows < needed:
        raise bad_value(
            "x.scales",
            given=f"{scale_rows} rows",
            wanted=f"at least {needed}: each group's scales start at a multiple of 128 rows "
            f"(group_start={rule!r})",
        )
