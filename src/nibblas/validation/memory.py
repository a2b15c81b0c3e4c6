"""Where an output that cannot be written safely is refused."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from torch import Tensor

from nibblas.errors import bad_value


def byte_span(t: Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that a tensor with non-negative strides can touch."""
    begin, elements = t.data_ptr(), t.numel()
    if elements and not t.is_contiguous():
        elements = 1
        for size, stride in zip(t.shape, t.stride(), strict=True):
            elements += (size - 1) * stride
    return begin, begin + elements * t.element_size()


def check_no_self_overlap(out: Tensor, name: str = "out") -> None:
    """Refuses an output two of whose elements share memory, such as an expanded tensor."""
    extent = 0
    dimensions = sorted(
        (stride, size) for size, stride in zip(out.shape, out.stride(), strict=True) if size > 1
    )
    for stride, size in dimensions:
        if stride <= extent:
            raise bad_value(
                name, given=f"strides {out.stride()}", wanted="elements that share no memory"
            )
        extent += stride * (size - 1)


def check_apart(
    outs: Sequence[tuple[str, Tensor]], inputs: Iterable[tuple[str, Tensor | None]]
) -> None:
    """Refuses outputs whose memory ranges meet each other's or an input's.

    A range runs from a tensor's first byte to its last: slices that interleave in one buffer are
    refused too. All tensors lie on one device. Takes n log n time for n tensors.

    Args:
        outs, inputs: (public name, tensor).
    """
    spans = sorted((*byte_span(out), name) for name, out in outs)
    spans = [span for span in spans if span[0] < span[1]]
    for (_, end, name), (begin, _, next_name) in itertools.pairwise(spans):
        if begin < end:
            raise _meets(next_name, name)
    begins = [span[0] for span in spans]
    for name, tensor in inputs:
        if tensor is None:
            continue
        first, last = byte_span(tensor)
        # The only candidates: the last output that begins before this input ends.
        place = bisect_left(begins, last) - 1
        if first < last and place >= 0 and spans[place][1] > first:
            raise _meets(spans[place][2], name)


def _meets(name: str, other: str) -> ValueError:
    return bad_value(
        name, given=f"a memory range that meets {other}'s", wanted="a range of its own"
    )
