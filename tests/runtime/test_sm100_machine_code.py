"""The datacenter Blackwell kernel as sm_100f code: what it uses, and its instructions counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100 import adapted, choose_fused, choose_wide_deep
from nibblas.plan.sm100_config import Sm100Config
from nibblas.runtime import elf
from nibblas.runtime.compile import Compiled, resource_problems
from nibblas.runtime.source import KernelSource
from tests.runtime.configs import compile_source
from tests.runtime.sass import opcodes

MAX_REGISTERS = 128
REGISTERS_PER_SM = 65536

FUSED_ALONE = choose_fused([GroupShape(128, 512, 512)])
FUSED_IN_FOURS = choose_fused([GroupShape(128, 512, 4096)])
WIDE = choose_wide_deep([GroupShape(128, 4096, 4096)], 148)
DEEP = choose_wide_deep([GroupShape(128, 128, 4096)], 148)
SHALLOW = replace(DEEP, stages=3)


def variant(config: Sm100Config, kind: str, products: int = 1) -> Sm100Config:
    return adapted(
        config,
        products=products,
        bulk_scales=kind == "bulk",
        tensor_copies=kind != "loaded",
    )


CONFIGS = {
    "fused": variant(FUSED_ALONE, "bulk"),
    "fused, cluster of 4": variant(FUSED_IN_FOURS, "bulk"),
    "wide": variant(WIDE, "bulk"),
    "deep or shallow": variant(SHALLOW, "bulk"),
    "deep or shallow, gathered scales": variant(SHALLOW, "gathered"),
    "wide, gathered scales": variant(WIDE, "gathered"),
    "loaded codes": variant(FUSED_ALONE, "loaded"),
    "list of 56, wide": variant(WIDE, "bulk", products=56),
}

every_kind = pytest.mark.parametrize("name", CONFIGS)


@dataclass(frozen=True)
class Code:
    """A compiled configuration and how often each instruction occurs in it."""

    config: Sm100Config
    compiled: Compiled
    found: Counter[str]


@pytest.fixture(scope="module")
def code(nvrtc: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Code]:
    folder: Path = tmp_path_factory.mktemp("sm100")

    @cache
    def code_of(name: str) -> Code:
        config = CONFIGS[name]
        compiled = compile_source(KernelSource.of(config, config.target((10, 0))))
        return Code(config, compiled, opcodes(compiled.cubin, folder))

    return code_of


@every_kind
def test_no_spills_no_stack_and_few_registers(code: Callable[[str], Code], name: str) -> None:
    """So few that as many CTAs as shared and tensor memory allow have them.

    Registers are given out to warps in steps of 256: CUDA C++ Programming Guide, "Technical
    Specifications per Compute Capability", and the occupancy calculator.
    """
    config, compiled = code(name).config, code(name).compiled
    assert resource_problems(compiled) == []
    used = compiled.resources[config.entry]
    assert (used.stack_bytes, used.spill_store_bytes, used.spill_load_bytes) == (0, 0, 0)
    assert 0 < used.registers <= MAX_REGISTERS
    per_warp = -(-used.registers * 32 // 256) * 256
    assert config.ctas_per_sm * (config.threads // 32) * per_warp <= REGISTERS_PER_SM
    assert used.shared_bytes == 0, "all shared memory is asked for at the launch"
    assert used.barriers == 1, "__syncthreads alone"
    families = {opcode.split(".")[0] for opcode in code(name).found}
    assert not families & {"LDL", "STL"}, "local memory"


@every_kind
def test_exported_sizes_are_the_hosts(code: Callable[[str], Code], name: str) -> None:
    config, cubin = code(name).config, code(name).compiled.cubin
    sizes = {
        "nibblas_stage_bytes": (128 + config.tile_n) * (128 + 16),
        "nibblas_parameter_bytes": 64 + config.capacity * 576,
    }
    assert config.exported_sizes() == sizes
    for symbol, size in sizes.items():
        assert int.from_bytes(elf.read_variable(cubin, symbol), "little") == size


@every_kind
def test_tensor_core_instructions(code: Callable[[str], Code], name: str) -> None:
    """A stage of 256 values along K is four steps, unrolled; each role has one loop.

    What tcgen05 becomes: mma of kind::mxf4nvf4 with a scale per 16 values is UTCOMMA.4X, cp of
    32x128b to all quarters UTCCP.T.S.4x32dp128bit, commit UTCBAR, ld LDTM.
    """
    config, found = code(name).config, code(name).found
    assert family(found, "UTCOMMA") == {"UTCOMMA.4X": 4}, "one MMA a step"
    # A step's scales: 128 rows of tokens, and every 128 rows of weights.
    assert family(found, "UTCCP") == {"UTCCP.T.S.4x32dp128bit": 4 * (1 + config.tile_n // 128)}
    # Commits: the slot's, to all CTAs of the cluster, and the sums'.
    slots = {"UTCBAR": 1, "UTCBAR.MULTICAST": 1} if config.cluster > 1 else {"UTCBAR": 2}
    assert family(found, "UTCBAR") == slots
    # The epilogue's loop reads 16 columns at a time.
    assert family(found, "LDTM") == {"LDTM.x16": 1}


@every_kind
def test_copies_of_codes(code: Callable[[str], Code], name: str) -> None:
    """Boxes of tokens and of weights by TMA, multicast within a cluster only for tokens."""
    config, found = code(name).config, code(name).found
    if not config.tensor_copies:
        wanted: dict[str, int] = {}
    elif config.cluster == 1:
        wanted = {"UTMALDG.3D": 2}
    else:
        wanted = {"UTMALDG.3D": 1, "UTMALDG.3D.MULTICAST": 1}
    assert family(found, "UTMALDG") == wanted
    assert family(found, "UTMAPF") == ({"UTMAPF.L2.3D": 2} if config.prefetches else {})


@every_kind
def test_copies_of_scales(code: Callable[[str], Code], name: str) -> None:
    """A bulk copy of the tokens' atoms, and one for every 128 rows of weights; or none at all."""
    config, found = code(name).config, code(name).found
    w_copies = config.tile_n // 128 if config.bulk_scales else 0
    x_copies = 1 if config.bulk_scales else 0
    if config.multicast_scales:
        wanted = {"UBLKCP.S.G": w_copies, "UBLKCP.S.G.MULTICAST": x_copies}
    else:
        wanted = {"UBLKCP.S.G": w_copies + x_copies} if config.bulk_scales else {}
    assert family(found, "UBLKCP") == wanted


@every_kind
def test_allocation_and_cluster_barriers(code: Callable[[str], Code], name: str) -> None:
    config, found = code(name).config, code(name).found
    # tcgen05.alloc is an attempt, and a loop of further ones where another CTA has the columns.
    assert family(found, "UTCATOMSWS") == {
        "UTCATOMSWS.FIND_AND_SET.ALIGN": 2,
        "UTCATOMSWS.AND": 1,
    }
    in_clusters = 1 if config.cluster > 1 else 0
    assert (found["UCGABAR_ARV"], found["UCGABAR_WAIT"]) == (in_clusters, in_clusters)


def family(found: Counter[str], name: str) -> dict[str, int]:
    """The instructions of that name, by their modifiers."""
    return {opcode: n for opcode, n in found.items() if opcode.split(".")[0] == name}
