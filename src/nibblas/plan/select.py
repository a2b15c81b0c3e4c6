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
        bits: plans of one problem with equal ones give a row the same bits; default: the backend.
    """

    backend: str
    config: Any
    estimate: Estimate
    notes: tuple[str, ...] = field(default=())
    bits: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", self.bits or self.backend)


def fastest(plans: Sequence[Plan]) -> Plan:
    """The plan with the least predicted time; of equals, the first."""
    return min(plans, key=lambda plan: plan.estimate.seconds)


def chosen(plans: Sequence[Plan], *, batch_invariant: bool) -> Plan:
    """The fastest plan. Where rows must have the same bits in batches of any size: the fastest of
    those with the bits of the first one, since predictions depend on the number of rows, and
    whether a kernel can take a problem depends on its other sizes.
    """
    if not batch_invariant:
        return fastest(plans)
    return fastest([plan for plan in plans if plan.bits == plans[0].bits])
