"""Many problems over many targets, with an account of what was met and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nibblas.check.coverage import FEATURES, features
from nibblas.check.exact import CHECKS
from nibblas.check.problems import draw
from nibblas.check.targets import Target
from nibblas.check.verdict import Truth, Verdict, judge, truth_of

MAX_VIOLATIONS_KEPT = 20


@dataclass
class TargetResult:
    """What one target did with the problems it was given."""

    ran: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Reasons for not taking a problem, counted."""
    worst: dict[str, float] = field(default_factory=dict)
    """Largest error/bound seen per "precision, output type", such as "w4a4, float32"; only of
    problems that have a bound. A 16-bit output's is near 1: its own rounding is most of the bound.
    """
    exact_ran: Counter[str] = field(default_factory=Counter)
    """Problems of each bit-exact check that ran."""
    exact_passed: Counter[str] = field(default_factory=Counter)
    """Those of them that passed."""

    def add(self, verdict: Verdict) -> None:
        spec = verdict.spec
        self.failed += not verdict.passed
        if verdict.refused is not None:
            self.refused[verdict.refused] += 1
            return
        self.ran += 1
        if spec.check:
            self.exact_ran[spec.check] += 1
            self.exact_passed[spec.check] += verdict.passed
        else:
            kind = f"{spec.precision}, {spec.out_dtype}"
            self.worst[kind] = max(self.worst.get(kind, 0.0), verdict.worst)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ran": self.ran,
            "failed": self.failed,
            "refused": dict(self.refused),
            "worst_error_over_bound": self.worst,
            "exact_checks_ran": dict(self.exact_ran),
            "exact_checks_passed": dict(self.exact_passed),
        }


@dataclass
class SweepResult:
    """The account of a whole sweep; ``passed`` needs at least one run and no violation."""

    seed: int
    problems: int = 0
    coverage: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FEATURES, 0)))
    targets: dict[Target, TargetResult] = field(default_factory=dict)
    violations: list[Verdict] = field(default_factory=list)
    """The first ``MAX_VIOLATIONS_KEPT`` verdicts that did not pass."""

    @property
    def passed(self) -> bool:
        results = self.targets.values()
        return any(r.ran for r in results) and not any(r.failed for r in results)

    @property
    def never_met(self) -> list[str]:
        """Features that no random problem of the sweep had."""
        return [name for name, count in self.coverage.items() if not count]

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Counts one problem's verdicts, one per target."""
        self.problems += 1
        ran = any(verdict.refused is None for verdict in verdicts)
        if ran and not verdicts[0].spec.check:
            self.coverage.update(features(verdicts[0].spec))
        for verdict in verdicts:
            self.targets.setdefault(verdict.target, TargetResult()).add(verdict)
            if not verdict.passed and len(self.violations) < MAX_VIOLATIONS_KEPT:
                self.violations.append(verdict)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return {
            "seed": self.seed,
            "problems": self.problems,
            "passed": self.passed,
            "targets": {str(target): r.to_dict() for target, r in self.targets.items()},
            "coverage": dict(self.coverage),
            "never_met": self.never_met,
            "violations": [
                {
                    "spec": repr(verdict.spec),
                    "only": verdict.spec.name,
                    "target": str(verdict.target),
                    "found": list(verdict.violations),
                }
                for verdict in self.violations
            ],
        }


def random_problems(count: int, seed: int) -> Iterator[Truth]:
    """``count`` random problems of sweep ``seed``, with their exact results."""
    return (truth_of(draw(seed, index)) for index in range(count))


EXACT_PROBLEMS = sum(len(check.specs) for check in CHECKS.values())


def exact_problems() -> Iterator[Truth]:
    """The problems of all bit-exact checks."""
    for check in CHECKS.values():
        yield from check.problems()


def sweep(
    problems: Iterable[Truth], targets: Sequence[Target], result: SweepResult
) -> Iterator[SweepResult]:
    """Runs every problem on every target; yields ``result`` after each problem.

    The caller stops whenever it has seen enough; ``result`` is complete up to there.

    Example:
        >>> from nibblas.check.targets import available
        >>> result = SweepResult(seed=0)
        >>> for _ in sweep(random_problems(10, seed=0), available(backend="reference"), result):
        ...     pass
        >>> result.passed
        True
    """
    for problem in problems:
        result.add([judge(problem, target) for target in targets])
        yield result
