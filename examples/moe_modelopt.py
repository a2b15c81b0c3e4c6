"""A mixture-of-experts layer straight from a ModelOpt NVFP4 checkpoint.

A checkpoint of random experts is written, read back as it is stored, and run on routed tokens, with
bfloat16 activations (w4a16) and with NVFP4 ones (w4a4). Every product is held against a dense
float64 computation with the decoded weights, within the library's error bound.

    pip install '.[checkpoint]' && python examples/moe_modelopt.py     (from a clone)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

import nibblas
from nibblas import NVFP4Array
from nibblas.formats import open_checkpoint, read_modelopt_experts
from nibblas.formats.reference import error_bound, grouped_mm_reference

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 48, 256, 384, 8, 2
PREFIX = "model.layers.0.mlp.experts"


def write_checkpoint(path: Path) -> None:
    """Per expert: codes, block scales and a global scale of its own for gate, up and down."""
    tensors = {}
    for e in range(EXPERTS):
        weights = {
            "gate_proj": torch.randn(INTERMEDIATE, HIDDEN) / HIDDEN**0.5,
            "up_proj": 4 * torch.randn(INTERMEDIATE, HIDDEN) / HIDDEN**0.5,
            "down_proj": torch.randn(HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5,
        }
        for projection, weight in weights.items():
            w = nibblas.quantize(weight)
            tensors[f"{PREFIX}.{e}.{projection}.weight"] = w.codes
            tensors[f"{PREFIX}.{e}.{projection}.weight_scale"] = w.scales
            tensors[f"{PREFIX}.{e}.{projection}.weight_scale_2"] = w.global_scale
    save_file(tensors, path)


def route(x: Tensor, router: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's best experts, as rows sorted by expert.

    Returns:
        token of each row ``(T * TOP_K,)``, its router weight ``(T * TOP_K,)``, and offs: int32
        ``(EXPERTS,)``, the end of each expert's rows.
    """
    weight, expert = (x.float() @ router).softmax(-1).topk(TOP_K)
    order = expert.flatten().argsort(stable=True)
    offs = expert.flatten().bincount(minlength=EXPERTS).cumsum(0).int()
    return order // TOP_K, weight.flatten()[order], offs


def product(name: str, x: Tensor | NVFP4Array, w: NVFP4Array, offs: Tensor) -> Tensor:
    """``grouped_mm`` into float32, explained and checked."""
    y = nibblas.grouped_mm(x, w, offs, out_dtype=torch.float32)
    values = x.dequantize(torch.float64, offs) if isinstance(x, NVFP4Array) else x.double()
    ends = [0, *offs.tolist()]
    dense = w.dequantize(torch.float64)
    rows = [values[ends[g] : ends[g + 1]] @ dense[g].T for g in range(EXPERTS)]
    error = (y.double() - torch.cat(rows)).abs()
    bound = error_bound(grouped_mm_reference(x, w, offs), y.dtype)
    print(f"\n{name}\n{nibblas.explain(x, w, offs, out_dtype=torch.float32)}")
    share = (error / bound).max()
    print(f"error      at most {error.max():.2g}; bound {bound.max():.2g}; error/bound {share:.2g}")
    assert bool((error <= bound).all())
    return y


def experts(
    x: Tensor, offs: Tensor, gate_up: NVFP4Array, down: NVFP4Array, *, w4a4: bool
) -> Tensor:
    """SwiGLU experts on rows sorted by expert, ``(rows, HIDDEN)`` float32."""

    def operand(rows: Tensor) -> Tensor | NVFP4Array:
        return nibblas.quantize(rows, offs=offs) if w4a4 else rows

    kind = "w4a4" if w4a4 else "w4a16"
    gate, up = product(f"{kind} gate and up", operand(x), gate_up, offs).chunk(2, dim=-1)
    hidden = (silu(gate) * up).bfloat16()
    return product(f"{kind} down", operand(hidden), down, offs)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_checkpoint(path)
        checkpoint = open_checkpoint(path)
        gate_up, _ = read_modelopt_experts(checkpoint, PREFIX)  # (G, 2 * INTERMEDIATE, HIDDEN)
        down, _ = read_modelopt_experts(checkpoint, PREFIX, projections=("down_proj",))
    print("gate and up", gate_up, "\ndown", down)

    x = torch.randn(TOKENS, HIDDEN).bfloat16()
    token, weight, offs = route(x, torch.randn(HIDDEN, EXPERTS))
    outputs = []
    for w4a4 in (False, True):
        y = experts(x[token], offs, gate_up, down, w4a4=w4a4)
        outputs.append(torch.zeros(TOKENS, HIDDEN).index_add_(0, token, y * weight[:, None]))
    difference = (outputs[1] - outputs[0]).norm() / outputs[0].norm()
    print(f"\nrounding the activations to NVFP4 changes the layer's output by {difference:.1%}")


if __name__ == "__main__":
    main()
