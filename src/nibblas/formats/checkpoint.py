"""The experts of one layer, read out of a checkpoint by their tensor names.

``{prefix}.{e}.{projection}.{tensor}``, such as ``model.layers.3.mlp.experts.0.gate_proj.weight``:

=======================  ==================  =======================
of each projection       ModelOpt            compressed-tensors
=======================  ==================  =======================
codes                    weight              weight_packed
block scales             weight_scale        weight_scale
global scale             weight_scale_2      weight_global_scale
of its activations       input_scale         input_global_scale
=======================  ==================  =======================

The last one is absent from weight-only files.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nibblas.errors import bad_type, bad_value
from nibblas.formats.experts import Part, WeightParts, one_number, stack_experts
from nibblas.formats.nvfp4 import NVFP4Array

GATE_UP = ("gate_proj", "up_proj")


@dataclass(frozen=True)
class _Scheme:
    """The tensor names of a format."""

    reader: str
    codes: str
    global_scale: str
    input_scale: str
    divides: bool
    scales: str = "weight_scale"

    def names(self) -> tuple[str, ...]:
        return (self.codes, self.scales, self.global_scale, self.input_scale)


_MODELOPT = _Scheme(
    reader="read_modelopt_experts",
    codes="weight",
    global_scale="weight_scale_2",
    input_scale="input_scale",
    divides=False,
)
_COMPRESSED_TENSORS = _Scheme(
    reader="read_compressed_tensors_experts",
    codes="weight_packed",
    global_scale="weight_global_scale",
    input_scale="input_global_scale",
    divides=True,
)


class Experts(NamedTuple):
    """What a checkpoint says about the experts of a layer.

    Attributes:
        weights: ``(G, P * N, K)``, the P projections joined along N in the order asked for, their
            global scales ``(G, P)``, with one projection ``(G,)``.
        input_scale: float32 ``(G,)``, global decode scale to quantise the experts' activations
            with; None if the file is for weights only. Where the projections of an expert have
            different ones it is the largest: they share their activations, and a larger scale
            saturates none of them.
    """

    weights: NVFP4Array
    input_scale: Tensor | None


def read_modelopt_experts(
    tensors: Mapping[str, Tensor], prefix: str, *, projections: Sequence[str] = GATE_UP
) -> Experts:
    """Experts 0 to G - 1 of a ModelOpt NVFP4 checkpoint, copied into one stack.

    For exporters that fuse the experts into 3-D tensors there is ``from_modelopt``.

    Args:
        tensors: name -> tensor, of which only those under ``prefix`` are read; a dict, or what
            ``open_checkpoint`` returns (several files: ``collections.ChainMap``).
        prefix: name up to the expert number, ``"model.layers.3.mlp.experts"``.
        projections: those to join along N, in this order; ``("w1", "w3")`` in Mixtral's names,
            ``("down_proj",)`` for the second product.

    Raises:
        ValueError, TypeError: naming the tensor: a gap in the expert numbers, a projection or a
            scale missing, input scales for some only, names of the other format as well, or
            contents that ``from_modelopt`` refuses.
    """
    return _read(_MODELOPT, _COMPRESSED_TENSORS, tensors, prefix, projections)


def read_compressed_tensors_experts(
    tensors: Mapping[str, Tensor], prefix: str, *, projections: Sequence[str] = GATE_UP
) -> Experts:
    """Experts 0 to G - 1 of a compressed-tensors ``nvfp4-pack-quantized`` checkpoint.

    Arguments, result and errors are those of ``read_modelopt_experts``; the global scales, which
    this format stores as divisors, are returned in decode direction too.
    """
    return _read(_COMPRESSED_TENSORS, _MODELOPT, tensors, prefix, projections)


def open_checkpoint(path: str | PathLike[str]) -> Mapping[str, Tensor]:
    """The tensors of a ``.safetensors`` file by name, each read when it is asked for.

    Raises:
        ImportError: the safetensors package is not installed (``pip install
            nibblas[checkpoint]``).
        OSError: the file cannot be opened: not there, a directory, not readable.
        ValueError: it is not a safetensors file, or was cut short.
    """
    path = Path(path)
    try:
        safetensors = importlib.import_module("safetensors")
    except ModuleNotFoundError as error:
        raise ImportError(
            "open_checkpoint needs the safetensors package: pip install nibblas[checkpoint]"
        ) from error
    with path.open("rb"):  # for Python's own OSErrors, which name the file
        pass
    try:
        handle = safetensors.safe_open(path, framework="pt")
    except safetensors.SafetensorError as error:
        raise bad_value(
            "path", given=f"{path} ({error})", wanted="a whole .safetensors file"
        ) from error
    return _SafetensorsFile(handle)


class _SafetensorsFile(Mapping[str, Tensor]):
    """A mapping over an open safetensors handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._names = frozenset(handle.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


def _read(
    scheme: _Scheme,
    other: _Scheme,
    tensors: Mapping[str, Tensor],
    prefix: str,
    projections: Sequence[str],
) -> Experts:
    if not isinstance(tensors, Mapping):
        raise bad_type("tensors", given=tensors, wanted="a mapping of names to tensors")
    if isinstance(projections, str) or not projections:
        raise bad_value("projections", given=repr(projections), wanted="a sequence of names")
    stems = _stems(scheme, other, tensors, prefix, projections)
    weights = stack_experts(
        ([_weight(scheme, tensors, stem) for stem in expert] for expert in stems),
        groups=len(stems),
        divides=scheme.divides,
    )
    return Experts(weights, _input_scale(scheme, tensors, stems, weights.device))


def _stems(
    scheme: _Scheme,
    other: _Scheme,
    tensors: Mapping[str, Tensor],
    prefix: str,
    projections: Sequence[str],
) -> list[list[str]]:
    """``{prefix}.{e}.{projection}`` of every expert and projection, all their tensors present."""
    pattern = re.compile(rf"({re.escape(prefix)}\.(0|[1-9][0-9]*)\..+)\.([^.]+)")
    present: dict[str, set[str]] = {}
    numbers = set()
    for match in filter(None, map(pattern.fullmatch, tensors)):
        stem, number, tensor = match.groups()
        present.setdefault(stem, set()).add(tensor)
        numbers.add(int(number))
    if not numbers:
        wanted = (
            f"the name before the expert number, as of {prefix}.0.{projections[0]}.{scheme.codes}"
        )
        raise bad_value(
            "prefix", given=f"{prefix!r}, under which there are no experts", wanted=wanted
        )
    gap = next((e for e in range(max(numbers)) if e not in numbers), None)
    if gap is not None:
        raise bad_value(
            f"{prefix}.{gap}", given="no such expert", wanted=f"experts 0 to {max(numbers)}, no gap"
        )
    stems = [[f"{prefix}.{e}.{name}" for name in projections] for e in range(len(numbers))]
    for stem in (stem for expert in stems for stem in expert):
        _check_names(scheme, other, stem, present.get(stem, set()))
    return stems


def _check_names(scheme: _Scheme, other: _Scheme, stem: str, present: set[str]) -> None:
    foreign = sorted(present & (set(other.names()) - set(scheme.names())))
    if foreign:
        raise bad_value(
            f"{stem}.{foreign[0]}",
            given=f"a tensor that {other.reader} reads",
            wanted=f"{', '.join(scheme.names())} and nothing of another format",
        )
    unknown = sorted(present - set(scheme.names()))
    if unknown:
        raise bad_value(
            f"{stem}.{unknown[0]}",
            given="a tensor that this reader would drop",
            wanted=f"{', '.join(scheme.names())} only; apply the others or take them out first",
        )
    for tensor in (scheme.codes, scheme.scales, scheme.global_scale):
        if tensor not in present:
            raise bad_value(
                f"{stem}.{tensor}",
                given="no such tensor",
                wanted="codes, block scales and global scale of every projection of every expert",
            )


def _weight(scheme: _Scheme, tensors: Mapping[str, Tensor], stem: str) -> WeightParts:
    def part(tensor: str) -> Part:
        return Part(f"{stem}.{tensor}", tensors[f"{stem}.{tensor}"])

    return WeightParts(part(scheme.codes), part(scheme.scales), part(scheme.global_scale))


def _input_scale(
    scheme: _Scheme,
    tensors: Mapping[str, Tensor],
    stems: Sequence[Sequence[str]],
    device: torch.device,
) -> Tensor | None:
    """The largest decode scale of each expert's projections, ``(G,)``; None if there are none."""
    names = [[f"{stem}.{scheme.input_scale}" for stem in expert] for expert in stems]
    flat = [name for expert in names for name in expert]
    present = [name for name in flat if name in tensors]
    if not present:
        return None
    absent = [name for name in flat if name not in tensors]
    if absent:
        wanted = f"one for every projection of every expert, as there is {present[0]}"
        raise bad_value(absent[0], given="no such tensor", wanted=wanted)
    scales = torch.stack([one_number(Part(name, tensors[name]), device) for name in flat])
    decode = scales.reciprocal() if scheme.divides else scales
    return decode.view(len(names), -1).amax(dim=1)
