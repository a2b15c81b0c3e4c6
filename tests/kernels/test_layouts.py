"""Every form, layout, stride, tail and epilogue, within the derived error bound.

Outputs are poisoned with NaN, fenced, and everything that must not be read holds NaN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nibblas.backends.base import Operands
from tests.kernels.conftest import Run
from tests.kernels.products import Spec, build, check

TAILS = [16, 32, 48, 64, 80, 96, 112, 128, 144, 240, 1008, 1040]
LAYOUTS = ["linear", "torch", "flashinfer"]


def run_and_check(run: Run, spec: Spec, level: str, threads: int = 1) -> None:
    product = build(spec)
    run(product.operands, level, threads)
    check(product, spec)


@pytest.mark.parametrize("k", TAILS)
@pytest.mark.parametrize("tokens", ["bf16", "nvfp4"])
@pytest.mark.parametrize("layout", ["linear", "torch"])
def test_every_tail_of_k_with_nan_in_the_padding(
    run: Run, level: str, layout: str, tokens: str, k: int
) -> None:
    spec = Spec(k=k, tokens=tokens, x_layout=layout, w_layout=layout, gaps=True)
    run_and_check(run, spec, level)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 15, 16, 17, 33, 130])
@pytest.mark.parametrize("tokens", ["fp16", "nvfp4"])
def test_every_tail_of_n(run: Run, level: str, tokens: str, n: int) -> None:
    run_and_check(run, Spec(n=n, tokens=tokens, w_layout="torch", out="bf16"), level)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 95, 96, 97, 98, 200])
@pytest.mark.parametrize("tokens", ["bf16", "nvfp4"])
def test_every_number_of_tokens(run: Run, level: str, tokens: str, m: int) -> None:
    run_and_check(run, Spec(rows=(m,), n=19, tokens=tokens), level)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("x_layout", LAYOUTS)
def test_token_scale_layouts(run: Run, level: str, x_layout: str, masked: bool) -> None:
    rows = (1, 130, 0, 127, 2)
    spec = Spec(rows=rows, k=176, tokens="nvfp4", x_layout=x_layout, masked=masked)
    run_and_check(run, spec, level)


@pytest.mark.parametrize("tokens", ["bf16", "fp16", "nvfp4"])
@pytest.mark.parametrize("rows", [(0,), (0, 0, 0), (0, 1, 0), (1,) * 20, (0, 0, 40)])
@pytest.mark.parametrize("masked", [False, True])
def test_empty_and_one_row_groups(
    run: Run, level: str, masked: bool, rows: tuple[int, ...], tokens: str
) -> None:
    spec = Spec(rows=rows, tokens=tokens, masked=masked, spare_rows=0 if masked else 3)
    run_and_check(run, spec, level)


@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("strides", ["contiguous", "rows", "columns"])
@pytest.mark.parametrize("tokens", ["bf16", "nvfp4"])
def test_output_types_and_strides(
    run: Run, level: str, tokens: str, strides: str, out: str
) -> None:
    run_and_check(run, Spec(n=27, tokens=tokens, out=out, out_strides=strides), level)


@pytest.mark.parametrize(
    "factors",
    [
        ("w_global",),
        ("w_segments",),
        ("alpha",),
        ("row_scale",),
        ("bias",),
        ("group_bias",),
        ("bf16_bias",),
        ("w_segments", "x_global", "alpha", "row_scale", "group_bias"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_epilogue_factors(run: Run, level: str, masked: bool, factors: tuple[str, ...]) -> None:
    spec = Spec(n=34, tokens="nvfp4", factors=factors, masked=masked)
    run_and_check(run, spec, level)
    run_and_check(run, replace(spec, out="bf16", out_strides="columns"), level)


def test_list_of_products_of_different_shapes(run: Run, level: str) -> None:
    shapes = [(3, 20, 64), (0, 8, 32), (1, 130, 176), (100, 17, 16)]
    for tokens in ("fp16", "nvfp4"):
        specs = [Spec(rows=(m,), n=n, k=k, tokens=tokens, seed=m) for m, n, k in shapes]
        products = [build(spec) for spec in specs]
        run([without_offs(p.operands) for p in products], level, 2)
        for product, spec in zip(products, specs, strict=True):
            check(product, spec)


def without_offs(operands: Operands) -> Operands:
    """The list form: one group that owns all rows."""
    return replace(operands, offs=None)


def test_no_weight_rows(run: Run, level: str) -> None:
    run(build(Spec(n=0)).operands, level)


def test_shared_weights_through_a_zero_stride(run: Run, level: str) -> None:
    spec = Spec(rows=(4, 3))
    product = build(spec)
    one = product.operands
    shared = replace(
        one, w=one.w[:1].expand(2, -1, -1), w_scales=one.w_scales[:1].expand(2, -1, -1)
    )
    run(shared, level, batch_invariant=True)
    twice = build(replace(spec, rows=(7,)))
    single = replace(twice.operands, x=one.x, w=one.w[:1], w_scales=one.w_scales[:1])
    run(single, level, batch_invariant=True)
    assert (shared.out == single.out).all()


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its first dimension's entries 2^31 elements and more apart.

    Nothing but the pages of those entries is ever touched.
    """
    stride = 2**31 + 64
    buffer = torch.empty(stride * (tensor.shape[0] - 1) + tensor[0].numel(), dtype=tensor.dtype)
    return buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)


@pytest.mark.parametrize("tokens", ["bf16", "nvfp4"])
def test_strides_beyond_2_to_the_31(run: Run, level: str, tokens: str) -> None:
    spec = Spec(rows=(1, 1), tokens=tokens, out="bf16")
    near = build(spec).operands
    run(near, level)
    scales = far_apart(near.w_scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    out = far_apart(torch.zeros_like(near.out))
    far = replace(near, x=far_apart(near.x), w=far_apart(near.w), w_scales=scales, out=out)
    run(far, level)
    assert torch.equal(near.out, far.out)


SPECS = st.builds(
    Spec,
    rows=st.lists(st.sampled_from([0, 1, 2, 5, 17, 97]), min_size=1, max_size=5).map(tuple),
    n=st.integers(1, 40),
    k=st.integers(1, 70).map(lambda blocks: 16 * blocks),
    tokens=st.sampled_from(["bf16", "fp16", "nvfp4"]),
    out=st.sampled_from(["bf16", "fp16", "fp32"]),
    x_layout=st.sampled_from(LAYOUTS),
    w_layout=st.sampled_from(["linear", "torch"]),
    masked=st.booleans(),
    gaps=st.booleans(),
    out_strides=st.sampled_from(["contiguous", "rows", "columns"]),
    factors=st.sets(
        st.sampled_from(["w_global", "x_global", "alpha", "row_scale", "group_bias"])
    ).map(lambda names: tuple(sorted(names))),
    seed=st.integers(0, 2**16),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(spec=SPECS, threads=st.integers(1, 3))
def test_random_products(run: Run, level: str, spec: Spec, threads: int) -> None:
    run_and_check(run, spec, level, threads)
