"""What a self-test found, as plain data for one file, with nothing private in it."""

from __future__ import annotations

import getpass
import platform
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nibblas.selftest.jobs import Place
from nibblas.selftest.watch import Outcome

FORMAT = "nibblas selftest 1"

_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/:\"',;()]+/)+(?=[^\s/:\"',;()])")
"""An absolute path up to its last part."""
_SHORTEST_NAME = 4
"""A shorter host or user name would be found inside of words."""


@dataclass
class Report:
    """What a self-test found.

    Attributes:
        machine, predictions: as ``facts`` gives them. results, times: the jobs' outcomes.
        kernels: every kernel that was loaded, down to the digest of its image.
        no_times: why there are no times; empty: there are.
    """

    place: Place
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    results: list[Outcome] = field(default_factory=list)
    times: list[Outcome] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    no_times: str = ""

    @property
    def passed(self) -> bool:
        """Something ran, and all of it is right."""
        ran = any(outcome.result["outcome"] == "passed" for outcome in self.results)
        return ran and all(outcome.passed for outcome in (*self.results, *self.times))

    @property
    def counts(self) -> dict[str, int]:
        """How many of the results had which outcome."""
        return dict(Counter(outcome.result["outcome"] for outcome in self.results))

    def measured(self) -> list[dict[str, Any]]:
        """A row per case and preset that was timed, its prediction beside it."""
        predicted = {(each["case"], each["preset"]): each for each in self.predictions}
        return [
            {
                **times,
                "case": outcome.job.subject,
                "predicted_us": predicted[outcome.job.subject, times["preset"]]["predicted_us"],
                "bound": predicted[outcome.job.subject, times["preset"]]["bound"],
            }
            for outcome in self.times
            for times in outcome.result.get("times", ())
        ]

    def to_dict(self) -> dict[str, Any]:
        """The file's content."""
        found: dict[str, Any] = {
            "format": FORMAT,
            "passed": self.passed,
            "options": self.options,
            "machine": self.machine,
            "counts": self.counts,
            "results": [outcome.to_dict() for outcome in self.results],
            "times": [outcome.to_dict() for outcome in self.times],
            "no_times": self.no_times,
            "predictions": self.predictions,
            "kernels": self.kernels,
        }
        names = _private_names()
        return {key: _public(value, names) for key, value in found.items()}


def _public(value: Any, names: tuple[str, ...]) -> Any:
    """Without folders of paths, and without these names."""
    if isinstance(value, dict):
        return {key: _public(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(item, names) for item in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub("", value)
    for name in names:
        text = text.replace(name, "(removed)")
    return text


def _private_names() -> tuple[str, ...]:
    """Of the host, the user and the user's folder, where they are long enough to be told apart."""
    names = {platform.node(), platform.node().partition(".")[0], Path.home().name}
    with suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    ordered = sorted(names - {"root", "home", "user"}, key=len, reverse=True)
    return tuple(name for name in ordered if len(name) >= _SHORTEST_NAME)
