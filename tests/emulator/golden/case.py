"""A case: one small kernel with its inputs, to be run on a GPU and on the emulator."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nibblas.runtime.tensormap import TensorMapSpec

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"
"""8.6 is the oldest PTX with everything here, so that any driver for Hopper compiles it."""


@dataclass(frozen=True)
class Case:
    """One launch of the entry ``k``.

    Its parameters are the tensor maps (by value), the inputs and the output, in that order; the
    last three as addresses.

    Attributes:
        ptx: the module's text. inputs: arrays. out_bytes: of the output, which begins as zeros.
        maps: (specification, index of the input whose tensor it describes; -1: the output).
        row_names: what equal parts of the output are called; for messages.
    """

    name: str
    ptx: str
    inputs: tuple[np.ndarray, ...]
    out_bytes: int
    grid: int = 1
    block: int = 32
    cluster: int = 1
    shared_bytes: int = 0
    maps: tuple[tuple[TensorMapSpec, int], ...] = ()
    row_names: tuple[str, ...] = field(default=(), compare=False)

    def digest(self) -> str:
        """Of everything that decides the output: a vector of another digest is out of date."""
        digest = hashlib.sha256(" ".join(self.ptx.split()).encode())
        launch: tuple[Any, ...] = (self.grid, self.block, self.cluster, self.shared_bytes)
        digest.update(repr((launch, self.out_bytes, self.maps)).encode())
        for array in self.inputs:
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]


def module(body: str, *, maps: int = 0, inputs: int = 1, shared: str = "", prefix: str = "") -> str:
    """A module with the entry ``k``.

    Registers: %r<64> b32, %rd<64> b64, %f<160> f32, %h<32> b16, %p<8>. %rd0, %rd1, ... hold the
    inputs' addresses, %rd20 the output's, %r0 the thread of the CTA; ``map0``, ... are the maps.
    """
    params = [f".param .align 64 .b8 map{i}[128]" for i in range(maps)]
    params += [f".param .u64 in{i}" for i in range(inputs)] + [".param .u64 out"]
    loads = [f"ld.param.u64 %rd{i}, [in{i}];" for i in range(inputs)]
    loads += ["ld.param.u64 %rd20, [out];", "mov.u32 %r0, %tid.x;"]
    return f"""{HEADER}{prefix}
.visible .entry k({", ".join(params)})
{{
    .reg .b32 %r<64>;
    .reg .b64 %rd<64>;
    .reg .f32 %f<160>;
    .reg .b16 %h<32>;
    .reg .pred %p<8>;
    {shared}
    {"".join(line + chr(10) + "    " for line in loads)}
{body}
    ret;
}}
"""
