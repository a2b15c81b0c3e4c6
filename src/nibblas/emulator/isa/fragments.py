"""Which lane holds which element of a matrix. PTX ISA, "Matrix Fragments for mma".

With g = lane / 4 and t = lane % 4, and e elements of one operand per 32-bit register (one for
.f64): register r of A holds row g + 8 (r % 2), columns 4 e (r / 2) + e t + 0..e-1; register r of B
column g, rows 4 e r + e t + 0..e-1; element i of C and D row g + 8 (i / 2), column 2 t + i % 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from nibblas.emulator.machine.memory import Array


@dataclass(frozen=True)
class Fragment:
    """Where the elements of a matrix lie in registers.

    Attributes:
        index: position in the elements [registers, 32 lanes, elements per register], flat.
            A and B: [K, rows]; C and D: [N, M].
        registers: per lane.
    """

    index: Array
    registers: int


def _positions(registers: int, per_register: int) -> tuple[Array, Array, Array, Array]:
    """(r, g, t, j) of every element, in the order of the registers."""
    r, lane, j = np.indices((registers, 32, per_register))
    return r.ravel(), lane.ravel() // 4, lane.ravel() % 4, j.ravel()


def _fragment(first: Array, second: Array, shape: tuple[int, int], registers: int) -> Fragment:
    index = np.zeros(shape, np.intp)
    index[first, second] = np.arange(first.size)
    return Fragment(index, registers)


@cache
def a_fragment(m: int, k: int, per_register: int) -> Fragment:
    registers = m * k // (32 * per_register)
    r, g, t, j = _positions(registers, per_register)
    halves = m // 8
    rows = g + 8 * (r % halves)
    columns = 4 * per_register * (r // halves) + per_register * t + j
    return _fragment(columns, rows, (k, m), registers)


@cache
def b_fragment(n: int, k: int, per_register: int) -> Fragment:
    registers = n * k // (32 * per_register)
    r, g, t, j = _positions(registers, per_register)
    return _fragment(4 * per_register * r + per_register * t + j, g, (k, n), registers)


@cache
def c_fragment(m: int, n: int, per_register: int) -> Fragment:
    """``per_register``: 2 for .f16 results, else 1."""
    registers = m * n // (32 * per_register)
    r, g, t, j = _positions(registers, per_register)
    i = per_register * r + j
    return _fragment(2 * t + i % 2, g + 8 * (i // 2), (n, m), registers)
