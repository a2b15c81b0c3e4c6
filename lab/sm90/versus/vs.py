"""Times a spec's variants against each other on the GPU, a process per root, in interleaved rounds.

python vs.py SPEC.py OUT.jsonl [--rounds 15] [--seconds 0.15] [--budget S] [--rehearse]
             [--runs CASE[/KIND],...] [--timeout 20] [--fail LABEL=HOW,...]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from common import Run, Spec, load_spec
from table import table

HERE = Path(__file__).resolve().parent

START_TIMEOUT = 120.0


class Lost(RuntimeError):
    """The worker is gone, or its context is."""


class Refused(RuntimeError):
    """The worker has raised, and goes on."""


class Worker:
    """A process for one root; started again after it was lost."""

    def __init__(self, root: Path, asked, log) -> None:
        self.root, self.asked, self.log = root, asked, log
        self.process: subprocess.Popen | None = None
        self.about: dict = {}
        self.is_ready = False
        self.failures = 0

    def start(self) -> None:
        """Begins to; ``ready`` waits."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLAS_")}
        env["PYTHONPATH"] = os.pathsep.join(
            [str(self.root), *filter(None, [env.get("PYTHONPATH")])]
        )
        mode = "mock" if self.asked.rehearse else "gpu"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), str(self.root), mode, self.asked.fail],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=env,
            text=True,
        )
        self.lines: queue.Queue = queue.Queue()
        self.is_ready = False

        def read(stream, lines) -> None:
            for text in stream:
                lines.put(text)
            lines.put(None)

        threading.Thread(target=read, args=(self.process.stdout, self.lines), daemon=True).start()

    def ready(self) -> None:
        if self.is_ready:
            return
        if self.failures >= 2:
            raise Lost("its process has failed to start twice")
        if self.process is None:
            self.start()
        try:
            self.about = self._answer(START_TIMEOUT)
        except Lost:
            self.failures += 1
            raise
        self.is_ready, self.failures = True, 0

    def ask(self, do: str, **fields: object) -> dict:
        """Raises Lost (it has been killed then) or Refused."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            self.kill()
            raise Lost(f"died before {do}: {error}") from None
        return self._answer(self.asked.timeout)

    def _answer(self, timeout: float) -> dict:
        try:
            text = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.kill()
            raise Lost(f"no answer in {timeout:g} s: hangs") from None
        if text is None:
            self.kill()
            raise Lost(f"died (exit code {self.code})")
        answer = json.loads(text)
        if answer.pop("ok"):
            return answer
        if answer.get("fatal"):
            self.kill()
            raise Lost(answer["error"])
        raise Refused(answer["error"])

    def kill(self) -> None:
        if self.process is not None:
            try:
                self.code = self.process.wait(0.3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                try:
                    self.code = self.process.wait(10)
                except subprocess.TimeoutExpired:
                    self.code = "none after SIGKILL"
        self.process, self.is_ready = None, False

    @property
    def is_alive(self) -> bool:
        return self.process is not None


class Session:
    def __init__(self, spec: Spec, asked) -> None:
        self.spec, self.asked, self.began = spec, asked, time.monotonic()
        self.file = Path(asked.out).open("a", buffering=1)  # noqa: SIM115
        self.log = Path(f"{asked.out}.log").open("ab", buffering=0)  # noqa: SIM115
        self.workers = {root: Worker(root, asked, self.log) for root in spec.roots}
        self.banned: dict[str, str] = {}
        self.lines: list[dict] = []

    def write(self, **line: object) -> None:
        line["t"] = round(time.monotonic() - self.began, 2)
        self.lines.append(line)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def error(self, run: Run, label: str, what: str, why: str) -> None:
        print(f"  ERROR {run.case} {run.kind} {label}: {why}", flush=True)
        self.write(type="error", case=run.case, kind=run.kind, label=label, during=what, error=why)

    def run_all(self) -> None:
        for worker in self.workers.values():
            worker.start()
        runs = self.spec.runs
        if self.asked.runs:
            wanted = self.asked.runs.split(",")
            runs = [r for r in runs if r.case in wanted or f"{r.case}/{r.kind}" in wanted]
        for run in runs:
            if time.monotonic() - self.began > self.asked.budget:
                print(f"  no time left for {run.case} {run.kind}", flush=True)
                self.write(type="skipped", case=run.case, kind=run.kind, labels=run.labels)
                continue
            begin = time.monotonic()
            try:
                self.one(run)
            except Exception as error:  # noqa: BLE001
                import traceback

                traceback.print_exc()
                self.error(run, "*", "harness", f"{type(error).__name__}: {error}")
            print(f"  {time.monotonic() - begin:.2f} s", flush=True)

    def worker_of(self, label: str) -> Worker:
        return self.workers[self.spec.variants[label][0]]

    def one(self, run: Run) -> None:
        lines = self.set_up(run)
        labels = list(lines)
        samples = self.rounds(run, lines) if labels else {}
        self.report(run, lines, samples)
        for worker in self.workers.values():
            if worker.is_alive and worker.is_ready:
                try:
                    worker.ask("drop")
                except (Lost, Refused) as error:
                    print(f"  {worker.root.name} on dropping a case: {error}", flush=True)
                    worker.kill()
            if not worker.is_alive and worker.failures < 2:
                worker.start()  # is ready, perhaps, by the next case

    def set_up(self, run: Run) -> dict[str, dict]:
        """What was found of every variant that can be timed; one root on the GPU at a time."""
        sizes, n, k = self.spec.cases[run.case]
        fields = {"name": run.case, "kind": run.kind, "sizes": sizes, "n": n, "k": k}
        fields |= {"out": self.spec.out[run.kind], "values": self.spec.tokens}
        # All that start do so before anything is timed.
        dead, needed = set(), {self.spec.variants[la][0] for la in run.labels}
        for root, worker in self.workers.items():
            if root not in needed and worker.process is None:
                continue
            try:
                worker.ready()
            except (Lost, Refused) as error:
                dead.add(root)
                for label in run.labels:
                    if self.spec.variants[label][0] == root:
                        self.error(run, label, "start", f"{error}; see {self.asked.out}.log")
        found: dict[str, dict] = {}
        for root, worker in self.workers.items():
            pending = [
                la for la in run.labels if self.spec.variants[la][0] == root and root not in dead
            ]
            for label in [la for la in pending if la in self.banned]:
                self.error(run, label, "banned", f"not tried again: {self.banned[label]}")
                pending.remove(label)
            while pending:  # once, and once more after each variant that takes its worker with it
                asked, done = "*", {}
                try:
                    worker.ready()
                    worker.ask("case", **fields)
                    for asked in list(pending):
                        try:
                            done[asked] = worker.ask(
                                "variant", label=asked, expr=self.spec.variants[asked][1]
                            )
                        except Refused as error:
                            pending.remove(asked)
                            self.error(run, asked, "variant", str(error))
                    found |= done
                    break
                except Refused as error:  # of the operands, as a rule for lack of memory
                    for label in pending:
                        self.error(run, label, "case", str(error))
                    break
                except Lost as error:
                    if asked == "*":
                        for label in pending:
                            self.error(run, label, "case", str(error))
                        break
                    self.banned[asked] = str(error)
                    pending.remove(asked)
                    self.error(run, asked, "variant", str(error))
        return {label: found[label] for label in run.labels if label in found}

    def rounds(self, run: Run, found: dict[str, dict]) -> dict[str, dict[int, list[float]]]:
        """us per launch of every replay, by round; labels of a worker that is lost stop."""
        labels = list(found)
        samples: dict[str, dict[int, list[float]]] = {label: {} for label in labels}
        active = list(labels)

        def turn(label: str, replays: int) -> list[float] | None:
            worker = self.worker_of(label)
            try:
                return worker.ask("turn", label=label, replays=replays)["us"]
            except (Lost, Refused) as error:
                self.error(run, label, "turn", str(error))
                if isinstance(error, Lost):
                    self.banned[label] = str(error)
                gone = [la for la in active if la == label or not self.worker_of(la).is_alive]
                for other in gone:
                    active.remove(other)
                    if other != label:
                        self.error(run, other, "turn", f"lost its worker to {label}")
            return None

        warm = [
            us[0] * found[label]["launches"]
            for label in labels
            if label in active and (us := turn(label, 1))
        ]
        if not warm:
            return samples
        graph_us = statistics.median(warm)
        per_turn = self.asked.seconds * 1e6 / self.asked.rounds
        replays = min(50, max(1, round(per_turn / graph_us)))
        for number in range(self.asked.rounds):
            shift = number % len(labels)
            order = labels[shift:] + labels[:shift]
            if number % 2:
                order.reverse()
            for label in order:
                if label in active and (us := turn(label, replays)):
                    samples[label][number] = us
        return samples

    def report(self, run: Run, found: dict[str, dict], samples: dict) -> None:
        sizes, n, k = self.spec.cases[run.case]
        weight_bytes = sum(n * k * 9 // 16 for m in sizes if m)
        flop = 2 * sum(sizes) * n * k
        reference = next(iter(found), None)
        after: dict[str, dict] = {}
        for label in found:
            worker = self.worker_of(label)
            if not worker.is_alive or not samples.get(label):
                continue
            try:
                after[label] = worker.ask("finish", label=label)
            except (Lost, Refused) as error:
                self.error(run, label, "finish", str(error))
                if isinstance(error, Lost):
                    self.banned[label] = str(error)
        kernels: dict[str, str] = {}
        for label, about in found.items():
            root, expr = self.spec.variants[label]
            line = {"type": "result", "case": run.case, "kind": run.kind, "label": label}
            line |= {"root": os.path.relpath(root, self.spec.path.parent), "expr": expr}
            line |= {key: about[key] for key in about if key not in ("bits", "s")}
            same = kernels.setdefault(about["cubin"], label)
            if same != label:
                line["same_kernel_as"] = same
            last = after.get(label)
            line["bits_of"] = reference
            line["equal_bits"] = about["bits"] == found[reference]["bits"] and (
                last is None
                or reference not in after
                or last["all_bits"] == after[reference]["all_bits"]
            )
            line["graph_bits"] = None if last is None else last["bits"] == about["bits"]
            rounds = samples.get(label, {})
            times = [us for some in rounds.values() for us in some]
            if len(times) >= 2:
                deciles = statistics.quantiles(times, n=10)
                median = statistics.median(times)
                line |= {"median_us": median, "p10_us": deciles[0], "p90_us": deciles[-1]}
                line |= {"n": len(times), "rounds": len(rounds)}
                line |= {"weights_tb_per_s": weight_bytes / median / 1e6}
                line |= {"tflops": flop / median / 1e6}
                first = samples[reference]
                ratios = [
                    statistics.mean(rounds[r]) / statistics.mean(first[r])
                    for r in rounds
                    if r in first
                ]
                if len(ratios) >= 2:
                    tenths = statistics.quantiles(ratios, n=10)
                    line |= {"ratio": statistics.median(ratios)}
                    line |= {"ratio_p10": tenths[0], "ratio_p90": tenths[-1]}
            self.write(**line)
        key = run.case, run.kind
        lines = [la for la in self.lines if (la.get("case"), la.get("kind")) == key]
        print(table(lines, run.labels), flush=True)

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.kill()
        self.file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.15, help="of GPU time for each variant")
    parser.add_argument("--budget", type=float, default=1e9, help="no case begins after so many s")
    parser.add_argument("--runs", default="", help="only these: CASE or CASE/KIND, comma between")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--fail", default="", help="rehearsal: LABEL=HOW,...; see worker.py")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    session = Session(load_spec(asked.spec), asked)
    try:
        session.write(
            type="session",
            spec=asked.spec,
            rounds=asked.rounds,
            seconds=asked.seconds,
            tokens=session.spec.tokens,
            rehearsal=asked.rehearse,
            labels=list(session.spec.variants),
        )
        session.run_all()
        for worker in session.workers.values():
            if worker.about:
                session.write(type="worker", root=str(worker.root), about=worker.about)
        print(f"{time.monotonic() - session.began:.1f} s in all", flush=True)
    finally:
        session.close()


if __name__ == "__main__":
    main()
