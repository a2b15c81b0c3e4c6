"""A plain right kernel for the contract, and wrong ones that a harness must notice.

None of them uses nibblas' kernels or layout code, so that the harness is tested by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from nibblas.competition import TaskData
from nibblas.competition.task import Kernel

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def bits(tensor: Tensor) -> Tensor:
    """The same elements as integers, strides kept."""
    return tensor.view({1: torch.uint8, 2: torch.int16}[tensor.dtype.itemsize])


def decode_codes(packed: Tensor) -> Tensor:
    """(rows, k) float32 of (rows, k/2) codes, low nibble first."""
    two_codes = packed.view(torch.uint8).int()
    values = torch.tensor(E2M1, device=packed.device)
    return values[torch.stack((two_codes & 15, two_codes >> 4), dim=-1)].flatten(1)


def scale_at(view6: Tensor, rows: int, k_blocks: int) -> Tensor:
    """(rows, k_blocks) float32 scales read from the 6-D view, element by element."""
    row = torch.arange(rows, device=view6.device)[:, None]
    block = torch.arange(k_blocks, device=view6.device)[None, :]
    scales = view6.view(torch.uint8)[
        row % 32, row % 128 // 32, row // 128, block % 4, block // 4, 0
    ]
    return scales.view(torch.float8_e4m3fn).float()


def decode_operand(codes: Tensor, view6: Tensor) -> Tensor:
    values = decode_codes(codes[:, :, 0])
    rows, k = values.shape
    return values * scale_at(view6, rows, k // 16).repeat_interleave(16, dim=1)


def right_kernel(data: TaskData) -> list[Tensor]:
    for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
        c[:, :, 0] = decode_operand(a, sfa) @ decode_operand(b, sfb).T
    return [c for _, _, c in data[0]]


def skips_last_row(data: TaskData) -> list[Tensor]:
    for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
        c[:-1, :, 0] = decode_operand(a, sfa)[:-1] @ decode_operand(b, sfb).T
    return [c for _, _, c in data[0]]


def returns_reversed(data: TaskData) -> list[Tensor]:
    return right_kernel(data)[::-1]


def returns_one_less(data: TaskData) -> list[Tensor]:
    return right_kernel(data)[:-1]


def returns_nothing(data: TaskData) -> list[Tensor]:
    right_kernel(data)
    return []


def drops_negative_signs(data: TaskData) -> list[Tensor]:
    return [c.abs_() for c in right_kernel(data)]


def knows_small_codes_only(data: TaskData) -> list[Tensor]:
    """Decodes magnitudes above 1.5 as 1.5."""
    for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
        c[:, :, 0] = decode_operand(a, sfa).clamp(-3, 3) @ decode_operand(b, sfb).clamp(-3, 3).T
    return [c for _, _, c in data[0]]


def normalises_by_padded_maximum(data: TaskData) -> list[Tensor]:
    """Divides by the largest scale of the whole padded buffer and multiplies it back."""
    for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
        largest = sfa.float().amax()
        c[:, :, 0] = (decode_operand(a, sfa) / largest) @ decode_operand(b, sfb).T * largest
    return [c for _, _, c in data[0]]


def multiplies_padded_k_blocks(data: TaskData) -> list[Tensor]:
    """Fills K up to whole scale atoms with zero codes, and trusts 0 * scale to be 0."""
    for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
        padded = [
            torch.nn.functional.pad(decode_codes(codes[:, :, 0]), (0, -2 * codes.shape[1] % 64))
            * scale_at(view6, codes.shape[0], 4 * view6.shape[4]).repeat_interleave(16, dim=1)
            for codes, view6 in ((a, sfa), (b, sfb))
        ]
        c[:, :, 0] = padded[0] @ padded[1].T
    return [c for _, _, c in data[0]]


def raises(data: TaskData) -> list[Tensor]:
    raise RuntimeError("no kernel image for this device")


def caches_operands_by_address() -> Kernel:
    decoded: dict[int, Tensor] = {}

    def kernel(data: TaskData) -> list[Tensor]:
        for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
            if a.data_ptr() not in decoded:
                decoded[a.data_ptr()] = decode_operand(a, sfa)
            c[:, :, 0] = decoded[a.data_ptr()] @ decode_operand(b, sfb).T
        return [c for _, _, c in data[0]]

    return kernel


def writes_each_address_once() -> Kernel:
    seen: set[int] = set()

    def kernel(data: TaskData) -> list[Tensor]:
        if data[0][0][2].data_ptr() not in seen:
            right_kernel(data)
        seen.add(data[0][0][2].data_ptr())
        return [c for _, _, c in data[0]]

    return kernel


def remembers_outputs_by_call_order(inputs: int, *, calls_before: int) -> Kernel:
    """Computes one round of ``inputs`` calls and then replays it.

    ``calls_before``: calls that come before the first round.
    """
    calls = count(-calls_before)
    memory: dict[int, list[Tensor]] = {}

    def kernel(data: TaskData) -> list[Tensor]:
        call = next(calls)
        if call < 0:
            return right_kernel(data)
        if call < inputs:
            memory[call] = [c.clone() for c in right_kernel(data)]
        return memory[call % inputs]

    return kernel


def defers_until(inputs: int) -> Kernel:
    """Computes nothing until ``inputs`` calls have come, then all of them."""
    waiting: list[TaskData] = []

    def kernel(data: TaskData) -> list[Tensor]:
        waiting.append(data)
        if len(waiting) == inputs:
            for each in waiting:
                right_kernel(each)
            waiting.clear()
        return [c for _, _, c in data[0]]

    return kernel


def reuses_one_output() -> Kernel:
    scratch: dict[tuple[int, ...], Tensor] = {}

    def kernel(data: TaskData) -> list[Tensor]:
        outputs = right_kernel(data)
        return [
            scratch.setdefault((index, *c.shape), torch.empty_like(c)).copy_(c)
            for index, c in enumerate(outputs)
        ]

    return kernel


FAULTS_IN_ANY_DATA: tuple[Callable[[TaskData], list[Tensor]], ...] = (
    skips_last_row,
    returns_reversed,
    returns_one_less,
    returns_nothing,
    drops_negative_signs,
    raises,
)
