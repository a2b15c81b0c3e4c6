"""Planted faults: each is noticed under at least one order, and the unbroken kernel under none.

A fault is a replacement of text in a small kernel of kernels/. Noticed means: the emulator raises,
or the output is wrong.
"""

from __future__ import annotations

import pytest

from nibblas.emulator import ORDERS
from tests.emulator.faults.extent import EVERY_FAULT
from tests.emulator.faults.kernels import KERNELS, complaint
from tests.emulator.faults.planted import FAULTS as FAULTS_OF_SM_90
from tests.emulator.faults.planted import Fault
from tests.emulator.faults.planted_tcgen05 import TCGEN05_FAULTS

FAULTS = [*FAULTS_OF_SM_90, *TCGEN05_FAULTS]

pytestmark = pytest.mark.usefixtures("nvrtc")


SCHEDULES = [
    *((order, 0) for order in ORDERS if order != "random"),
    *(("adversarial-starve", seed) for seed in (12, 6, 4, 3, 2, 1)),
    *(("random", seed) for seed in range(4)),
]
"""Seeds 6 and 12 starve the first warp of one CTA of a pair."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    source, kernel = fault.source, KERNELS[fault.kernel]
    complaints = []
    for order, seed in SCHEDULES:
        said = complaint(
            kernel, source, order=order, seed=seed, max_instructions=200_000, **dict(fault.device)
        )
        if said:
            complaints.append(said)
            if fault.expected in said:
                return
    assert complaints, "noticed under no order"
    pytest.fail(f"noticed, but never as {fault.expected!r}: {complaints[0]}")


_ALL_SCHEDULES = [
    *((order, 0) for order in ORDERS if order not in ("random", "adversarial-starve")),
    *(("random", seed) for seed in range(50)),
    *(("adversarial-starve", seed) for seed in (*range(5), 6, 12)),
]


@pytest.mark.parametrize("name", KERNELS)
def test_an_unbroken_kernel_is_never_accused(name: str) -> None:
    kernel = KERNELS[name]
    step = 1 if EVERY_FAULT or kernel.arch == "sm_90" else 5
    accused = {
        (order, seed): said
        for order, seed in _ALL_SCHEDULES[::step]
        if (said := complaint(kernel, kernel.source, order=order, seed=seed))
    }
    assert accused == {}


def test_names_are_unique() -> None:
    assert len({(fault.kernel, fault.name) for fault in FAULTS}) == len(FAULTS) >= 25
