"""Products by shipped kernels, to be compared bit for bit between GPU and emulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.formats import scale_layout
from tests.emulator.golden.draw import Draw


@dataclass(frozen=True)
class Product:
    """One packed product. activations: "fp16", "bf16", "nvfp4"; m: rows of every group.

    backend: that computes it.
    """

    activations: str
    m: tuple[int, ...]
    n: int
    k: int
    out: torch.dtype = torch.float32
    layout: Any = "linear"
    epilogue: bool = False
    seed: int = 1
    backend: str = "portable"

    @property
    def name(self) -> str:
        rows = "_".join(map(str, self.m))
        by = "" if self.backend == "portable" else f"{self.backend}_"
        return f"{by}{self.activations}_m{rows}_n{self.n}_k{self.k}_{self.layout}"


def _array(draw: Draw, shape: tuple[int, ...], **scales: Any) -> NVFP4Array:
    *rows, k = shape
    codes = torch.from_numpy(draw.integers(0, 256, (*rows, k // 2), np.uint8))
    bytes_ = torch.from_numpy(draw.integers(0x08, 0x70, (*rows, k // 16), np.uint8))
    if "offs" in scales:
        bytes_ = scale_layout.to_blocked_by_group(
            bytes_, scales["offs"], rule="torch", fill_byte=0x7F
        )
        return NVFP4Array(codes, bytes_, scale_layout="blocked", group_start="torch")
    if scales["layout"] == "blocked":
        bytes_ = scale_layout.to_blocked(bytes_, fill_byte=0x7F)
    factor = torch.tensor([0.625 + 0.25 * g for g in range(rows[0])]) if len(rows) == 2 else 1.0
    return NVFP4Array(codes, bytes_, global_scale=factor, scale_layout=scales["layout"])


def operands(product: Product) -> dict[str, Any]:
    """Arguments of ``nibblas.grouped_mm`` on the CPU; the same bits everywhere."""
    draw = Draw(product.seed, product.n, product.k)
    groups, rows = len(product.m), sum(product.m)
    offs = torch.tensor(product.m, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    w = _array(draw, (groups, product.n, product.k), layout=product.layout)
    if product.activations == "nvfp4":
        blocked = {"offs": offs} if product.layout == "blocked" else {"layout": "linear"}
        x: Any = _array(draw, (rows, product.k), **blocked)
    else:
        dtype = torch.float16 if product.activations == "fp16" else torch.bfloat16
        whole = draw.integers(-4096, 4097, (rows, product.k)).astype(np.float32)
        power = 2.0 ** -draw.integers(8, 16, (rows, product.k)).astype(np.float32)
        x = torch.from_numpy(whole * power).to(dtype)
    arguments: dict[str, Any] = {"x": x, "w": w, "offs": offs, "out_dtype": product.out}
    if product.epilogue:
        arguments["alpha"] = torch.tensor([1.0 + g / 8 for g in range(groups)])
        arguments["row_scale"] = torch.tensor([0.75 + i / 64 for i in range(rows)])
        arguments["bias"] = torch.tensor([i / 32 - 1 for i in range(product.n)])
    return arguments


def compute(product: Product, device: str) -> np.ndarray:
    """Bytes of the output of the product's kernel: on a GPU, or emulated for CPU tensors."""
    backend = product.backend if device == "cuda" else "emulated"
    arguments: dict[str, Any] = {
        name: value.to(device) if isinstance(value, (torch.Tensor, NVFP4Array)) else value
        for name, value in operands(product).items()
    }
    # Where a Hopper kernel can take it, that is the one for batches of any size.
    invariant = product.backend == "sm90"
    y = nibblas.grouped_mm(**arguments, backend=backend, batch_invariant=invariant)
    return y.cpu().contiguous().view(torch.uint8).numpy()


PRODUCTS = {
    p.name: p
    for p in (
        Product("fp16", (3, 0, 1), 40, 256),
        Product("fp16", (17,), 136, 512, layout="blocked", epilogue=True),
        Product("fp16", (5, 2), 24, 80, torch.float16),
        Product("bf16", (3, 0, 1), 40, 256),
        Product("bf16", (70,), 16, 512, torch.bfloat16),
        Product("bf16", (5, 2), 24, 144, layout="blocked", epilogue=True),
        Product("nvfp4", (3, 0, 1), 40, 256),
        Product("nvfp4", (17, 9), 136, 512, layout="blocked", epilogue=True),
        Product("nvfp4", (5, 2), 24, 80, torch.bfloat16),
        Product("nvfp4", (66,), 16, 768),
        Product("fp16", (40, 0, 90), 160, 320, layout="blocked", backend="sm90"),
        Product("fp16", (3, 1), 96, 512, torch.float16, epilogue=True, backend="sm90"),
        Product("bf16", (257,), 96, 256, torch.bfloat16, epilogue=True, backend="sm90"),
        Product("nvfp4", (17, 9), 128, 512, layout="blocked", epilogue=True, backend="sm90"),
    )
}
