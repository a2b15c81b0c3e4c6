"""Times that were published or measured, with the schedules of the kernels that reached them.

B200: case times of the public competition `nvfp4_group_gemm` (GPU MODE): the best public kernel,
and "kernel B", the kernel whose configurations the preset ``wide_deep`` has, as its author gives
them. H200: the portable kernel, version 11, measured by this project (lab/portable).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from nibblas.plan.kernel_schedule import Instructions, KernelSchedule
from nibblas.plan.machines import MACHINES
from nibblas.plan.model import Prediction, predict
from nibblas.plan.portable import config_for
from nibblas.plan.problem import GroupShape, Problem, uniform_shapes

C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)
C1 = uniform_shapes((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048)
C2 = uniform_shapes((192, 320), 3072, 4096)
C3 = uniform_shapes((128, 384), 4096, 1536)
COMPETITION = {"C0": C0, "C1": C1, "C2": C2, "C3": C3}

KERNEL_B_WAVE_US = 7.2
"""What every wave of kernel B spends outside its main loop, nothing of it overlapped. Fitted to C0,
C2 and C3; used for no other kernel."""

_D1_ROWS = tuple(map(int, "28840071542101774864572567487173"))


def _d2_rows() -> tuple[int, ...]:
    """64 tokens, each to 8 of 128 experts."""
    draw = random.Random(2)
    rows = [0] * 128
    for _ in range(64):
        for expert in draw.sample(range(128), 8):
            rows[expert] += 1
    return tuple(rows)


DECODE = {
    "D1": uniform_shapes(_D1_ROWS, 4096, 7168),
    "D2": uniform_shapes(_d2_rows(), 1536, 2048),
}


@dataclass(frozen=True)
class Point:
    """One time that the model is held against.

    Attributes:
        known_us: published or measured. most_error: that a prediction may have, relative.
    """

    kernel: str
    case: str
    machine: str
    problem: Problem
    schedule: KernelSchedule
    known_us: float
    most_error: float

    def predicted(self) -> Prediction:
        return predict(self.problem, MACHINES[self.machine], self.schedule)

    @property
    def error(self) -> float:
        return self.predicted().total_us / self.known_us - 1


def w4a4(shapes: tuple[GroupShape, ...]) -> Problem:
    """A problem of the competition."""
    return Problem(shapes, "nvfp4", "fp16", device="cuda", form="list")


def best_public(ctas: int, tile_tokens: int = 128) -> KernelSchedule:
    """Weights on the MMA's M side, pairs of CTAs, one persistent launch."""
    return KernelSchedule(
        tile_tokens=tile_tokens,
        token_step=16,
        tile_rows=128,
        block_k=256,
        stages=8,
        ctas=ctas,
        cluster=2,
        order="strided",
        mma="tcgen05",
        pair=True,
    )


def kernel_b(wide: bool) -> KernelSchedule:
    """128 x 256 tiles in clusters of 4, or 128 x 128; a prologue and an epilogue per wave."""
    return KernelSchedule(
        tile_tokens=128,
        token_step=128,
        tile_rows=256 if wide else 128,
        block_k=256,
        stages=4 if wide else 6,
        ctas=148,
        cluster=4 if wide else 1,
        order="token_tiles" if wide else "interleaved",
        mma="tcgen05",
        restart_us=KERNEL_B_WAVE_US,
    )


def portable_version_11() -> KernelSchedule:
    """With 16 tokens a block on an H200. Its instructions: lab/portable, and for the token warps
    what version 12 has."""
    config = config_for("fp16", 16, "sm_90a", aligned=True)
    config = replace(
        config, warps=8, sets_per_warp=1, weight_warps=1, token_warps=1, ctas_per_sm=2, stages=4
    )
    per_warp, per_8_tokens, weights_warp, token_warp = 385, 24, 270, 135
    instructions = Instructions(
        fixed=config.warps * (per_warp - per_8_tokens) + weights_warp,
        per_token_tile=config.warps * per_8_tokens + token_warp,
        tile=8,
    )
    return replace(config.schedule(MACHINES["h200"].sms), instructions=instructions)


def points() -> list[Point]:
    """All of them, in the order of docs/model.md."""
    best = {
        "C0": (best_public(128), 27.9),
        "C1": (best_public(112, tile_tokens=256), 19.4),
        "C2": (best_public(120), 8.48),
        "C3": (best_public(128), 6.43),
    }
    given = {
        "C0": (kernel_b(wide=True), 47.5),
        "C1": (kernel_b(wide=True), 45.0),
        "C2": (kernel_b(wide=False), 14.3),
        "C3": (kernel_b(wide=False), 10.5),
    }
    measured = {"D1": 164.2, "D2": 81.4}
    found = [
        Point("best public", case, "b200", w4a4(COMPETITION[case]), schedule, us, 0.12)
        for case, (schedule, us) in best.items()
    ]
    found += [
        Point("kernel B", case, "b200", w4a4(COMPETITION[case]), schedule, us, 0.2)
        for case, (schedule, us) in given.items()
    ]
    schedule = portable_version_11()
    for case, us in measured.items():
        problem = Problem(DECODE[case], "fp16", "bf16", device="cuda")
        found.append(Point("portable 11", case, "h200", problem, schedule, us, 0.15))
    return found
