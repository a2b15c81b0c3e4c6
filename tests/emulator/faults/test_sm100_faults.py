"""Faults planted in the sm_100 kernel's own text: each is noticed, and the unbroken kernel never.

EVERY_FAULT=1 runs all faults, under every order that their tables name, and all schedules of the
unbroken kernel; else each fault marked ``always`` runs under one schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nibblas.emulator import ORDERS
from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100 import PRESETS, choose_configs
from nibblas.runtime.source import KERNELS
from tests.emulator.faults.extent import EVERY_FAULT
from tests.emulator.faults.planted_sm100 import FAULTS
from tests.emulator.faults.sm100 import VARIANTS, Schedule, Variant, complaint, planted
from tests.emulator.faults.sm100_fault import Fault

pytestmark = pytest.mark.usefixtures("nvrtc")


def schedules_of(order: str, variant: Variant) -> list[Schedule]:
    """Those of which one has to show a fault that shows under an order."""
    if order == "random":
        return [(order, seed) for seed in range(8)]
    if order == "adversarial-starve":
        warps = variant.config.threads // 32
        return [(order, seed) for seed in (*range(warps), *(warps * (1 + r) for r in range(2)))]
    return [(order, 0)]


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.always or EVERY_FAULT], ids=lambda fault: fault.name
)
def test_a_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    variant = VARIANTS[fault.variant]
    with planted(tmp_path, fault.replacements):

        def shows(schedule: Schedule) -> bool:
            said = complaint(variant, schedule, shared_begin=fault.shared_begin)
            assert not said or said.split(":")[0] in fault.shows.split(), said
            return bool(said)

        assert shows(fault.schedule)
        for order in (fault.orders or tuple(ORDERS)) if EVERY_FAULT else ():
            assert any(map(shows, schedules_of(order, variant))), f"not noticed under {order}"


def test_faults_are_of_the_text_that_ships() -> None:
    """Of all, those too that are not run here."""
    for fault in FAULTS:
        for name, old, new in fault.replacements:
            assert old != new
            assert (KERNELS / name).read_text().count(old) == 1, (fault.name, old)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


# The unbroken kernel


def unbroken() -> Iterator[tuple[str, Variant]]:
    """What each preset chooses for one product, and the variants that faults are planted in."""
    rows, n, k = (34, 3), 256, 1056
    shapes = [GroupShape(m, n, k) for m in rows]
    for preset in PRESETS:
        (config,) = choose_configs(shapes, preset, sms=1)
        yield preset, Variant(config, rows, n, k)
    yield from VARIANTS.items()


UNBROKEN = dict(unbroken())


def all_schedules() -> list[Schedule]:
    """Fifty."""
    starved = [("adversarial-starve", seed) for seed in range(21)]
    rest = [(order, 0) for order in ORDERS if order not in ("random", "adversarial-starve")]
    return [*rest, *starved, *(("random", seed) for seed in range(50 - len(rest) - len(starved)))]


@pytest.mark.parametrize("name", UNBROKEN)
def test_the_unbroken_kernel_is_never_accused(name: str, tmp_path: Path) -> None:
    schedules = all_schedules()
    assert len(schedules) == 50
    if not EVERY_FAULT:
        schedules = schedules[:3] + schedules[7::20] if name in PRESETS else schedules[-1:]
    with planted(tmp_path, ()):
        accused = {s: said for s in schedules if (said := complaint(UNBROKEN[name], s))}
    assert accused == {}
