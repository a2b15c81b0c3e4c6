"""The NVFP4 weights of a checkpoint file: which there are, whether they hold together, how far off.

A weight is found by its names (``file_names``): codes in ``X.weight_packed``, or in ``X.weight``
when a scale tensor of the same module stands beside it. MXFP4 is none, which compressed-tensors
stores under the same names with E8M0 scales and without a global scale.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from nibblas.errors import bad_value
from nibblas.formats import scale_layout
from nibblas.formats.file_names import ALL_NAMES, COMPRESSED_TENSORS, Names, Naming
from nibblas.formats.file_quantize import Progress, row_slabs
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.safetensors_file import TORCH_DTYPES, SafetensorsReader, TensorInfo
from nibblas.formats.scale_layout import BLOCK

DEFAULT_LIMIT = 0.25
"""Of the relative error: rounding stays below 0.2, a global scale taken the wrong way does not."""

_LARGEST_VALID_SCALE = 0x7E
_CODE_BYTES_AT_A_TIME = 2 << 20
_NOT_E4M3 = ("U8", "F8_E8M0")


@dataclass(frozen=True)
class StoredWeight:
    """The tensors of one weight; None: not there. ``module`` is the name up to ``.weight``."""

    module: str
    names: Names
    codes: TensorInfo | None
    scales: TensorInfo | None
    global_scale: TensorInfo | None

    @property
    def naming(self) -> Naming:
        return self.names.naming

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical: ``(N, K)`` or ``(G, N, K)``."""
        shape = () if self.codes is None else self.codes.shape
        return (*shape[:-1], 2 * shape[-1]) if shape else ()

    @property
    def num_bytes(self) -> int:
        parts = (self.codes, self.scales, self.global_scale)
        return sum(part.num_bytes for part in parts if part is not None)

    @property
    def bits_per_weight(self) -> float:
        values = math.prod(self.shape) if self.shape else 0
        return 8 * self.num_bytes / values if values else math.nan

    @property
    def scale_layout(self) -> str | None:
        """ "linear" or "blocked", by the shape of the scales; None: they fit neither."""
        if self.scales is None or len(self.shape) not in (2, 3):
            return None
        *outer, rows, k = self.shape
        if self.scales.shape == (*outer, rows, k // BLOCK):
            return "linear"
        padded = (scale_layout.padded_rows(rows), scale_layout.padded_k_blocks(k // BLOCK))
        return "blocked" if self.scales.shape == (*outer, *padded) else None

    def faults(self) -> list[str]:
        """What is wrong with names, types and shapes; empty: nothing."""
        names = self.names
        parts = ((names.codes, self.codes), (names.scales, self.scales))
        missing = [name for name, part in parts if part is None]
        if self.global_scale is None:
            missing.append(names.global_scale)
        if self.codes is None or self.scales is None or self.global_scale is None:
            return [f"no {self.module}.{name}" for name in missing]
        found = []
        if self.codes.dtype != "U8" or len(self.shape) not in (2, 3) or 0 in self.shape:
            found.append(f"codes are {self.codes}, not U8 (N, K/2) or (G, N, K/2)")
        elif self.shape[-1] % BLOCK:
            found.append(f"K is {self.shape[-1]}, no multiple of {BLOCK}")
        elif self.scales.dtype != "F8_E4M3" or self.scale_layout != "linear":
            wanted = (*self.shape[:-1], self.shape[-1] // BLOCK)
            found.append(f"scales are {self.scales}, not F8_E4M3 {wanted}")
        elif self.global_scale.dtype != "F32" or self.rows_per_global_scale is None:
            found.append(f"the global scale is {self.global_scale}, not one F32 per weight,")
            found[-1] += " matrix, or equal segment of its rows"
        return found

    @property
    def rows_per_global_scale(self) -> int | None:
        """Rows of all matrices, one after the other, that share a global scale; None: no number."""
        if self.global_scale is None or len(self.shape) not in (2, 3):
            return None
        shape, rows = self.global_scale.shape, math.prod(self.shape[:-1])
        groups = self.shape[0] if len(self.shape) == 3 else 1
        if math.prod(shape) == 1:
            return self.shape[-2]
        if len(shape) not in (1, 2) or shape[0] != groups or 0 in shape:
            return None
        return rows // math.prod(shape) if rows % math.prod(shape) == 0 else None


@dataclass(frozen=True)
class WeightVerdict:
    """What was found about a weight.

    Attributes:
        faults: empty: none.
        max_abs_error, relative_error: against the original, the second of Frobenius norms; None
            where it was not compared.
    """

    weight: StoredWeight
    faults: tuple[str, ...]
    max_abs_error: float | None = None
    relative_error: float | None = None


@dataclass(frozen=True)
class FileVerdict:
    """Of a whole file. ``faults`` are those of no weight in particular."""

    weights: tuple[WeightVerdict, ...]
    faults: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return not self.faults and all(not weight.faults for weight in self.weights)


def find_weights(tensors: Mapping[str, TensorInfo]) -> list[StoredWeight]:
    """The NVFP4 weights, whole or not, by module name."""
    found: dict[str, StoredWeight] = {}
    for name in tensors:
        module, _, part = name.rpartition(".")
        for names in ALL_NAMES:
            if part in (names.codes, names.global_scale) and module not in found:
                codes, scales, scale = (
                    tensors.get(f"{module}.{each}")
                    for each in (names.codes, names.scales, names.global_scale)
                )
                weight = StoredWeight(module, names, codes, scales, scale)
                if _is_nvfp4(weight):
                    found[module] = weight
    return [found[module] for module in sorted(found)]


def _is_nvfp4(weight: StoredWeight) -> bool:
    if weight.global_scale is not None:
        return True
    if weight.codes is None or weight.codes.dtype != "U8":
        return False
    if weight.names is COMPRESSED_TENSORS:
        return weight.scales is None or weight.scales.dtype not in _NOT_E4M3
    return weight.scales is not None and weight.scales.dtype == "F8_E4M3"


def verify_checkpoint(
    path: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    limit: float = DEFAULT_LIMIT,
    progress: Progress | None = None,
) -> FileVerdict:
    """Looks at every NVFP4 weight of a ``.safetensors`` file, some rows at a time.

    Codes, scales and global scale must be there and fit; no scale byte NaN or negative; global
    scales positive and finite, so that their reciprocals are too.

    Args:
        against: the file it was made from. Then each weight's error against ``X.weight`` there is
            measured, and every other tensor must be there with the same bytes.
        limit: largest relative error, of Frobenius norms.
        progress: called after every piece.

    Raises:
        ValueError: a file that is no whole safetensors file, or a limit that is no number above 0.
        OSError: it cannot be read.

    Example:
        >>> nibblas.verify_checkpoint("out.safetensors").passed  # doctest: +SKIP
        True
    """
    if not limit > 0:
        raise bad_value("limit", given=limit, wanted="a number above 0")
    with SafetensorsReader(path) as file:
        weights = find_weights(file)
        if not weights:
            return FileVerdict((), ("there are no NVFP4 weights in the file",))
        report = _Report(progress, sum(weight.num_bytes for weight in weights))
        if against is None:
            verdicts = tuple(_verify_one(file, weight, None, limit, report) for weight in weights)
            return FileVerdict(verdicts)
        with SafetensorsReader(against) as original:
            verdicts = tuple(
                _verify_one(file, weight, original, limit, report) for weight in weights
            )
            return FileVerdict(verdicts, tuple(_changed(file, weights, original)))


class _Report:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def __call__(self, name: str, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(name, self._done, self._total)


def _verify_one(
    file: SafetensorsReader,
    weight: StoredWeight,
    original: SafetensorsReader | None,
    limit: float,
    report: _Report,
) -> WeightVerdict:
    faults = weight.faults()
    source = None if original is None else original.get(f"{weight.module}.weight")
    if original is not None:
        faults += _original_faults(weight, source)
    if faults:
        report(weight.module, weight.num_bytes)
        return WeightVerdict(weight, tuple(faults))
    faults += _global_faults(file, weight)
    largest = square = norm = 0.0
    bad_scales = 0
    for begin, end, part in _slabs(file, weight):
        encoded = part.scales.view(torch.uint8)
        bad_scales += int((encoded > _LARGEST_VALID_SCALE).sum())
        if original is not None and source is not None:
            exact = original.read_rows(source.name, begin, end).double()
            error = part.dequantize(torch.float64) - exact
            largest = max(largest, float(error.abs().max()))
            square += float(error.square().sum())
            norm += float(exact.square().sum())
        report(weight.module, part.codes.nbytes + part.scales.nbytes)
    if bad_scales:
        faults.append(f"{bad_scales} block scales are NaN or negative")
    if source is None:
        return WeightVerdict(weight, tuple(faults))
    relative = math.sqrt(square / norm) if norm else (math.inf if square else 0.0)
    if not relative <= limit:
        faults.append(f"the relative error is {relative:.3g}, above {limit:g}")
    return WeightVerdict(weight, tuple(faults), largest, relative)


def _slabs(file: SafetensorsReader, weight: StoredWeight) -> Iterator[tuple[int, int, NVFP4Array]]:
    """``(begin, end, values)`` over the rows of all matrices, one after the other."""
    assert weight.codes and weight.scales and weight.global_scale
    assert weight.rows_per_global_scale
    scale = file.read(weight.global_scale.name).flatten()
    direction = "global_encode_scale" if weight.names.divides else "global_scale"
    rows = weight.rows_per_global_scale
    for begin, end in row_slabs(weight.codes, rows, _CODE_BYTES_AT_A_TIME):
        codes = file.read_rows(weight.codes.name, begin, end)
        scales = file.read_rows(weight.scales.name, begin, end)
        one = scale[begin // rows if scale.numel() > 1 else 0]
        yield begin, end, NVFP4Array(codes, scales, **{direction: one})  # type: ignore[arg-type]


def _global_faults(file: SafetensorsReader, weight: StoredWeight) -> list[str]:
    assert weight.global_scale
    scale = file.read(weight.global_scale.name).flatten()
    bad = ~(scale.isfinite() & (scale > 0) & scale.reciprocal().isfinite())
    if not bool(bad.any()):
        return []
    return [f"a global scale is {float(scale[bad][0])}, not positive and finite both ways"]


def _original_faults(weight: StoredWeight, source: TensorInfo | None) -> list[str]:
    name = f"{weight.module}.weight"
    if source is None:
        return [f"the original has no {name}"]
    if source.dtype not in TORCH_DTYPES or source.dtype in ("U8", "F8_E4M3"):
        return [f"the original's {name} is {source}, no floating point weight"]
    if weight.shape and source.shape != weight.shape:
        return [f"its shape is {weight.shape}, and the original's {source.shape}"]
    return []


def _changed(
    file: SafetensorsReader, weights: list[StoredWeight], original: SafetensorsReader
) -> Iterator[str]:
    """Tensors of the original, weights apart, that the file lacks or has otherwise."""
    rounded = {f"{weight.module}.weight" for weight in weights}
    for name, info in original.items():
        if name in rounded:
            continue
        other = file.get(name)
        if other is None:
            yield f"no {name}, which the original has"
        elif (other.dtype, other.shape) != (info.dtype, info.shape):
            yield f"{name} is {other}, and the original's {info}"
        elif not _same_bytes(file, original, info):
            yield f"{name} differs from the original's"


def _same_bytes(one: SafetensorsReader, other: SafetensorsReader, info: TensorInfo) -> bool:
    step = 8 * _CODE_BYTES_AT_A_TIME
    pieces = (
        (begin, min(begin + step, info.num_bytes)) for begin in range(0, info.num_bytes, step)
    )
    return all(
        torch.equal(one.read_bytes(info.name, *piece), other.read_bytes(info.name, *piece))
        for piece in pieces
    )
