"""Which instructions of PTX files the emulator refuses, and how often they occur.

    python lab/emulator/third_party/unmodelled.py FILE.ptx ...

Prints one line per opcode with its modifiers: occurrences, files, an example. Exit code 1 if there
is any. Only names are looked at; operands that a handler refuses show when the kernel is loaded.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from nibblas.emulator.errors import UnsupportedInstruction
from nibblas.emulator.isa.table import find_handler
from nibblas.emulator.ptx import parse
from nibblas.emulator.ptx.model import Instruction


def refused(path: Path) -> list[Instruction]:
    """The instructions of a file that no handler accepts, in its order."""
    found = []
    for function in parse(path.read_text()).functions.values():
        for item in function.body or ():
            if isinstance(item, Instruction):
                try:
                    find_handler(item)
                except UnsupportedInstruction:
                    found.append(item)
    return found


def main(paths: list[Path]) -> int:
    counts: Counter[str] = Counter()
    files: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for instruction in refused(path):
            counts[instruction.full_name] += 1
            files[instruction.full_name].add(path.stem)
    for name in sorted(counts):
        print(f"{name}  x{counts[name]}  {' '.join(sorted(files[name]))}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main([Path(path) for path in sys.argv[1:]]))
