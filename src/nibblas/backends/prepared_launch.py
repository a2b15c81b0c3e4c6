"""A launch that is prepared once and run again with other tensors' addresses."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from nibblas.backends.base import RunAt
from nibblas.runtime.driver import Driver, LaunchAt, current_driver
from nibblas.runtime.records import RecordTemplate


def prepared_launch(
    driver: Driver,
    device: int,
    launch: LaunchAt,
    *,
    params: bytes,
    names: Sequence[str],
    words: Sequence[tuple[str, int]],
) -> RunAt:
    """What ``Backend.prepare`` returns for one launch.

    Args:
        launch: the kernel on that driver's device.
        params: its parameter, whatever the addresses in it.
        names: of the tensors whose addresses a call brings, in their order.
        words: (name, word of 8 bytes) of every address in the parameter.
    """
    params_at = RecordTemplate(params, [word for _, word in words]).filled
    every_address = itemgetter(*(names.index(name) for name, _ in words))

    def run_at(addresses: Sequence[int]) -> bool:
        if current_driver() is not driver:  # another one stands in: it has not this kernel
            return False
        launch(params_at(every_address(addresses)), driver.current_queue(device))
        return True

    return run_at
