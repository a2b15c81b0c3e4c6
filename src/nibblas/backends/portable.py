"""The portable GPU backend: kernels/portable on any NVIDIA GPU since Ampere.

One launch per product; the host knows sizes and addresses, never the contents of offs. Weights and
scales are read where the checkpoint's tensors lie.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nibblas.backends.base import Operands, RunAt
from nibblas.errors import NativeLibraryError
from nibblas.plan.arch import gpu_of
from nibblas.plan.cost import Estimate, portable_time
from nibblas.plan.portable import PARAMS_BYTES, PortableConfig, choose_config, target_of
from nibblas.plan.problem import Problem
from nibblas.plan.select import Plan
from nibblas.runtime.driver import current_driver
from nibblas.runtime.kernel import compute_capability, current_queue, load_kernel
from nibblas.runtime.records import (
    SCALE_LAYOUTS,
    SCALE_STARTS,
    TYPES,
    RecordTemplate,
    address,
)

_TILE_ROWS = 128

#: What kernels/portable/cursor.cuh counts in 32 bits, with a block or a stage to spare.
_LARGEST_COUNT = 2**31 - 1024

#: ``Params`` of kernels/portable/params.cuh, field by field.
_PARAMS = struct.Struct("=4q4q2i4q4q2i6q6q4q3q2i")
assert _PARAMS.size == PARAMS_BYTES

#: Where ``params_of`` puts addresses, in words of 8 bytes, by the names of Operands.
_ADDRESS_WORDS = {
    "x": 0,
    "x_scales": 4,
    "w": 9,
    "w_scales": 13,
    "offs": 18,
    "x_global": 24,
    "w_global": 26,
    "alpha": 30,
    "row_scale": 31,
    "bias": 32,
    "out": 34,
}


class PortableBackend:
    """mma.sync with weights decoded in registers."""

    name = "portable"
    devices = ("cuda",)

    def why_not(self, problem: Problem) -> list[str]:
        if problem.device != "cuda":
            return [f"it computes on NVIDIA GPUs, and the tensors are on {problem.device}"]
        try:
            capability = compute_capability(problem.device_index)
        except NativeLibraryError as error:
            return [str(error)]
        if target_of(capability) is None:
            found = ".".join(map(str, capability))
            return [f"it has no kernel for compute capability {found}; sm_80 and newer have one"]
        return _beyond_32_bits(problem)

    def plan(self, problem: Problem) -> Plan:
        capability = compute_capability(problem.device_index)
        target = target_of(capability)
        assert target is not None, "why_not has refused this device"
        config = choose_config(problem, target)
        arch = gpu_of(capability)
        if arch is None:
            estimate = Estimate(math.inf, "not modelled on this device", {})
        else:
            estimate = portable_time(problem, arch)
        return Plan(self.name, config, estimate, ("weights in place", "batch-invariant"))

    def run(self, operands: Sequence[Operands], plan: Plan) -> None:
        device = operands[0].x.device.index or 0
        queue = current_queue(device)
        sms = current_driver().attribute(device, "sms")
        for product in operands:
            config = config_of(product, plan.config)
            ctas = _ctas(product, config, sms)
            if ctas:
                kernel = load_kernel(device, config)
                kernel.launch(ctas, config.threads, params_of(product), queue)

    def prepare(self, product: Operands, plan: Plan) -> RunAt | None:
        device = product.x.device.index or 0
        driver = current_driver()
        config = config_of(product, plan.config)
        ctas = _ctas(product, config, driver.attribute(device, "sms"))
        if not ctas:
            return None
        words = [_ADDRESS_WORDS[name] for name in product.tensors]
        params = params_of(product)
        params_at = RecordTemplate(params, words).filled
        launch = load_kernel(device, config).bind(ctas, config.threads, params)

        def run_at(addresses: Sequence[int]) -> bool:
            if current_driver() is not driver:  # another one stands in: it has not this kernel
                return False
            launch(params_at(addresses), driver.current_queue(device))
            return True

        return run_at


def _ctas(product: Operands, config: PortableConfig, sms: int) -> int:
    """CTAs of one launch: every tile has one, up to what the device holds; 0: no work."""
    if not product.m:
        return 0
    tiles = product.groups * -(-product.n // _TILE_ROWS)
    return min(sms * config.ctas_per_sm, tiles)


def _beyond_32_bits(problem: Problem) -> list[str]:
    """Sizes that the kernel's counters do not hold; N and the rows of all groups have 64 bits."""
    group_rows = [shape.m for shape in problem.shapes]
    counts = {
        "groups": problem.groups,
        "tokens in a group": problem.rows if problem.form == "packed" else max(group_rows),
        "values along K": max(shape.k for shape in problem.shapes),
    }
    return [
        f"it counts {what} in 32 bits: at most {_LARGEST_COUNT:,}, and there may be {count:,}"
        for what, count in counts.items()
        if count > _LARGEST_COUNT
    ]


