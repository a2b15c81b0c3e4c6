"""The GPU lane: everything that only a GPU can show, in one run, one JSON line per step and case.

Runs from the repository on a machine with an NVIDIA GPU and no network. The package is the source
tree's (src, with src/nibblas/lib and src/nibblas/prebuilt built), or the wheels in a folder.

    python .ci/gpu_lane.py --out results.jsonl
    python .ci/gpu_lane.py --wheels DIR --out results.jsonl    # whatever DIR/*.whl holds, installed
                                                               # over the packages at hand
    python .ci/gpu_lane.py --steps check,memcheck
    python .ci/gpu_lane.py --device cpu --steps check          # a rehearsal where there is no GPU

Every line has name, outcome (passed, failed, skipped), seconds, detail and figures, and the facts
of the run: machine, driver, versions, commit, date. Exit status: 0 nothing failed, 1 something did,
2 there is no GPU or no usable package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

TESTS = (
    "tests/gpu",
    "tests/api",
    "tests/backends",
    "tests/check/test_on_gpu.py",
    "tests/formats/test_on_gpu.py",
    "tests/runtime/test_on_gpu.py",
)
SANITIZED_TESTS = "tests/gpu/test_small.py"
SANITIZED_KERNELS = "kns=nibblas"
SANITIZER_FOUND_ERRORS = 86
CUDA_PROGRAMS = "/usr/local/cuda/bin"
# PyTorch's own allocator hands out parts of large blocks, in which an overrun goes unseen.
EXACT_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
CHECK_PROBLEMS = 200
SHOWN_LINES = 40

COULD_NOT_START = 2

FACTS = """
import json, platform, torch, nibblas
from nibblas.runtime import prebuild
facts = {"machine": platform.processor() or platform.machine(), "driver": None}
if torch.cuda.is_available():
    facts["machine"] = torch.cuda.get_device_name()
    facts["gpus"] = torch.cuda.device_count()
    facts["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
facts |= {"python": platform.python_version(), "torch": torch.__version__,
          "cuda": torch.version.cuda, "nibblas": nibblas.__version__}
try:
    from nibblas.runtime.compile import compiler_version
    facts["nvrtc"] = compiler_version()
except RuntimeError as error:
    facts["nvrtc"] = None
figures = {"prebuilt_cubins": {t: found for t, (found, _) in prebuild.shipped().items()},
           "package": nibblas.__path__[0]}
print(json.dumps([torch.cuda.is_available(), facts, figures]))
"""


@dataclass
class Line:
    """One line of the results."""

    name: str
    outcome: str
    seconds: float
    detail: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its exit status (None: it ran out of time) and its output."""

    status: int | None
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        lines = [*self.stdout.splitlines(), *self.stderr.splitlines()]
        return "\n".join(lines[-SHOWN_LINES:])


@dataclass
class Lane:
    """Where and how the steps run.

    Attributes:
        device: "cuda", or "cpu" for a rehearsal. environment: of every command.
        capability: the GPU's compute capability, "9.0"; "": there is no GPU.
        scratch: a folder for the steps' files. limit_s: time left to the step at hand.
    """

    device: str
    environment: dict[str, str]
    scratch: Path
    limit_s: float = 0.0
    capability: str = ""

    @property
    def backend(self) -> str:
        return "portable" if self.device == "cuda" else "cpu"

    def python(
        self,
        *arguments: str,
        under: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Finished:
        """Runs the Python at hand; at the time limit it is ended, with all its children.

        Args:
            under: a program with its options, to run it under. settings: more environment.
        """
        command = [*under, sys.executable, *arguments]
        environment = {**self.environment, **(settings or {})}
        with (
            tempfile.TemporaryFile("w+", dir=self.scratch, errors="replace") as out,
            tempfile.TemporaryFile("w+", dir=self.scratch, errors="replace") as err,
        ):
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                status: int | None = process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            out.seek(0)
            err.seek(0)
            return Finished(status, out.read(), err.read())


Cases = Iterator[Line]


def failure(finished: Finished) -> str | None:
    """Why a command did not pass, in words; None: it passed."""
    if finished.status == 0:
        return None
    print(finished.tail, flush=True)
    if finished.status is None:
        return "ran out of time"
    last = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-1:]
    return f"exit status {finished.status}: {' '.join(last)}"


def tests(lane: Lane) -> Cases:
    """The tests that need a GPU, and those of the operator on every backend."""
    report = lane.scratch / "tests.xml"
    finished = lane.python(*pytest(report), *TESTS)
    yield from judged("tests", report, failure(finished))


def pytest(report: Path) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")


def judged(name: str, report: Path, why: str | None) -> Cases:
    """The cases of a report, then the step: failed for the reason given, or where no test ran."""
    cases = list(cases_of(report, name)) if report.exists() else []
    yield from cases
    passed = sum(case.outcome == "passed" for case in cases)
    if why is None and not passed:
        why = "no test ran"
    counts = {
        outcome: sum(case.outcome == outcome for case in cases)
        for outcome in ("passed", "failed", "skipped")
    }
    yield Line(name, "failed" if why else "passed", 0.0, why or "", counts)


def cases_of(report: Path, name: str) -> Cases:
    """The test cases of a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        outcome, detail = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                detail = child.get("message", "")
        test = f"{case.get('classname', '')}.{case.get('name', '')}"
        yield Line(f"{name}: {test}", outcome, float(case.get("time", 0.0)), detail)


def check(lane: Lane) -> Cases:
    """Random and bit-exact problems against the float64 oracle."""
    return checked(lane, "check", lane.backend)


def check_sm90(lane: Lane) -> Cases:
    """Those that Hopper's kernel takes."""
    if lane.capability != "9.0":
        return iter([Line("check-sm90", "skipped", 0.0, "needs compute capability 9.0")])
    return checked(lane, "check-sm90", "sm90")


def checked(lane: Lane, step: str, backend: str) -> Cases:
    found, why = json_command(
        lane, "check", "--backend", backend, "--device", lane.device,
        "--count", str(CHECK_PROBLEMS),
    )  # fmt: skip
    figures: dict[str, Any] = {
        key: found[key] for key in ("problems", "targets", "never_met") if key in found
    }
    for violation in found.get("violations", ()):
        name = f"{step}: {violation['only']} on {violation['target']}"
        yield Line(name, "failed", 0.0, "; ".join(violation["found"]))
    yield Line(step, "failed" if why else "passed", 0.0, why or "", figures)


def competition(lane: Lane) -> Cases:
    """The tests of the public problem, on public inputs and on every code and scale."""
    found, why = json_command(
        lane, "competition", "--tests-only", "--backend", lane.backend, "--device", lane.device
    )
    for test in found.get("tests", ()):
        name = f"competition: {test['case']}, {test['content']}"
        outcome = "passed" if test["passed"] else "failed"
        figures = {key: test[key] for key in ("bit_exact", "largest_error")}
        yield Line(name, outcome, 0.0, "; ".join(test["messages"]), figures)
    exact = sum(test["bit_exact"] for test in found.get("tests", ()))
    figures = {"cases": len(found.get("tests", ())), "bit_exact": exact}
    yield Line("competition", "failed" if why else "passed", 0.0, why or "", figures)


def json_command(lane: Lane, *arguments: str) -> tuple[dict[str, Any], str | None]:
    """What ``nibblas ... --json`` printed, and why it did not pass."""
    finished = lane.python("-m", "nibblas.cli", *arguments, "--json")
    why = failure(finished)
    try:
        found: dict[str, Any] = json.loads(finished.stdout)
    except ValueError:
        return {}, why or "no JSON on stdout"
    return found, why


def sanitizer(tool: str) -> Callable[[Lane], Cases]:
    """Small problems under one tool of compute-sanitizer, which watches our kernels only."""

    def step(lane: Lane) -> Cases:
        program = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:{CUDA_PROGRAMS}")
        if lane.device == "cpu" or program is None:
            why = "needs a GPU" if lane.device == "cpu" else "there is no compute-sanitizer"
            yield Line(tool, "skipped", 0.0, why)
            return
        under = (
            program, "--tool", tool, "--kernel-name", SANITIZED_KERNELS,
            "--report-api-errors", "no",  # the bindings look up functions that a driver may lack
            "--error-exitcode", str(SANITIZER_FOUND_ERRORS),
            *(("--padding", "256") if tool == "memcheck" else ()),
        )  # fmt: skip
        report = lane.scratch / f"{tool}.xml"
        finished = lane.python(
            *pytest(report), SANITIZED_TESTS, under=under, settings=EXACT_ALLOCATIONS
        )
        yield from judged(tool, report, failure(finished) or findings(finished))

    step.__doc__ = f"Small problems under compute-sanitizer's {tool}."
    return step


def findings(finished: Finished) -> str | None:
    """What the tool's own summary counts; None: nothing."""
    summaries = re.findall(r"^=+ .*SUMMARY: .*$", finished.stdout, re.MULTILINE)
    if not summaries:
        return "no summary of the tool"
    return next((s for s in summaries if not re.search(r"SUMMARY: 0 (errors|hazards)", s)), None)


def speed(lane: Lane) -> Cases:
    """Times of the few-tokens cases; each is checked before it is timed."""
    if lane.device == "cpu":
        yield Line("speed", "skipped", 0.0, "needs a GPU")
        return
    report = lane.scratch / "speed.jsonl"
    why = failure(lane.python("lab/portable/first_speed.py", str(report)))
    if report.exists():
        for text in report.read_text(encoding="utf-8").splitlines():
            figures = json.loads(text)
            kind = f", {figures['kind']}" if "kind" in figures else ""
            yield Line(f"speed: {figures['case']}{kind}", "passed", 0.0, "", figures)
    yield Line("speed", "failed" if why else "passed", 0.0, why or "")


@dataclass(frozen=True)
class Step:
    run: Callable[[Lane], Cases]
    limit_s: float
    needs_green: bool = False
    """Skipped after a failure: no time is given for a kernel that may be wrong."""


STEPS: dict[str, Step] = {
    "tests": Step(tests, 300),
    "check": Step(check, 120),
    "check-sm90": Step(check_sm90, 120),
    "competition": Step(competition, 120),
    "memcheck": Step(sanitizer("memcheck"), 120),
    "racecheck": Step(sanitizer("racecheck"), 120),
    "synccheck": Step(sanitizer("synccheck"), 120),
    "speed": Step(speed, 120, needs_green=True),
}


class Results:
    """The results file, written line by line, and a short form of each step on stdout."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self.facts = path, facts
        self.failed: list[str] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def add(self, line: Line) -> None:
        fields = {
            "name": line.name,
            "outcome": line.outcome,
            "seconds": round(line.seconds, 3),
            "detail": line.detail,
            "figures": dict(line.figures),
            **self.facts,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
        if line.outcome == "failed":
            self.failed.append(line.name)
        is_case = ": " in line.name
        if not is_case or line.outcome == "failed" or line.name.startswith("speed"):
            print(f"{line.outcome:<8} {line.name} {one_line(line)}", flush=True)


def one_line(line: Line) -> str:
    seconds = f"{line.seconds:.1f} s " if line.seconds else ""
    figures = json.dumps(line.figures) if line.figures else ""
    return f"{seconds}{line.detail} {figures}".strip()


def run_step(name: str, lane: Lane, results: Results) -> None:
    """Runs one step and adds its lines; the step's own, the last, gets the whole time."""
    step = STEPS[name]
    if step.needs_green and results.failed:
        results.add(Line(name, "skipped", 0.0, f"{results.failed[0]} failed"))
        return
    begin = time.monotonic()
    lane.limit_s = step.limit_s
    for line in step.run(lane):
        if line.name == name:
            line.seconds = time.monotonic() - begin
        results.add(line)


def commit() -> str:
    """The commit of the tree, "+" after it where files differ; "unknown" without git."""
    try:
        words = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain"])
        head, changes = (
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for command in words
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("+" if changes.strip() else "")


def driver_version() -> str | None:
    """NVIDIA's driver, as nvidia-smi names it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n")[0].strip() or None


def environment(wheels: Path | None, scratch: Path) -> dict[str, str]:
    """The commands' environment: our package first, no setting of nibblas but a cache to share."""
    package = ROOT / "src"
    if wheels is not None:
        package = scratch / "site"
        files = sorted(map(str, wheels.glob("*.whl")))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, "--target", str(package), *files], check=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NIBBLAS_")}
    return {**kept, "PYTHONPATH": str(package), "NIBBLAS_CACHE_DIR": str(scratch / "cache")}


def arguments() -> argparse.Namespace:
    limits = ", ".join(f"{name} ({step.limit_s:.0f} s)" for name, step in STEPS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Steps: {limits}. In brackets: the time after which a step is ended.",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-lane.jsonl"), help="results file")
    parser.add_argument("--steps", default=",".join(STEPS), help="comma-separated; default: all")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install and test")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--commit", default=None, help="to record where there is no git")
    parsed = parser.parse_args()
    parsed.steps = [name for name in parsed.steps.split(",") if name]
    if parsed.wheels is not None and not any(parsed.wheels.glob("nibblas-*.whl")):
        parser.error(f"--wheels: got {parsed.wheels}; want a folder with nibblas-*.whl")
    unknown = [name for name in parsed.steps if name not in STEPS]
    if unknown or not parsed.steps:
        parser.error(f"--steps: got {unknown or 'none'}; want some of {', '.join(STEPS)}")
    return parsed


