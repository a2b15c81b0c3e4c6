"""CUDA C++ to cubin through NVRTC, which needs no GPU and no driver; and what ptxas said about it.

Options: NVRTC documentation, "Supported Compile Options". NVRTC takes one ptxas option per
``--ptxas-options``; ``-v`` makes it report registers, stack and spills of every function.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from nibblas.errors import NativeLibraryError
from nibblas.runtime import INSTALL_HINT

OPTIONS = (
    "-std=c++17",
    "--no-source-include",  # a header in the current directory is not ours
    "--ptxas-options=-v",
)

FIRST_RELEASE = {
    "sm_80": (11, 0),
    "sm_86": (11, 1),
    "sm_89": (11, 8),
    "sm_90a": (12, 0),
    "sm_100a": (12, 8),
    "sm_100f": (12, 9),
    "sm_103a": (12, 9),
    "sm_103f": (12, 9),
    "sm_120a": (12, 8),
    "sm_120f": (12, 9),
}
"""The CUDA release whose NVRTC first compiles for a target. CUDA Features Archive: sm_100 and
sm_120 came with 12.8; sm_103 and family-specific targets ("f") with 12.9."""

MAX_STACK_BYTES = 0
"""A stack frame is an array that could not live in registers: local memory in the inner loop."""


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one function, per thread but for ``shared_bytes`` (static, per block).

    Registers, barriers and shared memory are those of kernels; 0 for functions called by them.
    """

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Compiled:
    """A cubin, the compiler's log, the resources of each function, and ptxas's numbered notes."""

    cubin: bytes
    log: str
    resources: dict[str, Resources]
    notes: tuple[str, ...]


class CompileError(RuntimeError):
    """The compiler refused a kernel. ``log_file`` has its whole log, options and source."""

    def __init__(self, name: str, target: str, *, first_line: str, log_file: Path) -> None:
        self.log_file = log_file
        super().__init__(f"{name} does not compile for {target}: {first_line}; log: {log_file}")


class ResourceError(RuntimeError):
    """A kernel compiles, but into code that is slower than its source says."""


@cache
def compiler_version() -> str:
    """NVRTC's release, "13.5"."""
    major, minor = _call("nvrtcVersion")
    return f"{major}.{minor}"


def compile_cubin(
    source: str,
    *,
    name: str,
    target: str,
    headers: Mapping[str, str],
    options: Sequence[str] = (),
    log_folder: Path | None = None,
) -> Compiled:
    """Compiles one source text.

    Args:
        name: what the compiler's messages call it.
        target: architecture, "sm_90a".
        headers: content by the exact text that quoted includes use; no other header is found.
        options: further NVRTC options: ``["-lineinfo"]`` for profilers.
        log_folder: where the log of a failure is written; None: the temporary folder.

    Raises:
        CompileError: the text does not compile. NativeLibraryError: there is no NVRTC, or one that
            is older than the target.
    """
    flags = [f"--gpu-architecture={target}", *OPTIONS, *options]
    cubin, log = _compile(source, name, target, headers, flags, log_folder, result="nvrtcGetCUBIN")
    return Compiled(cubin, log, parse_resources(log), parse_notes(log))


def compile_ptx(
    source: str,
    *,
    name: str,
    target: str,
    headers: Mapping[str, str],
    options: Sequence[str] = (),
    log_folder: Path | None = None,
) -> str:
    """The PTX text of one source text; arguments and errors as ``compile_cubin``."""
    flags = [f"--gpu-architecture={_virtual(target)}", *OPTIONS, *options]
    ptx, _ = _compile(source, name, target, headers, flags, log_folder, result="nvrtcGetPTX")
    return ptx.rstrip(b"\0").decode()


def _virtual(target: str) -> str:
    """ "sm_90a" -> "compute_90a": NVRTC writes PTX for virtual architectures."""
    return target.replace("sm_", "compute_")


