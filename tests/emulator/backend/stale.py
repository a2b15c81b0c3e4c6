"""Offsets that the launch before writes last: a programmatic launch may see older ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from nibblas.emulator.machine.cta import Cta, Dim3


@contextmanager
def written_late(offs: torch.Tensor, stale: list[int], *, but_for: int = 0) -> Iterator[None]:
    """Inside, ``offs`` holds ``stale`` until all warps of some CTA have waited for that launch.

    For kernels one of whose warps reads ``offs`` first and waits after it, later than the others;
    raises where no CTA waits.

    Args:
        but_for: warps of a CTA that are not counted on, since they wait for those others first.
    """
    entries = offs.clone()
    offs.copy_(torch.tensor(stale, dtype=offs.dtype))
    waits: Counter[Dim3] = Counter()

    def overlaps(cta: Cta, value: bool) -> None:
        cta.__dict__["overlaps"] = value
        if value:
            return
        waits[cta.index] += 1
        if waits[cta.index] == len(cta.warps) - but_for:
            offs.copy_(entries)

    with pytest.MonkeyPatch.context() as patch:
        found = property(lambda cta: cta.__dict__["overlaps"], overlaps)
        patch.setattr(Cta, "overlaps", found, raising=False)
        yield
    assert torch.equal(offs, entries), "no CTA has waited with so many of its warps"
