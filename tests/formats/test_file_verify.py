"""``verify_checkpoint``: every planted fault is found, and whole files pass."""

from __future__ import annotations

import pytest
import torch

import nibblas
from nibblas.formats import file_verify
from nibblas.formats.file_verify import find_weights, verify_checkpoint
from nibblas.formats.safetensors_file import TensorInfo

safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors")

NAMINGS = ("modelopt", "compressed-tensors")
CODES = {"modelopt": "a.weight", "compressed-tensors": "a.weight_packed"}
GLOBAL = {"modelopt": "a.weight_scale_2", "compressed-tensors": "a.weight_global_scale"}


@pytest.fixture(params=NAMINGS)
def naming(request):
    return request.param


@pytest.fixture
def source(tmp_path):
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "a.weight": torch.randn(24, 64, generator=generator).bfloat16(),
        "stack.weight": torch.randn(2, 5, 32, generator=generator),
        "zero.weight": torch.zeros(3, 16),
        "n.norm.weight": torch.ones(64),
    }
    safetensors_torch.save_file(tensors, tmp_path / "in")
    return tmp_path / "in"


@pytest.fixture
def written(tmp_path, source, naming):
    nibblas.quantize_checkpoint(source, tmp_path / "out", naming=naming)
    return tmp_path / "out"


def changed(path, change):
    """The file after ``change`` of its tensors."""
    tensors = safetensors_torch.load_file(path)
    change(tensors)
    safetensors_torch.save_file(tensors, path)
    return path


def faults_of(path, **options) -> dict[str, str]:
    verdict = verify_checkpoint(path, **options)
    found = {each.weight.module: "; ".join(each.faults) for each in verdict.weights if each.faults}
    if verdict.faults:
        found[""] = "; ".join(verdict.faults)
    assert verdict.passed == (not found)
    return found


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_a_whole_file_passes_with_the_errors_of_its_values(written, source, monkeypatch, piece):
    monkeypatch.setattr(file_verify, "_CODE_BYTES_AT_A_TIME", piece)
    assert faults_of(written) == {}
    verdict = verify_checkpoint(written, against=source)
    assert verdict.passed
    by_module = {each.weight.module: each for each in verdict.weights}
    assert set(by_module) == {"a", "stack", "zero"}
    for module in ("a", "stack"):
        t = safetensors_torch.load_file(source)[f"{module}.weight"].double()
        error = nibblas.quantize(t.float()).dequantize().double() - t
        assert by_module[module].max_abs_error == pytest.approx(float(error.abs().max()), rel=1e-5)
        relative = float(error.norm() / t.norm())
        assert by_module[module].relative_error == pytest.approx(relative, rel=1e-5)
    assert by_module["zero"].relative_error == 0.0
    assert by_module["a"].weight.bits_per_weight == pytest.approx(4.5 + 32 / (24 * 64))
    assert {each.weight.scale_layout for each in verdict.weights} == {"linear"}


@pytest.mark.parametrize("part", ["codes", "scales", "global scale"])
def test_a_missing_part_is_named(written, naming, part):
    names = {"codes": CODES[naming], "scales": "a.weight_scale", "global scale": GLOBAL[naming]}
    changed(written, lambda tensors: tensors.pop(names[part]))
    assert faults_of(written) == {"a": f"no {names[part]}"}


@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
def test_a_scale_that_is_nan_or_negative_is_counted(written, byte):
    def plant(tensors):
        tensors["a.weight_scale"].view(torch.uint8)[5, 2:4] = byte

    assert faults_of(changed(written, plant)) == {"a": "2 block scales are NaN or negative"}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e-45])
def test_a_global_scale_that_is_not_positive_and_finite_is_named(written, naming, value):
    def plant(tensors):
        tensors[GLOBAL[naming].replace("a.", "stack.")][1] = value

    assert "a global scale is" in faults_of(changed(written, plant))["stack"]


@pytest.mark.parametrize(
    ("part", "replace", "what"),
    [
        ("scales", lambda t: t[:, :3].contiguous(), "scales are F8_E4M3 (24, 3), not F8_E4M3"),
        ("scales", lambda t: t.view(torch.uint8), "scales are U8 (24, 4), not F8_E4M3"),
        ("codes", lambda t: t[:, :31].contiguous(), "K is 62, no multiple of 16"),
        ("codes", lambda t: t.flatten(), "codes are U8 (768,)"),
        ("codes", lambda t: t.view(torch.int8), "codes are I8"),
        ("global", lambda t: t.half(), "the global scale is F16"),
        ("global", lambda t: torch.ones(5), "the global scale is F32 (5,)"),
    ],
)
def test_a_part_that_does_not_fit_is_named(written, naming, part, replace, what):
    name = {"codes": CODES[naming], "scales": "a.weight_scale", "global": GLOBAL[naming]}[part]
    found = faults_of(changed(written, lambda t: t.update({name: replace(t[name])})))
    assert what in found["a"]


