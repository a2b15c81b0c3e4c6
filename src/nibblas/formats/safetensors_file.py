"""The safetensors container, read and written a piece at a time.

The safetensors package writes a file from tensors that are all in memory; a checkpoint need not fit
there. The format (https://github.com/huggingface/safetensors, "Format"):

    8 bytes   N, unsigned, little-endian
    N bytes   JSON: {"NAME": {"dtype": "F16", "shape": [..], "data_offsets": [begin, end]}, ...,
              "__metadata__": {"text": "text"}}, padded with spaces
    the rest  the tensors' bytes, row-major, little-endian; offsets count from here

As in the package, the tensors must fill the rest of the file without gaps or overlaps and a header
has at most 100 MB; beyond it, a name that appears twice is refused, not resolved. A header is
believed only after all of that has been checked, and nothing of its claimed size is allocated.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from nibblas.errors import bad_value

METADATA = "__metadata__"

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
}
"""Bits of an element, by the format's name of the type."""

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""The types whose values are looked at here; tensors of all others are handled as bytes."""

_LARGEST_HEADER = 100_000_000
_MOST_DIMENSIONS = 64
_LARGEST_SIZE = 2**63 - 1
_LENGTH_BYTES = 8
_ALIGNMENT = 8
_WANTED = "a whole .safetensors file"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's header entry.

    Attributes:
        dtype: the format's name of the type, a key of ``DTYPE_BITS``.
        begin: its first byte, counted from the end of the header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    @property
    def end(self) -> int:
        return self.begin + self.num_bytes

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class SafetensorsReader(Mapping[str, TensorInfo]):
    """The header of a file, by tensor name in the order of the bytes, and its bytes by the piece.

    Raises:
        OSError: the file cannot be opened or read.
        ValueError: it is not a safetensors file, was cut short, or its header does not hold
            together; the message says where.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = self.path.open("rb")
        try:
            header, self._data_at, data_bytes = _read_header(self._file, self.path)
            self.metadata, self._tensors = _parse(header, data_bytes, self.path)
        except BaseException:
            self._file.close()
            raise

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> SafetensorsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read_bytes(self, name: str, begin: int, end: int) -> Tensor:
        """Bytes ``begin`` to ``end`` of a tensor, uint8 ``(end - begin,)``.

        Raises:
            ValueError: the file has become shorter than it was when it was opened.
        """
        buffer = torch.empty(end - begin, dtype=torch.uint8)
        self._file.seek(self._data_at + self[name].begin + begin)
        if self._file.readinto(buffer.numpy().data) != end - begin:
            given = f"{self.path}, which ends inside {name!r}"
            raise bad_value("path", given=given, wanted=_WANTED)
        return buffer

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows ``begin`` to ``end`` of a tensor taken as ``(rows, last dimension)``."""
        info = self[name]
        pitch = info.shape[-1] * DTYPE_BITS[info.dtype] // 8
        flat = self.read_bytes(name, begin * pitch, end * pitch).view(TORCH_DTYPES[info.dtype])
        return flat.view(end - begin, info.shape[-1])

    def read(self, name: str) -> Tensor:
        """The whole tensor; for small ones."""
        info = self[name]
        flat = self.read_bytes(name, 0, info.num_bytes).view(TORCH_DTYPES[info.dtype])
        return flat.view(info.shape)


class SafetensorsWriter:
    """A new file whose tensors are written by the piece, in any order.

    Nothing is at ``path`` until ``commit``: bytes go to a file beside it, which is renamed when all
    of them are on the disk. Leaving the ``with`` block without a commit, by an error or an
    interrupt, removes that file.

    Args:
        path: the file to make. replace: whether it may exist; it stays as it is until ``commit``.
        tensors: types and shapes; places in the file are given here.
        metadata: text by key.

    Raises:
        FileExistsError: the file exists.
        OSError: the folder cannot be written to, or the disk is full.

    Example:
        >>> info = TensorInfo("a", "F32", (2,))
        >>> with SafetensorsWriter("a.safetensors", [info], {}) as file:  # doctest: +SKIP
        ...     file.write("a", 0, torch.ones(2))
        ...     file.commit()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Iterable[TensorInfo],
        metadata: Mapping[str, str],
        *,
        replace: bool = False,
    ) -> None:
        self.path = Path(path)
        self._replace = replace
        self._check_free()
        self._tensors = _placed(tensors)
        self._missing = {name: info.num_bytes for name, info in self._tensors.items()}
        header = _header_bytes(self._tensors, metadata)
        self._data_at = len(header)
        self._partial = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.partial")
        with self._naming_the_file():
            self._file = _create(self._partial)
        try:
            with self._naming_the_file():
                self._file.write(header)
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._discard()

    def write(self, name: str, begin: int, data: Tensor) -> None:
        """Writes the elements of a contiguous CPU tensor from byte ``begin`` of tensor ``name`` on.

        Every byte is to be written once.
        """
        pieces = data.contiguous().view(-1).view(torch.uint8).numpy()
        self._missing[name] -= pieces.nbytes
        with self._naming_the_file():
            self._file.seek(self._data_at + self._tensors[name].begin + begin)
            self._file.write(pieces.data)

    def commit(self) -> None:
        """Puts the file in its place.

        Raises:
            RuntimeError: some tensor has not been written as a whole.
            FileExistsError: a file of that name has been made meanwhile.
        """
        unfinished = [name for name, count in self._missing.items() if count]
        if unfinished:
            raise RuntimeError(f"{unfinished[0]!r} has not been written as a whole")
        with self._naming_the_file():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._check_free()
            self._partial.replace(self.path)
        _sync_folder(self.path.parent)

    def _check_free(self) -> None:
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(self.path))
        if self.path.exists() and not self._replace:
            what = "it exists, and was not to be replaced"
            raise FileExistsError(errno.EEXIST, what, str(self.path))

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Lets the system's errors speak of the file that was asked for."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _discard(self) -> None:
        """Removes the unfinished file; nothing after ``commit``."""
        with suppress(OSError):  # closing writes what is buffered, which a full disk refuses again
            self._file.close()
        self._partial.unlink(missing_ok=True)