def main() -> int:
    asked = arguments()
    with tempfile.TemporaryDirectory(prefix="nibblas-gpu-lane-") as folder:
        scratch = Path(folder)
        lane = Lane(asked.device, environment(asked.wheels, scratch), scratch, limit_s=120)
        begin = time.monotonic()
        looked = lane.python("-c", FACTS)
        if looked.status != 0:
            print(f"{looked.tail}\nthe package cannot be used by {sys.executable}", file=sys.stderr)
            return COULD_NOT_START
        has_gpu, facts, figures = json.loads(looked.stdout.splitlines()[-1])
        if asked.device == "cuda" and not has_gpu:
            print(
                f"no GPU: PyTorch {facts['torch']} finds no CUDA device here; nothing was run",
                file=sys.stderr,
            )
            return COULD_NOT_START
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        lane.capability = facts.get("compute_capability", "")
        facts |= {"driver": driver_version(), "commit": asked.commit or commit(), "date": date}
        print(json.dumps(facts), flush=True)
        results = Results(asked.out, facts)
        seconds = time.monotonic() - begin
        results.add(Line("environment", "passed", seconds, "", figures))
        for name in asked.steps:
            run_step(name, lane, results)
        total = time.monotonic() - begin
        print(f"{len(results.failed)} failed in {total:.0f} s; {asked.out}")
        return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
