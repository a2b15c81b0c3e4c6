"""``custom_kernel``: the public problem's entry point, answered by ``nibblas.grouped_mm_list``."""

from __future__ import annotations

import torch
from torch import Tensor

from nibblas.api import grouped_mm_list
from nibblas.competition.cases import Case
from nibblas.competition.task import TaskData, checked_groups
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.plan.problem import GroupShape, Problem


def custom_kernel(data: TaskData, *, backend: str | None = None) -> list[Tensor]:
    """Fill every group's c with ``a @ b.T`` and return the list of c, in group order.

    Reads the reordered scales where they lie; nothing is copied, kept or looked up by address.

    Args:
        data: as ``nibblas.competition.task`` describes it; K any multiple of 16, M and N any size.
        backend: passed on to ``grouped_mm_list``.

    Raises:
        TypeError, ValueError: ``data`` does not fit the contract; nothing has been written.
        UnsupportedProblemError: no backend can take it; nothing has been written.

    Example:
        >>> from nibblas.competition import TESTS, generate_input
        >>> data = generate_input(**TESTS[0].generator_arguments())
        >>> [tuple(c.shape) for c in custom_kernel(data)]
        [(96, 128, 1), (128, 256, 1)]
    """
    groups = checked_groups(data)
    if groups:
        grouped_mm_list(
            [NVFP4Array(group.a, group.sfa, scale_layout="blocked") for group in groups],
            [NVFP4Array(group.b, group.sfb, scale_layout="blocked") for group in groups],
            out=[group.c[:, :, 0] for group in groups],
            out_dtype=torch.float16,
            backend=backend,
        )
    return [group.c for group in groups]


def problem_of(case: Case, device: torch.device) -> Problem:
    """What the planner sees of ``custom_kernel`` on a case's data."""
    return Problem(
        shapes=tuple(GroupShape(*sizes) for sizes in case.sizes),
        activations="nvfp4",
        out="fp16",
        device=device.type,
        device_index=device.index or 0,
        form="list",
        x_scale_layout="blocked",
        w_scale_layout="blocked",
    )
