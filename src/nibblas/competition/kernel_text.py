"""A kernel and the headers that it reaches, as one text."""

from __future__ import annotations

import posixpath
import re

from nibblas.runtime.source import CONFIG_HEADER, KERNELS

_INCLUDE = re.compile(r'\s*#\s*include\s*"(?P<name>[^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once")


def kernel_text(source_name: str) -> str:
    """The text of a file below ``kernels/``, with every header where it is first included.

    What is left to include is ``config.h``, which a configuration renders.
    """
    return "".join(line + "\n" for line in _lines(source_name, set()))


def _lines(name: str, seen: set[str]) -> list[str]:
    seen.add(name)
    lines: list[str] = []
    for line in (KERNELS / name).read_text(encoding="utf-8").splitlines():
        include = _INCLUDE.match(line)
        if include is None:
            if not _ONCE.match(line):
                lines.append(line)
            continue
        other = include["name"]
        if other != CONFIG_HEADER:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), other))
        if other in seen:
            continue
        if other == CONFIG_HEADER:
            seen.add(other)
            lines.append(line)
        else:
            lines += _lines(other, seen)
    return lines
