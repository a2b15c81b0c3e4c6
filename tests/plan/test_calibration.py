"""The model against times that were published or measured, and the page that reports it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.plan.portable import (
    LOAD_8_TOKENS,
    LOAD_BOX,
    LOAD_WEIGHTS,
    MULTIPLY,
    MULTIPLY_8_TOKENS,
    config_for,
)
from nibblas.plan.problem import Activations
from nibblas.runtime.compile import compiler_version
from tests.plan.lab_model import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
POINTS = load("calibration").points()


@pytest.mark.parametrize("point", POINTS, ids=lambda p: f"{p.kernel}-{p.case}")
def test_prediction_is_near_the_known_time(point) -> None:
    assert abs(point.error) <= point.most_error


def test_no_kernel_but_b_has_a_constant_of_its_own() -> None:
    assert {p.kernel for p in POINTS if p.schedule.restart_us is not None} == {"kernel B"}


def test_predictions_order_the_kernels_as_they_are() -> None:
    for case in ("C0", "C1", "C2", "C3"):
        predicted = {p.kernel: p.predicted().total_us for p in POINTS if p.case == case}
        assert predicted["best public"] < predicted["kernel B"]


def test_the_page_holds_the_tables_as_they_are_computed() -> None:
    page = PAGE.read_text()
    assert load("table").updated(page) == page, "python lab/model/table.py --update docs/model.md"


def test_instructions_are_those_of_the_machine_code() -> None:
    """To 2 %: another compiler schedules otherwise. Other tokens: lab/model/count_instructions.py,
    which takes a minute."""
    activations: Activations = "fp16"
    counting = load("count_instructions")
    try:
        compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))
    if shutil.which(counting.nvdisasm()) is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    config = config_for(activations, 16, "sm_90a", aligned=True)
    found = counting.counts_of(config)
    sets = config.sets_per_warp
    for tiles in (1, 2):
        a_set = MULTIPLY[activations] + tiles * MULTIPLY_8_TOKENS
        assert found["multiply"][sets, tiles] == pytest.approx(sets * a_set, rel=0.02)
    batches = 4 / config.token_warps  # of 8 tokens; each warp reads its share of all four
    assert found["tokens"] == [pytest.approx(batches * LOAD_8_TOKENS[activations], rel=0.02)]
    assert found["weights"][-1][0] == pytest.approx(LOAD_WEIGHTS, rel=0.02)
    assert found["weights"][0][0] == pytest.approx(LOAD_BOX, rel=0.05)
