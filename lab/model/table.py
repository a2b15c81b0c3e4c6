"""The tables of docs/model.md: constants, calibration, what is predicted for our kernels.

Usage: PYTHONPATH=src python lab/model/table.py [--update PAGE]

``--update`` puts each table into the page between the marks ``<!-- table NAME -->`` and
``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from calibration import COMPETITION, DECODE, best_public, points, w4a4

from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.plan.arch import GPUS, gpu
from nibblas.plan.cost import Estimate, one_after_another, portable_time, sm100_time
from nibblas.plan.machines import MACHINES, Machine
from nibblas.plan.model import predict
from nibblas.plan.portable import choose_config, target_of
from nibblas.plan.problem import Problem
from nibblas.plan.sm100 import PRESETS, choose_configs
from nibblas.plan.sm100_config import TARGETS

PARAMETERS = {
    "multiprocessors": ("sms",),
    "clock, GHz": ("clock_ghz",),
    "DRAM short / long, TB/s": ("short_tb_per_s", "long_tb_per_s"),
    "ingest, bytes per cycle": ("ingest_bytes_per_cycle",),
    "latency small / 32 KB, us": ("small_latency_us", "tile_latency_us"),
    "turn, us": ("turn_us",),
    "gap in a graph / eager, us": ("gap_us", "eager_gap_us"),
    "prologue, us": ("prologue_us",),
    "first latency, us": ("first_latency_us",),
    "tail, us": ("tail_us",),
    "FLOP per cycle fp16 / fp8 / nvfp4": ("flop_per_cycle",),
}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def constants() -> str:
    rows = [
        [title, *(" / ".join(_value(machine, name) for name in names) for machine in ordered)]
        for ordered in [list(MACHINES.values())]
        for title, names in PARAMETERS.items()
    ]
    return markdown(["", *(machine.title for machine in MACHINES.values())], rows)


def _value(machine: Machine, name: str) -> str:
    value = getattr(machine, name)
    if value is None:
        return "?"
    if isinstance(value, tuple):
        return " / ".join("-" if rate is None else f"{rate:g}" for rate in value)
    span = next((s for s in machine.spans if s.field == name), None)
    return f"{value:g}" + (f" ({span.least:g}-{span.greatest:g})" if span else "")


def calibration() -> str:
    rows = []
    for point in points():
        predicted = point.predicted()
        rows.append(
            [
                MACHINES[point.machine].title,
                point.kernel,
                point.case,
                _us(predicted.total_us),
                f"{point.known_us:g}",
                f"{point.error:+.1%}".replace("%", " %"),
                f"{point.most_error:.0%}".replace("%", " %"),
                predicted.bound,
            ]
        )
    header = ["GPU", "kernel", "case", "predicted, us", "known, us", "error", "allowed", "bound"]
    return markdown(header, rows)


def spans() -> str:
    """The best public kernel, with a constant of B200 at the other end of what is published."""
    machine, own = MACHINES["b200"], [p for p in points() if p.kernel == "best public"]
    rows = []
    for span in machine.spans:
        for value in span[1:]:
            if value != getattr(machine, span.field):
                other = replace(machine, **{span.field: value})
                times = [predict(p.problem, other, p.schedule).total_us for p in own]
                rows.append([f"`{span.field}` {value:g}", *map(_us, times)])
    return markdown(["predicted with", *(p.case for p in own)], rows)


def blackwell() -> str:
    """Presets of the datacenter Blackwell kernel."""
    rows = []
    for arch in GPUS.values():
        if arch.compute_capability not in TARGETS:
            continue
        assert arch.machine is not None
        floors = []
        for shapes in COMPETITION.values():
            found = predict(w4a4(shapes), arch.machine, best_public(arch.sms))
            floors.append(f"{_us(found.fixed_us + found.loop['memory'])}")
        rows.append([MACHINES[arch.name].title, "any: memory and fixed alone", *floors])
        for preset, programmatic in [*((p, False) for p in PRESETS), ("swapped", True)]:
            estimates = []
            for shapes in COMPETITION.values():
                configs = choose_configs(shapes, preset, arch.sms)
                configs = tuple(replace(c, programmatic=programmatic) for c in configs)
                parts = Sm100Choice(preset, configs).launches_of(w4a4(shapes))
                estimates.append(one_after_another([sm100_time(p, arch, c) for p, c in parts]))
            name = f"`{preset}`" + (", programmatic" if programmatic else "")
            rows.append([MACHINES[arch.name].title, name, *map(_cell, estimates)])
    return markdown(["GPU", "preset", *COMPETITION], rows)


def portable() -> str:
    """The portable kernel with fp16 tokens, on every machine."""
    rows = []
    for name, machine in MACHINES.items():
        arch = gpu(name)
        target = target_of(arch.compute_capability)
        assert target is not None
        cells = []
        for shapes in DECODE.values():
            problem = Problem(shapes, "fp16", "fp16", device="cuda")
            cells.append(_cell(portable_time(problem, arch, choose_config(problem, target))))
        rows.append([machine.title, *cells])
    return markdown(["GPU", *DECODE], rows)


def _cell(estimate: Estimate) -> str:
    return f"{_us(estimate.seconds * 1e6)}, {estimate.bound}"


def _us(microseconds: float) -> str:
    return f"{microseconds:.3g}" if microseconds < 1000 else f"{microseconds:.0f}"


TABLES = {
    "constants": constants,
    "calibration": calibration,
    "spans": spans,
    "sm100": blackwell,
    "portable": portable,
}


def updated(page: str) -> str:
    """The page with every table as it is now."""
    for name, table in TABLES.items():
        mark = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        parts = mark.split(page)
        if len(parts) != 4:
            raise SystemExit(
                f"the page has {len(parts) // 3} places for the table {name}; want one"
            )
        before, begin, end, after = parts
        page = f"{before}{begin}\n{table()}\n\n{end}{after}"
    return page


def main() -> None:
    if sys.argv[1:2] == ["--update"]:
        path = Path(sys.argv[2])
        path.write_text(updated(path.read_text()))
        return
    print("\n\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))


if __name__ == "__main__":
    main()
