"""Puts marks into a copy of the Hopper kernel's text, which marks.py then runs.

    cp -r src ROOT; python lab/sm90/marks/instrument.py ROOT

A text that is not found once has changed since: this is of version 17. Tags: 1 start, 4 offs read,
41 the cut chosen, 42 tiles known, 5 the first step known, 10 the launches before have ended, 2
both, 3 which held, 32 the first stage asked for, 33 the step told, 6 registers given back; 1000 +
width: a step, 20 and 21 before and after the wait for a stage, 12 multiplied, 13 stored, 99 the
end; 100 and 101: nanoseconds at the start and the end.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

GO_DOWN = [
    ("take_unit<kWidths[kBegin]>(p, output, decoder, place", ");"),
    ("take_unit_of<kBegin, kMiddle>(p, width, output, decoder, place", ");"),
    ("take_unit_of<kMiddle, kEnd>(p, width, output, decoder, place", ");"),
    ("take_unit_of<0, kWidthCount>(p, at.width, output, decoder, place", ");"),
]

EDITS = {
    "shared.cuh": [('#include "params.cuh"', '#include "marks.cuh"\n#include "params.cuh"')],
    "walk.cuh": [
        (
            "  // At the CTA's first step of",
            "  Marks* marks = nullptr;\n  // At the CTA's first step of",
        ),
        ("first_group_) look();", "first_group_) look();\n      if (round_ == 0) marks->mark(42);"),
    ],
    "multiply.cuh": [
        ("Sums<kTokens>& sums) {\n  constexpr", "Sums<kTokens>& sums, Marks& m) {\n  constexpr"),
        (
            "    place.wait_until_full();\n",
            "    m.mark(20);\n    place.wait_until_full();\n    m.mark(21);\n",
        ),
    ],
    "grouped_mm.cu": [
        ("RingPlace& place) {\n  Sums", "RingPlace& place, Marks& m) {\n  Sums"),
        ("decoder, place, sums);", "decoder, place, sums, m);\n  m.mark(12);"),
        ("place.stage_before());\n", "place.stage_before());\n  m.mark(13);\n"),
        ("RingPlace& place) {\n  constexpr", "RingPlace& place, Marks& m) {\n  constexpr"),
        *((call + end, call + ", m" + end) for call, end in GO_DOWN),
        (
            "      const Output output(p, at);",
            "      m.mark(1000 + at.width);\n      const Output output(p, at);",
        ),
        (
            "multiply(const Params& p, Shared& shared) {",
            "multiply(const Params& p, Shared& shared, Marks& m) {",
        ),
        (
            "if (at.width == 0) return;",
            "if (at.width == 0) {\n      m.mark(99);\n      m.timer(101);\n"
            "      m.mark(0);\n      return;\n    }",
        ),
        (
            "  ptx::griddepcontrol_launch_dependents();\n",
            "  Marks m;\n  m.timer(100);\n  m.mark(1);\n"
            "  ptx::griddepcontrol_launch_dependents();\n",
        ),
        ("Walk walk(p, shared.ends);", "Walk walk(p, shared.ends);\n    walk.marks = &m;"),
        ("begin(p, walk, place, turn, shared);", "begin(p, walk, place, turn, shared, m);"),
        ("produce(p, walk, place, turn);", "m.mark(6);\n    produce(p, walk, place, turn, m);"),
        (
            "    ptx::griddepcontrol_wait();\n  }\n",
            "    ptx::griddepcontrol_wait();\n  }\n  m.mark(10);\n",
        ),
        ("    multiply(p, shared);", "    multiply(p, shared, m);"),
    ],
    "copies.cuh": [
        ("StepPlace& turn, Shared& shared) {", "StepPlace& turn, Shared& shared, Marks& m) {"),
        (
            "    walk.begin(best.of(shared.ends));",
            "    m.mark(4);\n    const Cut cut = best.of(shared.ends);\n    m.mark(41);\n"
            "    walk.begin(cut);\n    m.mark(5);",
        ),
        ("    __syncthreads();\n", "    __syncthreads();\n    m.mark(2);\n"),
        ("  if (walk.step().width > 0 && ptx", "  m.mark(3);\n  if (walk.step().width > 0 && ptx"),
        (
            "  if (ptx::elect_sync()) turn.tell(walk.step());\n",
            "  m.mark(32);\n  if (ptx::elect_sync()) turn.tell(walk.step());\n  m.mark(33);\n",
        ),
        (
            "RingPlace& place,\n                                               StepPlace& turn) {",
            "RingPlace& place, StepPlace& turn, Marks& m) {",
        ),
        (
            "    if (copier) turn.tell(walk.step());\n",
            "    if (copier) turn.tell(walk.step());\n    if (walk.step().width == 0) m.mark(0);\n",
        ),
    ],
}


def main() -> None:
    kernels = Path(sys.argv[1]) / "nibblas/kernels/sm90"
    shutil.copy(Path(__file__).with_name("marks.cuh"), kernels)
    for name, edits in EDITS.items():
        text = (kernels / name).read_text()
        for old, new in edits:
            if text.count(old) != 1:
                sys.exit(f"{name}: {text.count(old)} times, not once: {old!r}")
            text = text.replace(old, new)
        (kernels / name).write_text(text)


if __name__ == "__main__":
    main()
