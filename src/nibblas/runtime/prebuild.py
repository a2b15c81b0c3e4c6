"""Builds every kernel ahead of time: ``python -m nibblas.runtime.prebuild``.

Writes the cubins that the package ships, with a manifest, and prints a table. It fails on a kernel
that spills or otherwise runs slower than written (``compile.resource_problems``), and on more bytes
than SIZE_BUDGET_BYTES. A kernel that the folder already holds, from this compiler, is not built
again; what else the folder holds is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from nibblas.runtime.cache import PREBUILT, file_name, pack, prebuilt_key, unpack, write_atomically
from nibblas.runtime.compile import (
    OPTIONS,
    CompileError,
    Resources,
    compile_cubin,
    compiler_version,
    resource_problems,
)
from nibblas.runtime.source import KernelConfig, KernelSource

MANIFEST = "manifest.json"

SIZE_BUDGET_BYTES = 20 * 2**20
"""What all cubins may add to the wheel, before compression."""


@dataclass(frozen=True)
class Built:
    """One cubin of the package.

    Attributes:
        key: ``prebuilt_key``. size: bytes. description: the configuration in words.
        registers, shared_bytes, stack_bytes: of the entry, as ``compile.Resources``; shared memory
            is the static part.
    """

    file: str
    key: str
    entry: str
    target: str
    description: str
    size: int
    registers: int
    shared_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class _Task:
    source: KernelSource
    description: str

    @property
    def key(self) -> str:
        return prebuilt_key(self.source)

    @property
    def file(self) -> str:
        return file_name(self.source, self.key)


def all_configs() -> Iterator[KernelConfig]:
    """Every configuration that a backend can choose."""
    from nibblas.plan import portable, sm90, sm90_prepare, sm100

    yield from portable.all_configs()
    yield from sm90.all_configs()
    yield from sm90_prepare.all_configs()
    yield from sm100.all_configs()


def build_all(
    configs: Iterable[KernelConfig],
    *,
    compute_capabilities: Iterable[tuple[int, int]],
    folder: Path,
    targets: Sequence[str] | None = None,
    jobs: int = 1,
) -> tuple[list[Built], list[str]]:
    """Makes the folder hold exactly the cubins of these configurations.

    Args:
        compute_capabilities: devices to build for; a configuration that refuses one is built for
            the others.
        targets: only these; None: all.
        jobs: compiler processes.

    Returns:
        What was built, and the problems found, one line each.
    """
    by_file = {task.file: task for task in _tasks(configs, compute_capabilities, targets)}
    tasks = list(by_file.values())
    kept = _reusable(folder)
    missing = [task for task in tasks if task.file not in kept]
    built, problems = dict(kept), []
    for task, (cubin, record, found) in zip(missing, _compile_all(missing, jobs), strict=True):
        problems += [f"{task.description} for {task.source.target}: {line}" for line in found]
        if record is not None and not found:
            write_atomically(folder / task.file, pack(cubin))
            built[task.file] = record
    records = [built[task.file] for task in tasks if task.file in built]
    _write_manifest(folder, records)
    _remove_others(folder, records)
    total = sum(record.size for record in records)
    if total > SIZE_BUDGET_BYTES:
        problems.append(f"{total:,} bytes of cubins; the budget is {SIZE_BUDGET_BYTES:,}")
    return records, problems


def shipped(folder: Path = PREBUILT) -> dict[str, tuple[int, int]]:
    """What a folder holds for this package's kernels, without a compiler.

    Returns:
        By target: cubins that will be found, intact, and configurations of the package.
    """
    from nibblas.plan.portable import TARGETS

    counts: dict[str, tuple[int, int]] = {}
    for task in _tasks(all_configs(), TARGETS, None):
        found, all_of_them = counts.get(task.source.target, (0, 0))
        found += _is_intact(folder / task.file)
        counts[task.source.target] = found, all_of_them + 1
    return counts


def _tasks(
    configs: Iterable[KernelConfig],
    compute_capabilities: Iterable[tuple[int, int]],
    targets: Sequence[str] | None,
) -> Iterator[_Task]:
    capabilities = tuple(compute_capabilities)
    for config in configs:
        for target in dict.fromkeys(_served_targets(config, capabilities)):
            if targets is None or target in targets:
                yield _Task(KernelSource.of(config, target), str(config))


def _served_targets(
    config: KernelConfig, compute_capabilities: Iterable[tuple[int, int]]
) -> Iterator[str]:
    for capability in compute_capabilities:
        try:
            yield config.target(capability)
        except ValueError:
            continue


def _compile_all(
    tasks: Sequence[_Task], jobs: int
) -> Iterator[tuple[bytes, Built | None, list[str]]]:
    if jobs == 1 or len(tasks) <= 1:
        yield from map(_compile, tasks)
        return
    context = get_context("forkserver")  # imports once, forks before any thread exists
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(_compile, tasks)


def _compile(task: _Task) -> tuple[bytes, Built | None, list[str]]:
    """(cubin, its record, problems); no record if it does not compile."""
    source = task.source
    try:
        compiled = compile_cubin(
            source.text, name=source.name, target=source.target, headers=dict(source.headers)
        )
    except CompileError as error:
        return b"", None, [str(error)]
    used = compiled.resources.get(source.entry, Resources())
    record = Built(
        file=task.file,
        key=task.key,
        entry=source.entry,
        target=source.target,
        description=task.description,
        size=len(compiled.cubin),
        registers=used.registers,
        shared_bytes=used.shared_bytes,
        stack_bytes=used.stack_bytes,
    )
    return compiled.cubin, record, resource_problems(compiled)


def _reusable(folder: Path) -> dict[str, Built]:
    """Records by file of the intact cubins that this compiler made with these options."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        records = [Built(**fields) for fields in manifest["cubins"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if {key: manifest.get(key) for key in _compiler()} != _compiler():
        return {}
    return {r.file: r for r in records if _is_intact(folder / r.file)}


