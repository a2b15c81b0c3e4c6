"""The portable GPU backend: kernels/portable on any NVIDIA GPU since Ampere.

One launch per product; the host knows sizes and addresses, never the contents of offs. Weights and
scales are read where the checkpoint's tensors lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nibblas.backends.base import Operands, RunAt
from nibblas.backends.gpu import beyond_32_bits, capability_of, launches_of, maps_of
from nibblas.backends.portable_params import address_words, is_aligned, params_of
from nibblas.backends.prepared_launch import prepared_launch
from nibblas.plan.arch import gpu_of
from nibblas.plan.cost import Estimate, one_after_another, portable_time
from nibblas.plan.portable import PortableConfig, choose_config, for_any_rows, target_of
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.runtime.driver import current_driver
from nibblas.runtime.kernel import compute_capability, load_kernel

_SET_ROWS = 16  # what a warp takes


class PortableBackend:
    """mma.sync with weights decoded in registers."""

    name = "portable"
    devices = ("cuda",)

    def why_not(self, problem: Problem) -> list[str]:
        capability = capability_of(problem)
        if isinstance(capability, str):
            return [capability]
        if target_of(capability) is None:
            found = ".".join(map(str, capability))
            return [f"it has no kernel for compute capability {found}; sm_80 and newer have one"]
        return _beyond_32_bits(problem)

    def plan(self, problem: Problem) -> Plan:
        capability = compute_capability(problem.device_index)
        target = target_of(capability)
        assert target is not None, "why_not has refused this device"
        config = choose_config(problem, target)
        arch = gpu_of(capability, current_driver().attribute(problem.device_index, "sms"))
        if arch is None:
            estimate = Estimate(math.inf, "not modelled on this device", {})
        else:
            launches = launches_of(problem)
            estimate = one_after_another([portable_time(p, arch, config) for p in launches])
        return Plan(self.name, config, estimate, ("weights in place", "batch-invariant"))

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        device = operands[0].x.device.index or 0
        driver = current_driver()
        queue = driver.current_queue(device)
        sms = driver.attribute(device, "sms")
        for product in operands:
            config = config_of(product, plan.config)
            ctas = _ctas(product, config, sms)
            if ctas:
                kernel = load_kernel(device, config)
                params = params_of(product, config, maps_of(driver))
                kernel.launch(ctas, config.threads, params, queue, programmatic=config.programmatic)

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        device = product.x.device.index or 0
        driver = current_driver()
        config = config_of(product, plan.config)
        ctas = _ctas(product, config, driver.attribute(device, "sms"))
        if not ctas:
            return None
        params = params_of(product, config, maps_of(driver))
        names = list(product.tensors)
        return prepared_launch(
            driver,
            device,
            load_kernel(device, config).bind(
                ctas, config.threads, params, programmatic=config.programmatic
            ),
            params=params,
            names=names,
            words=address_words(names, config),
        )


def _ctas(product: Operands, config: PortableConfig, sms: int) -> int:
    """CTAs of one launch: one for every set of weight rows, up to what the device holds."""
    if not product.m:
        return 0
    sets = product.groups * -(-product.n // _SET_ROWS)
    return min(sms * config.ctas_per_sm, sets)


def _beyond_32_bits(problem: Problem) -> list[str]:
    """Sizes that the kernel's counters do not hold; N and the rows of all groups have 64 bits."""
    group_rows = [shape.m for shape in problem.shapes]
    counts = {
        "groups": problem.groups,
        "tokens in a group": problem.rows if problem.form == "packed" else max(group_rows),
        "values along K": max(shape.k for shape in problem.shapes),
    }
    return beyond_32_bits(counts)


def config_of(product: Operands, planned: PortableConfig) -> PortableConfig:
    """The planned configuration, without its claim of aligned rows where these are not."""
    if planned.aligned and not is_aligned(product, planned):
        return for_any_rows(planned)
    return planned
