"""The datacenter Blackwell backend: kernels/sm100 on devices with tcgen05.

One launch per packed or masked product, and per 56 products of a list; the host knows sizes and
addresses, never the contents of offs. Codes and scales are read where the caller's tensors lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nibblas import env
from nibblas.backends.base import Operands, RunAt
from nibblas.backends.gpu import beyond_32_bits, capability_of, maps_of
from nibblas.backends.prepared_launch import prepared_launch
from nibblas.backends.sm100_launch import Sm100Choice, Sm100Launch, shared_launches
from nibblas.backends.sm100_params import address_words
from nibblas.plan.arch import GpuArch, gpu_of
from nibblas.plan.cost import Estimate, one_after_another, sm100_time
from nibblas.plan.problem import Activations, Problem
from nibblas.plan.select import Plan, fastest
from nibblas.plan.sm100 import PRESETS, Preset, choose_configs, most_rows, preset_named
from nibblas.plan.sm100_config import MAX_GROUPS, TARGETS, TILE_M, Sm100Config
from nibblas.runtime.driver import current_driver
from nibblas.runtime.kernel import compute_capability, load_kernel


class Sm100Backend:
    """tcgen05.mma on codes and scales as they are stored."""

    name = "sm100"
    devices = ("cuda",)

    def why_not(self, problem: Problem) -> list[str]:
        capability = capability_of(problem)
        if isinstance(capability, str):
            return [capability]
        if capability not in TARGETS:
            found = ".".join(map(str, capability))
            known = " and ".join(".".join(map(str, each)) for each in TARGETS)
            return [f"it is for compute capability {known}, and the device has {found}"]
        return [*_wrong_activations(problem.activations), *_too_large(problem)]

    def plan(self, problem: Problem) -> Plan:
        capability = compute_capability(problem.device_index)
        sms = current_driver().attribute(problem.device_index, "sms")
        forced = env.forced_sm100_preset()
        presets = [preset_named(forced, env.SM100_PRESET_VARIABLE)] if forced else PRESETS
        arch = gpu_of(capability, sms)

        def plan_of(preset: Preset) -> Plan:
            configs = choose_configs(problem.shapes, preset, sms, most_rows=most_rows(problem))
            choice = Sm100Choice(preset, tuple(map(_as_launched, configs)))
            return Plan(self.name, choice, _estimate(problem, choice, arch), _notes(problem))

        return fastest([plan_of(preset) for preset in presets])

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        """See ``Backend.run``."""
        device = operands[0].x.device.index or 0
        queue = current_driver().current_queue(device)
        for launch in _launches(operands, plan.config, device):
            load_kernel(device, launch.config).launch(
                launch.ctas,
                launch.config.threads,
                launch.params,
                queue,
                cluster=(launch.config.cluster, 1, 1),
                programmatic=launch.config.programmatic,
            )

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        device = product.x.device.index or 0
        for launch in _launches([product], plan.config, device):
            config = launch.config
            names = list(product.tensors)
            return prepared_launch(
                current_driver(),
                device,
                load_kernel(device, config).bind(
                    launch.ctas,
                    config.threads,
                    launch.params,
                    cluster=(config.cluster, 1, 1),
                    programmatic=config.programmatic,
                ),
                params=launch.params,
                names=names,
                words=address_words(names, config),
            )
        return None


def _launches(
    operands: Sequence[Operands], choice: Sm100Choice, device: int
) -> Iterator[Sm100Launch]:
    driver = current_driver()
    sms = driver.attribute(device, "sms")

    def resident(config: Sm100Config) -> int:
        return load_kernel(device, config).resident_clusters(config.threads, config.cluster)

    for products, planned in shared_launches(operands, choice):
        yield Sm100Launch.of(products, planned, sms=sms, resident=resident, maps=maps_of(driver))


def _as_launched(config: Sm100Config) -> Sm100Config:
    """Launches wait for their predecessor's end where the environment wants it."""
    return config if env.programmatic_launches() else replace(config, programmatic=False)


def _estimate(problem: Problem, choice: Sm100Choice, arch: GpuArch | None) -> Estimate:
    if arch is None:
        return Estimate(math.inf, "not modelled on this device", {})
    launches = choice.launches_of(problem)
    return one_after_another([sm100_time(p, arch, config) for p, config in launches])


def _wrong_activations(activations: Activations) -> list[str]:
    if activations == "nvfp4":
        return []
    return [f"tcgen05.mma multiplies NVFP4 by NVFP4, and the tokens are {activations}"]


def _too_large(problem: Problem) -> list[str]:
    """Sizes that the kernel's counters or its table of groups do not hold."""
    most_columns = max(shape.n for shape in problem.shapes)
    # However the rows fall into groups; interleaved products all take as many rounds as the widest.
    token_tiles = problem.rows // TILE_M + problem.groups
    counts = {
        "rows of all groups": problem.rows,
        "rows of weights": most_columns,
        "values along K": max(shape.k for shape in problem.shapes),
        "tiles": token_tiles * -(-most_columns // 128),
    }
    reasons = beyond_32_bits(counts)
    if problem.form != "list" and problem.groups > MAX_GROUPS:
        reasons.append(f"it takes at most {MAX_GROUPS} groups, and there are {problem.groups}")
    return reasons


def _notes(problem: Problem) -> tuple[str, ...]:
    notes = ["codes in place"]
    linear = [
        name
        for name, layout in (("x", problem.x_scale_layout), ("w", problem.w_scale_layout))
        if layout == "linear"
    ]
    if linear:
        notes.append(f"linear scales of {' and '.join(linear)} gathered in the kernel, no copy")
    if any(shape.k % 32 for shape in problem.shapes):
        notes.append("K % 32 is 16: rows not padded to multiples of 16 bytes are read by loads")
    notes += ["batch-invariant", "compiled and emulated, not yet run on silicon"]
    return tuple(notes)
