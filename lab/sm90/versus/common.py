"""Specs, cases, and what both pre.py and vs.py need. Imports neither torch nor nibblas."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

KINDS = ("fp16", "bf16", "nvfp4")
RECORDS = "pre.json"
"""In a root's nibblas/prebuilt: what pre.py knows of each cubin there."""


def _d2() -> list[int]:
    draw = random.Random(2)
    sizes = [0] * 128
    for _ in range(64):
        for expert in draw.sample(range(128), 8):
            sizes[expert] += 1
    return sizes


def _even(rows: int, groups: int) -> list[int]:
    share, rest = divmod(rows, groups)
    return [share + (g < rest) for g in range(groups)]


def _skewed(rows: int, experts: int, part: float) -> list[int]:
    first = round(part * rows)
    return [first, *_even(rows - first, experts - 1)]


CASES = {
    "S1": ([80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168),
    "S2": ([40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048),
    "S3": ([192, 320], 3072, 4096),
    "S4": ([128, 384], 4096, 1536),
    "D1": ([int(digit) for digit in "28840071542101774864572567487173"], 4096, 7168),
    "D2": (_d2(), 1536, 2048),
    "P1": ([1024] * 8, 4096, 7168),
    "P2": ([256] * 128, 1536, 2048),
    "P2skew": (_skewed(256 * 128, 128, 0.9), 1536, 2048),
}


@dataclass
class Run:
    case: str
    kind: str
    labels: list[str]


@dataclass
class Spec:
    path: Path
    variants: dict[str, tuple[Path, str]]
    runs: list[Run]
    cases: dict[str, tuple[list[int], int, int]]
    out: dict[str, str] = field(default_factory=dict)
    tokens: str = "decoded"

    @property
    def roots(self) -> list[Path]:
        """Those that a run needs, in order."""
        used = [label for run in self.runs for label in run.labels]
        return list(dict.fromkeys(self.variants[label][0] for label in used))


def load_spec(path: str | Path) -> Spec:
    path = Path(path).resolve()
    names: dict = {"__file__": str(path), "__name__": "spec"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    problems = []
    variants: dict[str, tuple[Path, str]] = {}
    for label, (root, expr) in names["VARIANTS"].items():
        folder = (path.parent / root).resolve()
        if not (folder / "nibblas" / "__init__.py").is_file():
            problems.append(f"variant {label!r}: {folder} holds no nibblas/")
        if expr:
            try:
                compile(expr, label, "eval")
            except SyntaxError as error:
                problems.append(f"variant {label!r}: {error}")
        variants[label] = (folder, expr)
    cases = {**CASES, **names.get("CASES", {})}
    runs = []
    for case, kind, labels in names["RUNS"]:
        labels = list(variants) if labels == "*" else list(labels)
        if case not in cases:
            problems.append(f"run {case!r}: no such case; there are {', '.join(cases)}")
        if kind not in KINDS:
            problems.append(f"run {case!r}: kind {kind!r} is none of {', '.join(KINDS)}")
        problems += [f"run {case!r}: no variant {la!r}" for la in labels if la not in variants]
        if len(set(labels)) < len(labels) or not labels:
            problems.append(f"run {case!r} {kind}: labels are missing or double")
        runs.append(Run(case, kind, labels))
    tokens = names.get("TOKENS", "decoded")
    if tokens not in ("decoded", "randn"):
        problems.append(f"TOKENS {tokens!r} is neither 'decoded' nor 'randn'")
    if problems:
        sys.exit("\n".join([f"{path}:", *problems]))
    out = {"fp16": "fp16", "bf16": "bf16", "nvfp4": "bf16", **names.get("OUT", {})}
    return Spec(path, variants, runs, cases, out, tokens)


# ---- in a root's process, where nibblas is that root's ----


def check_root(root: Path) -> None:
    import nibblas

    found = Path(nibblas.__file__).resolve().parents[1]
    if found != Path(root).resolve():
        raise RuntimeError(f"nibblas comes from {found}, not from {root}")


def config_of(expr: str, problem, activations: str, planned):
    """The configuration; ``planned``: the root's own choose_config, unpatched."""
    if not expr:
        return planned(problem)
    from nibblas.plan import sm90

    names = {**vars(sm90), "replace": replace, "activations": activations, "problem": problem}
    names["choose_config"] = planned
    return eval(expr, names)


def problem_of(sizes, n: int, k: int, kind: str, out: str):
    """As the planner sees it when offs lie on the device."""
    from nibblas.plan.problem import Problem, even_rows, uniform_shapes

    shapes = uniform_shapes(even_rows(sum(sizes), len(sizes)), n, k)
    return Problem(shapes, kind, out, device="cuda", rows_known=False)
