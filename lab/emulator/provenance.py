"""Which instruction handlers have been compared with a device, and the table of docs/emulator.md.

    python lab/emulator/provenance.py

Runs every golden case on the emulator. A handler that decodes an instruction of a case whose output
agrees with the device's counts as checked. Writes src/nibblas/emulator/isa/checked.py; with
--table, in another run that has read it, the table between the marks of docs/emulator.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from nibblas.emulator.isa.registry import Handler, handler_name  # noqa: E402
from nibblas.emulator.isa.table import all_handlers, find_handler  # noqa: E402
from nibblas.emulator.ptx import parse  # noqa: E402
from nibblas.emulator.ptx.model import Instruction  # noqa: E402
from tests.emulator.golden.emulate import run  # noqa: E402
from tests.emulator.golden.test_golden import (  # noqa: E402
    DIFFERENT,
    FILES,
    REFUSED,
    differences,
    vectors,
)

CHECKED = ROOT / "src/nibblas/emulator/isa/checked.py"
PAGE = ROOT / "docs/emulator.md"
BEGIN, END = "<!-- provenance: begin -->", "<!-- provenance: end -->"


def handlers_of(text: str, left_out: tuple[str, ...]) -> set[str]:
    """Names of the handlers that a module's instructions fit."""
    lines = [line for line in text.splitlines() if line.strip() not in left_out]
    found = set()
    for function in parse("\n".join(lines)).functions.values():
        for statement in function.body or ():
            if isinstance(statement, Instruction):
                found.add(handler_name(find_handler(statement).handler))
    return found


def checked() -> dict[str, str]:
    """Device and date by handler's name."""
    found: dict[str, str] = {}
    for file, module in FILES.items():
        arrays, about = vectors(file)
        for case in module.cases():
            if case.name in DIFFERENT or case.name == "approximate":  # equal bits are what counts
                continue
            if case.name in REFUSED or case.name not in arrays:
                continue
            answer = run(case)
            wrong = differences(case, answer, arrays[case.name])
            if wrong:
                print(f"{case.name} differs: {wrong[0]}", file=sys.stderr)
                continue
            for name in handlers_of(case.ptx, answer.left_out):
                found[name] = f"{about['device']}, {about['date']}"
    return found


def render(found: dict[str, str]) -> str:
    lines = [
        '"""Handlers that agree with a device; written by lab/emulator/provenance.py."""',
        "",
        "from __future__ import annotations",
        "",
        "CHECKED: dict[str, str] = {",
        *(f'    "{name}": "{device}",' for name, device in sorted(found.items())),
        "}",
        '"""Device and date, by ``registry.handler_name``."""',
        "",
    ]
    return "\n".join(lines)


def table(handlers: list[Handler]) -> str:
    """The provenance table: a row per handler, by family and section."""
    rows = ["| family | instructions | PTX ISA | checked on |", "|---|---|---|---|"]
    for handler in handlers:
        opcodes = ", ".join(f"`{op}`" for op in dict.fromkeys(s.opcode for s in handler.syntaxes))
        rows.append(
            f"| {handler.family} | {opcodes} | [{handler.section}]({handler.url}) "
            f"| {handler.provenance} |"
        )
    return "\n".join(dict.fromkeys(rows))


def with_table(page: str, rows: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    if "--table" not in sys.argv:
        found = checked()
        CHECKED.write_text(render(found))
        print(f"{len(found)} of {len(all_handlers())} handlers; run again with --table")
        return
    PAGE.write_text(with_table(PAGE.read_text(), table(all_handlers())))


if __name__ == "__main__":
    main()
