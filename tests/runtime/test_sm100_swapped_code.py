"""The kernel with weights on the M side as sm_100f code: what it uses, its instructions counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from nibblas.plan.sm100 import adapted
from nibblas.plan.sm100_config import Sm100Config
from nibblas.plan.sm100_swapped import swapped
from nibblas.runtime import elf
from nibblas.runtime.compile import Compiled, resource_problems
from nibblas.runtime.source import KernelSource
from tests.runtime.configs import compile_source
from tests.runtime.sass import opcodes
from tests.runtime.test_sm100_machine_code import family

PAIR, SINGLE = swapped(2, 128), swapped(1, 128)
CONFIGS = {
    "pairs": PAIR,
    "pairs, gathered scales": adapted(PAIR, products=1, bulk_scales=False, tensor_copies=True),
    "single": SINGLE,
    "loaded codes": adapted(PAIR, products=1, bulk_scales=False, tensor_copies=False),
    "list of 56": adapted(PAIR, products=56, bulk_scales=True, tensor_copies=True),
}

every_kind = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(scope="module")
def code(
    nvrtc: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Sm100Config, Compiled, Counter[str]]]:
    folder: Path = tmp_path_factory.mktemp("swapped")

    @cache
    def code_of(name: str) -> tuple[Sm100Config, Compiled, Counter[str]]:
        config = CONFIGS[name]
        compiled = compile_source(KernelSource.of(config, config.target((10, 0))))
        return config, compiled, opcodes(compiled.cubin, folder)

    return code_of


@every_kind
def test_no_spills_no_stack_and_registers_for_all_threads(
    code: Callable[..., tuple[Sm100Config, Compiled, Counter[str]]], name: str
) -> None:
    config, compiled, found = code(name)
    assert resource_problems(compiled) == []
    used = compiled.resources[config.entry]
    assert (used.stack_bytes, used.spill_store_bytes, used.spill_load_bytes) == (0, 0, 0)
    assert 0 < used.registers * config.threads <= 65536
    assert (used.shared_bytes, used.barriers) == (0, 1), "__syncthreads alone"
    assert not {opcode.split(".")[0] for opcode in found} & {"LDL", "STL"}, "local memory"
    largest = (256 // config.cluster + 128) * 128 + 3 * 2048
    assert config.exported_sizes()["nibblas_stage_bytes"] == largest
    for symbol, size in config.exported_sizes().items():
        assert int.from_bytes(elf.read_variable(compiled.cubin, symbol), "little") == size


@every_kind
def test_tensor_core_instructions(
    code: Callable[..., tuple[Sm100Config, Compiled, Counter[str]]], name: str
) -> None:
    """Four steps a stage: an MMA each, of a pair where there are pairs, and the scales of 128
    weight rows and of one or two times 128 tokens."""
    config, _, found = code(name)
    pair = ".2CTA" if config.cluster == 2 else ""
    assert family(found, "UTCOMMA") == {f"UTCOMMA{pair}.4X": 4}
    assert family(found, "UTCCP") == {f"UTCCP.T.S{pair}.4x32dp128bit": 4 * 3}
    multicast = ".2CTA.MULTICAST" if config.cluster == 2 else ""
    assert family(found, "UTCBAR") == {f"UTCBAR{multicast}": 2}, "of a slot, of sums"
    assert family(found, "LDTM") == {"LDTM.x16": 1}


@every_kind
def test_copies(code: Callable[..., tuple[Sm100Config, Compiled, Counter[str]]], name: str) -> None:
    """Boxes of tokens in a loop, one of weights; atoms of scales likewise."""
    config, _, found = code(name)
    assert family(found, "UTMALDG") == ({"UTMALDG.3D": 2} if config.tensor_copies else {})
    assert family(found, "UBLKCP") == ({"UBLKCP.S.G": 2} if config.bulk_scales else {})


@every_kind
def test_no_fence_of_the_whole_gpu_while_warps_work(
    code: Callable[..., tuple[Sm100Config, Compiled, Counter[str]]], name: str
) -> None:
    """Arrivals at the other CTA order nothing beyond the CTA; the set-up's barrier does."""
    config, _, found = code(name)
    assert found["MEMBAR.ALL.GPU"] == (1 if config.cluster == 2 else 0)
    barriers = 2 if config.cluster == 2 else 0
    assert (found["UCGABAR_ARV"], found["UCGABAR_WAIT"]) == (barriers, barriers)


@every_kind
def test_programmatic_launches(
    code: Callable[..., tuple[Sm100Config, Compiled, Counter[str]]], name: str
) -> None:
    """griddepcontrol.wait is ACQBULK, launch_dependents PREEXIT."""
    _, _, found = code(name)
    assert (found["ACQBULK"], found["PREEXIT"]) == (1, 1)
