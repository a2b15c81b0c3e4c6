"""A checkpoint file's weights rounded to NVFP4, into another file, in bounded memory.

Weights are read twice, some rows at a time: for the largest magnitude, which fixes the global
scale, and to be rounded. All other tensors are copied as bytes.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.file_names import Names, Naming, names_of, quantization_config
from nibblas.formats.quantize import Method, global_scale_of, quantize
from nibblas.formats.safetensors_file import (
    TORCH_DTYPES,
    SafetensorsReader,
    SafetensorsWriter,
    TensorInfo,
)
from nibblas.formats.scale_layout import BLOCK

Progress = Callable[[str, int, int], None]
"""Told the tensor at work, and how many of how many input bytes are done."""

WEIGHT = ".weight"
NOT_BY_DEFAULT = (
    "*embed*",
    "*lm_head*",
    "*norm*",
    "*router*",
    "*.gate.weight",
    "*.shared_expert_gate.weight",
    "*.wte.weight",
    "*.wpe.weight",
)
"""Tables that are looked up, the output head, and the small layers that choose experts."""

_FLOATING = ("F16", "BF16", "F32", "F64")
_BYTES_AT_A_TIME = 32 << 20
_CONFIG_KEY = "quantization_config"


@dataclass(frozen=True)
class QuantizedFile:
    """What was written.

    Attributes:
        quantized: names of the weights that were rounded, as they stood in the input.
        copied: names of the tensors that were copied.
        bytes_before, bytes_after: of all tensors.
        config: ``{"quantization_config": ...}``, which belongs into the model's config.json.
    """

    naming: Naming
    quantized: tuple[str, ...]
    copied: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    config: dict[str, Any] = field(repr=False)


def quantize_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    naming: Naming = "compressed-tensors",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    method: Method = "amax",
    replace: bool = False,
    progress: Progress | None = None,
) -> QuantizedFile:
    """Writes ``source`` to ``target`` with its linear weights in NVFP4 and all else unchanged.

    A weight can be rounded if it is called ``X.weight``, is float16, bfloat16, float32 or float64,
    2-D ``(N, K)`` or 3-D ``(G, N, K)``, and K is a multiple of 16. Each has a global scale, each
    matrix of a 3-D weight one of its own. Scales are linear. A pattern is a shell pattern over the
    whole name, ``*.experts.*``, or after ``re:`` a regular expression that the whole name matches.

    Args:
        source: a ``.safetensors`` file.
        target: appears when it is whole and on the disk, or not at all.
        naming: "modelopt" or "compressed-tensors".
        include: weights to round; none: all but those that ``NOT_BY_DEFAULT`` names.
        exclude: weights to leave as they are, in any case.
        method: of ``quantize``.
        replace: whether ``target`` may exist.
        progress: called after every piece.

    Raises:
        ValueError, TypeError: a bad argument; a source that is no whole safetensors file; no weight
            to round; NaN or infinity in one, named; a name that the new tensors need is taken.
        OSError: a file cannot be read or written, the target exists, the disk is full.

    Example:
        >>> nibblas.quantize_checkpoint("in.safetensors", "out.safetensors")  # doctest: +SKIP
    """
    names = names_of(naming)
    if method not in get_args(Method):
        wanted = " or ".join(map(repr, get_args(Method)))
        raise bad_value("method", given=repr(method), wanted=wanted)
    with SafetensorsReader(source) as reader:
        if os.path.exists(target) and os.path.samefile(source, target):  # noqa: PTH110, PTH121
            raise bad_value("target", given=f"{target}, the source", wanted="another file")
        chosen = _choose(reader, include, exclude)
        config = {_CONFIG_KEY: quantization_config(naming, _ignored(reader, chosen))}
        tensors = list(_output_tensors(reader, chosen, names))
        metadata = {**reader.metadata, _CONFIG_KEY: json.dumps(config[_CONFIG_KEY])}
        metadata.setdefault("format", "pt")
        report = _Report(reader, progress)
        with SafetensorsWriter(target, tensors, metadata, replace=replace) as writer:
            for name in reader:
                if name in chosen:
                    _quantize_one(reader, writer, name, names, method, report)
                else:
                    _copy_one(reader, writer, name, report)
            writer.commit()
        return QuantizedFile(
            naming=naming,
            quantized=tuple(name for name in reader if name in chosen),
            copied=tuple(name for name in reader if name not in chosen),
            bytes_before=sum(info.num_bytes for info in reader.values()),
            bytes_after=sum(info.num_bytes for info in tensors),
            config=config,
        )


def why_not(info: TensorInfo) -> str | None:
    """Why a tensor cannot be a weight in NVFP4; None: it can."""
    if not info.name.endswith(WEIGHT):
        return f"its name does not end in {WEIGHT}"
    if info.dtype not in _FLOATING:
        return f"its type is {info.dtype}, not one of {', '.join(_FLOATING)}"
    if len(info.shape) not in (2, 3) or 0 in info.shape:
        return f"its shape is {info.shape}, not (N, K) or (G, N, K)"
    if info.shape[-1] % BLOCK:
        return f"its K, {info.shape[-1]}, is no multiple of {BLOCK}"
    return None


def matcher(patterns: Iterable[str], argument: str) -> Callable[[str], bool]:
    """Whether a name matches one of the patterns; ValueError for what is no pattern."""
    compiled = []
    if isinstance(patterns, str):
        raise bad_type(argument, given="one str", wanted="a sequence of patterns")
    for pattern in patterns:
        is_regex = pattern.startswith("re:")
        try:
            text = pattern.removeprefix("re:") if is_regex else fnmatch.translate(pattern)
            compiled.append(re.compile(text))
        except re.error as error:
            given = f"{pattern!r} ({error})"
            raise bad_value(argument, given=given, wanted="a regular expression") from None
    return lambda name: any(pattern.fullmatch(name) for pattern in compiled)


def row_slabs(info: TensorInfo, rows: int, bytes_at_a_time: int) -> Iterator[tuple[int, int]]:
    """``(begin, end)`` over the rows of each matrix of a tensor, none across two matrices.

    Args:
        rows: of one matrix, N.
    """
    all_rows = math.prod(info.shape[:-1])
    step = max(1, bytes_at_a_time * all_rows // max(1, info.num_bytes))
    for first in range(0, all_rows, rows):
        for begin in range(first, first + rows, step):
            yield begin, min(begin + step, first + rows)


class _Report:
    """Counts bytes for ``progress``: weights twice, as they are read twice."""

    def __init__(self, tensors: Mapping[str, TensorInfo], progress: Progress | None) -> None:
        self._progress = progress
        self._total = sum(info.num_bytes for info in tensors.values())
        self._done = 0.0

    def __call__(self, name: str, num_bytes: float) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(name, int(self._done), self._total)


def _choose(
    tensors: Mapping[str, TensorInfo], include: Sequence[str], exclude: Sequence[str]
) -> frozenset[str]:
    wanted = matcher(include, "include")
    unwanted = matcher(exclude, "exclude")
    left_out = matcher(NOT_BY_DEFAULT, "exclude")
    asked = [
        name
        for name in tensors
        if (wanted(name) if include else not left_out(name)) and not unwanted(name)
    ]
    chosen = frozenset(name for name in asked if why_not(tensors[name]) is None)
    if not chosen:
        refused = [f"{name}: {why_not(tensors[name])}" for name in asked[:3]] if include else []
        given = "; ".join(refused) or f"no weight among {len(tensors)} tensors"
        wanted_text = "at least one 2-D or 3-D floating point weight X.weight, K a multiple of 16"
        raise bad_value("include", given=given, wanted=wanted_text)
    return chosen


def _ignored(tensors: Mapping[str, TensorInfo], chosen: frozenset[str]) -> list[str]:
    """Modules with a matrix for a weight that stays as it is."""
    return [
        name.removesuffix(WEIGHT)
        for name, info in tensors.items()
        if name.endswith(WEIGHT) and name not in chosen and len(info.shape) >= 2
    ]


def _stem(name: str) -> str:
    return name.removesuffix("weight")


def _output_tensors(
    tensors: Mapping[str, TensorInfo], chosen: frozenset[str], names: Names
) -> Iterator[TensorInfo]:
    for name, info in tensors.items():
        if name not in chosen:
            yield info
            continue
        *outer, k = info.shape
        parts = {
            names.codes: TensorInfo(_stem(name) + names.codes, "U8", (*outer, k // 2)),
            names.scales: TensorInfo(_stem(name) + names.scales, "F8_E4M3", (*outer, k // BLOCK)),
            names.global_scale: TensorInfo(
                _stem(name) + names.global_scale, "F32", _global_shape(info, names)
            ),
        }
        for part in parts.values():
            if part.name in tensors and part.name != name:
                given = f"{part.name}, which the source has already"
                wanted = f"a name that is free for the parts of {name}"
                raise bad_value("naming", given=given, wanted=wanted)
            yield part


def _global_shape(info: TensorInfo, names: Names) -> tuple[int, ...]:
    if len(info.shape) == 3:
        return (info.shape[0],)
    return (1,) if names.divides else ()


def _quantize_one(
    reader: SafetensorsReader,
    writer: SafetensorsWriter,
    name: str,
    names: Names,
    method: Method,
    report: _Report,
) -> None:
    info = reader[name]
    *outer, rows, k = info.shape
    slabs = list(row_slabs(info, rows, _BYTES_AT_A_TIME))
    half_row = info.num_bytes / math.prod(info.shape[:-1]) / 2
    amax = torch.zeros(math.prod(outer), dtype=torch.float32)
    for begin, end in slabs:
        largest = _largest(reader.read_rows(name, begin, end), name, begin)
        amax[begin // rows] = torch.maximum(amax[begin // rows], largest)
        report(name, (end - begin) * half_row)
    scale = global_scale_of(amax, method)
    if names.divides:
        scale = scale.reciprocal()
    writer.write(_stem(name) + names.global_scale, 0, scale)
    direction = "global_encode_scale" if names.divides else "global_scale"
    for begin, end in slabs:
        values = reader.read_rows(name, begin, end)
        part: Any = {direction: scale[begin // rows]}
        array = quantize(values, method=method, **part)
        writer.write(_stem(name) + names.codes, begin * (k // 2), array.codes)
        writer.write(_stem(name) + names.scales, begin * (k // BLOCK), array.scales)
        report(name, (end - begin) * half_row)


def _largest(values: Tensor, name: str, first_row: int) -> Tensor:
    """Largest magnitude, float32 ``()``; values that NVFP4 has no form for are refused."""
    by_row = torch.maximum(values.amax(-1), -values.amin(-1)).to(torch.float32)
    finite = torch.isfinite(by_row)
    if not bool(finite.all()):
        row = first_row + int(torch.nonzero(~finite)[0])
        given = f"NaN or infinity in row {row} of {name}"
        raise bad_value("source", given=given, wanted="finite float32 values")
    return by_row.amax()


def _copy_one(
    reader: SafetensorsReader, writer: SafetensorsWriter, name: str, report: _Report
) -> None:
    total = reader[name].num_bytes
    for begin in range(0, total, _BYTES_AT_A_TIME):
        end = min(begin + _BYTES_AT_A_TIME, total)
        writer.write(name, begin, reader.read_bytes(name, begin, end))
        report(name, end - begin)


assert set(_FLOATING) <= set(TORCH_DTYPES)