def config_of(product: Operands, planned: PortableConfig) -> PortableConfig:
    """The planned configuration, without its claim of aligned rows where these are not."""
    if planned.aligned and not is_aligned(product, planned.stage_k):
        return replace(planned, aligned=False)
    return planned


def is_aligned(product: Operands, stage_k: int) -> bool:
    """Whether the kernel's aligned variant may run: see ``PortableConfig.aligned``."""
    if product.k % stage_k:
        return False
    tokens, weights = _token_fields(product), _weight_fields(product)
    x_vector, x_scale_vector = tokens[3], tokens[7]
    w_vector, w_scale_vector = weights[3], weights[7]
    scale_piece = 16 if product.w_scale_layout == "blocked" else min(16, stage_k // 16)
    return (
        x_vector == w_vector == 16
        and w_scale_vector >= scale_piece
        and (product.x_scales is None or x_scale_vector >= 4)
    )


def params_of(product: Operands) -> bytes:
    """The kernel's by-value parameter; addresses are the tensors' own."""
    n = product.n
    w_global, x_global, bias = product.w_global, product.x_global, product.bias
    segments = w_global.shape[1] if w_global is not None and w_global.ndim == 2 else 1
    return _PARAMS.pack(
        *_token_fields(product),
        *_weight_fields(product),
        address(product.offs),
        product.groups,
        product.m,
        n,
        product.k,
        product.max_m,
        address(x_global),
        _stride(x_global, 0),
        address(w_global),
        _stride(w_global, 0),
        _stride(w_global, 1),
        max(n // segments, 1),
        address(product.alpha),
        address(product.row_scale),
        address(bias),
        bias.stride(0) if bias is not None and bias.ndim == 2 else 0,
        product.out.data_ptr(),
        *product.out.stride(),
        0 if bias is None else TYPES[bias.dtype],
        TYPES[product.out.dtype],
    )


def _token_fields(product: Operands) -> tuple[int, ...]:
    x, scales = product.x, product.x_scales
    row_bytes = x.stride(0) * x.element_size()
    rows = (x.data_ptr(), 0, row_bytes, common_alignment(x.data_ptr(), row_bytes))
    layout = SCALE_LAYOUTS[product.x_scale_layout]
    start = SCALE_STARTS[product.x_scale_start]
    if scales is None:
        return (*rows, 0, 0, 0, 1, layout, start)
    base, stride = address(scales), scales.stride(0)
    blocked = product.x_scale_layout == "blocked"
    numbers = (base,) if blocked else (base, stride, product.k // 16)
    return (*rows, base, 0, stride, common_alignment(*numbers), layout, start)


def _weight_fields(product: Operands) -> tuple[int, ...]:
    w, scales = product.w, product.w_scales
    group, row = w.stride(0), w.stride(1)
    base = address(w)
    rows = (base, group, row, common_alignment(base, group, row))
    scale_address, scale_group, scale_row = scales.data_ptr(), scales.stride(0), scales.stride(1)
    if product.w_scale_layout == "blocked":
        vector = common_alignment(scale_address, scale_group)
    else:
        vector = common_alignment(scale_address, scale_group, scale_row, product.k // 16)
    layout = SCALE_LAYOUTS[product.w_scale_layout]
    return (*rows, scale_address, scale_group, scale_row, vector, layout, 0)


def common_alignment(*numbers: int) -> int:
    """The largest of 16, 8, 4 and 1 that divides every address and stride."""
    bits = 16
    for number in numbers:
        bits |= number
    lowest = bits & -bits
    return lowest if lowest in (16, 8, 4) else 1


def _stride(tensor: Tensor | None, dimension: int) -> int:
    return tensor.stride(dimension) if tensor is not None and tensor.ndim > dimension else 0
