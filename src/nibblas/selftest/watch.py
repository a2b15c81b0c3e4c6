"""The process that watches: it starts a worker, waits for each job no longer than its limit, and
ends a worker that has stopped answering.

A worker is ended when it is silent for too long, and on a GPU after an error too: a CUDA context
that has met an illegal access answers every later call with the same error. Another one does the
jobs that are left, until ``MOST_WORKERS`` have been used up.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from nibblas import env
from nibblas.selftest.barriers import Words
from nibblas.selftest.hang_state import HangState, host_stack, no_state
from nibblas.selftest.jobs import Job, Place

WORKER = (sys.executable, "-m", "nibblas.selftest.worker")
MOST_WORKERS = 4
START_LIMIT_S = 180.0
"""Until a worker answers: it imports torch, perhaps from a slow disk."""
_END_LIMIT_S = 20.0
_LINES_OF_STDERR = 12

Describe = Callable[[int, Path, Words], HangState]
"""Asks where a process's GPU stands: as ``hang_state.describe_gpu``."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        result: as ``tasks`` gives it; ``outcome`` may also be "hang" (no end within the limit),
            "error" (the worker died) and "not run".
        seconds: of wall time.
    """

    job: Job
    result: Mapping[str, Any]
    seconds: float

    @property
    def passed(self) -> bool:
        return self.result["outcome"] in ("passed", "refused")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.job), "seconds": round(self.seconds, 3), **self.result}


@dataclass
class Watch:
    """How jobs are run, and what has been seen of kernels.

    Attributes:
        limit_s: of one job. variables: more environment of the workers.
        describe: the GPU's state in a hang; None: there is no GPU to ask.
        command: the worker. dumps: core dumps of hung GPUs are kept as this path with a number
            and ".core" behind it; None: they are not kept.
    """

    place: Place
    limit_s: float
    variables: Mapping[str, str] = field(default_factory=dict)
    describe: Describe | None = None
    command: Sequence[str] = WORKER
    start_limit_s: float = START_LIMIT_S
    dumps: Path | None = None
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By digest of their image, in the order in which they were loaded."""
    _kept: int = 0

    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        """The jobs' outcomes, in order, as they come; closed, it ends the worker."""
        left = list(jobs)
        for _ in range(MOST_WORKERS):
            if not left:
                return
            with closing(self._one_worker(tuple(left))) as outcomes:
                for outcome in outcomes:
                    left.pop(0)
                    yield outcome
        why = f"{MOST_WORKERS} workers have hung or failed before"
        yield from (Outcome(job, {"outcome": "not run", "detail": why}, 0.0) for job in left)

    def kept(self, state: HangState) -> HangState:
        """The state with its core dump moved to where it stays, and named by its last part."""
        if state.core_dump is None:
            return state
        if self.dumps is None:
            return replace(state, core_dump=None)
        self._kept += 1
        place = self.dumps.with_name(f"{self.dumps.name}.{self._kept}.core")
        try:
            shutil.move(state.core_dump, place)
        except OSError as error:
            return replace(
                state, state_from=f"{state.state_from}; not kept: {error}", core_dump=None
            )
        return replace(state, core_dump=place.name)

    def _one_worker(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        with tempfile.TemporaryDirectory(prefix="nibblas-selftest-") as folder:
            worker = _Worker(self, Path(folder))
            try:
                worker.ask(jobs)
                yield from worker.outcomes(jobs)
            finally:
                worker.end()


class _Worker:
    """One worker process and what it has said."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self._watch, self._folder = watch, folder
        self._errors = (folder / "stderr").open("w+", errors="replace")
        variables = {name: text.format(folder=folder) for name, text in watch.variables.items()}
        self._process = subprocess.Popen(
            watch.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env.of_a_child(**variables),
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        self._launches: list[dict[str, str]] = []
        self._lost = False  # dead, or silent for too long

    def ask(self, jobs: Sequence[Job]) -> None:
        request = {"place": asdict(self._watch.place), "jobs": [asdict(job) for job in jobs]}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died; its end says so
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.close()

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """One per job up to the first that ends the worker."""
        limit = self._watch.start_limit_s  # the first job's wait begins with the start
        for job in jobs:
            begin = time.monotonic()
            result = self._result_of(limit, self._watch.limit_s)
            yield Outcome(job, result, time.monotonic() - begin)
            failed = result["outcome"] in ("error", "hang")
            if self._lost or (failed and not self._watch.place.emulated):
                return
            limit = self._watch.limit_s

    def _result_of(self, limit_s: float, job_limit_s: float) -> Mapping[str, Any]:
        """The next job's result: its own, or what its silence or death tells."""
        self._launches = []
        begun = False
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._silence(limit_s if not begun else job_limit_s, begun=begun)
            if line is None:
                return self._death()
            event = json.loads(line)
            if "begin" in event:
                begun, deadline = True, time.monotonic() + job_limit_s
            elif "launch" in event:
                self._launches.append(event)
            elif "kernel" in event:
                self._watch.kernels.setdefault(event["kernel"]["image_sha256"], event["kernel"])
            elif "end" in event:
                return self._with_launch(event["result"])

    def _with_launch(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """A result that did not pass, with the launches that led to it."""
        if result["outcome"] in ("passed", "refused"):
            return result
        return {**result, **self._launched()}

    def _launched(self) -> dict[str, Any]:
        return {
            "launches": len(self._launches),
            "last_launch": self._launches[-1] if self._launches else None,
        }

    def _words(self) -> Words:
        """Where the barriers of the kernel launched last are."""
        kernel = self._watch.kernels[self._launches[-1]["image"]]
        return Words(**kernel["barrier_words"])

    def _silence(self, limit_s: float, *, begun: bool) -> Mapping[str, Any]:
        """A hang, with all that can be learnt of it. The worker still runs."""
        self._lost = True
        where = "" if begun else " of the worker's start"
        # Before it is ready, nothing in it answers the signal but death.
        stack = host_stack(self._process.pid, self._stderr) if begun else []
        describe = self._watch.describe
        if describe is None:
            state = no_state("there is no GPU to ask")
        elif not self._launches:
            state = no_state("no kernel of nibblas was launched")
        else:
            state = self._watch.kept(describe(self._process.pid, self._folder, self._words()))
        return {
            "outcome": "hang",
            "detail": f"no end within {limit_s:.0f} s{where}",
            **self._launched(),
            "host_stack": stack,
            **asdict(state),
        }

    def _death(self) -> Mapping[str, Any]:
        self._lost = True
        status = self._process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        said = [line for line in self._stderr().splitlines() if line.strip()]
        return {
            "outcome": "error",
            "detail": f"the worker ended with {how}",
            "stderr": said[-_LINES_OF_STDERR:],
            **self._launched(),
        }

    def _stderr(self) -> str:
        self._errors.flush()
        return (self._folder / "stderr").read_text(errors="replace")

    def end(self) -> None:
        """Ends the process and all its children; one that a driver holds on to is left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            print(
                f"nibblas: process {self._process.pid} does not end: its GPU may need a reset",
                file=sys.stderr,
            )
        self._errors.close()


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Passes on the worker's events, then None; lines that are none are dropped."""
    with stream:
        for line in stream:
            if line.startswith("{"):
                lines.put(line)
    lines.put(None)
