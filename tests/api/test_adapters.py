"""torch's and FlashInfer's signatures and conventions over grouped_mm."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn import functional

import nibblas
from nibblas import UnsupportedProblemError
from nibblas.formats import scale_layout
from tests.api.problems import offs_of, random_array, random_tokens

ENDS = [0, 3, 3, 140, 141]
HAS_TORCH_FORM = hasattr(functional, "scaled_grouped_mm")
needs_torch_form = pytest.mark.skipif(
    not HAS_TORCH_FORM, reason="this torch has no scaled_grouped_mm (2.10 and newer do)"
)


def operands(rule="torch"):
    x = random_array((150, 80), 1, ends=ENDS, rule=rule)
    w = random_array((5, 33, 80), 2, layout="blocked")
    return x, w


def torch_arguments(x, w):
    recipe = functional.ScalingType
    swizzle = functional.SwizzleType
    both = [recipe.BlockWise1x16, recipe.TensorWise]
    swizzles = [swizzle.SWIZZLE_32_4_4, swizzle.NO_SWIZZLE]
    return {
        "mat_a": x.codes.view(torch.float4_e2m1fn_x2),
        "mat_b": w.codes.view(torch.float4_e2m1fn_x2).transpose(-2, -1),
        "scale_a": [x.scales, x.global_scale],
        "scale_recipe_a": both,
        "scale_b": [w.scales.flatten(1), w.global_scale],
        "scale_recipe_b": both,
        "swizzle_a": swizzles,
        "swizzle_b": swizzles,
    }


@needs_torch_form
def test_signature_is_torchs():
    ours = inspect.signature(nibblas.scaled_grouped_mm).parameters
    theirs = inspect.signature(functional.scaled_grouped_mm).parameters
    assert list(ours) == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        assert ours[name].default == parameter.default, name


@needs_torch_form
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_scaled_grouped_mm_tokens_by_expert(dtype):
    x, w = operands()
    y = nibblas.scaled_grouped_mm(**torch_arguments(x, w), offs=offs_of(ENDS), output_dtype=dtype)
    want = nibblas.grouped_mm(x, w, offs_of(ENDS), out_dtype=dtype or torch.bfloat16)
    assert torch.equal(y[:141], want[:141])


@needs_torch_form
def test_scaled_grouped_mm_batch():
    x = random_array((3, 20, 64), 3, layout="blocked", global_shape=(3,))
    w = random_array((3, 33, 64), 4, layout="blocked")
    y = nibblas.scaled_grouped_mm(**torch_arguments(x, w), output_dtype=torch.float32)
    for g in range(3):
        want = nibblas.grouped_mm_list([x.group(g)], [w.group(g)], out_dtype=torch.float32)[0]
        assert torch.equal(y[g], want)


@needs_torch_form
def test_scaled_grouped_mm_takes_linear_scales_and_one_level():
    x, w = random_array((9, 64), 5), random_array((2, 33, 64), 6)
    recipe = functional.ScalingType.BlockWise1x16
    y = nibblas.scaled_grouped_mm(
        x.codes, w.codes.transpose(-2, -1), x.scales, recipe, w.scales, recipe, offs=offs_of([4, 9])
    )
    plain = [nibblas.NVFP4Array(t.codes, t.scales) for t in (x, w)]
    assert torch.equal(y, nibblas.grouped_mm(*plain, offs_of([4, 9])))


@needs_torch_form
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_fast_accum": True}, "use_fast_accum"),
        ({"contraction_dim": [1]}, "contraction_dim"),
        ({"offs": None}, "the form"),
        ({"scale_recipe_a": "RowWise"}, "scale_recipe_a"),
        ({"swizzle_b": "OTHER"}, "swizzle_b"),
    ],
)
def test_scaled_grouped_mm_refuses_what_it_does_not_support(change, message):
    x, w = operands()
    arguments = torch_arguments(x, w) | {"offs": offs_of(ENDS)} | change
    with pytest.raises(UnsupportedProblemError, match=message):
        nibblas.scaled_grouped_mm(**arguments)


@needs_torch_form
def test_scaled_grouped_mm_names_torchs_arguments():
    x, w = operands()
    good = torch_arguments(x, w) | {"offs": offs_of(ENDS)}
    bad = {
        "mat_a": good["mat_a"].view(torch.uint8).float(),
        "mat_b": good["mat_b"].contiguous(),
        "scale_a": [x.scales[:128], x.global_scale],
        "scale_b": [w.scales.flatten(1)[:, :-1], w.global_scale],
        "offs": offs_of(ENDS[:-1]),
        "output_dtype": torch.int32,
    }
    for name, value in bad.items():
        with pytest.raises((TypeError, ValueError), match=rf"^{name}"):
            nibblas.scaled_grouped_mm(**(good | {name: value}))
    with pytest.raises(ValueError, match=r"^scale_a.*one tensor per recipe"):
        nibblas.scaled_grouped_mm(**(good | {"scale_a": [x.scales]}))


def test_flashinfer_form():
    x, w = operands("flashinfer")
    alpha = torch.rand(5)
    indptr = offs_of([0, *ENDS])
    arguments = (x.codes, w.codes, x.scales.view(torch.uint8), w.scales.view(torch.uint8), indptr)
    y = nibblas.group_gemm_nvfp4_nt_groupwise(*arguments, alpha)
    plain = [
        nibblas.NVFP4Array(t.codes, t.scales, scale_layout="blocked", group_start=t.group_start)
        for t in (x, w)
    ]
    want = nibblas.grouped_mm(*plain, offs_of(ENDS), alpha=alpha)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y[:141], want[:141])


def test_flashinfer_form_names_its_arguments():
    x, w = operands("flashinfer")
    good = dict(
        a=x.codes, b=w.codes, a_scale=x.scales, b_scale=w.scales, m_indptr=offs_of([0, *ENDS])
    )
    bad = {
        "a": x.codes[:, :24],
        "b": w.codes[0],
        "a_scale": x.scales[:128],
        "b_scale": w.scales[:, :64],
        "m_indptr": offs_of([1, *ENDS]),
        "alpha": torch.rand(3),
    }
    for name, value in bad.items():
        with pytest.raises((TypeError, ValueError), match=rf"^{name}"):
            nibblas.group_gemm_nvfp4_nt_groupwise(**(good | {name: value}))
    with pytest.raises(ValueError, match=r"^m_indptr: got 160 at group 4"):
        nibblas.group_gemm_nvfp4_nt_groupwise(
            **(good | {"m_indptr": offs_of([0, *ENDS[:-1], 160])})
        )


def test_the_two_start_rules_place_scales_apart_and_give_one_result():
    offs, k = offs_of([0, 0, 3]), 64
    starts = [
        scale_layout.group_start_rows(offs, rule).tolist() for rule in ("torch", "flashinfer")
    ]
    assert starts == [[0, 0, 0], [0, 0, 128]]
    tokens = random_tokens(3, k, 1, torch.float32)
    w = random_array((3, 8, k), 2)
    by_rule = [
        nibblas.quantize(tokens, scale_layout="blocked", offs=offs, group_start=rule)
        for rule in ("torch", "flashinfer")
    ]
    right = [nibblas.grouped_mm(x, w, offs) for x in by_rule]
    assert torch.equal(*right)
    mislabelled = nibblas.NVFP4Array(
        by_rule[0].codes,
        by_rule[0].scales,
        global_scale=by_rule[0].global_scale,
        scale_layout="blocked",
        group_start="flashinfer",
    )
    assert not torch.equal(nibblas.grouped_mm(mislabelled, w, offs), right[0])
