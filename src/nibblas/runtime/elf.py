"""Reads variables out of a cubin, which is an ELF64 file, little-endian, at any architecture.

Format: ELF-64 Object File Format 1.5, sections 3-6 (header, section headers, symbol table). In a
cubin a symbol's value is its offset inside its section, and every section's address is 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<4s12xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_SYMTAB = 2
_NOBITS = 8
_UNDEFINED = 0


class _Section(NamedTuple):
    type: int
    offset: int
    size: int
    link: int


def read_variable(cubin: bytes, name: str) -> bytes:
    """The initial bytes of a ``__device__`` or ``__constant__`` variable.

    Args:
        name: its symbol: the plain name if it is ``extern "C"``.

    Raises:
        KeyError: no such variable. ValueError: not a whole ELF64 file.
    """
    try:
        sections = _sections(cubin)
        for table in sections:
            if table.type == _SYMTAB:
                found = _find(cubin, sections, table, name.encode())
                if found is not None:
                    return found
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a whole cubin: {error}") from error
    raise KeyError(name)


def _sections(cubin: bytes) -> list[_Section]:
    magic, *_, table_offset, _, _, _, _, entry_size, count, _ = _HEADER.unpack_from(cubin)
    if magic != b"\x7fELF":
        raise ValueError("not a whole cubin: no ELF header")
    sections = []
    for index in range(count):
        fields = _SECTION.unpack_from(cubin, table_offset + index * entry_size)
        _, kind, _, _, offset, size, link, *_ = fields
        sections.append(_Section(kind, offset, size, link))
    return sections


def _find(cubin: bytes, sections: list[_Section], table: _Section, name: bytes) -> bytes | None:
    names = sections[table.link].offset
    for offset in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name_offset, _, _, index, value, size = _SYMBOL.unpack_from(cubin, offset)
        begin = names + name_offset
        if index == _UNDEFINED or cubin[begin : begin + len(name) + 1] != name + b"\0":
            continue
        section = sections[index]
        if section.type == _NOBITS:
            return bytes(size)
        data = cubin[section.offset + value : section.offset + value + size]
        if len(data) != size:
            raise ValueError(f"not a whole cubin: it ends inside {name.decode()}")
        return data
    return None
