"""``nibblas inspect``: what is in a checkpoint file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from nibblas.cli.files import file_errors
from nibblas.cli.report import Debug, Json, command, console, print_json, table
from nibblas.formats.file_verify import StoredWeight, find_weights
from nibblas.formats.safetensors_file import SafetensorsReader, TensorInfo


@command
def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .safetensors file.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the tensors of a .safetensors file, its NVFP4 weights put together.

    Reads the header and the global scales; nibblas verify reads everything.

    \b
    Examples:
      nibblas inspect model.safetensors
      nibblas inspect model.safetensors --json

    Exit codes: 0 listed; 2 bad usage, or a file that cannot be read.
    """
    with file_errors(), SafetensorsReader(path) as file:
        facts = collect(file)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def collect(file: SafetensorsReader) -> dict[str, Any]:
    """Everything that the command shows, as plain data."""
    weights = find_weights(file)
    parts = {
        part.name
        for weight in weights
        for part in (weight.codes, weight.scales, weight.global_scale)
        if part is not None
    }
    others = [info for info in file.values() if info.name not in parts]
    return {
        "path": str(file.path),
        "metadata": file.metadata,
        "bytes": sum(info.num_bytes for info in file.values()),
        "nvfp4": [_weight(file, weight) for weight in weights],
        "tensors": [_tensor(info) for info in others],
    }


def _weight(file: SafetensorsReader, weight: StoredWeight) -> dict[str, Any]:
    return {
        "module": weight.module,
        "naming": weight.naming,
        "shape": weight.shape,
        "scale_layout": weight.scale_layout,
        "global_scale": _global_scale(file, weight.global_scale),
        "global_scale_divides": weight.names.divides,
        "bytes": weight.num_bytes,
        "bits_per_weight": weight.bits_per_weight,
        "faults": weight.faults(),
    }


_MOST_SHOWN = 1 << 16


def _global_scale(file: SafetensorsReader, info: TensorInfo | None) -> dict[str, Any] | None:
    """Shape, smallest and largest; None where there is none that can be read."""
    if info is None or info.dtype != "F32" or not 0 < math.prod(info.shape) <= _MOST_SHOWN:
        return None
    values = file.read(info.name)
    return {"shape": info.shape, "min": float(values.min()), "max": float(values.max())}


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "dtype": info.dtype,
        "shape": info.shape,
        "bytes": info.num_bytes,
    }


def _print(facts: dict[str, Any]) -> None:
    out = console()
    if facts["nvfp4"]:
        rows = table("NVFP4 weight", "naming", "shape", "scales", "global scale", ">bytes", ">bits")
        for weight in facts["nvfp4"]:
            rows.add_row(
                Text(weight["module"]),
                weight["naming"],
                _shape(weight["shape"]),
                weight["scale_layout"] or "-",
                _range(weight["global_scale"], divides=weight["global_scale_divides"]),
                str(weight["bytes"]),
                f"{weight['bits_per_weight']:.3f}",
            )
        out.print(rows, markup=False)
        out.print()
    if facts["tensors"]:
        rows = table("tensor", "type", "shape", ">bytes")
        for tensor in facts["tensors"]:
            rows.add_row(
                Text(tensor["name"]), tensor["dtype"], _shape(tensor["shape"]), str(tensor["bytes"])
            )
        out.print(rows, markup=False)
        out.print()
    for weight in facts["nvfp4"]:
        for fault in weight["faults"]:
            out.print(f"{weight['module']}: {fault}", markup=False, highlight=False)
    count = f"{len(facts['nvfp4'])} NVFP4 weights, {len(facts['tensors'])} other tensors"
    out.print(f"{count}, {facts['bytes']} bytes", markup=False, highlight=False)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "()"


def _range(scale: dict[str, Any] | None, *, divides: bool) -> str:
    if scale is None:
        return "-"
    low, high = f"{scale['min']:.4g}", f"{scale['max']:.4g}"
    sign = "/" if divides else "*"
    return f"{sign} {low}" if scale["min"] == scale["max"] else f"{sign} {low} .. {high}"
