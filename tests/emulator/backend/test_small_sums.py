"""Sums that a tensor core makes of tiny operands, against the error bound (decision 6).

A product is aligned by the exponents of its factors, and a subnormal has the smallest normal one:
terms that are aligned by more than they are lose bits that a bound by sizes does not allow for. A
sum below float32's normal range loses a bit to every cut.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nibblas import NVFP4Array, grouped_mm
from nibblas.check.problems import draw
from nibblas.check.targets import Target
from nibblas.check.verdict import judge, truth_of
from nibblas.emulator import emulating
from nibblas.emulator.dot import accumulation, expanded, multiply_add
from nibblas.formats import e2m1
from nibblas.formats.reference import (
    block_values,
    error_bound,
    grouped_mm_reference,
    within_bound,
)

DECODE = 2.0**-7
"""What the portable kernel's weights are multiplied by."""
ONE, ONE_AND_A_HALF, SIX, A_HALF = 2, 3, 7, 1
"""Codes."""


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_portable_kernel_on_sums_near_1e_40(arch):
    """Uses a good part of the bound: its term for cuts is not larger than it has to be."""
    with emulating(arch):
        verdict = judge(truth_of(draw(90, 29)), Target("emulated"))
    assert verdict.passed, verdict.violations
    assert verdict.worst > 0.3


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_few_values_are_cut_as_often_as_they_have_mmas(arch):
    """16 values along K: four MMAs of the portable kernel. Two cuts, K / 8, are too few."""
    made = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 256, (1, 512, 8), dtype=torch.uint8, generator=made)
    w = NVFP4Array(codes, torch.full((1, 512, 1), 0x01, dtype=torch.uint8))
    x = (torch.randint(-127, 128, (8, 16), generator=made) * 2.0**-133).bfloat16()
    offs = torch.tensor([8], dtype=torch.int32)
    with emulating(arch):
        out = grouped_mm(x, w, offs, out_dtype=torch.float32, backend="emulated")
    exact = grouped_mm_reference(x, w, offs)
    assert within_bound(out, exact, error_bound(exact, torch.float32)).all()
    two_cuts = replace(exact, absolute=torch.full_like(exact.absolute, 2 * 2.0**7))
    assert not within_bound(out, exact, error_bound(two_cuts, torch.float32)).all()


def bytes_of(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn).view(torch.uint8)


ONE_LARGE_WEIGHT = torch.tensor([[SIX] + [0] * 15 + [ONE] * 15 + [0]], dtype=torch.uint8)
TOGETHER = [0, *range(16, 31), *range(1, 16), 31]
"""Of a large block and a small one: the one large weight first, with those of the small block."""


def float16_tokens():
    tokens = torch.full((32,), 2.0**-24).half()
    return ONE_LARGE_WEIGHT, bytes_of([448.0, 1.875 * 2.0**-5]), tokens, TOGETHER


def bfloat16_tokens():
    tokens = torch.full((32,), 2.0**-133).bfloat16()
    return ONE_LARGE_WEIGHT, bytes_of([448.0, 2.0**-8]), tokens, TOGETHER


def float16_weights():
    """The largest product's weight is subnormal once decoded."""
    codes = torch.tensor([[A_HALF] + [ONE_AND_A_HALF] * 15], dtype=torch.uint8)
    tokens = torch.tensor([1.0] + [2.0**-24] * 15).half()
    return codes, bytes_of([2.0**-9]), tokens, list(range(16))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("operands", [float16_tokens, bfloat16_tokens, float16_weights])
def test_subnormals_count_as_what_they_are_aligned_by(arch, operands):
    """The other products end below the largest one's alignment: beyond a bound by sizes alone."""
    codes, scales, tokens, order = operands()
    w = NVFP4Array(e2m1.pack(codes)[None], scales[None, None])
    x = tokens[None]
    exact = grouped_mm_reference(x, w, torch.tensor([1], dtype=torch.int32))
    sizes = x.double().abs() @ block_values(w)[0].abs().T
    by_sizes = replace(exact, magnitude=sizes, absolute=torch.ones_like(sizes))

    kind = "f16" if x.dtype == torch.float16 else "bf16"
    weights = (block_values(w)[0] * DECODE).to(x.dtype)
    assert torch.equal(weights.double(), block_values(w)[0] * DECODE)
    a, b = (bits_of(part[0, order]) for part in (x, weights))
    sums = multiply_add(
        expanded(a[:, None], kind),
        expanded(b[:, None], kind),
        np.zeros((1, 1), np.float32),
        accumulation(arch, kind),
    )
    error = abs(float(sums[0, 0]) / DECODE - float(exact.value))
    assert float(error_bound(by_sizes, torch.float32)) < error
    assert error <= float(error_bound(exact, torch.float32))


def bits_of(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.int16).numpy().view(np.uint16)