def _compile(
    source: str,
    name: str,
    target: str,
    headers: Mapping[str, str],
    flags: Sequence[str],
    log_folder: Path | None,
    *,
    result: str,
) -> tuple[bytes, str]:
    """What NVRTC's getter ``result`` gives for the compiled text, and the log."""
    program = _call(
        "nvrtcCreateProgram",
        source.encode(),
        name.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [header.encode() for header in headers],
    )
    nvrtc = _nvrtc()
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _text(program, "nvrtcGetProgramLog")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _check_release(target)
            log_file = _write_log(log_folder, name, target, _report(log, flags, source, headers))
            first_line = next(filter(None, log.splitlines()), status.name)
            raise CompileError(name, target, first_line=first_line, log_file=log_file)
        return _bytes(program, result), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check_release(target: str) -> None:
    """Raises NativeLibraryError if the NVRTC at hand is older than the target."""
    needed = FIRST_RELEASE.get(target, (0, 0))
    found = tuple(map(int, compiler_version().split(".")))
    if found < needed:
        raise NativeLibraryError(
            f"NVRTC {compiler_version()} cannot compile for {target}; want {needed[0]}.{needed[1]} "
            "or newer: install nvidia-cuda-nvrtc>=13, with a PyTorch for CUDA 13 (the NVRTC that "
            "PyTorch has loaded is the one used), or a wheel of nibblas that holds this kernel's "
            "cubin"
        )


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources by function, from the lines of ``ptxas -v``."""
    found: dict[str, Resources] = {}
    function = ""
    for line in log.splitlines():
        if match := re.search(r"Function properties for (\S+)", line):
            function = match[1]
            found[function] = Resources()
        elif function and "bytes stack frame" in line:
            stack, stores, loads = map(int, re.findall(r"(\d+) bytes", line))
            found[function] = replace(
                found[function],
                stack_bytes=stack,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
            )
        elif function and (match := re.search(r"Used (\d+) registers", line)):
            barriers = re.search(r"used (\d+) barriers", line)
            shared = re.search(r"(\d+) bytes smem", line)
            found[function] = replace(
                found[function],
                registers=int(match[1]),
                barriers=int(barriers[1]) if barriers else 0,
                shared_bytes=int(shared[1]) if shared else 0,
            )
    return found


def parse_notes(log: str) -> tuple[str, ...]:
    """Lines that ptxas numbers: "(C7510) Potential Performance Loss: ..."."""
    return tuple(re.findall(r"\(C\d+\) .*", log))


def resource_problems(compiled: Compiled, *, max_stack_bytes: int = MAX_STACK_BYTES) -> list[str]:
    """What makes the code slower than its source says; empty: nothing.

    Spills, stack frames, and whatever ptxas notes as "Potential Performance Loss": each reason for
    serialising wgmma (C7510 and its neighbours) or ignoring setmaxnreg (C7508) has its own number.
    """
    problems = []
    for function, used in compiled.resources.items():
        spilled = used.spill_store_bytes + used.spill_load_bytes
        if spilled:
            problems.append(
                f"{function} spills: {used.spill_store_bytes} bytes of stores, "
                f"{used.spill_load_bytes} of loads"
            )
        elif used.stack_bytes > max_stack_bytes:
            problems.append(
                f"{function} has a stack frame of {used.stack_bytes} bytes; "
                f"at most {max_stack_bytes} are allowed"
            )
    return problems + [note for note in compiled.notes if "Potential Performance Loss" in note]


def check_resources(compiled: Compiled, *, max_stack_bytes: int = MAX_STACK_BYTES) -> None:
    """Raises ResourceError if ``resource_problems`` finds any."""
    problems = resource_problems(compiled, max_stack_bytes=max_stack_bytes)
    if problems:
        raise ResourceError("; ".join(problems))


def _nvrtc() -> Any:
    try:
        return import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise NativeLibraryError(f"compiling kernels needs NVRTC: {INSTALL_HINT}") from error


def _call(name: str, *arguments: Any) -> Any:
    nvrtc = _nvrtc()
    try:
        status, *results = getattr(nvrtc, name)(*arguments)
    except RuntimeError as error:  # the bindings are there, the library itself is not
        raise NativeLibraryError(f"cannot load NVRTC: {INSTALL_HINT}: {error}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NativeLibraryError(f"{name}: {status.name}")
    return results[0] if len(results) == 1 else results


def _bytes(program: Any, getter: str) -> bytes:
    buffer = bytearray(_call(f"{getter}Size", program))
    _call(getter, program, buffer)
    return bytes(buffer)


def _text(program: Any, getter: str) -> str:
    return _bytes(program, getter).rstrip(b"\0").decode(errors="replace")


def _report(log: str, flags: Sequence[str], source: str, headers: Mapping[str, str]) -> str:
    files = [f"==== {header}\n{text}" for header, text in headers.items()]
    version = f"NVRTC {compiler_version()}, {' '.join(flags)}"
    return "\n".join([log, version, f"==== source\n{source}", *files])


def _write_log(folder: Path | None, name: str, target: str, report: str) -> Path:
    digest = hashlib.sha256(report.encode()).hexdigest()[:8]
    file_name = f"{name.replace('/', '_')}-{target}-{digest}.log"
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / file_name
            path.write_text(report, encoding="utf-8")
            return path
        except OSError:
            pass  # the temporary folder serves as well
    path = Path(tempfile.mkdtemp(prefix="nibblas-")) / file_name
    path.write_text(report, encoding="utf-8")
    return path
