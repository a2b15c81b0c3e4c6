"""Prints what vs.py has written: a row per case and kind, a column per label.

    python table.py OUT.jsonl

A cell: median us, (p90 - p10) / 2 in percent, x ratio to the row's first label round by round.
Flags: WRONG against float64; BITS other bits than the first label; GRAPH other bits when replayed;
SLOWCODE spills or a C75xx note; =LABEL the same kernel; ERROR.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def flags(line: dict) -> str:
    found = []
    if not line["right"]:
        found.append("WRONG")
    if not line["equal_bits"]:
        found.append("BITS")
    if line["graph_bits"] is False:
        found.append("GRAPH")
    if line.get("problems"):
        found.append("SLOWCODE")
    if "same_kernel_as" in line:
        found.append("=" + line["same_kernel_as"])
    return " ".join(found)


def cell(line: dict) -> str:
    if "median_us" not in line:
        return f"not timed {flags(line)}".strip()
    spread = (line["p90_us"] - line["p10_us"]) / 2 / line["median_us"] * 100
    text = f"{line['median_us']:.2f} ±{spread:.1f}%"
    if "ratio" in line and line["label"] != line["bits_of"]:
        text += f" x{line['ratio']:.3f}"
    return f"{text} {flags(line)}".strip()


def table(lines: list[dict], order: list[str] = ()) -> str:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    errors, labels = [], []
    for line in lines:
        if line["type"] not in ("result", "error"):
            continue
        label, row = line["label"], rows.setdefault((line["case"], line["kind"]), {})
        if line["type"] == "result":
            said = cell(line)
            row[label] = f"{said} ERROR" if row.get(label) == "ERROR" else said
        else:
            row[label] = f"{row[label]} ERROR" if label in row else "ERROR"
            errors.append(
                f"{line['case']} {line['kind']} {label} ({line['during']}): {line['error']}"
            )
        if label not in labels:
            labels.append(label)
    labels.sort(key=lambda la: order.index(la) if la in order else len(order))
    grid = [["case", *labels]]
    grid += [[f"{c} {k}", *(row.get(la, "") for la in labels)] for (c, k), row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*grid, strict=False)]
    text = [
        "  ".join(part.ljust(width) for part, width in zip(row, widths, strict=False)).rstrip()
        for row in grid
    ]
    return "\n".join([*text, *errors])


def main() -> None:
    lines = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines() if text]
    starts = [i for i, line in enumerate(lines) if line["type"] == "session"]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        about = lines[begin]
        mock = ", REHEARSAL" if about["rehearsal"] else ""
        print(f"== {about['spec']}, {about['rounds']} rounds{mock}")
        print(table(lines[begin:end], about.get("labels", ())))
        for line in lines[begin:end]:
            if line["type"] == "skipped":
                print(f"no time for {line['case']} {line['kind']}")


if __name__ == "__main__":
    main()