def test_blocked_scales_are_recognised_and_refused(written):
    def block(tensors):
        tensors["a.weight_scale"] = nibblas.formats.scale_layout.to_blocked(
            tensors["a.weight_scale"]
        )

    verdict = verify_checkpoint(changed(written, block))
    (each,) = (each for each in verdict.weights if each.weight.module == "a")
    assert each.weight.scale_layout == "blocked" and each.faults


def test_a_global_scale_in_the_other_direction_is_found_by_the_original(written, naming, source):
    def invert(tensors):
        tensors[GLOBAL[naming]] = tensors[GLOBAL[naming]].reciprocal()

    changed(written, invert)
    assert faults_of(written) == {}
    assert "the relative error is" in faults_of(written, against=source)["a"]


def test_one_wrong_code_block_exceeds_a_tight_limit(written, naming, source):
    assert faults_of(written, against=source, limit=0.12) == {}

    def plant(tensors):
        tensors[CODES[naming]][7, :24] ^= 0x88  # the signs

    found = faults_of(changed(written, plant), against=source, limit=0.12)
    assert set(found) == {"a"}


def test_other_tensors_must_be_those_of_the_original(written, source):
    changed(written, lambda tensors: tensors["n.norm.weight"].mul_(1.5))
    assert faults_of(written, against=source) == {"": "n.norm.weight differs from the original's"}
    changed(written, lambda tensors: tensors.update({"n.norm.weight": torch.ones(3)}))
    assert "n.norm.weight is F32 (3,), and" in faults_of(written, against=source)[""]
    changed(written, lambda tensors: tensors.pop("n.norm.weight"))
    assert faults_of(written, against=source) == {"": "no n.norm.weight, which the original has"}


def test_an_original_without_the_weight_is_a_fault(written, source):
    changed(source, lambda tensors: tensors.pop("a.weight"))
    assert faults_of(written, against=source) == {"a": "the original has no a.weight"}
    changed(source, lambda tensors: tensors.update({"a.weight": torch.ones(24, 32)}))
    assert "(24, 64), and the original's (24, 32)" in faults_of(written, against=source)["a"]


def test_a_file_without_nvfp4_weights_does_not_pass(source):
    assert faults_of(source) == {"": "there are no NVFP4 weights in the file"}


def test_a_limit_below_zero_is_refused(source):
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="limit: got"):
            verify_checkpoint(source, limit=limit)


def test_formats_with_the_same_names_are_not_taken_for_nvfp4():
    def named(**tensors: tuple[str, tuple[int, ...]]):
        return {
            f"a.{n}": TensorInfo(f"a.{n}", dtype, shape) for n, (dtype, shape) in tensors.items()
        }

    mxfp4 = named(weight_packed=("U8", (8, 32)), weight_scale=("U8", (8, 2)))
    int4 = named(weight_packed=("I32", (8, 8)), weight_scale=("BF16", (8, 1)))
    fp8 = named(weight=("F8_E4M3", (8, 64)), weight_scale=("F32", ()))
    plain = named(weight=("BF16", (8, 64)))
    bytes_only = named(weight=("U8", (8, 64)))
    for tensors in (mxfp4, int4, fp8, plain, bytes_only):
        assert find_weights(tensors) == []


def test_a_fused_pair_with_a_global_scale_per_half_is_verified(tmp_path):
    gate, up = torch.randn(16, 32), 10 * torch.randn(16, 32)
    both = torch.cat([gate, up])
    w = nibblas.quantize(both, segments=2)
    parts = {
        "a.weight": w.codes,
        "a.weight_scale": w.scales,
        "a.weight_scale_2": w.global_scale,
    }
    safetensors_torch.save_file(parts, tmp_path / "out")
    safetensors_torch.save_file({"a.weight": both}, tmp_path / "in")
    verdict = verify_checkpoint(tmp_path / "out", against=tmp_path / "in")
    assert verdict.passed
    error = w.dequantize() - both
    relative = float(error.norm() / both.norm())
    assert verdict.weights[0].relative_error == pytest.approx(relative, rel=1e-5)