def _create(path: Path) -> BinaryIO:
    """A new file, with the permissions that the process gives to new files."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "wb")


def _sync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` last; where the system cannot, it is left to it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _placed(tensors: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors with their places, wide types first: each is then aligned to its element."""
    placed: dict[str, TensorInfo] = {}
    begin = 0
    for info in sorted(tensors, key=lambda info: (-DTYPE_BITS[info.dtype], info.name)):
        if info.name in placed or info.name == METADATA:
            wanted = "names that differ from each other and from __metadata__"
            raise bad_value("tensors", given=f"{info.name!r} once more", wanted=wanted)
        placed[info.name] = TensorInfo(info.name, info.dtype, info.shape, begin)
        begin = placed[info.name].end
    return placed


def _header_bytes(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for info in tensors.values():
        header[info.name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [info.begin, info.end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _LARGEST_HEADER:
        given = f"a header of {len(text)} bytes"
        raise bad_value("tensors", given=given, wanted=f"at most {_LARGEST_HEADER}")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _read_header(file: BinaryIO, path: Path) -> tuple[bytes, int, int]:
    """The header's JSON, where the data begins, and how many bytes of it there are."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    data_at = _LENGTH_BYTES + length
    if size < _LENGTH_BYTES or data_at > size:
        given = f"{path}, {size} bytes, of which the header would take {data_at}"
        raise bad_value("path", given=given, wanted=_WANTED)
    if length > _LARGEST_HEADER:
        given = f"{path} with a header of {length} bytes"
        raise bad_value("path", given=given, wanted=f"at most {_LARGEST_HEADER}")
    return file.read(length), data_at, size - data_at


class _HeaderError(Exception):
    """What is wrong with a header."""


def _parse(
    header: bytes, data_bytes: int, path: Path
) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """Metadata and tensors, in the order of their bytes."""
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_unique)
        if not isinstance(entries, dict):
            raise _HeaderError("the header is no JSON object")
        metadata = _metadata(entries.pop(METADATA, {}))
        infos = [_info(name, entry) for name, entry in entries.items()]
        infos.sort(key=lambda info: (info.begin, info.end))
        _check_tiling(infos, data_bytes)
    except (_HeaderError, ValueError, RecursionError) as error:
        given = f"{path} ({str(error)[:300]})"
        raise bad_value("path", given=given, wanted=_WANTED) from error
    return metadata, {info.name: info for info in infos}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise _HeaderError(f"{name!r} appears twice in the header")
        made[name] = value
    return made


def _metadata(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
        raise _HeaderError("__metadata__ does not map text to text")
    return entry


def _info(name: str, entry: Any) -> TensorInfo:
    if not name.isprintable():
        raise _HeaderError(f"the name {name!r} holds characters that cannot be printed")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _HeaderError(f"the entry of {name!r} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _HeaderError(f"{name!r} has the unknown dtype {dtype!r}")
    if not _sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _HeaderError(f"{name!r} has no shape of at most {_MOST_DIMENSIONS} sizes")
    if not _sizes(offsets) or len(offsets) != 2:
        raise _HeaderError(f"{name!r} has no pair of data_offsets")
    info = TensorInfo(name, dtype, tuple(shape), offsets[0])
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or info.end != offsets[1]:
        raise _HeaderError(f"{name!r}, {info}, does not take the bytes {offsets[0]}..{offsets[1]}")
    return info


def _sizes(value: Any) -> bool:
    """Whether it is a list of sizes; True and 1.0 are none."""
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= _LARGEST_SIZE for size in value
    )


def _check_tiling(infos: Sequence[TensorInfo], data_bytes: int) -> None:
    end = 0
    for info in infos:
        if info.begin != end:
            what = "overlaps the tensor before it" if info.begin < end else "follows a gap"
            raise _HeaderError(f"{info.name!r} at byte {info.begin} {what}, which ends at {end}")
        end = info.end
    if end != data_bytes:
        raise _HeaderError(f"the tensors take {end} bytes, and {data_bytes} are there")
