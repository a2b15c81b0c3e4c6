"""The Hopper backend: kernels/sm90, wgmma with weights decoded in registers.

The host knows sizes and addresses, never the contents of offs. Weights, scales and tokens are read
where they lie. Tokens that are NVFP4, or that TMA cannot copy, are made ready by a launch before;
weights that TMA cannot copy go to the portable kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nibblas.backends.base import Operands, RunAt
from nibblas.backends.gpu import beyond_32_bits, capability_of, launches_of, maps_of
from nibblas.backends.portable import PortableBackend
from nibblas.backends.prepared_launch import prepared_launch
from nibblas.backends.sm90_params import (
    address_words,
    can_map_tokens,
    can_map_weights,
    params_of,
    prepare_params_of,
    prepare_words,
)
from nibblas.plan.arch import GpuArch, gpu_of
from nibblas.plan.cost import Estimate, one_after_another
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm90 import K_MULTIPLE, MAX_GROUPS, N_MULTIPLE, TARGETS, Sm90Config, choose_config
from nibblas.plan.sm90_prepare import Sm90PrepareConfig
from nibblas.plan.sm90_time import sm90_time
from nibblas.runtime.driver import current_driver
from nibblas.runtime.kernel import compute_capability, load_kernel

LINEAR_K_MULTIPLE = 256
"""Of linear scales 16 bytes of a row are copied at a time."""

_PREPARED = "prepared"

NewTokens = Callable[[int, int, torch.dtype, torch.device], Tensor]
"""(rows, K, dtype, device) -> memory for prepared tokens."""


def new_tokens(rows: int, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """From torch's allocator, which gives memory to the queue's next user only after this one's
    launches, and to a graph that is captured for as long as it lives."""
    return torch.empty((rows, k), dtype=dtype, device=device)


@dataclass(frozen=True)
class Sm90Choice:
    """The kernel's configuration, and the portable kernel's plan for what TMA cannot copy."""

    config: Sm90Config
    prepare: Sm90PrepareConfig
    otherwise: Plan

    def __str__(self) -> str:
        return str(self.config)


class Sm90Backend:
    """wgmma with weights decoded in registers.

    Args:
        new_tokens: where memory for prepared tokens comes from.
    """

    name = "sm90"
    devices = ("cuda",)

    def __init__(self, new_tokens: NewTokens = new_tokens) -> None:
        self._portable = PortableBackend()
        self._new_tokens = new_tokens

    def why_not(self, problem: Problem) -> list[str]:
        capability = capability_of(problem)
        if isinstance(capability, str):
            return [capability]
        if capability not in TARGETS:
            found = ".".join(map(str, capability))
            return [f"it is for compute capability 9.0, and the device has {found}"]
        return [*_wrong_shapes(problem), *_too_large(problem)]

    def plan(self, problem: Problem) -> Plan:
        config = choose_config(problem)
        arch = gpu_of(compute_capability(problem.device_index))
        prepare = Sm90PrepareConfig.of(problem.activations)
        choice = Sm90Choice(config, prepare, self._portable.plan(problem))
        estimate = _estimate(problem, arch, config)
        return Plan(self.name, choice, estimate, _notes(problem))

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        """See ``Backend.run``."""
        device = operands[0].x.device.index or 0
        driver = current_driver()
        queue = driver.current_queue(device)
        choice: Sm90Choice = plan.config
        for product in operands:
            if not product.m or not product.n:
                continue
            if not can_map_weights(product):
                self._portable.run([product], choice.otherwise)
                continue
            config, ready = choice.config, self._with_ready_tokens(product, choice, queue)
            load_kernel(device, config).launch(
                _ctas(ready, config, device),
                config.threads,
                params_of(ready, config, maps_of(driver)),
                queue,
                programmatic=True,
            )

    def _with_ready_tokens(self, product: Operands, choice: Sm90Choice, queue: int) -> Operands:
        """The product; with tokens that a launch, which this has put on the queue, makes ready."""
        if can_map_tokens(product):
            return product
        prepared, config = self._new_prepared(product), choice.prepare
        load_kernel(product.x.device.index or 0, config).launch(
            config.ctas(product.m, product.k),
            config.threads,
            prepare_params_of(product, prepared),
            queue,
        )
        return replace(product, x=prepared, x_scales=None)

    def _new_prepared(self, product: Operands) -> Tensor:
        dtype = torch.float16 if product.x_scales is not None else product.x.dtype
        return self._new_tokens(product.m, product.k, dtype, product.x.device)

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        choice: Sm90Choice = plan.config
        if not product.m or not product.n:
            return None
        if not can_map_weights(product):
            return self._portable.prepare(product, choice.otherwise)
        if can_map_tokens(product):
            return _prepare(product, choice.config, list(product.tensors))
        device, driver = product.x.device.index or 0, current_driver()
        config, tokens = choice.prepare, self._new_prepared(product)
        shape, dtype, where = tokens.shape, tokens.dtype, tokens.device
        names = [*product.tensors, _PREPARED]
        params = prepare_params_of(product, tokens)
        ready = replace(product, x=tokens, x_scales=None)
        make_ready = prepared_launch(
            driver,
            device,
            load_kernel(device, config).bind(
                config.ctas(product.m, product.k), config.threads, params
            ),
            params=params,
            names=names,
            words=prepare_words(names),
        )
        multiply = _prepare(ready, choice.config, names, x=_PREPARED)

        def run_at(addresses: Sequence[int]) -> bool:
            # New in every call: the queue's order keeps it until both launches are through.
            tokens = self._new_tokens(shape[0], shape[1], dtype, where)
            every = [*addresses, tokens.data_ptr()]
            return make_ready(every) and multiply(every)

        return run_at


def _prepare(product: Operands, config: Sm90Config, names: Sequence[str], *, x: str = "x") -> RunAt:
    """The launch that multiplies.

    Args:
        names: of the addresses that a call brings. x: that of the tokens.
    """
    device, driver = product.x.device.index or 0, current_driver()
    params = params_of(product, config, maps_of(driver))
    words = address_words(list(product.tensors), config)
    return prepared_launch(
        driver,
        device,
        load_kernel(device, config).bind(
            _ctas(product, config, device),
            config.threads,
            params,
            programmatic=True,
        ),
        params=params,
        names=names,
        words=[(x if name == "x" else name, word) for name, word in words],
    )


def _ctas(product: Operands, config: Sm90Config, device: int) -> int:
    """Of one launch: as many as run at once or have work."""
    at_once = current_driver().attribute(device, "sms")
    return min(at_once, config.most_steps(product.m, product.n, product.groups))


def _wrong_shapes(problem: Problem) -> list[str]:
    reasons = []
    if any(shape.k % K_MULTIPLE for shape in problem.shapes):
        reasons.append(f"it copies K by {K_MULTIPLE} values, and K is not a multiple of that")
    if any(shape.n % N_MULTIPLE for shape in problem.shapes):
        reasons.append(f"it copies {N_MULTIPLE} weight rows together, and N is not a multiple")
    linear = problem.w_scale_layout == "linear"
    if linear and any(shape.k % LINEAR_K_MULTIPLE for shape in problem.shapes):
        reasons.append(
            f"it copies linear scales of {LINEAR_K_MULTIPLE} values together, and K is not a "
            "multiple; blocked scales need not be"
        )
    return reasons


def _too_large(problem: Problem) -> list[str]:
    """Sizes that the kernel's counters do not hold."""
    most_columns = max(shape.n for shape in problem.shapes)
    counts = {
        "rows of all groups": problem.rows,
        "rows of weights": most_columns,
        "values along K": max(shape.k for shape in problem.shapes),
        "steps": (problem.rows // 8 + problem.groups) * -(-most_columns // 64),
    }
    reasons = beyond_32_bits(counts)
    if problem.form != "list" and problem.groups > MAX_GROUPS:
        reasons.append(f"it takes at most {MAX_GROUPS} groups, and there are {problem.groups}")
    return reasons


def _estimate(problem: Problem, arch: GpuArch | None, config: Sm90Config) -> Estimate:
    if arch is None:
        return Estimate(math.inf, "not modelled on this device", {})
    times = []
    for launch in launches_of(problem):
        times.append(sm90_time(launch, arch, config))
        if problem.activations == "nvfp4":
            times.append(_prepare_time(launch, arch))
    return one_after_another(times)


def _prepare_time(problem: Problem, arch: GpuArch) -> Estimate:
    """Of the launch before: tokens read and written, and what any launch takes."""
    fixed_us = 0.0
    if arch.machine is not None:
        machine = arch.machine
        fixed_us = (machine.gap_us or 0) + (machine.first_latency_us or 0) + machine.tail_us
    moved = problem.work().token_bytes + _prepared_bytes(problem)
    seconds = fixed_us * 1e-6 + moved / arch.read_bytes_per_s
    return Estimate(seconds, "prepare tokens", {"prepare tokens": seconds})


def _prepared_bytes(problem: Problem) -> int:
    return sum(2 * shape.m * shape.k for shape in problem.shapes)


def _notes(problem: Problem) -> tuple[str, ...]:
    notes = ["weights in place", "batch-invariant"]
    if problem.activations == "nvfp4":
        held = f"{_prepared_bytes(problem):,} bytes"
        notes.append(f"tokens decoded by a launch of their own: {held}")
    return tuple(notes)
