"""The table of planted faults in docs/emulator.md, from the faults' own descriptions.

python lab/emulator/planted_faults.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from nibblas.emulator import ORDERS  # noqa: E402
from tests.emulator.faults import (  # noqa: E402
    planted,
    planted_sm90,
    planted_sm100,
    planted_tcgen05,
    test_portable_faults,
)
from tests.emulator.faults.sm100_fault import Fault  # noqa: E402

PAGE = ROOT / "docs/emulator.md"
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"


def rows() -> Iterable[tuple[str, str, str, list[str]]]:
    """(kernel, how it shows, orders, faults)."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for fault in planted_sm100.FAULTS:
        orders = fault.orders or tuple(ORDERS)
        shows = [f"`{name}`" if name != "wrong" else "a wrong result" for name in _classes(fault)]
        key = ("sm_100", " or ".join(shows), _orders(orders))
        grouped.setdefault(key, []).append(fault.name)
    for key, names in sorted(grouped.items(), key=lambda item: item[0]):
        yield (*key, names)
    small: dict[str, list[str]] = {}
    for other in (*planted_tcgen05.TCGEN05_FAULTS, *planted.FAULTS):
        name = other.name.removeprefix("pair: ").removeprefix("tensor: ")
        small.setdefault(other.kernel, []).append(name)
    for kernel, names in small.items():
        yield f"`{kernel}.cu`", "a report or a wrong result", "one at least", names
    names = [each.name for each in planted_sm90.FAULTS]
    yield "sm_90", "a report or a wrong result", "one at least", names
    names = [each.name for each in test_portable_faults.FAULTS]
    yield "portable", "a report or a wrong result", "one at least", names


def _classes(fault: Fault) -> list[str]:
    return sorted(fault.shows.split())


def _orders(orders: tuple[str, ...]) -> str:
    missing = [order for order in ORDERS if order not in orders]
    if not missing:
        return "all"
    if len(missing) == 1:
        return f"all but `{missing[0]}`"
    return ", ".join(f"`{order}`" for order in orders)


def table() -> str:
    lines = ["| kernel | shows as | under | faults |", "|---|---|---|---|"]
    lines += [
        f"| {kernel} | {shows} | {under} | {'; '.join(names)} |"
        for kernel, shows, under, names in rows()
    ]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
