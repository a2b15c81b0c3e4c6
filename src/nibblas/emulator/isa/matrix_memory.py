"""Matrices between shared memory and fragments. PTX ISA, "ldmatrix", "stmatrix", "movmatrix".

Lane i gives the address of row i % 8 of matrix i / 8; a row is 16 bytes, 16-byte aligned. Of each
matrix a lane holds elements 2 (lane % 4) and the next of row lane / 4; with .trans of that column.
Rows of 16 narrow elements and a gap become rows of 16 bytes, each with its element in the low bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.isa.build import BLACKWELL, Build, put
from nibblas.emulator.isa.mma import slots_of
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import Path
from nibblas.emulator.machine.memory import SHARED_WINDOW, Array
from nibblas.emulator.machine.warp import Warp

matrix_memory = Family("matrix_memory")

_ROW_BYTES = 16
_SHARED = "[space:shared|shared::cta]"


def transposed(registers: Array) -> Array:
    """uint32 [n, 32]: the fragments of n matrices, transposed."""
    matrices = np.ascontiguousarray(registers).view(np.uint16).reshape(-1, 8, 8)
    turned = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    return turned.view(np.uint32).reshape(-1, 32)


def _rows(build: Build, operand: int) -> tuple[Callable[[Warp], Array], Path]:
    """Addresses of rows, and the way to them; generic ones have to lie in shared memory too."""
    addresses = build.address(operand)
    path = Path("shared", 4, 4)
    if build.has("space"):
        return addresses, path
    window = np.full(32, SHARED_WINDOW, np.uint64)
    return lambda warp: addresses(warp) - window, path


def widened(registers: Array, bits: int) -> Array:
    """uint32 [n, 32]: rows of 16 elements of so many bits, then a gap, to one in each byte."""
    rows = np.ascontiguousarray(registers).view(np.uint8).reshape(-1, 16)
    ones = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits]
    padded = np.zeros((len(rows), 16, 8), np.uint8)
    padded[:, :, :bits] = ones.reshape(len(rows), 16, bits)
    codes = np.packbits(padded, axis=2, bitorder="little")
    return codes.reshape(-1, 128).view(np.uint32)


@matrix_memory.instruction(
    f"ldmatrix sync aligned m8n8 num:x1|x2|x4 [trans] {_SHARED} b16",
    section="ldmatrix",
    anchor="warp-level-matrix-instructions-ldmatrix",
    converges=True,
)
def ldmatrix(build: Build) -> Step:
    return _load(build, transposed if build.has("trans") else lambda registers: registers)


@matrix_memory.instruction(
    f"ldmatrix sync aligned m8n16 num:x1|x2|x4 {_SHARED} b8x16 from:b6x16_p32|b4x16_p64",
    section="ldmatrix",
    anchor="warp-level-matrix-instructions-ldmatrix",
    converges=True,
)
def ldmatrix_narrow(build: Build) -> Step:
    build.require_arch(f".{build.get('from')}", *BLACKWELL)
    bits = int(build.get("from")[1])
    return _load(build, lambda registers: widened(registers, bits))


def _load(build: Build, change: Callable[[Array], Array]) -> Step:
    """``change``: of the fragments of n matrices, uint32 [n, 32]."""
    build.count(2)
    count = int(build.get("num")[1:])
    slots = slots_of(build, 0, "b32", count, dest=True)
    addresses, path = _rows(build, 1)
    rows = np.arange(32) % (8 * count)  # lanes past the last row read a row once more

    def step(warp: Warp) -> None:
        where = addresses(warp)
        loaded = path.load(warp, where if count == 4 else where[rows], None)
        registers = change(loaded[: 8 * count].reshape(count, 32))
        for slot, register in zip(slots, registers, strict=True):
            put(warp, slot, register)
        warp.cta.machine.bytes["load shared"] += 8 * count * _ROW_BYTES

    return step


@matrix_memory.instruction(
    f"stmatrix sync aligned m8n8 num:x1|x2|x4 [trans] {_SHARED} b16",
    section="stmatrix",
    anchor="warp-level-matrix-instructions-stmatrix",
    converges=True,
)
def stmatrix(build: Build) -> Step:
    build.count(2)
    count = int(build.get("num")[1:])
    slots = slots_of(build, 1, "b32", count)
    addresses, path = _rows(build, 0)
    turn = build.has("trans")
    lanes = None if count == 4 else np.arange(8 * count)

    def step(warp: Warp) -> None:
        registers = np.empty((count, 32), np.uint32)
        for row, slot in enumerate(slots):
            registers[row] = warp.r[slot]
        if turn:
            registers = transposed(registers)
        where = addresses(warp)
        values = registers.reshape(8 * count, 4)
        path.store(warp, where if lanes is None else where[lanes], lanes, values)
        warp.cta.machine.bytes["store shared"] += 8 * count * _ROW_BYTES

    return step


@matrix_memory.instruction(
    "movmatrix sync aligned m8n8 trans b16",
    section="movmatrix",
    anchor="warp-level-matrix-instructions-movmatrix",
    converges=True,
)
def movmatrix(build: Build) -> Step:
    build.count(2)
    source, dest = build.source(1, "b32"), build.dest(0, "b32")

    def step(warp: Warp) -> None:
        put(warp, dest, transposed(warp.r[source])[0])

    return step
