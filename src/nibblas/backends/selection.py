"""Which backend takes a problem, and the account of that choice which users read."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nibblas import env
from nibblas.backends import registry
from nibblas.backends.base import Backend
from nibblas.errors import UnsupportedProblemError
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan, chosen, fastest


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a problem, how long it should take and what bounds it, and why not others.

    Attributes:
        problem: what was asked for.
        plan: what runs it.
        forced_by: "backend=..." or the environment variable that named the backend, or
            "batch_invariant=True" where the fastest may not be taken; None: free.
        slower: plans of the other backends that could take it.
        refused: reasons of the backends that cannot.
    """

    problem: Problem
    plan: Plan
    forced_by: str | None
    slower: tuple[Plan, ...]
    refused: dict[str, list[str]]

    def __str__(self) -> str:
        plan = self.plan
        why = f", chosen by {self.forced_by}" if self.forced_by else ""
        terms = ", ".join(f"{name} {_time(t)}" for name, t in plan.estimate.terms.items())
        lines = [
            f"problem    {self.problem}",
            f"backend    {plan.backend} ({plan.config}){why}",
            f"predicted  {_time(plan.estimate.seconds)}, bound by {plan.estimate.bound}"
            + (f" ({terms})" if terms else ""),
        ]
        lines += [f"note       {note}" for note in plan.notes]
        for other in self.slower:
            how = "faster" if other.estimate.seconds < plan.estimate.seconds else "slower"
            lines.append(
                f"{how}     {other.backend} ({other.config}): {_time(other.estimate.seconds)}"
            )
        lines += [f"refused    {name}: {'; '.join(why)}" for name, why in self.refused.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON; times in seconds, None where not modelled."""
        return {
            "problem": str(self.problem),
            "precision": self.problem.precision,
            **_plan_dict(self.plan),
            "forced_by": self.forced_by,
            "slower": [_plan_dict(plan) for plan in self.slower],
            "refused": self.refused,
        }


def explain_problem(problem: Problem, backend: str | None = None) -> Explanation:
    """Chooses a backend: the one named, else NIBBLAS_BACKEND, else the fastest that can; for a
    batch-invariant problem, of those with the bits of the first that can.

    Raises:
        ValueError: unknown backend name. UnsupportedProblemError: nobody can, with all reasons.
    """
    candidates, forced_by = _candidates(backend)
    refused: dict[str, list[str]] = {}
    plans: list[Plan] = []
    for candidate in candidates:
        reasons = candidate.why_not(problem)
        if reasons:
            refused[candidate.name] = reasons
        else:
            plans.append(candidate.plan(problem))
    if not plans:
        raise UnsupportedProblemError(problem, refused)
    best = chosen(plans, batch_invariant=problem.batch_invariant)
    if best is not fastest(plans):
        forced_by = "batch_invariant=True"
    slower = tuple(plan for plan in plans if plan is not best)
    return Explanation(problem, best, forced_by, slower, refused)


def choose(problem: Problem, backend: str | None = None) -> Plan:
    """The plan that runs the problem; a fallback is said once, by a warning."""
    explanation = explain_problem(problem, backend)
    fell_back = explanation.plan.backend == "reference" and explanation.refused
    if fell_back and not explanation.forced_by:
        _warn_once(explanation.refused)
    return explanation.plan


def _candidates(backend: str | None) -> tuple[Sequence[Backend], str | None]:
    if backend is not None:
        return [registry.get(backend)], f"backend={backend!r}"
    forced = env.forced_backend()
    if forced is not None:
        named = registry.get(forced, argument=env.BACKEND_VARIABLE)
        return [named], f"{env.BACKEND_VARIABLE}={forced}"
    return registry.all_backends(), None


_warned: set[tuple[str, ...]] = set()


def _warn_once(refused: dict[str, list[str]]) -> None:
    key = tuple(sorted(f"{name}: {'; '.join(why)}" for name, why in refused.items()))
    if key not in _warned:
        _warned.add(key)
        warnings.warn(
            f"nibblas runs on its slow 'reference' backend; {' | '.join(key)}",
            stacklevel=_frames_to_the_caller(),
        )


def _frames_to_the_caller() -> int:
    """``stacklevel`` of the first frame outside nibblas and torch, as seen from ``_warn_once``."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("nibblas", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def _time(seconds: float) -> str:
    if math.isinf(seconds):
        return "unknown"
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _plan_dict(plan: Plan) -> dict[str, Any]:
    seconds = plan.estimate.seconds
    return {
        "backend": plan.backend,
        "config": str(plan.config),
        "predicted_seconds": None if math.isinf(seconds) else seconds,
        "bound": plan.estimate.bound,
        "terms_seconds": plan.estimate.terms,
        "notes": list(plan.notes),
    }
