"""Where an output that cannot be written safely is refused."""

from __future__ import annotations

from collections.abc import Iterable

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
    out: Tensor, inputs: Iterable[tuple[str, Tensor | None]], name: str = "out"
) -> None:
    """Refuses an output whose memory range meets an input's."""
    begin, end = byte_span(out)
    for input_name, tensor in inputs:
        if tensor is None or tensor.device != out.device:
            continue
        first, last = byte_span(tensor)
        if begin < last and first < end:
            raise bad_value(
                name, given=f"memory that overlaps {input_name}", wanted="memory of its own"
            )
