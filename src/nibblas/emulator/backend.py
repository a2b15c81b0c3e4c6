"""``backend="emulated"``: the GPU kernels and their launch code, on CPU tensors.

>>> with emulating(order="random", seed=7) as emulation:              # doctest: +SKIP
...     y = nibblas.grouped_mm(x, w, offs, backend="emulated")
>>> print(emulation.reports[-1])                                      # doctest: +SKIP
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from nibblas import ops
from nibblas.backends.base import Backend, Operands, RunAt
from nibblas.backends.portable import PortableBackend
from nibblas.backends.sm90 import Sm90Backend
from nibblas.backends.sm100 import Sm100Backend
from nibblas.emulator.device import UnwrittenShared
from nibblas.emulator.driver import EmulatedDriver, Emulation, Span
from nibblas.errors import NativeLibraryError
from nibblas.plan.cost import Estimate
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan, chosen
from nibblas.runtime.compile import compiler_version
from nibblas.runtime.driver import use_driver
from nibblas.validation.memory import byte_span

_emulation: ContextVar[Emulation | None] = ContextVar("nibblas_emulation", default=None)
_default = Emulation()
_one_at_a_time = threading.RLock()


def current_emulation() -> Emulation:
    """How the emulated backend runs now."""
    return _emulation.get() or _default


@contextmanager
def emulating(
    arch: str = "sm_90",
    *,
    order: str = _default.order,
    seed: int = _default.seed,
    num_sms: int | None = None,
    shared_begin: int = _default.shared_begin,
    max_instructions: int = _default.max_instructions,
    unwritten_shared: UnwrittenShared = _default.unwritten_shared,
) -> Iterator[Emulation]:
    """Inside, and in this thread, ``backend="emulated"`` runs this way; its reports are kept.

    Args:
        arch: "sm_80" to "sm_120".
        num_sms: what the launch code sizes its grids to; few make a CTA take several tiles.
        order, seed, shared_begin, max_instructions, unwritten_shared: see ``Device``; the last is
            "nan" unless given.

    Raises:
        ValueError: an unknown architecture or order.
    """
    emulation = Emulation(
        arch, order, seed, num_sms, shared_begin, max_instructions, unwritten_shared
    )
    before = current_emulation()
    token = _emulation.set(emulation)
    _forget_plans_of_another(before, emulation)
    try:
        yield emulation
    finally:
        _emulation.reset(token)
        _forget_plans_of_another(emulation, before)


def _forget_plans_of_another(before: Emulation, after: Emulation) -> None:
    """Plans are kept by problem; this backend's hold a configuration of one architecture."""
    if before.arch != after.arch:
        ops.forget_plans()


@cache
def driver_of(arch: str) -> EmulatedDriver:
    """The process's emulated device of that architecture; kernels are loaded on it once."""
    return EmulatedDriver(arch)


@dataclass(frozen=True)
class _OnTheDevice:
    """The plan that an emulated device carries out."""

    plan: Plan

    def __str__(self) -> str:
        return str(self.plan.config)


class EmulatedBackend:
    """The backends for GPUs, on an emulated one whose memory the CPU tensors are.

    Which of them takes a problem is decided as on the device: the first that can and is predicted
    the fastest. It is for checking kernels; never chosen unless it is named. Inputs are read-only,
    ``out`` may be read only where it has been written, and every other byte is out of bounds.
    """

    name = "emulated"
    devices = ("cpu",)

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {
            backend.name: backend
            for backend in (Sm100Backend(), Sm90Backend(_new_tokens), PortableBackend())
        }

    def why_not(self, problem: Problem) -> list[str]:
        if problem.device != "cpu":
            return [f"it computes on CPU tensors, and these are on {problem.device}"]
        try:
            compiler_version()
        except NativeLibraryError as error:
            return [f"it compiles kernels to PTX: {error}"]
        with self._driver():
            device = _on_the_device(problem)
            reasons = {name: b.why_not(device) for name, b in self._backends.items()}
        if not all(reasons.values()):
            return []
        return [f"{name}: {reason}" for name, why in reasons.items() for reason in why]

    def plan(self, problem: Problem) -> Plan:
        with self._driver():
            device = _on_the_device(problem)
            reasons = {name: b.why_not(device) for name, b in self._backends.items()}
            able = [b for name, b in self._backends.items() if not reasons[name]]
            plans = [backend.plan(device) for backend in able]
            plan = chosen(plans, batch_invariant=problem.batch_invariant)
        estimate = Estimate(math.inf, "not modelled on the emulator", {})
        refused = [f"{name} refused: {'; '.join(why)}" for name, why in reasons.items() if why]
        notes = (f"the {plan.backend} kernel, emulated", *plan.notes, *refused)
        return Plan(self.name, _OnTheDevice(plan), estimate, notes)

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        """See ``Backend.run``. EmulationError: the kernel did something wrong."""
        on_the_device: Plan = plan.config.plan
        with self._driver() as driver, driver.tensors(spans_of(operands)), _workspaces():
            self._backends[on_the_device.backend].run(operands, on_the_device)

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        return None

    @contextmanager
    def _driver(self) -> Iterator[EmulatedDriver]:
        """The emulated driver in CUDA's place, for one caller at a time."""
        emulation = current_emulation()
        driver = driver_of(emulation.arch)
        with _one_at_a_time, use_driver(driver):
            driver.emulation = emulation
            yield driver


def _on_the_device(problem: Problem) -> Problem:
    return replace(problem, device="cuda", device_index=0)


_open_workspaces: ContextVar[ExitStack] = ContextVar("nibblas_emulated_workspaces")


@contextmanager
def _workspaces() -> Iterator[None]:
    """Inside, ``_new_tokens`` may be called; what it returns is the device's until the end."""
    with ExitStack() as stack:
        token = _open_workspaces.set(stack)
        try:
            yield
        finally:
            _open_workspaces.reset(token)


def _new_tokens(rows: int, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that kernels may read and write, NaN until they do."""
    tokens = torch.full((rows, k), math.nan, dtype=dtype, device=device)
    return _open_workspaces.get().enter_context(_of_the_device(tokens))


@contextmanager
def _of_the_device(tokens: Tensor) -> Iterator[Tensor]:
    span = Span("workspace", *byte_span(tokens), readable=True, writable=True)
    with driver_of(current_emulation().arch).tensors([span]):
        yield tokens


def spans_of(operands: Sequence[Operands]) -> list[Span]:
    """The bytes of every operand, from its first to its last."""
    spans = []
    for product in operands:
        for name, tensor in product.tensors.items():
            is_out = tensor is product.out
            begin, end = byte_span(tensor)
            spans.append(Span(name, begin, end, readable=not is_out, writable=is_out))
    return spans
