"""Counts what the portable kernel's warps issue in one turn of their loops, from machine code.

Usage: PYTHONPATH=src python lab/model/count_instructions.py

A loop's count is the fewest instructions from its head back to its head that pass through all of
its work: every multiplication, or every load and store of tokens. So what happens once per item,
and waiting, is left out. The counts are data in plan/portable.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import deque
from itertools import pairwise
from pathlib import Path

from nibblas.plan.portable import PortableConfig, config_for
from nibblas.runtime.compile import compile_cubin
from nibblas.runtime.source import KernelSource

TARGETS = {"sm_90a": (9, 0), "sm_100f": (10, 0), "sm_120f": (12, 0)}

_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_ALWAYS = re.compile(r"BRA `")


class Code:
    """A kernel's instructions, where each may go next, and its loops as (head, end)."""

    def __init__(self, text: str) -> None:
        self.text: list[str] = []
        labels: dict[str, int] = {}
        for line in text.splitlines():
            if label := _LABEL.match(line):
                labels[label[1]] = len(self.text)
            elif found := _INSTRUCTION.match(line):
                self.text.append(found[1])
        self.next: list[list[int]] = []
        self.loops: list[tuple[int, int]] = []
        for at, instruction in enumerate(self.text):
            branch = _BRANCH.search(instruction)
            target = labels[branch[1]] if branch else None
            falls_through = not (target is not None and _ALWAYS.match(instruction))
            if re.match(r"(EXIT|RET)\b", instruction):
                falls_through = False
            self.next.append(
                [*([target] if target is not None else []), *([at + 1] if falls_through else [])]
            )
            if target is not None and target < at:
                self.loops.append((target, at))

    def count(self, loop: tuple[int, int], pattern: str) -> int:
        return sum(bool(re.search(pattern, t)) for t in self.text[loop[0] : loop[1] + 1])

    def length(self, loop: tuple[int, int], through: str) -> int | None:
        """Instructions of the shortest way round that passes all those which match, if any does."""
        head, end = loop
        stops = [at for at in range(head, end) if re.search(through, self.text[at])]
        places = [head, *stops, end]
        steps = [self._steps(a, b, loop) for a, b in pairwise(places)]
        return None if None in steps else 1 + sum(map(int, filter(None, steps)))

    def _steps(self, begin: int, goal: int, loop: tuple[int, int]) -> int | None:
        distance = {begin: 0}
        waiting = deque([begin])
        while waiting:
            at = waiting.popleft()
            if at == goal:
                return distance[at]
            for to in self.next[at]:
                if loop[0] <= to <= loop[1] and to not in distance:
                    distance[to] = distance[at] + 1
                    waiting.append(to)
        return None


def disassembled(config: PortableConfig) -> Code:
    """Its machine code, through nvdisasm of PyPI's nvidia-cuda-nvdisasm."""
    source = KernelSource.of(config, config.target(TARGETS[config.built_for]))
    compiled = compile_cubin(
        source.text, name=source.name, target=source.target, headers=dict(source.headers)
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        found = subprocess.run(
            [nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True
        )
    return Code(found.stdout)


def nvdisasm() -> str:
    for folder in map(Path, sys.path):
        found = next(folder.glob("nvidia/*/bin/nvdisasm"), None)
        if found:
            return str(found)
    return "nvdisasm"


def counts_of(config: PortableConfig) -> dict[str, object]:
    """Instructions of one turn by role.

    "multiply": of a warp, by its sets of weight rows and tiles of 8 tokens. "tokens": of a turn of
    the token warps' loop, all batches that are on their way. "weights": of a turn without copies,
    and (instructions, copies) of the loops of copies.
    """
    code = disassembled(config)
    steps = config.stage_k // 16
    multiply: dict[tuple[int, int], int] = {}
    tokens, weights = [], []
    stores, copies = r"\bSTS\.128", r"UTMALDG|LDGSTS"
    loads = r"LDG\.E\.U8" if config.activations == "nvfp4" else r"LDG\.E\.128"
    for loop in code.loops:
        sets = code.count(loop, r"HMUL2|HFMA2") // (4 * steps)
        tiles, rest = divmod(code.count(loop, "HMMA"), steps * max(sets, 1))
        if tiles and not rest:
            length = code.length(loop, "HMMA")
            if length is not None:
                found = multiply.get((sets, tiles), length)
                multiply[sets, tiles] = min(length, found)
        elif code.count(loop, stores) and not code.count(loop, f"HMMA|{copies}"):
            tokens.append(code.length(loop, f"{stores}|{loads}"))
        elif code.count(loop, copies) and not code.count(loop, f"HMMA|{stores}"):
            weights.append((code.length(loop, "$^"), code.count(loop, copies)))
    return {"multiply": multiply, "tokens": tokens, "weights": weights}


def main() -> None:
    for target in TARGETS:
        for activations in ("fp16", "bf16", "nvfp4"):
            for tokens in (16, 64):
                config = config_for(activations, tokens, target, aligned=True)
                print(config, counts_of(config))


if __name__ == "__main__":
    main()
