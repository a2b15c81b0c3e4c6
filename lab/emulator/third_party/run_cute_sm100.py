"""Runs Blackwell GEMMs that CuTe DSL compiled on the emulator.

    python lab/emulator/third_party/run_cute_sm100.py FILE.ptx FORM M N K [options]

FORM is the example of NVIDIA/cutlass (examples/python/CuTeDSL/cute/blackwell/kernel) that the text
comes from, for K-major operands and row-major C:

    dense    dense_gemm/dense_gemm.py: tensor maps of a, b and c, fp16, static shapes; --tma-store
             or not as it was compiled
    scaled   blockscaled_gemm/dense_blockscaled_gemm_persistent.py
    grouped  blockscaled_grouped_gemm/grouped_blockscaled_gemm.py; M, N and K are lists of the
             groups' sizes, such as 128,256,64
    geforce  blackwell_geforce's dense_blockscaled_gemm_persistent_cooperative.py or _pingpong.py,
             static shapes, tiles of 128 x 128 x 128; with --arch sm_120 --epilogue-rows 64

The boxes are those that CuTe's host code asks for: 128 bytes of K with the 128-byte swizzle for a
and b, whole 128 x 4 atoms of scales as 16-bit words, 32 columns for c; a copy that is multicast to
several CTAs is cut into as many parts. Operands and the exact result: tests/emulator/third_party/
problems.py. Exit code 0: right in every order that was asked for.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from nibblas.emulator import ORDERS, Buffer, Device, Report  # noqa: E402
from nibblas.emulator.device import Kernel  # noqa: E402
from nibblas.emulator.maps import TensorMap  # noqa: E402
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES, DataType, Swizzle  # noqa: E402
from tests.emulator.third_party.problems import (  # noqa: E402
    HalfProduct,
    ScaledProduct,
    blocked,
)

Pair = tuple[int, int]
Result = tuple[Report, list[tuple[Buffer, npt.NDArray[Any]]]]
"""Of a launch; outputs and what they should hold."""
OUT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
STORED = {"float16": "float16", "bfloat16": "uint16", "float32": "float32"}


def divisor(value: int) -> bytes:
    """CuTe's fast_divmod_divisor<32>: divisor, multiplier and two shifts, padded to 12 bytes.

    n // d = (h + ((n - h) >> s1)) >> s2 with h the high half of n * multiplier. Granlund and
    Montgomery, "Division by Invariant Integers using Multiplication", figure 4.1.
    """
    bits = (value - 1).bit_length()
    multiplier = (1 << 32) * ((1 << bits) - value) // value + 1
    return struct.pack("<IIBBxx", value, multiplier, min(bits, 1), max(bits - 1, 0))


def shape_bytes(*extents: int) -> bytes:
    return struct.pack(f"<{len(extents)}i", *extents)


def split(box: Pair, parts: int) -> Pair:
    """(k atoms, row atoms) of each part of a copy that several CTAs share: by rows if they can."""
    k_atoms, row_atoms = box
    return (
        (k_atoms, row_atoms // parts) if row_atoms % parts == 0 else (k_atoms // parts, row_atoms)
    )


class Run:
    """One launch: a device, the options, and the maps CuTe's host code would make."""

    def __init__(self, dev: Device, options: argparse.Namespace) -> None:
        self.dev, self.options = dev, options
        self.tile: Pair = options.tile
        self.cluster: Pair = options.cluster
        self.pair = 2 if self.tile[0] == 256 else 1
        k_tile = 256 if options.element == "e2m1" else 128
        self.k_tile_atoms = k_tile // (4 * options.vector)

    def operand_map(
        self, buffer: Buffer, rows: int, k: int, kind: DataType, box_rows: int
    ) -> TensorMap:
        """Rows of a or b, [rows, k]; 128 bytes of each per copy."""
        per_byte = {"16u4_align8b": 2, "uint8": 1, "float16": 0.5}[kind]
        pitch = int(k / per_byte)
        dims, strides, box = [k, rows], [pitch], [int(128 * per_byte), box_rows]
        if self.options.form in ("scaled", "grouped"):
            dims, strides, box = [*dims, 1], [*strides, pitch * rows], [*box, 1]
        return self.dev.tensor_map(
            buffer, dtype=kind, dims=dims, strides=strides, box=box, swizzle="128b"
        )

    def scale_map(self, buffer: Buffer, rows: int, k_atoms: int, box: Pair) -> TensorMap:
        """Atoms of 512 bytes, [row atoms, k_atoms]; ``box``: (k atoms, row atoms) of a copy.

        CuTe puts the row atoms first where a tile has a single atom along k.
        """
        row_atoms = -(-rows // 128)
        dims, strides = [k_atoms, row_atoms], [512, 512 * k_atoms]
        if self.k_tile_atoms == 1:
            dims, strides, box = dims[::-1], strides[::-1], box[::-1]
        return self.dev.tensor_map(
            buffer,
            dtype="uint16",
            dims=[256, *dims, 1],
            strides=[*strides, 512 * k_atoms * row_atoms],
            box=[256, *box, 1],
        )

    def out_map(self, buffer: Buffer, m: int, n: int) -> TensorMap:
        kind: DataType = self.options.out
        size = OUT_BYTES[kind]
        dims, strides, box = [n, m], [n * size], [32, self.options.epilogue_rows]
        if self.options.form in ("scaled", "grouped"):
            dims, strides, box = [*dims, 1], [*strides, m * n * size], [*box, 1]
        swizzle: Swizzle = "128b" if size == 4 else "64b"
        return self.dev.tensor_map(
            buffer, dtype=kind, dims=dims, strides=strides, box=box, swizzle=swizzle
        )

    def launch(self, kernel: Kernel, grid: Any, arguments: list[Any]) -> Any:
        params = kernel.program.function.params
        padded = [*arguments, *(bytes(param.num_bytes) for param in params[len(arguments) :])]
        directives = kernel.program.function.directives
        block = directives.get("reqntid") or directives["maxntid"]
        return kernel.launch(
            grid,
            (block[0], 1, 1),
            padded,
            cluster=(*self.cluster, 1),
            smem=self.dev.limits.shared_bytes - kernel.program.shared_bytes,
        )

    def operands(self, m: int, n: int, k: int) -> tuple[ScaledProduct, list[Buffer]]:
        """A block-scaled problem; buffers of a, b, sfa, sfb and c."""
        o, dev = self.options, self.dev
        formats = {"element": o.element, "scale": o.scale, "vector": o.vector}
        problem = ScaledProduct.random(m, n, k, seed=o.seed, **formats)
        both = problem.a, problem.b
        data = [*(x.packed for x in both), *(blocked(x.scales) for x in both)]
        names = ["a", "b", "sfa", "sfb"]
        buffers = [dev.from_numpy(d, name=name) for d, name in zip(data, names, strict=True)]
        return problem, [*buffers, dev.empty((m, n), STORED[o.out], name="c")]

    def scaled_maps(self, buffers: list[Buffer], m: int, n: int, k: int) -> list[Any]:
        """The maps of a block-scaled product, and the sizes that go with each."""
        a, b, sfa, sfb, c = buffers
        across_n, across_m = self.cluster[1], self.cluster[0] // self.pair
        kind: DataType = "16u4_align8b" if self.options.element == "e2m1" else "uint8"
        k_atoms = -(-k // (4 * self.options.vector))
        sfb_box = split((self.k_tile_atoms, -(-self.tile[1] // 128)), self.pair * across_m)
        of_a, of_b = shape_bytes(m, k, 1), shape_bytes(n, k, 1)
        return [
            *(self.operand_map(a, m, k, kind, 128 // across_n), of_a),
            *(self.operand_map(b, n, k, kind, self.tile[1] // self.pair // across_m), of_b),
            *(self.scale_map(sfa, m, k_atoms, (self.k_tile_atoms // across_n, 1)), of_a),
            *(self.scale_map(sfb, n, k_atoms, sfb_box), of_b),
            *(self.out_map(c, m, n), shape_bytes(m, n, 1)),
        ]

    def dense(self, kernel: Kernel, m: int, n: int, k: int) -> Result:
        problem = HalfProduct.random(m, n, k, seed=self.options.seed)
        a = self.dev.from_numpy(problem.a, name="a")
        b = self.dev.from_numpy(problem.b, name="b")
        c = self.dev.empty((m, n), STORED[self.options.out], name="c")
        across_n, across_m = self.cluster[1], self.cluster[0] // self.pair
        a_rows = self.tile[0] // self.pair // across_n
        b_rows = self.tile[1] // self.pair // across_m
        first = kernel.program.function.params[0].num_bytes
        arguments: list[Any] = [
            bytes(first),  # of the tiled MMA: negations and lanes that are not written
            self.operand_map(a, m, k, "float16", a_rows),
            self.operand_map(b, n, k, "float16", b_rows),
            self.out_map(c, m, n) if self.options.tma_store else c,
        ]
        grid = (self.pair * m // self.tile[0], n // self.tile[1], 1)
        report = self.launch(kernel, grid, arguments[first == TENSOR_MAP_BYTES :])
        return report, [(c, problem.expected(self.options.out))]

    def scaled(self, kernel: Kernel, m: int, n: int, k: int) -> Result:
        problem, buffers = self.operands(m, n, k)
        tiles = (-(-m // 128), -(-n // self.tile[1]))
        clusters = [-(-t // c) for t, c in zip(tiles, self.cluster, strict=True)]
        schedule = [*(shape_bytes(t) for t in (*tiles, 1)), *map(divisor, clusters)]
        maps = self.scaled_maps(buffers, m, n, k)
        arguments = [bytes(12), bytes(12), *maps, *schedule, *schedule]
        count = min(clusters[0] * clusters[1], self.options.clusters)
        report = self.launch(kernel, (*self.cluster, count), arguments)
        return report, [(buffers[-1], problem.expected(self.options.out))]

    def geforce(self, kernel: Kernel, m: int, n: int, k: int) -> Result:
        """For sm_120: 64 bytes of K in a copy, no dimension for batches."""
        problem, (a, b, sfa, sfb, c) = self.operands(m, n, k)
        maps = [
            self.dev.tensor_map(
                buffer,
                dtype="16u4_align8b",
                dims=[k, rows],
                strides=[k // 2],
                box=[128, 128],
                swizzle="64b",
            )
            for buffer, rows in ((a, m), (b, n))
        ]
        maps += [
            self.dev.tensor_map(
                buffer,
                dtype="uint16",
                dims=[256, k // 64, rows // 128],
                strides=[512, 8 * k],
                box=[256, 2, 1],
            )
            for buffer, rows in ((sfa, m), (sfb, n))
        ]
        tiles = (m // 128, n // 128)
        schedule = [bytes(16), *map(divisor, tiles)]
        count = min(tiles[0] * tiles[1], self.options.clusters)
        report = self.launch(kernel, (1, 1, count), [*maps, self.out_map(c, m, n), *schedule])
        return report, [(c, problem.expected(self.options.out))]

    def grouped(self, kernel: Kernel, *sizes: list[int]) -> Result:
        """Sizes and addresses lie in device memory; every CTA makes its maps from given ones."""
        dev, groups = self.dev, list(zip(*sizes, strict=True))
        made = [self.operands(*group) for group in groups]
        addresses = [[buffer.address for buffer in buffers] for _, buffers in made]
        shapes = np.array([[*group, 1] for group in groups], np.int32)
        strides = np.array([[[k, 1], [k, 1], [n, 1]] for _, n, k in groups], np.int32)
        operands = np.array([[a, b, c] for a, b, _, _, c in addresses], np.int64)
        scales = np.array([[sfa, sfb] for _, _, sfa, sfb, _ in addresses], np.int64)
        total = self.options.clusters
        ctas = total * self.cluster[0] * self.cluster[1]
        _, initial = self.operands(32, 32, 32)
        schedule = [shape_bytes(total), divisor(1), divisor(1)]
        arguments = [
            *(bytes(12), bytes(12), *self.scaled_maps(initial, 32, 32, 32), *schedule, *schedule),
            *(dev.from_numpy(table) for table in (shapes, strides, operands, scales)),
            dev.empty((ctas, 5, TENSOR_MAP_BYTES), name="maps"),
        ]
        report = self.launch(kernel, (*self.cluster, total), arguments)
        out = self.options.out
        return report, [(buffers[-1], problem.expected(out)) for problem, buffers in made]


def numbers(text: str) -> Pair:
    first, _, second = text.partition("x")
    return int(first), int(second)


def listed(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ptx", type=Path)
    parser.add_argument("form", choices=["dense", "scaled", "grouped", "geforce"])
    parser.add_argument("sizes", nargs=3, type=listed, metavar="SIZE", help="M N K")
    parser.add_argument("--tile", type=numbers, default=(128, 128), help="MMA tile, MxN")
    parser.add_argument("--cluster", type=numbers, default=(1, 1), help="MxN")
    parser.add_argument("--clusters", type=int, default=148, help="at most at once")
    parser.add_argument("--out", choices=list(OUT_BYTES), default="float16")
    parser.add_argument("--element", choices=["e2m1", "e4m3"], default="e2m1")
    parser.add_argument("--scale", choices=["e4m3", "ue8m0"], default="e4m3")
    parser.add_argument("--vector", type=int, default=16, help="elements of a scale")
    parser.add_argument("--tma-store", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epilogue-rows", type=int, default=128)
    parser.add_argument("--arch", default="sm_100")
    parser.add_argument("--rules", choices=["ptx", "hardware"], default="hardware")
    parser.add_argument("--order", choices=ORDERS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    all_right = True
    for order in options.order or ORDERS:
        dev = Device(options.arch, order=order, seed=options.seed, rules=options.rules)
        module = dev.load_ptx(options.ptx.read_text())
        (name,) = module.kernel_names
        begin = time.perf_counter()
        run = Run(dev, options)
        sizes = options.sizes if options.form == "grouped" else [s[0] for s in options.sizes]
        report, products = getattr(run, options.form)(module.kernel(name), *sizes)
        wrong = sum(int((c.to_numpy() != expected).sum()) for c, expected in products)
        seconds = time.perf_counter() - begin
        verdict = "right" if not wrong else f"WRONG in {wrong} elements"
        print(f"{order}: {verdict}, {report.total_instructions} instructions, {seconds:.1f} s")
        all_right &= not wrong
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
