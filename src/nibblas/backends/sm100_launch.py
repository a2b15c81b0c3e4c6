"""How the products of a problem become launches of the datacenter Blackwell kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nibblas.backends.base import Operands
from nibblas.backends.sm100_params import (
    Maps,
    can_copy_scales,
    can_map_codes,
    num_items,
    params_of,
)
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.sm100 import Preset, adapted, is_wide
from nibblas.plan.sm100_config import CAPACITIES, Sm100Config


@dataclass(frozen=True)
class Sm100Choice:
    """A preset, and the configurations of its launches: for wide groups and for others."""

    preset: Preset
    configs: tuple[Sm100Config, ...]

    def config_of(self, product: Operands) -> Sm100Config:
        """The one that takes a product."""
        return self._config_for(GroupShape(product.m, product.n, product.k))

    def launches_of(self, problem: Problem) -> list[tuple[Problem, Sm100Config]]:
        """What each launch computes, and how; never none."""
        parts = []
        most = CAPACITIES[-1] if problem.form == "list" else problem.groups
        for config in self.configs:
            shapes = [s for s in problem.shapes if self._config_for(s) == config]
            for first in range(0, len(shapes), most):
                part = replace(problem, shapes=tuple(shapes[first : first + most]))
                parts.append((part, config))
        return parts

    def _config_for(self, shape: GroupShape) -> Sm100Config:
        return self.configs[0 if is_wide(shape) else -1]

    def __str__(self) -> str:
        return f"{self.preset}: " + "; ".join(config.outline for config in self.configs)


@dataclass(frozen=True)
class Sm100Launch:
    """One launch, but for the kernel's handle."""

    config: Sm100Config
    ctas: int
    params: bytes

    @classmethod
    def of(
        cls,
        products: Sequence[Operands],
        planned: Sm100Config,
        *,
        sms: int,
        resident: Callable[[Sm100Config], int],
        maps: Maps,
    ) -> Sm100Launch:
        """The launch of products together: whole clusters, as many as run at once.

        Args:
            resident: how many clusters of a configuration the device holds; it counts shared memory
                and where clusters fit, but not tensor memory.
        """
        tensor_copies = all(map(can_map_codes, products))
        config = adapted(
            planned,
            products=len(products),
            bulk_scales=tensor_copies and all(map(can_copy_scales, products)),
            tensor_copies=tensor_copies,
        )
        at_once = min(resident(config), sms * config.ctas_per_sm // config.cluster)
        clusters = min(num_items(products, config), max(1, at_once))
        return cls(config, clusters * config.cluster, params_of(products, config, maps))


def shared_launches(
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
