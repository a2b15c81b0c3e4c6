"""The kernel with weights on the tensor core's M side, emulated by the rules of PTX.

What test_sm100.py asks of every preset, it asks of this one too. Here: every pair of values of two
fields of its configuration, sets of sums that share columns, what is copied, early launches.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import nibblas
from nibblas.emulator import Deadlock, EmulatedDriver, EmulationError, backend, emulating
from nibblas.plan.sm100_config import Sm100Config
from nibblas.plan.sm100_swapped import swapped
from nibblas.runtime import source
from tests.api.problems import assert_right, offs_of, random_array
from tests.emulator.backend.test_sm100 import emulated_as, run_form
from tests.emulator.backend.test_sm100_given import packed, planned
from tests.emulator.faults.sm100 import planted

pytestmark = pytest.mark.usefixtures("nvrtc")

KERNEL = "nibblas_sm100_swapped"


# Every pair of values of any two fields of the configuration

FIELDS: dict[str, tuple[Any, ...]] = {
    "cluster": (1, 2),
    "tile_tokens": (64, 128, 256),
    "stages": (2, 3, 5),
    "layout": ("blocked", "linear"),
    "form": ("packed", "masked", "list"),
}
"""run_form has groups of 130 tokens and more: tiles of 64 are for gathered scales only."""


def fits(values: dict[str, Any]) -> bool:
    config = config_of(values)
    apart = values["tile_tokens"] % 128 == 0 or values["layout"] == "linear"
    return apart and config.group_capacity >= 8


def config_of(values: dict[str, Any]) -> Sm100Config:
    config = swapped(values["cluster"], values["tile_tokens"])
    return replace(config, stages=values["stages"])


def pairwise() -> list[dict[str, Any]]:
    """Combinations that together hold every pair of values which some combination can hold."""
    every = [dict(zip(FIELDS, v, strict=True)) for v in itertools.product(*FIELDS.values())]
    every = [values for values in every if fits(values)]
    pairs = {id(v): set(itertools.combinations(v.items(), 2)) for v in every}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(every, key=lambda values: len(pairs[id(values)] & missing))
        chosen.append(best)
        missing -= pairs[id(best)]
    return chosen


def name_of(values: dict[str, Any]) -> str:
    return "-".join(str(value) for value in values.values())


@pytest.mark.parametrize("values", pairwise(), ids=name_of)
def test_pairs_of_options(values: dict[str, Any]) -> None:
    number = sum(map(ord, name_of(values)))
    with planned(config_of(values)), emulated_as(number) as emulation:
        run_form(values["form"], values["layout"], number)
    assert {report.kernel for report in emulation.reports} == {KERNEL}


def test_outputs_with_every_factor() -> None:
    """alpha, row_scale, a bias per group, two factors of w; vectors that N cuts, and none."""
    ends, n, k = [40, 40, 75], 90, 320
    generator = torch.Generator().manual_seed(3)
    x = random_array((75, k), 1, ends=ends, rule="torch", global_shape=(3,))
    w = random_array((3, n, k), 2, layout="blocked", global_shape=(3, 2))
    factors: dict[str, Any] = {
        "alpha": torch.rand(3, generator=generator) + 0.5,
        "row_scale": torch.rand(75, generator=generator) + 0.5,
        "bias": torch.randn(3, n, generator=generator),
    }
    for dtype, columns in ((torch.bfloat16, 96), (torch.float32, 92), (torch.float16, 90)):
        memory = torch.full((75, columns), float("nan"), dtype=dtype)
        with planned(swapped(2, 64)), emulating("sm_100", num_sms=4, order="random", seed=2):
            nibblas.grouped_mm(
                x, w, offs_of(ends), out=memory[:, :n], backend="emulated", **factors
            )
        assert_right(memory[:, :n], x, w, offs_of(ends), **factors)
        assert bool(memory[:, n:].isnan().all()), "nothing beside the outputs"


# Sums


def never_released(config: Sm100Config, ends: list[int], tmp_path: Path) -> list[bool]:
    """Whether each group is finished by an epilogue that never gives sums back."""
    w = random_array((len(ends), 256, 64), 1, layout="blocked")
    x = random_array((ends[-1], 64), 2, ends=ends, rule="torch")
    out = torch.full((ends[-1], 256), float("nan"))
    kernels = Path(shutil.copytree(source.KERNELS, tmp_path / "kernels"))
    epilogue = kernels / "sm100" / "swapped_epilogue.cuh"
    arrival = "  arrive_at_leader_if(threadIdx.x % kWarpLanes == 0, sums_empty);\n"
    assert epilogue.read_text().count(arrival) == 1
    epilogue.write_text(epilogue.read_text().replace(arrival, ""))
    driver = EmulatedDriver("sm_100")
    with (
        patch.object(source, "KERNELS", kernels),
        patch.object(backend, "driver_of", lambda arch: driver),
        planned(config),
        emulating("sm_100", num_sms=config.cluster),
        pytest.raises(Deadlock),
    ):
        nibblas.grouped_mm(x, w, offs_of(ends), out=out, backend="emulated")
    rows = out.tensor_split(ends[:-1])
    finished = [bool((~part.isnan()).all()) for part in rows]
    assert finished == [bool((~part.isnan()).any()) for part in rows]
    return finished


@pytest.mark.parametrize(
    ("tile", "ends", "finished"),
    [
        (64, [3, 67, 70], [True, True, False]),
        # 416 columns: 208 + 208 are there together, 208 + 224 are not.
        (256, [208, 416, 420], [True, True, False]),
        (256, [208, 417, 420], [True, False, False]),
    ],
    ids=["small", "both fit", "one column too many"],
)
def test_the_next_item_is_multiplied_where_its_sums_fit(
    tile: int, ends: list[int], finished: list[bool], tmp_path: Path
) -> None:
    assert swapped(2, 256).sum_columns == 416
    assert never_released(swapped(2, tile), ends, tmp_path) == finished


# What is copied and read


@pytest.mark.parametrize("cluster", [1, 2])
def test_weights_are_copied_once_for_all_tokens_of_a_tile(cluster: int) -> None:
    """100 tokens: boxes, as many as a CTA's share of 112 needs; atoms of scales are whole."""
    tokens, n, k = 100, 256, 512
    config = swapped(cluster, 128)
    with planned(config):
        report = packed([tokens], n, k, num_sms=4)
    ctas, stages, share = n // 128, k // 256, 112 // cluster
    copied = config.box_rows * -(-share // config.box_rows)
    codes = ctas * stages * (128 + copied) * 128
    assert report.bytes_by_path["cp.async.bulk.tensor to shared"] == codes
    assert report.bytes_by_path["cp.async.bulk to shared"] == ctas * stages * 2 * 2048
    assert report.instructions["tcgen05_mma"] == ctas // cluster * k // 64
    assert report.bytes_by_path["store global"] == tokens * n * 4


@pytest.mark.parametrize("tokens", [1, 16, 17, 70])
def test_the_epilogue_reads_the_sums_of_tokens_that_exist(tokens: int) -> None:
    """In chunks of 16 tokens, of 128 columns; warps without columns read nothing."""
    with planned(swapped(2, 128)):
        report = packed([tokens], 96, 64, num_sms=2)
    chunks = -(-tokens // 16)
    assert report.bytes_by_path["tcgen05.ld"] == 96 * 16 * chunks * 4
    assert report.bytes_by_path["store global"] == tokens * 96 * 4


def test_no_barrier_of_all_warps_while_they_work() -> None:
    """As many for four items of five stages each as for one item of one stage."""
    with planned(swapped(2, 128)):
        little = packed([5], 64, 64, num_sms=2)
        much = packed([5, 9], 392, 1056, num_sms=2)
    assert much.instructions["tcgen05_mma"] == 4 * 17 * little.instructions["tcgen05_mma"]
    assert much.instructions["barriers"] == little.instructions["barriers"] > 0


# Launches that begin early


def test_every_warp_waits_for_the_launch_before() -> None:
    """Also of a pair without work: two pairs, one item."""
    config = swapped(2, 64)
    assert config.programmatic
    with planned(config):
        report = packed([5, 5, 6], 64, 64, num_sms=4)
    ctas, warps = 2 * 2, config.threads // 32
    assert report.peak_resident_ctas == ctas
    assert report.events["griddepcontrol.wait"] == ctas * warps
    assert report.events["griddepcontrol.launch_dependents"] == ctas * warps


def test_a_kernel_that_does_not_wait_is_noticed(tmp_path: Path) -> None:
    wait = ("sm100/swapped.cu", "  ptx::griddepcontrol_wait();\n", "")
    with (
        planted(tmp_path, (wait,)),
        planned(swapped(2, 64)),
        pytest.raises(EmulationError, match="griddepcontrol"),
    ):
        packed([5], 64, 64)


def test_without_the_switch_it_is_an_ordinary_launch() -> None:
    with planned(replace(swapped(2, 64), programmatic=False)):
        packed([5], 64, 64)
