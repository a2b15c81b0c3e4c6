"""All faults planted in the sm_100 kernel's own text."""

from __future__ import annotations

from tests.emulator.faults import (
    planted_sm100_copies,
    planted_sm100_hazards,
    planted_sm100_pairs,
    planted_sm100_swapped,
    planted_sm100_tensor,
)

FAULTS = [
    *planted_sm100_hazards.FAULTS,
    *planted_sm100_tensor.FAULTS,
    *planted_sm100_copies.FAULTS,
    *planted_sm100_pairs.FAULTS,
    *planted_sm100_swapped.FAULTS,
]
