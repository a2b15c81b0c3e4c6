"""Where a hung GPU stands: program counters, instructions and barrier words, as far as they can be
had from outside.

1. The worker runs with the driver's user-triggered core dumps on. A byte written to the pipe that
   the driver opened makes it stop the GPU and write its state to a file: registers and program
   counters of every warp, and shared memory, where the barriers are. ``cuda-gdb``, where it is,
   reads the file; it is kept in any case.
2. Without a dump, ``cuda-gdb`` attaches to the process.
3. Without either, a sentence says why there is no state.

Sources: CUDA-GDB documentation, "GPU Core Dump Support" (the variables, the pipe) and "Inspecting
Program State" (``info cuda``, ``@shared``); CUDA Driver API, "Coredump Attributes Control API".
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nibblas.selftest.barriers import SHARED_WORDS, Words, described

PIPE, DUMP = "corepipe", "core"

BLOCKING_LAUNCHES = {"CUDA_LAUNCH_BLOCKING": "1"}
"""More environment of a worker: a launch returns when it has run, so that the last one begun is the
one that hangs."""

CORE_DUMPS = {
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
    "CUDA_COREDUMP_PIPE": "{folder}/" + PIPE,
    "CUDA_COREDUMP_FILE": "{folder}/" + DUMP,
    # Shared memory stays in: it holds the barriers. Global memory would be gigabytes.
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_nonrelocated_elf_images,skip_global_memory,"
    "skip_local_memory,skip_constbank_memory,skip_abort",
}
"""The same; ``{folder}`` is the worker's scratch folder."""

_CUDA_PROGRAMS = "/usr/local/cuda/bin"
_DUMP_LIMIT_S = 10.0
_TRIGGERS = (1, 1 << 16)
"""Bytes to write to the driver's pipe: one should do; some drivers wait for a buffer of them."""
_DEBUGGER_LIMIT_S = 60.0
_STACK_WAIT_S = 2.0
_SETTLED_S = 2.0
_LINES_KEPT = 400
_WARPS = 16


@dataclass(frozen=True)
class HangState:
    """A hung GPU, in lines to read.

    Attributes:
        state_from: how it was had; or why it could not be.
        core_dump: a file of it, worth sending; it lies in the scratch folder until it is moved.
    """

    state: list[str]
    state_from: str
    core_dump: str | None = None


def no_state(why: str) -> HangState:
    return HangState([], f"no state of barriers: {why}")


def describe_gpu(pid: int, folder: Path, words: Words) -> HangState:
    """The state of the GPU that a worker waits for; takes some 100 s at most.

    Args:
        pid, folder: of the worker. words: to read from shared memory, of the block in focus.
    """
    dump, why_no_dump = _core_dump(folder)
    debugger = _debugger()
    if debugger is None:
        if dump is None:
            return no_state(f"{why_no_dump}, and there is no cuda-gdb to attach")
        how = "a GPU core dump; there is no cuda-gdb here to read it"
        return HangState([], how, str(dump))
    if dump is not None:
        lines = _inspected([*debugger, "-ex", f"target cudacore {dump}"], words)
        return HangState(lines, "a GPU core dump, read by cuda-gdb", str(dump))
    lines = _inspected([*debugger, "-p", str(pid)], words)
    if not any("nibblas" in line for line in lines):
        said = "; ".join(lines[-3:]) or "nothing"
        return no_state(f"{why_no_dump}; cuda-gdb attached and said: {said}")
    return HangState(lines, f"cuda-gdb attached to the process, since {why_no_dump}")


def host_stack(pid: int, stderr: Callable[[], str]) -> list[str]:
    """What the worker's Python waits in, outermost call last; empty: it does not say."""
    if not hasattr(signal, "SIGUSR1"):
        return []
    before = len(stderr())
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return []
    deadline = time.monotonic() + _STACK_WAIT_S
    while time.monotonic() < deadline:
        time.sleep(0.1)
        lines = re.findall(r'^  File "([^"]*)", line (\d+) in (.*)$', stderr()[before:], re.M)
        if lines:
            return [f"{Path(file).name}:{line} {function}" for file, line, function in lines]
    return []


def _core_dump(folder: Path) -> tuple[Path | None, str]:
    """The file that the driver writes when its pipe is written to; or why there is none."""
    pipe, dump = folder / PIPE, folder / DUMP
    if not pipe.exists():
        return None, "the driver opened no pipe for core dumps"
    for bytes_written in _TRIGGERS:
        try:
            _write(pipe, bytes_written)
        except OSError as error:
            nobody = error.errno == errno.ENXIO
            why = "nobody reads its pipe" if nobody else f"its pipe: {error.strerror}"
            return None, f"the driver takes no request for a core dump: {why}"
        if _is_written(dump):
            return dump, ""
    waited = _DUMP_LIMIT_S * len(_TRIGGERS)
    return None, f"the driver wrote no core dump within {waited:.0f} s"


def _write(pipe: Path, num_bytes: int) -> None:
    """Never waits: OSError where nobody reads."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with os.fdopen(writer, "wb", buffering=0) as stream:
        stream.write(bytes(num_bytes))


def _is_written(dump: Path) -> bool:
    """Whether the file comes into being within the limit, and then stops growing."""
    begin = since = time.monotonic()
    size = 0
    while size or time.monotonic() - begin < _DUMP_LIMIT_S:
        now = dump.stat().st_size if dump.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        elif size and time.monotonic() - since > _SETTLED_S:
            return True
        time.sleep(0.1)
    return False


def _debugger() -> list[str] | None:
    program = shutil.which("cuda-gdb") or shutil.which("cuda-gdb", path=_CUDA_PROGRAMS)
    return None if program is None else [program, "--batch", "-nx", *_each("-ex", _SETTINGS)]


_SETTINGS = (
    *(f"set {what} off" for what in ("pagination", "confirm")),
    *(f"set {what} 0" for what in ("width", "print elements", "print repeats")),
)


def _questions(words: Words) -> Iterator[str]:
    yield from ("info cuda kernels", "info cuda warps")
    yield f"echo {SHARED_WORDS}\\n"
    yield f"print/x *(@shared unsigned long long *){words.address:#x}@{words.count}"
    for warp in range(_WARPS):
        yield from (f"cuda thread ({32 * warp},0,0)", "info symbol $pc", "x/2i $pc")


def _inspected(opened: Sequence[str], words: Words) -> list[str]:
    """What the debugger says of the kernel in focus; each question may fail by itself."""
    try:
        done = subprocess.run(
            [*opened, *_each("-ex", _questions(words))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEBUGGER_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"cuda-gdb: {error}"]
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    return [*described(lines, words), *lines[:_LINES_KEPT]]


def _each(flag: str, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        yield from (flag, value)
