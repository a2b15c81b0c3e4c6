"""``nibblas verify``: are the NVFP4 weights of a file whole, valid, and near the original."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

import nibblas
from nibblas.cli.files import byte_progress, file_errors
from nibblas.cli.report import (
    CHECK_FAILED,
    Debug,
    Json,
    command,
    console,
    print_json,
    progress,
    table,
)
from nibblas.formats.file_verify import (
    DEFAULT_LIMIT,
    FileVerdict,
    StoredWeight,
    WeightVerdict,
    verify_checkpoint,
)
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.formats.safetensors_file import SafetensorsReader


@command
def verify(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .safetensors file.")],
    *,
    against: Annotated[
        Path | None, typer.Option(help="The file it was made from: measure the error.")
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Largest relative error of a weight (Frobenius norms).")
    ] = DEFAULT_LIMIT,
    multiply: Annotated[
        int,
        typer.Option(min=0, help="Also multiply so many random tokens by each matrix, and check."),
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the NVFP4 weights of a .safetensors file.

    Codes, block scales and global scales must be there, of shapes that fit; no block scale NaN or
    negative; global scales positive and finite. With --against every weight must be near the
    original, and every other tensor the same. With --multiply each weight's product by grouped_mm
    must lie within the error bound around the float64 result.

    \b
    Examples:
      nibblas verify model-nvfp4.safetensors
      nibblas verify model-nvfp4.safetensors --against model.safetensors --multiply 4

    Exit codes: 0 all well; 1 a fault was found; 2 bad usage, or a file that cannot be read.
    """
    with file_errors():
        with byte_progress("verifying") as show:
            verdict = verify_checkpoint(path, against=against, limit=limit, progress=show)
        products = _multiply_all(path, verdict, multiply) if multiply and verdict.passed else {}
    passed = verdict.passed and all(ratio <= 1 for ratio in products.values())
    if as_json:
        print_json(_to_dict(verdict, products, passed=passed))
    else:
        _print(verdict, products)
    if not passed:
        raise typer.Exit(CHECK_FAILED)


def _multiply_all(path: Path, verdict: FileVerdict, rows: int) -> dict[str, float]:
    """By module, the largest error of a product over its bound; infinite for a wrong NaN."""
    found = {}
    weights = [each.weight for each in verdict.weights]
    with SafetensorsReader(path) as file, progress("multiplying") as bar:
        task = bar.add_task("", total=len(weights), detail="")
        for weight in weights:
            bar.update(task, detail=weight.module)
            found[weight.module] = _multiply(_read(file, weight), rows)
            bar.update(task, advance=1)
    return found


def _read(file: SafetensorsReader, weight: StoredWeight) -> NVFP4Array:
    """The weight as a stack ``(G, N, K)``."""
    assert weight.codes and weight.scales and weight.global_scale
    load = nibblas.from_compressed_tensors if weight.names.divides else nibblas.from_modelopt
    codes, scales = file.read(weight.codes.name), file.read(weight.scales.name)
    if codes.ndim == 2:
        codes, scales = codes.unsqueeze(0), scales.unsqueeze(0)
    return load(codes, scales, file.read(weight.global_scale.name))


def _multiply(w: NVFP4Array, rows: int) -> float:
    groups = w.shape[0]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(groups * rows, w.k, generator=generator).bfloat16()
    offs = torch.arange(1, groups + 1, dtype=torch.int32) * rows
    out = nibblas.grouped_mm(x, w, offs)
    exact = grouped_mm_reference(x, w, offs)
    bound = error_bound(exact, out.dtype)
    if not bool(within_bound(out, exact, bound).all()):
        return float("inf")
    return float(((out.double() - exact.value).abs() / bound).nan_to_num(0.0).max())


def _to_dict(verdict: FileVerdict, products: dict[str, float], *, passed: bool) -> dict[str, Any]:
    return {
        "passed": passed,
        "faults": verdict.faults,
        "weights": [
            {
                "module": each.weight.module,
                "naming": each.weight.naming,
                "shape": each.weight.shape,
                "faults": each.faults,
                "max_abs_error": each.max_abs_error,
                "relative_error": each.relative_error,
                "product_error_over_bound": products.get(each.weight.module),
            }
            for each in verdict.weights
        ],
    }


def _print(verdict: FileVerdict, products: dict[str, float]) -> None:
    out = console()
    compared = any(each.relative_error is not None for each in verdict.weights)
    columns = [">max error", ">relative error"] if compared else []
    columns += [">product error / bound"] if products else []
    rows = table("NVFP4 weight", "naming", "shape", *columns, "")
    for each in verdict.weights:
        cells = _errors(each) if compared else []
        if products:
            cells.append(f"{products[each.weight.module]:.3f}")
        shape = " x ".join(map(str, each.weight.shape))
        state = "FAULT" if each.faults or products.get(each.weight.module, 0) > 1 else "ok"
        rows.add_row(Text(each.weight.module), each.weight.naming, shape, *cells, state)
    if verdict.weights:
        out.print(rows, markup=False)
    for each in verdict.weights:
        for fault in each.faults:
            out.print(f"{each.weight.module}: {fault}", markup=False, highlight=False)
    for module, ratio in products.items():
        if not ratio <= 1:
            out.print(f"{module}: its product is wrong", markup=False, highlight=False)
    for fault in verdict.faults:
        out.print(fault, markup=False, highlight=False)


def _errors(each: WeightVerdict) -> list[str]:
    if each.max_abs_error is None or each.relative_error is None:
        return ["-", "-"]
    return [f"{each.max_abs_error:.4g}", f"{each.relative_error:.4f}"]
