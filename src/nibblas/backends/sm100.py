"""The datacenter Blackwell backend: kernels/sm100 on devices with tcgen05.

One launch per packed or masked product, and per 56 products of a list; the host knows sizes and
addresses, never the contents of offs. Codes and scales are read where the caller's tensors lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from nibblas import env
from nibblas.backends.base import Operands, RunAt
from nibblas.backends.prepared_launch import prepared_launch
from nibblas.backends.sm100_params import (
    address_words,
    can_copy_scales,
    can_map_codes,
    num_items,
    params_of,
)
from nibblas.errors import NativeLibraryError
from nibblas.plan.arch import gpu_of
from nibblas.plan.cost import Estimate, sm100_time
from nibblas.plan.problem import Activations, GroupShape, Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import (
    CAPACITIES,
    MAX_GROUPS,
    TARGETS,
    TILE_M,
    Preset,
    Sm100Config,
    adapted,
    choose_configs,
    is_wide,
    preset_named,
)
from nibblas.runtime.driver import Driver, current_driver
from nibblas.runtime.kernel import compute_capability, load_kernel
from nibblas.runtime.tensormap import TensorMaps

_LARGEST_COUNT = 2**31 - 1024
"""What kernels/sm100/items.cuh counts in 32 bits, with a tile to spare."""

_maps: WeakKeyDictionary[Driver, TensorMaps] = WeakKeyDictionary()


@dataclass(frozen=True)
class Sm100Choice:
    """A preset, and the configurations of its launches: for wide groups and for others."""

    preset: Preset
    configs: tuple[Sm100Config, ...]

    def config_of(self, product: Operands) -> Sm100Config:
        """The one that takes a product."""
        wide = is_wide(GroupShape(product.m, product.n, product.k))
        return self.configs[0 if wide else -1]

    def __str__(self) -> str:
        return f"{self.preset}: " + "; ".join(map(str, self.configs))


class Sm100Backend:
    """tcgen05.mma on codes and scales as they are stored."""

    name = "sm100"
    devices = ("cuda",)

    def why_not(self, problem: Problem) -> list[str]:
        if problem.device != "cuda":
            return [f"it computes on NVIDIA GPUs, and the tensors are on {problem.device}"]
        try:
            capability = compute_capability(problem.device_index)
        except NativeLibraryError as error:
            return [str(error)]
        if capability not in TARGETS:
            found = ".".join(map(str, capability))
            known = " and ".join(".".join(map(str, each)) for each in TARGETS)
            return [f"it is for compute capability {known}, and the device has {found}"]
        return [*_wrong_activations(problem.activations), *_too_large(problem)]

    def plan(self, problem: Problem) -> Plan:
        capability = compute_capability(problem.device_index)
        sms = current_driver().attribute(problem.device_index, "sms")
        preset = preset_named(env.forced_sm100_preset(), env.SM100_PRESET_VARIABLE)
        choice = Sm100Choice(preset, choose_configs(problem, preset, sms))
        arch = gpu_of(capability)
        if arch is None:
            estimate = Estimate(math.inf, "not modelled on this device", {})
        else:
            estimate = sm100_time(problem, arch)
        return Plan(self.name, choice, estimate, _notes(problem))

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        """See ``Backend.run``."""
        device = operands[0].x.device.index or 0
        queue = current_driver().current_queue(device)
        for products, planned in _launches(operands, plan.config):
            launch = _Launch.of(products, planned, device)
            load_kernel(device, launch.config).launch(
                launch.ctas,
                launch.config.threads,
                launch.params,
                queue,
                cluster=(launch.config.cluster, 1, 1),
            )

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        device = product.x.device.index or 0
        for products, planned in _launches([product], plan.config):
            launch = _Launch.of(products, planned, device)
            config = launch.config
            names = list(product.tensors)
            return prepared_launch(
                current_driver(),
                device,
                load_kernel(device, config).bind(
                    launch.ctas, config.threads, launch.params, cluster=(config.cluster, 1, 1)
                ),
                params=launch.params,
                names=names,
                words=address_words(names, config),
            )
        return None


@dataclass(frozen=True)
class _Launch:
    config: Sm100Config
    ctas: int
    params: bytes

    @classmethod
    def of(cls, products: Sequence[Operands], planned: Sm100Config, device: int) -> _Launch:
        """The launch of products together: whole clusters, as many as are resident at once."""
        tensor_copies = all(map(can_map_codes, products))
        config = adapted(
            planned,
            products=len(products),
            bulk_scales=tensor_copies and all(map(can_copy_scales, products)),
            tensor_copies=tensor_copies,
        )
        driver = current_driver()
        resident = driver.attribute(device, "sms") * config.ctas_per_sm // config.cluster
        clusters = min(num_items(products, config), max(1, resident))
        maps = _maps.setdefault(driver, TensorMaps(driver))
        return cls(config, clusters * config.cluster, params_of(products, config, maps))


def _launches(
    operands: Sequence[Operands], choice: Sm100Choice
) -> Iterator[tuple[list[Operands], Sm100Config]]:
    """(products, configuration) of every launch; products without outputs need none."""
    together: dict[Sm100Config, list[Operands]] = {}
    for product in operands:
        if not product.m or not product.n:
            continue
        config = choice.config_of(product)
        if len(operands) == 1 or product.offs is not None:
            yield [product], config
        else:
            together.setdefault(config, []).append(product)
    most = CAPACITIES[-1]
    for config, products in together.items():
        for first in range(0, len(products), most):
            yield products[first : first + most], config


def _wrong_activations(activations: Activations) -> list[str]:
    if activations == "nvfp4":
        return []
    return [f"tcgen05.mma multiplies NVFP4 by NVFP4, and the tokens are {activations}"]


def _too_large(problem: Problem) -> list[str]:
    """Sizes that the kernel's counters or its table of groups do not hold."""
    counts = {
        "rows of all groups": problem.rows,
        "rows of weights": max(shape.n for shape in problem.shapes),
        "values along K": max(shape.k for shape in problem.shapes),
        "tiles": sum(-(-s.m // TILE_M) * -(-s.n // 128) for s in problem.shapes),
    }
    reasons = [
        f"it counts {what} in 32 bits: at most {_LARGEST_COUNT:,}, and there may be {count:,}"
        for what, count in counts.items()
        if count > _LARGEST_COUNT
    ]
    if problem.form != "list" and problem.groups > MAX_GROUPS:
        reasons.append(f"it takes at most {MAX_GROUPS} groups, and there are {problem.groups}")
    return reasons


def _notes(problem: Problem) -> tuple[str, ...]:
    notes = ["codes in place", "batch-invariant", "compiled and emulated, not yet run on silicon"]
    linear = [
        name
        for name, layout in (("x", problem.x_scale_layout), ("w", problem.w_scale_layout))
        if layout == "linear"
    ]
    if linear:
        notes.insert(1, f"linear scales of {' and '.join(linear)} gathered in the kernel, no copy")
    return tuple(notes)
