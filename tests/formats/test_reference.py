"""The error bound of tiny sums and operands; elsewhere it is what sizes alone give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nibblas.check.problems import draw
from nibblas.check.verdict import truth_of
from nibblas.formats.reference import (
    block_values,
    error_bound,
    grouped_mm_reference,
    within_bound,
)
from tests.api.problems import offs_of, random_array, random_tokens

TINY_SUMS = (90, 29)
"""A random problem: subnormal bfloat16 tokens, outputs near 1e-40."""


def plain_sizes(x: Any, w: Any) -> torch.Tensor:
    """``sum_k |x w|`` of a problem with one group."""
    tokens = block_values(x) if not isinstance(x, torch.Tensor) else x.double()
    return tokens.abs() @ block_values(w)[0].abs().T


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, "nvfp4"])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_ordinary_problems_see_no_subnormal_term(kind, out_dtype):
    w = random_array((1, 40, 512), 1)
    x = random_array((9, 512), 2) if kind == "nvfp4" else random_tokens(9, 512, 2, kind)
    exact = grouped_mm_reference(x, w, offs_of([9]))
    factors = w.global_scale * (x.global_scale if kind == "nvfp4" else 1.0)
    without = replace(
        exact,
        magnitude=plain_sizes(x, w) * factors.double(),
        absolute=torch.zeros_like(exact.absolute),
    )
    bound, plain = error_bound(exact, out_dtype), error_bound(without, out_dtype)
    assert torch.allclose(bound, plain, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tokens_flushed_to_zero_are_beyond_the_bound(dtype):
    """The bound of subnormal tokens is wider, not blind."""
    bits = torch.randint(1, 0x80, (6, 256), generator=torch.Generator().manual_seed(3))
    x = bits.to(torch.int16).view(dtype)
    w = random_array((1, 64, 256), 4)
    exact = grouped_mm_reference(x, w, offs_of([6]))
    bound = error_bound(exact, torch.float32)
    right = exact.value.float()
    assert bool(within_bound(right, exact, bound).all())
    assert not bool(within_bound(torch.zeros_like(right), exact, bound).all(1).any())


def test_outputs_near_1e_40_are_still_judged():
    """A relative error of 2% is found in most outputs of the problem that asked for the term."""
    known = truth_of(draw(*TINY_SUMS))
    values = torch.cat([exact.value.flatten() for exact in known.exact])
    bounds = torch.cat([error_bound(exact, torch.float32).flatten() for exact in known.exact])
    assert float(values.abs().median()) < 1e-39
    assert float((bounds < values.abs() / 50).double().mean()) > 0.5
