"""A product whose checks, plan and native record are made, to be run again at other addresses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nibblas.backends.base import Operands, RunAt
from nibblas.validation.memory import byte_span


class PreparedCall:
    """Everything about a call that follows from its metadata; shared by threads, never changed.

    Args:
        product: checked operands. Their metadata is used, their memory is not kept.
        run_at: what ``Backend.prepare`` made of them.
    """

    __slots__ = (
        "_input_bytes",
        "_out_bytes",
        "_out_dtype",
        "_out_shape",
        "_run_at",
    )

    def __init__(self, product: Operands, run_at: RunAt) -> None:
        *inputs, out = product.tensors.values()
        self._run_at = run_at
        self._input_bytes = tuple(enumerate(map(_extent, inputs)))
        self._out_bytes = _extent(out)
        self._out_shape, self._out_dtype = tuple(out.shape), out.dtype

    def new_out(self, x: Tensor) -> Tensor:
        """An output for these tokens, on their device."""
        out: Tensor = x.new_empty(self._out_shape, dtype=self._out_dtype)
        return out

    def run(self, addresses: Sequence[int]) -> bool:
        """Checks the addresses, and runs; the backend checks offs in the CPU's memory.

        Args:
            addresses: of tensors with the metadata of ``product.tensors``, in their order.

        Returns:
            False: nothing has been done. The call must take the long way, which also knows whether
            to refuse it.
        """
        if 0 in addresses:
            return False
        out = addresses[-1]
        out_end = out + self._out_bytes
        for i, size in self._input_bytes:
            if addresses[i] < out_end and out < addresses[i] + size:
                return False
        return self._run_at(addresses)


def _extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first to its last."""
    begin, end = byte_span(tensor)
    return end - begin
