"""Times copies of the package against each other on D1 and D2, interleaved.

Usage: python lab/portable/compare.py OUT.jsonl COPY...
       PYTHONPATH=COPY python lab/portable/compare.py --worker [--profile]

A copy is a folder that holds ``nibblas``. Each copy runs in a process of its own, the worker, which
first shows that its results are right; then both cases are timed in rounds, to and fro over the
copies, with pauses, so that a device that gets hotter or slower does so for all of them. Copies
named part_... leave work out: their results are wrong, they are timed all the same, and their lines
say so.
"""

from __future__ import annotations

import functools
import json
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import first_speed
import torch

ROUNDS, REPLAYS, CALLS_OF_A_SET = 37, 8, 4
PAUSE_SECONDS = 0.02  # after each copy's turn
PATIENCE_SECONDS = 60  # a kernel that hangs is given up


class Case:
    """A case's operands, weights rotating over 600 MB, and a graph of all calls."""

    def __init__(self, name: str) -> None:
        import nibblas
        from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound

        sizes, n, k = first_speed.CASES[name]
        torch.manual_seed(1)
        self.offs = torch.tensor(sizes).cumsum(0).int()
        self.weight_bytes = sum(n * k * 9 // 16 for m in sizes if m)
        copies = max(2, -(-600_000_000 // (len(sizes) * n * k * 9 // 16)))
        self.sets = [first_speed.operands(sizes, n, k, "fp16") for _ in range(copies)]
        self.outs = [torch.full((sum(sizes), n), torch.nan).half() for _ in self.sets]
        run = functools.partial(nibblas.grouped_mm, offs=self.offs, backend="portable")
        self.calls = [
            functools.partial(run, x=x, w=w, out=out)
            for (x, w), out in zip(self.sets, self.outs, strict=True)
        ]
        self.calls[0]()
        x, w = self.sets[0]
        exact = grouped_mm_reference(x, w, self.offs)
        bound = error_bound(exact, torch.half)
        self.correct = bool(within_bound(self.outs[0], exact, bound).all())
        # Any order-sensitive sum of the bits: copies that agree bit for bit agree here.
        bits = self.outs[0].view(torch.int16).long().flatten()
        self.checksum = int((bits * (torch.arange(len(bits)) % 8191 + 1)).sum())

    def capture(self) -> None:
        for call in self.calls:
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for call in self.calls * CALLS_OF_A_SET:
                call()
        self.graph.replay()
        torch.cuda.synchronize()

    def times_us(self) -> list[float]:
        """Per call, of some replays of the graph."""
        times = []
        self.graph.replay()  # the copy before has had the caches
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.graph.replay()
            end.record()
            torch.cuda.synchronize()
            calls = len(self.calls) * CALLS_OF_A_SET
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        return times


def work() -> None:
    """Answers lines of stdin, a case's name each, with its times as a line of JSON."""
    torch.set_default_device("cuda")
    if "--profile" in sys.argv:  # one launch, for a profiler
        Case("D1")
        torch.cuda.synchronize()
        return
    cases: dict[str, Case] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in cases:
            case = cases[name] = Case(name)
            case.capture()
            facts = {
                "correct": case.correct,
                "checksum": case.checksum,
                "weight_bytes": case.weight_bytes,
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
            }
            print(json.dumps(facts), flush=True)
        else:
            print(json.dumps(cases[name].times_us()), flush=True)


def start(copy: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(copy).resolve()), str(Path(__file__).resolve().parent)])
    return subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(worker: subprocess.Popen[str], case: str) -> Any:
    """The worker's answer; None if it has died or hangs."""
    to, answers = worker.stdin, worker.stdout
    assert to is not None
    assert answers is not None
    try:
        print(case, file=to, flush=True)
        if select.select([answers], [], [], PATIENCE_SECONDS)[0]:
            return json.loads(answers.readline())
        worker.kill()
    except (BrokenPipeError, json.JSONDecodeError):
        pass
    return None


def compare(copies: list[str], out: IO[str]) -> None:
    workers = {copy: start(copy) for copy in copies}
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for case in first_speed.CASES:
        for copy, worker in workers.items():
            found = ask(worker, case) or {"correct": False, "died": True}
            facts[case, copy] = found
            if found["correct"] or (Path(copy).name.startswith("part_") and "died" not in found):
                times[case, copy] = []
    for i in range(ROUNDS):
        order = sorted(times, key=lambda key: copies.index(key[1]), reverse=i % 2 == 1)
        for case, copy in order:
            times[case, copy] += ask(workers[copy], case) or []
            time.sleep(PAUSE_SECONDS)
    for (case, copy), found in facts.items():
        line: dict[str, Any] = {"case": case, "copy": Path(copy).name, "kind": "fp16"}
        all_times = times.get((case, copy), [])
        if len(all_times) > 1:
            weight_bytes = found.pop("weight_bytes")
            deciles = statistics.quantiles(all_times, n=10)
            median = statistics.median(all_times)
            line["median_us"] = round(median, 1)
            line["p10_us"], line["p90_us"] = round(deciles[0], 1), round(deciles[-1], 1)
            line["weights_tb_per_s"] = round(weight_bytes / median / 1e6, 3)
        print(json.dumps(line | found), flush=True)
        print(json.dumps(line | found), file=out)
    for worker in workers.values():
        worker.kill()
        worker.wait()


def main() -> None:
    if "--worker" in sys.argv:
        work()
    else:
        with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
            compare(sys.argv[2:], out)


if __name__ == "__main__":
    main()
