"""A choice among plans: the fastest predicted one, the first on a tie. No tuning at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nibblas.plan.cost import Estimate


@dataclass(frozen=True)
class Plan:
    """How one backend would run a problem.

    Attributes:
        backend: the backend's name.
        config: its level or kernel configuration; prints as one word or line.
        estimate: predicted time with its bound.
        notes: what a user should know: conversions, memory held, what is free.
    """

    backend: str
    config: Any
    estimate: Estimate
    notes: tuple[str, ...] = field(default=())


def fastest(plans: Sequence[Plan]) -> Plan:
    """The plan with the least predicted time; of equals, the first."""
    return min(plans, key=lambda plan: plan.estimate.seconds)


def chosen(plans: Sequence[Plan], *, batch_invariant: bool) -> Plan:
    """The fastest plan. Where rows must have the same bits in batches of any size: the first one,
    since predictions depend on the number of rows, and whether a kernel can take a problem on its
    other sizes. Backends add in orders of their own.
    """
    return plans[0] if batch_invariant else fastest(plans)
