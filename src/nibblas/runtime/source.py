"""The complete text of one kernel: its file, the headers it reaches, its rendered configuration."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

KERNELS = Path(__file__).resolve().parents[1] / "kernels"

CONFIG_HEADER = "config.h"
"""What a kernel includes to get its configuration; no file: ``KernelConfig.render`` writes it."""

_INCLUDE = re.compile(r'^(?P<before>\s*#\s*include\s*)"(?P<name>[^"\n]+)"', re.MULTILINE)


class KernelConfig(Protocol):
    """One configuration of one kernel. Hashable, and equal to another only if all of it is."""

    @property
    def source_name(self) -> str:
        """The kernel's file below ``kernels/``: "portable/grouped_mm.cu"."""
        ...

    @property
    def entry(self) -> str:
        """The ``extern "C"`` name of its ``__global__`` function."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        ...

    def target(self, compute_capability: tuple[int, int]) -> str:
        """The compilation target for a device of that capability: (9, 0) -> "sm_90a"."""
        ...

    def render(self) -> str:
        """The text of ``config.h``."""
        ...

    def exported_sizes(self) -> Mapping[str, int]:
        """Expected values of the kernel's ``extern "C"`` unsigned variables, by name."""
        ...


@dataclass(frozen=True)
class KernelSource:
    """Everything that decides a kernel's machine code but the compiler.

    Attributes:
        name: file below ``kernels/``, which compiler messages show.
        text: its content. headers: (name, content) of every header it reaches, sorted by name.
            Quoted includes in both name files from ``kernels/``.
        entry: name of the ``__global__`` function.
        target: "sm_90a" and the like.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    entry: str
    target: str

    @classmethod
    def of(cls, config: KernelConfig, target: str, *, root: Path | None = None) -> KernelSource:
        """The source of a configuration for one target.

        Args:
            root: the folder of kernels; None: the package's own.

        Raises:
            FileNotFoundError: the kernel or a header is not below ``root``.
        """
        rendered = {CONFIG_HEADER: config.render()}
        files = dict(_closure(root or KERNELS, config.source_name, rendered))
        text = files.pop(config.source_name)
        headers = tuple(sorted({**rendered, **files}.items()))
        return cls(config.source_name, text, headers, config.entry, target)

    def digest(self, *more: str) -> str:
        """A SHA-256 in hex over all fields, and over more strings; no two inputs run together."""
        fields = [self.name, self.text, self.entry, self.target, str(len(self.headers))]
        fields += [part for header in self.headers for part in header]
        digest = hashlib.sha256()
        for field in [*fields, *more]:
            data = field.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()


def _closure(root: Path, first: str, rendered: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, content) of a file and of all that it includes, itself included."""
    pending, seen = [first], {first}
    while pending:
        name = pending.pop()
        text, included = _read(root, name, frozenset(rendered))
        yield name, text
        pending += [other for other in included if other not in seen]
        seen.update(included)


def _read(root: Path, name: str, rendered: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """A file's content and the files that it includes.

    NVRTC finds a header by the text between the quotes alone, so relative names become names below
    ``root``: one file then has one name, which ``#pragma once`` goes by.
    """
    folder = posixpath.dirname(name)
    included: list[str] = []

    def from_root(match: re.Match[str]) -> str:
        other = match["name"]
        if other not in rendered:
            other = posixpath.normpath(posixpath.join(folder, other))
            included.append(other)
        return f'{match["before"]}"{other}"'

    text = _INCLUDE.sub(from_root, (root / name).read_text(encoding="utf-8"))
    return text, tuple(dict.fromkeys(included))
