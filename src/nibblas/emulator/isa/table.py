"""All families. Importing this module fills ``registry.HANDLERS``; a new family adds its name."""

from __future__ import annotations

from nibblas.emulator.isa import (
    approximate,
    async_copies,
    atomics,
    barriers,
    bulk,
    carry,
    clusters,
    control,
    conversions,
    fences,
    float_conversions,
    floating,
    grid,
    half,
    integer,
    launch_control,
    logic,
    matrix_memory,
    mbarriers,
    memory,
    mma,
    mma_block_scaled,
    moves,
    narrow_conversions,
    predicates,
    system,
    tcgen05_copies,
    tcgen05_memory,
    tcgen05_mma,
    tcgen05_sync,
    tensors,
    warp_ops,
    wgmma,
)
from nibblas.emulator.isa.registry import Family, Handler, find_handler

__all__ = ["FAMILIES", "all_handlers", "find_handler"]

_MODULES = (
    *(moves, integer, floating, conversions, predicates, control, memory, barriers),
    *(mbarriers, async_copies, bulk, tensors, fences, clusters, grid, launch_control),
    *(wgmma, logic, carry, warp_ops, approximate, half, float_conversions, narrow_conversions),
    *(tcgen05_memory, tcgen05_copies, tcgen05_sync, tcgen05_mma),
    *(mma, mma_block_scaled, matrix_memory, atomics, system),
)

FAMILIES: tuple[Family, ...] = tuple(
    getattr(module, module.__name__.rpartition(".")[2]) for module in _MODULES
)
"""A module's family bears the module's name."""


def all_handlers() -> list[Handler]:
    """Every handler once, in the order of the families and their files."""
    return [handler for family in FAMILIES for handler in family.handlers]
