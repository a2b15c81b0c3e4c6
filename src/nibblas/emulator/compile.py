"""PTX to run: from CUDA C++ text, or of one of our own kernels. Needs NVRTC, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nibblas.runtime.compile import compile_ptx
from nibblas.runtime.source import KernelConfig, KernelSource


def cuda_ptx(
    source: str,
    *,
    target: str = "sm_90a",
    name: str = "kernel.cu",
    headers: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> str:
    """PTX with source lines. CompileError, NativeLibraryError: see ``compile_ptx``."""
    flags = ["-lineinfo", *options]
    return compile_ptx(source, name=name, target=target, headers=headers or {}, options=flags)


def kernel_ptx(config: KernelConfig, target: str) -> str:
    """PTX of one configuration of a shipped kernel, from the very text that is shipped."""
    source = KernelSource.of(config, target)
    return cuda_ptx(source.text, target=target, name=source.name, headers=dict(source.headers))