def _compiler() -> dict[str, object]:
    """What besides the source decides a cubin, as the manifest holds it."""
    return {"compiler": compiler_version(), "options": list(OPTIONS)}


def _is_intact(path: Path) -> bool:
    return path.is_file() and unpack(path.read_bytes()) is not None


def _write_manifest(folder: Path, records: Sequence[Built]) -> None:
    ordered = sorted(records, key=lambda record: record.file)
    manifest = {**_compiler(), "cubins": [asdict(record) for record in ordered]}
    text = json.dumps(manifest, indent=1) + "\n"
    write_atomically(folder / MANIFEST, text.encode())


def _remove_others(folder: Path, records: Sequence[Built]) -> None:
    wanted = {record.file for record in records}
    for path in folder.glob("*.cubin"):
        if path.name not in wanted:
            path.unlink()


def table(records: Sequence[Built]) -> str:
    """The records for people; sizes in bytes."""
    lines = [f"{'target':<8} {'registers':>9} {'static shared':>13} {'size':>9}  configuration"]
    lines += [
        f"{r.target:<8} {r.registers:>9} {r.shared_bytes:>13} {r.size:>9,}  {r.description}"
        for r in records
    ]
    total = sum(record.size for record in records)
    lines.append(
        f"{len(records)} cubins, {total:,} bytes of {SIZE_BUDGET_BYTES:,}; "
        f"NVRTC {compiler_version()}"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if there is any problem."""
    from nibblas.plan.portable import TARGETS

    known = tuple(dict.fromkeys(TARGETS.values()))
    parser = argparse.ArgumentParser(
        prog="python -m nibblas.runtime.prebuild", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--targets", nargs="+", choices=known, help="only these; default: all")
    parser.add_argument("--out", type=Path, default=PREBUILT, help="folder; default: the package's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiler processes")
    options = parser.parse_args(arguments)
    records, problems = build_all(
        all_configs(),
        compute_capabilities=TARGETS,
        folder=options.out,
        targets=options.targets,
        jobs=options.jobs,
    )
    print(table(records))
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
