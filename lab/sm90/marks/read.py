"""What marks say: cycles of the producers' start, and of steps and stages by width of tile.

python lab/sm90/marks/read.py OUT.npz [CASE]

Each line: least, median, 90 %, most, over the CTAs (or steps, or stages). Tags: instrument.py.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

CTAS, ROLES, ROOM = 132, 4, 2048
PRODUCER = 2  # where there are two multiplying warpgroups
START, READY = 1, 2
PRODUCERS = {
    "offs read": 4,
    "the cut chosen": 41,
    "its tiles known": 42,
    "first step known": 5,
    "and launches before ended": 2,
    "which first step holds": 3,
    "first stage asked for": 32,
    "the step told": 33,
    "registers given back": 6,
}
WIDTH = 1000
BEFORE_WAIT, MULTIPLIED, STORED, END = 20, 12, 13, 99

Records = np.ndarray  # [record][tag, clock]
Found = dict[str, list[int]]


def records(marks: np.ndarray, cta: int, role: int) -> Records:
    found = marks[cta, role]
    return found[: int(np.argmax(found[:, 0] == 0))]


def cycles(begin: int, end: int) -> int:
    return (int(end) - int(begin)) & 0xFFFFFFFF


def clock_of(found: Records, tag: int) -> int:
    return int(found[found[:, 0] == tag][0, 1])


def read_producer(found: Records, to: Found) -> None:
    for name, tag in PRODUCERS.items():
        to["start to " + name].append(cycles(clock_of(found, START), clock_of(found, tag)))


def read_multiplier(found: Records, ready: int, to: Found) -> None:
    width, step, told, first = 0, 0, 0, False
    for i, (tag, clock) in enumerate(found[:-1]):
        if tag >= WIDTH:
            width, step, told, first = int(tag) - WIDTH, step + 1, int(clock), True
        elif tag == BEFORE_WAIT and first:
            later = "" if step == 1 else " of a later step"
            to[f"told to loop{later}"].append(cycles(told, clock))
            if step == 1:
                to["ready to first data"].append(cycles(ready, found[i + 1, 1]))
            first = False
        elif tag == BEFORE_WAIT:
            to[f"a stage of {width}"].append(cycles(clock, found[i + 2, 1]))
            to[f"  waited for, of {width}"].append(cycles(clock, found[i + 1, 1]))
        elif tag == MULTIPLIED:
            to[f"outputs of {width} stored"].append(cycles(clock, found[i + 1, 1]))
        elif tag == STORED and found[i + 1, 0] != END:
            to["stored to next step told"].append(cycles(clock, found[i + 1, 1]))
    to["ready to the end"].append(cycles(ready, clock_of(found, END)))


def read(marks: np.ndarray) -> Found:
    to: Found = defaultdict(list)
    marks = marks.reshape(CTAS, ROLES, ROOM, 2)
    for cta in range(CTAS):
        producer = records(marks, cta, PRODUCER)
        if not (producer[:, 0] == PRODUCERS["first stage asked for"]).any():
            continue
        read_producer(producer, to)
        for role in range(PRODUCER):
            read_multiplier(records(marks, cta, role), clock_of(producer, READY), to)
    return to


def shown(values: Iterable[int]) -> str:
    return " ".join(f"{value:8.0f}" for value in np.percentile(list(values), [0, 50, 90, 100]))


def main() -> None:
    file, *only = sys.argv[1:]
    with np.load(file) as cases:
        for case in only or cases.files:
            print(case)
            for name, values in sorted(read(cases[case]).items()):
                print(f"  {name:40} {len(values):7} {shown(values)}")


if __name__ == "__main__":
    main()
