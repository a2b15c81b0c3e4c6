"""What two public kernels for B200 do besides multiplying, in the datacenter Blackwell kernel.

docs/parity.md names each of these tests beside the behaviour that it holds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import nibblas
from nibblas import env
from nibblas.backends.sm100 import Sm100Backend
from nibblas.backends.sm100_launch import Sm100Choice
from nibblas.emulator import Deadlock, EmulatedDriver, IllegalOperation, Report, backend, emulating
from nibblas.emulator.compile import kernel_ptx
from nibblas.emulator.machine.tensor_memory import TensorMemory
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import PRESETS, choose_fused, choose_wide_deep
from nibblas.plan.sm100_config import Sm100Config
from nibblas.runtime import source
from tests.api.problems import assert_right, offs_of, random_array

pytestmark = pytest.mark.usefixtures("nvrtc")

each_preset = pytest.mark.parametrize("preset", PRESETS)

FUSED = choose_fused([GroupShape(1, 512, 512)])
FUSED_IN_FOURS = choose_fused([GroupShape(1, 512, 4096)])
WIDE = choose_wide_deep([GroupShape(1, 4096, 2048)], 148)
DEEP = choose_wide_deep([GroupShape(1, 128, 512)], 148)
SHALLOW = replace(DEEP, stages=3)


@contextmanager
def planned(config: Sm100Config) -> Iterator[None]:
    """Inside, every product takes that configuration."""
    original = Sm100Backend.plan

    def plan(self: Sm100Backend, problem: Problem) -> Plan:
        choice = Sm100Choice("fused_persistent", (config,))
        return replace(original(self, problem), config=choice)

    nibblas.ops.forget_plans()
    try:
        with patch.object(Sm100Backend, "plan", plan):
            yield
    finally:
        nibblas.ops.forget_plans()


@contextmanager
def calls(owner: type, name: str) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of every call of a method inside."""
    found: list[tuple[Any, ...]] = []
    original = getattr(owner, name)

    def noted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found.append(arguments)
        return original(self, *arguments, **keywords)

    with patch.object(owner, name, noted):
        yield found


def packed(ends: list[int], n: int, k: int, **device: Any) -> Report:
    """A product with blocked scales, which is right; what its launch says of itself."""
    w = random_array((len(ends), n, k), 1, layout="blocked")
    x = random_array((ends[-1], k), 2, ends=ends, rule="torch")
    with emulating("sm_100", **{"num_sms": 4, "unwritten_shared": "error", **device}) as emulation:
        y = nibblas.grouped_mm(x, w, offs_of(ends), out_dtype=torch.float32, backend="emulated")
    assert_right(y, x, w, offs_of(ends))
    (report,) = emulation.reports
    return report


