"""Runs a few PTX instructions on arrays: one thread per element."""

from __future__ import annotations

from typing import Any

import numpy as np

from nibblas.emulator import Device
from tests.emulator.conftest import HEADER

_REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def execute(
    body: str,
    *inputs: Any,
    result: Any = np.uint32,
    target: str = "sm_90",
    declare: str = "",
    before: str = "",
) -> np.ndarray:
    """What ``body`` leaves in %d, for every element of the inputs.

    Args:
        body: reads %a0, %a1 ... (.b16, .b32 or .b64 by the inputs' size) and writes %d. Free:
            %r<16>, %rd<16>, %h<16>, %f<16>, %p<8>.
        inputs: arrays of one length. result: type of the answer.
        before: declarations of the module.
    """
    arrays = [np.ascontiguousarray(a) for a in inputs]
    count = len(arrays[0])
    padded = -(-count // 32) * 32
    threads = min(padded, 512)
    padded = -(-padded // threads) * threads
    dtype = np.dtype(result)
    dev = Device(target)
    buffers, loads, registers = [], [], []
    for i, array in enumerate(arrays):
        whole = np.zeros(padded, array.dtype)
        whole[:count] = array
        buffers.append(dev.from_numpy(whole.view(f"u{array.itemsize}")))
        registers.append(f".reg .{_REGISTER[array.itemsize]} %a{i};")
        loads.append(
            f"ld.param.u64 %base, [in{i}]; mad.wide.u32 %at, %index, {array.itemsize}, %base;"
            f"ld.global.b{8 * array.itemsize} %a{i}, [%at];"
        )
    out = dev.empty(padded, f"u{dtype.itemsize}")
    params = ", ".join(f".param .u64 in{i}" for i in range(len(arrays)))
    text = f"""{HEADER}{before}
.visible .entry k({params}, .param .u64 out)
{{
    .reg .b32 %index, %r<16>;
    .reg .b64 %base, %at, %rd<16>;
    .reg .b16 %h<16>;
    .reg .f32 %f<16>;
    .reg .pred %p<8>;
    .reg .{_REGISTER[dtype.itemsize]} %d;
    {" ".join(registers)}
    {declare}
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %index, %r0, %r1, %r2;
    {" ".join(loads)}
    {body}
    ld.param.u64 %base, [out];
    mad.wide.u32 %at, %index, {dtype.itemsize}, %base;
    st.global.b{8 * dtype.itemsize} [%at], %d;
    ret;
}}
"""
    dev.load_ptx(text).kernel("k").launch(padded // threads, threads, [*buffers, out])
    found = out.to_numpy()[:count]
    return found.view(dtype)


def edge_integers(bits: int, count: int = 512, seed: int = 0) -> np.ndarray:
    """Unsigned numbers of a width: the edges, small ones, random ones."""
    rng = np.random.default_rng(seed)
    top = 1 << bits
    edges = [0, 1, 2, 3, 7, 8, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1]
    random = rng.integers(0, top - 1, count - len(edges), np.uint64, endpoint=True)
    small = rng.integers(0, 80, len(random), dtype=np.uint64)
    values = np.where(rng.random(len(random)) < 0.3, small % np.uint64(min(top, 1 << 32)), random)
    both = np.concatenate([np.array(edges, np.uint64), values]).astype(f"u{bits // 8}")
    return rng.permutation(both)
