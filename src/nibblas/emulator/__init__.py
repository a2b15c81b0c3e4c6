"""Runs and checks PTX kernels with no GPU.

>>> from nibblas.emulator import Device
>>> dev = Device("sm_90", order="random", seed=7)
>>> kernel = dev.load_ptx(text).kernel("add")                        # doctest: +SKIP
>>> report = kernel.launch(grid=2, block=128, args=[a, b, c, 200])   # doctest: +SKIP

See docs/emulator.md for what is modelled.
"""

from __future__ import annotations

from nibblas.emulator.backend import emulating
from nibblas.emulator.device import Buffer, Device, Kernel, LoadedModule
from nibblas.emulator.driver import EmulatedDriver, Emulation
from nibblas.emulator.errors import (
    BarrierError,
    DataRace,
    Deadlock,
    EmulationError,
    IllegalOperation,
    LaunchError,
    Misaligned,
    NoProgress,
    OutOfBounds,
    PtxError,
    Site,
    UnfinishedWork,
    UninitialisedRead,
    UnsupportedInstruction,
)
from nibblas.emulator.order import ORDERS
from nibblas.emulator.report import Report

__all__ = [
    "ORDERS",
    "BarrierError",
    "Buffer",
    "DataRace",
    "Deadlock",
    "Device",
    "EmulatedDriver",
    "Emulation",
    "EmulationError",
    "IllegalOperation",
    "Kernel",
    "LaunchError",
    "LoadedModule",
    "Misaligned",
    "NoProgress",
    "OutOfBounds",
    "PtxError",
    "Report",
    "Site",
    "UnfinishedWork",
    "UninitialisedRead",
    "UnsupportedInstruction",
    "emulating",
]