@pytest.mark.parametrize("rows", [32, 33, 96, 97])
@pytest.mark.parametrize("config", [FUSED, DEEP], ids=["fused", "deep"])
def test_the_epilogue_reads_the_sums_of_warps_with_tokens_only(
    rows: int, config: Sm100Config
) -> None:
    """Quarters of 32 rows: of a tile with few tokens the others are left alone."""
    columns = 96
    with planned(config):
        report = packed([rows], columns, 64)
    quarters = -(-rows // 32)
    assert report.bytes_by_path["tcgen05.ld"] == quarters * 32 * columns * 4
    assert report.bytes_by_path["store global"] == rows * columns * 4


@pytest.mark.parametrize("config", [FUSED, DEEP], ids=["fused", "deep"])
def test_no_barrier_of_all_warps_while_they_work(config: Sm100Config) -> None:
    """As many for four items of five stages each as for one item of one stage."""
    with planned(config):
        little = packed([5], 64, 64, num_sms=1)
        much = packed([5, 9], 136, 1056, num_sms=1)
    assert much.instructions["tcgen05_mma"] == 4 * 17 * little.instructions["tcgen05_mma"]
    assert much.instructions["barriers"] == little.instructions["barriers"] > 0


@pytest.mark.parametrize("accumulators", [1, 2])
def test_the_next_items_are_multiplied_before_sums_are_released(
    accumulators: int, tmp_path: Path
) -> None:
    """An epilogue that never gives sums back: as many items are finished as there are sets."""
    n, k = 512, 64
    w, x = random_array((1, n, k), 1, layout="blocked"), random_array((3, k), 2, layout="blocked")
    out = torch.full((3, n), float("nan"))
    kernels = Path(shutil.copytree(source.KERNELS, tmp_path / "kernels"))
    epilogue = kernels / "sm100" / "epilogue.cuh"
    arrival = "if (threadIdx.x % kWarpLanes == 0) ptx::mbarrier_arrive(sums_empty);"
    assert epilogue.read_text().count(arrival) == 1
    epilogue.write_text(epilogue.read_text().replace(arrival, ""))
    driver = EmulatedDriver("sm_100")
    with (
        patch.object(source, "KERNELS", kernels),
        patch.object(backend, "driver_of", lambda arch: driver),
        planned(replace(FUSED, accumulators=accumulators)),
        emulating("sm_100", num_sms=1),
        pytest.raises(Deadlock),
    ):
        nibblas.grouped_mm(x, w, offs_of([3]), out=out, backend="emulated")
    tiles = (~out.isnan()).view(3, 4, 128)
    finished = tiles.all(dim=(0, 2)).tolist()
    assert finished == [True] * accumulators + [False] * (4 - accumulators)
    assert bool((tiles.any(dim=0).any(dim=1) == torch.tensor(finished)).all())


EVICT_FIRST, EVICT_LAST = 0x12F0_0000_0000_0000, 0x14F0_0000_0000_0000


@pytest.mark.parametrize(
    "config",
    [FUSED, FUSED_IN_FOURS, WIDE, DEEP],
    ids=["fused", "fused, cluster of 4", "wide", "deep"],
)
def test_tokens_stay_in_l2_and_weights_leave_it_first(config: Sm100Config) -> None:
    """Of each stage: a copy of tokens and one of their scales, the others of weights."""
    text = kernel_ptx(config, "sm_100f")
    constants = dict(re.findall(r"mov\.b64\s+(%rd\d+), (\d+);", text))
    copies = re.findall(r"(cp\.async\.bulk\.\S*cache_hint) .*, (%rd\d+);", text)
    policies = [int(constants[register]) for _, register in copies]
    assert policies.count(EVICT_LAST) == 2
    assert policies.count(EVICT_FIRST) == 1 + config.tile_n // 128 == len(policies) - 2
    for name, policy in zip((name for name, _ in copies), policies, strict=True):
        assert ("multicast" not in name) or policy == EVICT_LAST


@each_preset
@pytest.mark.parametrize(
    ("strides", "dtype"),
    [("rows", torch.float16), ("columns", torch.bfloat16), ("transposed", torch.float32)],
)
def test_outputs_of_any_row_and_column_strides(
    preset: str, strides: str, dtype: torch.dtype
) -> None:
    ends, n = [40, 40, 41], 136
    memory = torch.full((512, 512), float("nan"), dtype=dtype)
    out = {
        "rows": memory[: ends[-1], :n],
        "columns": memory[: ends[-1], 0 : 2 * n : 2],
        "transposed": memory.t()[: ends[-1], :n],
    }[strides]
    w = random_array((3, n, 128), 1, layout="blocked")
    x = random_array((ends[-1], 128), 2, ends=ends, rule="torch")
    with env.sm100_preset(preset), emulating("sm_100", num_sms=3, unwritten_shared="error"):
        nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
    assert_right(out, x, w, offs_of(ends))
    assert int((~memory.isnan()).sum()) == out.numel(), "nothing beside the outputs"


def test_values_along_k_beyond_16_bits() -> None:
    with planned(DEEP):
        report = packed([3], 24, 65_600, num_sms=1)
    assert report.events["tensor operations"] > 65_600 // 64


def test_shared_memory_begins_where_the_swizzle_does() -> None:
    """At any multiple of 1024, which is what is declared; elsewhere the emulator reports it."""
    assert ".extern .shared .align 1024 .b8" in kernel_ptx(FUSED, "sm_100f")
    with planned(FUSED):
        packed([3, 40], 136, 608, shared_begin=3072)
        with pytest.raises(IllegalOperation, match="multiple of 1024, where its swizzle repeats"):
            packed([3, 40], 136, 608, shared_begin=1152)


def test_tensor_memory_may_begin_at_any_column() -> None:
    """The variant that leaves columns free does not get the first ones, and is right."""
    assert SHALLOW.tensor_columns == 256
    with planned(SHALLOW), calls(TensorMemory, "allocate") as allocations:
        packed([3, 40], 136, 608)
    assert {first for first, *_ in allocations} == {256}
