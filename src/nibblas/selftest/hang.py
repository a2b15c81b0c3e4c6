"""The kernel that hangs on purpose, so that an owner can see the report of a hang beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from nibblas.plan.portable import TARGETS
from nibblas.runtime.driver import current_driver
from nibblas.runtime.kernel import load_kernel

THREADS = 64
HANGING_PARITY = 0


@dataclass(frozen=True)
class HangConfig:
    """``kernels/selftest/hang.cu``: compiled when it is asked for, never shipped as a cubin."""

    source_name = "selftest/hang.cu"
    entry = "nibblas_selftest_hang"
    shared_bytes = 0

    def target(self, compute_capability: tuple[int, int]) -> str:
        """As the portable kernel's, which runs wherever any of ours does."""
        return TARGETS[compute_capability]

    def render(self) -> str:
        return ""

    def exported_sizes(self) -> dict[str, int]:
        return {}


def launch_and_wait(device: int, parity: int = HANGING_PARITY) -> None:
    """Launches it and waits for its end, which comes for a parity of 1 only."""
    driver = current_driver()
    queue = driver.current_queue(device)
    parameters = parity.to_bytes(4, "little")
    load_kernel(device, HangConfig()).launch(1, THREADS, parameters, queue)
    driver.synchronize(device, queue)
