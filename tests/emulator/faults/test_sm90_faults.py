"""Faults planted in the Hopper kernels' own text: each is noticed, and the unbroken ones never.

EVERY_FAULT=1 runs all faults, and all schedules of the unbroken kernels; else the faults marked
``always`` are run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nibblas.emulator import ORDERS
from nibblas.runtime.source import KERNELS
from tests.emulator.faults.extent import EVERY_FAULT
from tests.emulator.faults.planted_sm90 import FAULTS, Fault
from tests.emulator.faults.sm90 import READER_LAST, VARIANTS, complaint, planted

pytestmark = pytest.mark.usefixtures("nvrtc")


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.always or EVERY_FAULT], ids=lambda fault: fault.name
)
def test_a_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    with planted(tmp_path, fault.replacements):
        said = complaint(VARIANTS[fault.variant], fault.schedule)
    assert said.split(":")[0] in fault.shows.split(), said or "not noticed"


def test_faults_are_of_the_text_that_ships() -> None:
    """Of all, those too that are not run here."""
    for name, old, new in (r for fault in FAULTS for r in fault.replacements):
        assert old != new
        assert (KERNELS / name).read_text().count(old) == 1, (name, old)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_unbroken_kernels_are_never_accused(name: str, tmp_path: Path) -> None:
    schedules = [(order, seed) for order in ORDERS for seed in range(10)]
    if not EVERY_FAULT:
        schedules = [("round_robin", 0)]
    if VARIANTS[name].stale:
        schedules = [READER_LAST]
    with planted(tmp_path, ()):
        accused = {s: said for s in schedules if (said := complaint(VARIANTS[name], s))}
    assert accused == {}
