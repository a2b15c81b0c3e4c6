"""Results as JSON lines, and as a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nibblas.errors import bad_value

_SIGNIFICANT = 4


@dataclass(frozen=True)
class Line:
    """The times of one contender in one case.

    Attributes:
        config: the configuration that ran, where it is known.
        other_maths: how its arithmetic differs from the exact product of the inputs; "": not.
        median_us, p10_us, p90_us: of microseconds per call, over ``rounds``.
        sets: of inputs and output, over which its calls rotated.
        host_us: what an eager call costs the host; None on a CPU, where it is in the time.
        relative_error: of the results against float64, of Frobenius norms.
        error_of_bound: the largest share of the error bound that an element used; None: a rival.
        ratio_to_best_rival: to the fastest one of the run with the same maths; None: there is none.
        floor_us, floor_bound, ratio_to_floor: the roofline and what bounds it; None: not modelled.
        predicted_us, predicted_bound: the planner's estimate, which is no measurement; None: a
            rival's.
        machine: what ``machine.describe`` says.
    """

    case: str
    kind: str
    shape: str
    contender: str
    ours: bool
    config: str
    other_maths: str
    median_us: float
    p10_us: float
    p90_us: float
    rounds: int
    sets: int
    host_us: float | None
    relative_error: float
    error_of_bound: float | None
    ratio_to_best_rival: float | None
    floor_us: float | None
    floor_bound: str | None
    ratio_to_floor: float | None
    predicted_us: float | None
    predicted_bound: str | None
    machine: dict[str, object]

    def to_json(self) -> str:
        """One line without its end; figures with four significant digits."""
        return _json(asdict(self))


@dataclass(frozen=True)
class Absence:
    """Why a contender has no times in a case.

    Attributes:
        fault: ours failed, or a result was wrong; else a rival that is not here or does not run.
    """

    case: str
    kind: str
    contender: str
    absent: str
    fault: bool
    machine: dict[str, object]

    def to_json(self) -> str:
        """One line without its end; it has no ``median_us``."""
        return _json(asdict(self))


Result = Line | Absence


def _json(fields: dict[str, Any]) -> str:
    machine = fields.pop("machine")
    rounded = {name: _rounded(value) for name, value in fields.items()}
    return json.dumps({**rounded, **machine})


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_SIGNIFICANT}g}") if math.isfinite(value) else None


def append_lines(path: Path, results: Iterable[Result]) -> None:
    """Adds the results to a file of JSON lines."""
    with path.open("a") as file:
        file.write("".join(f"{result.to_json()}\n" for result in results))


def plot(path: Path, lines: Sequence[Line]) -> None:
    """Bars of the medians by case, with the floor across them, on a logarithmic axis.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no lines.
    """
    if not lines:
        raise bad_value("lines", given="none", wanted="at least one result")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        message = "a plot needs matplotlib: pip install 'nibblas[plot]'"
        raise ImportError(message) from error
    cases = list(dict.fromkeys((line.case, line.kind) for line in lines))
    names = list(dict.fromkeys(line.contender for line in lines))
    width = 0.8 / len(names)
    figure = Figure(figsize=(max(7.0, 2.8 + 0.28 * len(names) * len(cases)), 4.5))
    axes = figure.subplots()
    for place, name in enumerate(names):
        own = [line for line in lines if line.contender == name]
        left = [cases.index((line.case, line.kind)) + (place + 0.5) * width - 0.4 for line in own]
        medians = [line.median_us for line in own]
        spread = [
            [line.median_us - line.p10_us for line in own],
            [line.p90_us - line.median_us for line in own],
        ]
        axes.bar(left, medians, width, yerr=spread, label=name, error_kw={"linewidth": 0.8})
    for column, key in enumerate(cases):
        floors = {line.floor_us for line in lines if (line.case, line.kind) == key}
        for floor in floors:
            if floor is not None:
                label = "floor" if column == 0 else "_nolegend_"
                axes.hlines(floor, column - 0.45, column + 0.45, colors="black", label=label)
    axes.set_yscale("log")
    axes.set_ylabel("us per call, median; bars p10 to p90")
    axes.set_xticks(range(len(cases)), [f"{case}\n{kind}" for case, kind in cases])
    machine = lines[0].machine
    axes.set_title(f"{machine.get('gpu') or machine['processor']}, torch {machine['torch']}")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()
    figure.savefig(path)
