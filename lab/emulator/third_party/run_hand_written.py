"""Runs public hand-written Blackwell kernels on the emulator, with host sides of our own.

    python lab/emulator/third_party/run_hand_written.py FILE.ptx FORM M N K [--entry PART] [options]

FORM says whose kernel the text is of; PART is a part of the entry's name where there are several:

    gpu-mode       gau-nernst/gpu-mode-kernels, nvidia/nvfp4_gemm/submission_v4.py: NVFP4, fp16 out
                   or, of parts of K, fp32 sums; K is the entry's
    learn-cuda     gau-nernst/learn-cuda, 02e_matmul_sm100/matmul_v1.cu to matmul_v7.cu: bf16
    nvfp4-gemm     jIab-b/nvfp4_gemm, s_128t.py: NVFP4, fp16 out
    deepgemm       deepseek-ai/DeepGEMM, sm100_fp8_fp4_gemm_1d1d.cuh, blocks of 128 x 128 x 128, one
                   or two SMs: E4M3 with E4M3 or E2M1, UE8M0 scales, bf16 out
    thunderkittens HazyResearch/ThunderKittens, kernels/gemm/nvfp4_b200: NVFP4 on two SMs, bf16 out

Exit code 0: right in every order that was asked for.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from nibblas.emulator import ORDERS, Buffer, Device, Report  # noqa: E402
from nibblas.emulator.device import Argument, Kernel  # noqa: E402
from nibblas.emulator.maps import TensorMap  # noqa: E402
from nibblas.runtime.tensormap import DataType, Swizzle  # noqa: E402
from tests.emulator.third_party.problems import (  # noqa: E402
    HalfProduct,
    Scaled,
    ScaledProduct,
    blocked,
)

Result = tuple[Report, Buffer, npt.NDArray[Any]]
"""Of a launch; the output and what it should hold."""


def largest_shared(kernel: Kernel) -> int:
    """Dynamic bytes: all that the device has."""
    return kernel.module.device.limits.shared_bytes - kernel.program.shared_bytes


def columns_map(
    dev: Device, buffer: Buffer, kind: DataType, rows: int, row_bytes: int, box: tuple[int, int]
) -> TensorMap:
    """A matrix as columns of 128 bytes (or fewer): dims (bytes, rows, columns).

    Args:
        box: (rows, columns) of a copy, of 128-byte columns.
    """
    size = {"uint8": 1, "bfloat16": 2}[kind]
    return dev.tensor_map(
        buffer,
        dtype=kind,
        dims=[128 // size, rows, row_bytes // 128],
        strides=[row_bytes, 128],
        box=[128 // size, *box],
        swizzle="128b",
    )


def learn_cuda(dev: Device, kernel: Kernel, m: int, n: int, k: int, seed: int) -> Result:
    """Tiles of 128 rows; the numbers are template arguments: columns, K of a stage, CTAs."""
    found = re.search(r"matmul_v(\d)_kernel(?:_cutlass)?I((?:L[ib]\d+E)+)", kernel.name)
    assert found, kernel.name
    version, values = int(found[1]), [int(v) for v in re.findall(r"L[ib](\d+)E", found[2])]
    columns = values[0]
    pair = 1 if version < 5 else values[1 if version == 7 else 2]
    k_stage = 64 if version == 7 else values[1]
    problem = HalfProduct.random(m, n, k, seed=seed)
    a, b = (dev.from_numpy(problem.stored(x, "bfloat16")) for x in (problem.a, problem.b))
    c = dev.empty((m, n), "uint16", name="c")
    maps: list[TensorMap] = []
    for buffer, rows, box in ((a, m, 128), (b, n, columns // pair)):
        if version > 2 or (version == 2 and values[2]):
            maps.append(columns_map(dev, buffer, "bfloat16", rows, 2 * k, (box, k_stage // 64)))
            continue
        inner = 8 if version == 1 else 64
        swizzle: Swizzle = "none" if version == 1 else "128b"
        dims, strides, whole = [k, rows], [2 * k], [inner, box]
        if values[2]:
            dims, strides, whole = [8, rows, k // 8], [2 * k, 16], [8, box, k_stage // 8]
        maps.append(
            dev.tensor_map(
                buffer, dtype="bfloat16", dims=dims, strides=strides, box=whole, swizzle=swizzle
            )
        )
    arguments: list[Argument] = [*maps, c, m, n, k, *([0, 0] if version >= 5 else [])]
    tiles = (m // 128) * (n // columns)
    block = kernel.program.function.directives["maxntid"][0]
    report = kernel.launch(
        min(tiles, dev.num_sms), block, arguments, smem=largest_shared(kernel), cluster=(pair, 1, 1)
    )
    return report, c, problem.expected("bfloat16")


def scaled_operands(
    dev: Device, m: int, n: int, k: int, seed: int
) -> tuple[ScaledProduct, list[Buffer]]:
    """NVFP4; buffers of a, b and of their blocked scales."""
    problem = ScaledProduct.random(m, n, k, seed=seed)
    both = problem.a, problem.b
    data = [*(x.packed for x in both), *(blocked(x.scales) for x in both)]
    return problem, [dev.from_numpy(d) for d in data]


def gpu_mode(dev: Device, kernel: Kernel, m: int, n: int, k: int, seed: int) -> Result:
    """Template arguments: K, the tile's three sizes, parts of K, whether rows of c are whole."""
    found = re.search(r"kernelILi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)ELb(\d)E", kernel.name)
    assert found, kernel.name
    whole_k, tile_m, tile_n, tile_k, parts, by_rows = map(int, found.groups())
    assert k == whole_k, f"K is {whole_k}"
    problem, (a, b, sfa, sfb) = scaled_operands(dev, m, n, k, seed)
    shape = (m, n) if by_rows else (n, m)
    out = "float32" if parts > 1 else "float16"
    c = dev.from_numpy(np.full(shape, 0 if parts > 1 else np.nan, out), name="c")
    maps = [
        dev.tensor_map(
            buffer,
            dtype="16u4_align8b",
            dims=[256, rows, k // 256],
            strides=[k // 2, 128],
            box=[256, box, tile_k // 256],
            swizzle="128b",
        )
        for buffer, rows, box in ((a, m, tile_m), (b, n, tile_n))
    ]
    report = kernel.launch(
        (parts, (m // tile_m) * (n // tile_n), 1),
        tile_m + 64,
        [*maps, sfa, sfb, c, c, m, n],
        smem=largest_shared(kernel),
    )
    expected = problem.expected(out)
    return report, c, expected if by_rows else expected.T


def nvfp4_gemm(dev: Device, kernel: Kernel, m: int, n: int, k: int, seed: int) -> Result:
    """A struct of sizes, maps of 32-byte columns, maps of scale atoms, and c, each at 128 bytes."""
    problem, (a, b, sfa, sfb) = scaled_operands(dev, m, n, k, seed)
    c = dev.empty((m, n), "float16", name="c")
    codes = [
        dev.tensor_map(
            buffer,
            dtype="uint8",
            dims=[k // 2, rows],
            strides=[k // 2],
            box=[32, 128],
            swizzle="32b",
        )
        for buffer, rows in ((a, m), (b, n))
    ]
    atoms = k // 64
    scales = [
        dev.tensor_map(
            buffer,
            dtype="uint8",
            dims=[16, 32, atoms, rows // 128],
            strides=[16, 512, 512 * atoms],
            box=[16, 32, 4, 1],
        )
        for buffer, rows in ((sfa, m), (sfb, n))
    ]
    params = struct.pack("<3i", m, n, k).ljust(128, b"\0")
    params += b"".join(x.tobytes() for x in (*codes, *scales)) + struct.pack("<Q", c.address)
    size = kernel.program.function.params[0].num_bytes
    report = kernel.launch((n // 128, m // 128, 1), 128, [params.ljust(size, b"\0")])
    return report, c, problem.expected()


def thunderkittens(dev: Device, kernel: Kernel, m: int, n: int, k: int, seed: int) -> Result:
    """A struct of seven global layouts: address, sizes, and at byte 128 of each a map."""
    found = re.search(r"configILi(\d+)ELi\d+ELi(\d+)E", kernel.name)
    assert found, kernel.name
    columns, parts = int(found[1]), int(found[2])
    problem, (a, b, sfa, sfb) = scaled_operands(dev, m, n, k, seed)
    one = dev.from_numpy(np.ones(1, np.float32))
    d = dev.empty((m, n), "uint16", name="d")

    def layout(buffer: Buffer, rows: int, row_bytes: int, made: TensorMap) -> bytes:
        head = struct.pack("<QQQQ", buffer.address, 0, rows, row_bytes)
        return head.ljust(128, b"\0") + made.tobytes() + bytes(128)

    def codes(buffer: Buffer, rows: int, box_rows: int) -> bytes:
        width = k // 2
        made = dev.tensor_map(
            buffer,
            dtype="uint8",
            dims=[128, rows, width // 128, 1, 1],
            strides=[width, 128, rows * width, rows * width],
            box=[128, box_rows, 1, 1, 1],
            swizzle="128b",
        )
        return layout(buffer, rows, width, made)

    def scales(buffer: Buffer, rows: int) -> bytes:
        atoms, row_atoms = k // 64, rows // 128
        made = dev.tensor_map(
            buffer,
            dtype="float16",
            dims=[256, atoms, row_atoms, 1],
            strides=[512, 512 * atoms, 512 * atoms * row_atoms],
            box=[256, 4, 1, 1],
        )
        head = struct.pack("<QQQQ", buffer.address, row_atoms, atoms, 256)
        return head.ljust(128, b"\0") + made.tobytes() + bytes(128)

    number = struct.pack("<Q", one.address).ljust(128, b"\0")
    width = columns // parts
    swizzle: Swizzle = "64b" if width == 32 else "32b"
    out = dev.tensor_map(
        d,
        dtype="bfloat16",
        dims=[width, m, n // width, 1, 1],
        strides=[2 * n, 2 * width, 2 * m * n, 2 * m * n],
        box=[width, 128, 1, 1, 1],
        swizzle=swizzle,
    )
    params = codes(a, m, 128) + scales(sfa, m) + number
    params += codes(b, n, columns // 2) + scales(sfb, n) + number + layout(d, m, n, out)
    tiles = (m // 128) * (n // columns)
    report = kernel.launch(
        min(tiles, dev.num_sms),
        kernel.program.function.directives["maxntid"][0],
        [params],
        cluster=(2, 1, 1),
        smem=largest_shared(kernel),
    )
    return report, d, problem.expected("bfloat16")


def deepgemm(dev: Device, kernel: Kernel, m: int, n: int, k: int, seed: int) -> Result:
    """Sizes, then maps of a, b, their scales (four of a row in 32 bits, rows innermost) and d."""
    found = re.search(r"ELj128ELj128ELj(\d)ELb0ELj(\d+)E", kernel.name)
    assert found, kernel.name
    pair, ctas = int(found[1]), int(found[2])
    b_kind = "e2m1" if "e2m1" in kernel.name else "e4m3"
    rng = np.random.default_rng(seed)
    a, b = (
        Scaled.random(rng, rows, k, element=kind, scale="ue8m0", vector=32)
        for rows, kind in ((m, "e4m3"), (n, b_kind))
    )
    d = dev.empty((m, n), "uint16", name="d")

    def codes(operand: Scaled, rows: int, box: int) -> TensorMap:
        packed = operand.element == "e2m1"
        return dev.tensor_map(
            dev.from_numpy(operand.packed),
            dtype="16u4_align16b" if packed else "uint8",
            dims=[k, rows],
            strides=[k // 2 if packed else k],
            box=[128, box],
            swizzle="128b",
        )

    def scales(operand: Scaled, rows: int) -> TensorMap:
        words = np.ascontiguousarray(operand.scales).view(np.uint32).T.copy()
        return dev.tensor_map(
            dev.from_numpy(words),
            dtype="uint32",
            dims=[rows, k // 128],
            strides=[4 * rows],
            box=[128, 1],
        )

    out = dev.tensor_map(
        d, dtype="bfloat16", dims=[n, m], strides=[2 * n], box=[64, 128], swizzle="128b"
    )
    maps = [codes(a, m, 128), codes(b, n, 128 // pair), scales(a, m), scales(b, n), out]
    report = kernel.launch(
        ctas, 256, [0, m, n, k, *maps], cluster=(pair, 1, 1), smem=largest_shared(kernel)
    )
    return report, d, ScaledProduct(a, b).expected("bfloat16")


FORMS: dict[str, Callable[..., Result]] = {
    "deepgemm": deepgemm,
    "gpu-mode": gpu_mode,
    "learn-cuda": learn_cuda,
    "nvfp4-gemm": nvfp4_gemm,
    "thunderkittens": thunderkittens,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ptx", type=Path)
    parser.add_argument("form", choices=list(FORMS))
    parser.add_argument("sizes", nargs=3, type=int, metavar="SIZE", help="M N K")
    parser.add_argument("--entry", default="")
    parser.add_argument("--num-sms", type=int, help="CTAs at once; default: the device's")
    parser.add_argument("--rules", choices=["ptx", "hardware"], default="hardware")
    parser.add_argument("--order", choices=ORDERS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    all_right = True
    for order in options.order or ORDERS:
        dev = Device(
            "sm_100", order=order, seed=options.seed, rules=options.rules, num_sms=options.num_sms
        )
        module = dev.load_ptx(options.ptx.read_text())
        (name,) = (name for name in module.kernel_names if options.entry in name)
        begin = time.perf_counter()
        report, c, expected = FORMS[options.form](
            dev, module.kernel(name), *options.sizes, options.seed
        )
        wrong = int((c.to_numpy() != expected).sum())
        seconds = time.perf_counter() - begin
        verdict = "right" if not wrong else f"WRONG in {wrong} elements"
        print(f"{order}: {verdict}, {report.total_instructions} instructions, {seconds:.1f} s")
        all_right &= not wrong
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
