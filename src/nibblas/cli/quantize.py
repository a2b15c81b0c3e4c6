"""``nibblas quantize``: the linear weights of a checkpoint file to NVFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nibblas.cli.files import (
    byte_progress,
    file_errors,
    terminated_like_interrupted,
    write_text,
)
from nibblas.cli.report import Debug, Json, command, print_json
from nibblas.formats.file_quantize import QuantizedFile, quantize_checkpoint


@command
def quantize(
    source: Annotated[Path, typer.Argument(help="A .safetensors file.")],
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    *,
    naming: Annotated[
        str, typer.Option(help="modelopt or compressed-tensors.")
    ] = "compressed-tensors",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Weights to round: a pattern, or re:REGEX; repeatable. [default: all]"),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Weights to leave as they are; repeatable.")
    ] = None,
    method: Annotated[str, typer.Option(help="amax or four_over_six.")] = "amax",
    config: Annotated[
        Path | None, typer.Option(help="Write the quantization_config for config.json there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace TARGET if it exists.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Round the linear weights of a .safetensors file to NVFP4; copy all other tensors.

    Rounded are 2-D and 3-D floating point tensors X.weight whose last dimension is a multiple of
    16; unless --include names them, not embeddings, lm_head, norms, routers and gates. The file is
    read a piece at a time. TARGET appears when it is whole, or not at all. The configuration that
    says how to read it is kept in its metadata as quantization_config.

    \b
    Examples:
      nibblas quantize model.safetensors model-nvfp4.safetensors
      nibblas quantize in.safetensors out.safetensors --naming modelopt --include '*.experts.*'

    Exit codes: 0 written; 2 bad usage, a file that cannot be read, a full disk; 130 interrupted.
    """
    if config is not None and config.exists() and not force:
        raise ValueError(f"config: got {config}, which exists; want a new file, or --force")
    with file_errors(), terminated_like_interrupted(), byte_progress("quantizing") as show:
        done = quantize_checkpoint(
            source,
            target,
            naming=naming,  # type: ignore[arg-type]
            include=include or (),
            exclude=exclude or (),
            method=method,  # type: ignore[arg-type]
            replace=force,
            progress=show,
        )
        if config is not None:
            write_text(config, json.dumps(done.config, indent=2) + "\n")
    if as_json:
        print_json(_to_dict(done))
        return
    print(
        f"{target}: {len(done.quantized)} weights in NVFP4 ({done.naming}), "
        f"{len(done.copied)} tensors copied, {done.bytes_before} -> {done.bytes_after} bytes"
    )


def _to_dict(done: QuantizedFile) -> dict[str, Any]:
    return {
        "naming": done.naming,
        "quantized": done.quantized,
        "copied": done.copied,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        **done.config,
    }
