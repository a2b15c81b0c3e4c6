"""Rivals: that each computes the case's product, and what each is asked for, on stand-ins."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import types

import pytest
import torch

from nibblas.bench import humming_rival, timing, torch_rivals
from nibblas.bench.cases import CASES, KINDS, BenchCase
from nibblas.bench.contenders import RIVAL_LIMIT, Contender, decode, make_data
from nibblas.bench.torch_rivals import FP8_LIMIT
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.reference import grouped_mm_reference

CPU = torch.device("cpu")
CASE = BenchCase("D1", (3, 0, 5), 64, 128, "cuda")


def error_of(contender: Contender, data) -> float:
    """Relative, of Frobenius norms, the largest over all sets."""
    exact = grouped_mm_reference(data.x, data.w, data.offs).value
    errors = []
    for i in range(contender.sets):
        contender.call(i)
        errors.append(float((contender.result(i).double() - exact).norm() / exact.norm()))
    return max(errors)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_is_exact(kind):
    data = make_data(CASE, kind, CPU)
    assert torch.equal(decode(data.w, data.dtype).double(), data.w.dequantize(torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rival", [torch_rivals.mm, torch_rivals.grouped, torch_rivals.decoding])
def test_torch_rivals_compute_the_product_in_every_set(kind, rival):
    if rival is torch_rivals.grouped and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    data = make_data(CASE, kind, CPU)
    contender = rival(data, 100_000.0)
    assert contender.sets > 1
    assert error_of(contender, data) < 4e-3


def test_decoding_by_triton_feeds_grouped_mm(monkeypatch):
    """The GPU's way, with PyTorch's decoding in place of the kernel."""
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    decoder = lambda codes, scales: decode(NVFP4Array(codes, scales), torch.bfloat16)  # noqa: E731
    monkeypatch.setattr(torch_rivals, "_gpu_decoder", lambda: decoder)
    data = make_data(CASE, "w4a16-fp16", CPU)
    contender = torch_rivals._decode_grouped(data, 0.0)
    assert contender.name == "decode + torch grouped_mm in bf16"
    assert error_of(contender, data) < 4e-3


def test_without_triton_there_is_no_decoding_in_one_pass(monkeypatch):
    monkeypatch.setattr(torch_rivals.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="Triton"):
        torch_rivals._gpu_decoder()


def test_the_triton_kernel_decodes_every_byte_under_every_scale():
    """In Triton's interpreter, which wants its switch before the import."""
    pytest.importorskip("triton", reason="Triton")
    program = """
import torch
from nibblas.bench.triton_decode import decode_bf16
from nibblas.formats.nvfp4 import NVFP4Array
codes = torch.arange(256, dtype=torch.uint8).expand(127, 256).contiguous()
scales = torch.arange(127, dtype=torch.uint8)[:, None].expand(127, 32).contiguous()
want = NVFP4Array(codes, scales).dequantize(torch.float64)
assert torch.equal(decode_bf16(codes, scales).double(), want)
"""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)


def test_rowwise_fp8_rounds_more_than_16_bits_and_less_than_its_limit(monkeypatch):
    def scaled_grouped_mm(x, w, x_scale, w_scale, *, offs, out_dtype, use_fast_accum):
        assert x.dtype == w.dtype == torch.float8_e4m3fn and out_dtype == torch.bfloat16
        y, begin = torch.empty(x.shape[0], w.shape[2]), 0
        for g, end in enumerate(offs.tolist()):
            product = x[begin:end].float() @ w[g].float()
            y[begin:end] = product * x_scale[begin:end, None] * w_scale[g]
            begin = end
        return y.to(out_dtype)

    monkeypatch.setattr(torch_rivals, "_needs_gpu", lambda data: None)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped_mm)
    data = make_data(CASE, "w4a16-fp16", CPU)
    contender = torch_rivals.fp8(data, 0.0)
    assert RIVAL_LIMIT < error_of(contender, data) < FP8_LIMIT == contender.error_limit
    assert "E4M3" in contender.other_maths


@pytest.fixture
def humming(monkeypatch):
    """A stand-in with the names, arguments and checks of humming-kernels 0.1.20 that are used.

    Its "repacked" weights are the packed codes, its kernels PyTorch's product; ``log`` holds the
    configurations compiled and launched.
    """
    log = types.SimpleNamespace(compiled=[], launched=[], fails=lambda tuning: False)
    modules = {
        name: types.ModuleType(f"humming{name}")
        for name in ("", ".kernel", ".kernel.humming", ".ops", ".schema", ".transform", ".tune")
    }
    for module in modules.values():
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    class Layer:
        def __init__(self, *, shape_n, shape_k, weight_schema, num_experts, torch_dtype):
            assert weight_schema == ("float4e2m1", "float8e4m3", 16)
            self.sizes = (num_experts, shape_n, shape_k)

        def to_str(self):
            return json.dumps(self.sizes)

    def transform(layer, tensors):
        groups, n, k = layer.sizes
        weight, scale = tensors["weight"], tensors["weight_scale"]
        assert weight.shape == (groups, n, k // 8) and weight.dtype == torch.int32
        assert scale.shape == (groups, n, k // 16) and scale.dtype == torch.float8_e4m3fn
        return tensors

    class HummingKernel:
        @staticmethod
        def prepare_kernels(layer_config, compute_config, tuning_config):
            tuning = json.loads(tuning_config)
            if log.fails(tuning):
                raise AssertionError("register budget exceeded")
            log.compiled.append((layer_config, compute_config, tuning_config))

    def gemm(*, layer_config, compute_config, tuning_config, inputs, weight, weight_scale, outputs,
             expert_layout, locks):  # fmt: skip
        assert (layer_config, compute_config, tuning_config) in log.compiled
        groups, _, k = json.loads(layer_config)
        assert inputs.shape[1] == k and expert_layout.shape == (groups + 1,)
        assert expert_layout[0] == 0 and not locks.any()
        w = NVFP4Array(weight.view(torch.uint8), weight_scale.view(torch.uint8))
        exact = grouped_mm_reference(inputs, w, expert_layout[1:], with_magnitude=False)
        outputs.copy_(exact.value)
        log.launched.append(json.loads(tuning_config))

    def heuristics(layer, *, shape_m, gemm_type):
        assert shape_m == sum(CASE.rows) and gemm_type == "grouped_contiguous"
        return {"mma_type": "wgmma", "block_shape": (16, 128, 64), "num_stages": 3}

    schema = lambda b_dtype, bs_dtype, weight_scale_group_size: (  # noqa: E731
        b_dtype,
        bs_dtype,
        weight_scale_group_size,
    )
    names = {
        ".kernel.humming": {"HummingKernel": HummingKernel},
        ".ops": {"humming_gemm": gemm},
        ".schema": {"HummingWeightSchema": schema},
        ".transform": {"prepare_layer_config": Layer, "transform_humming_tensors": transform},
        ".tune": {"get_heuristics_config": heuristics},
    }
    for module, contents in names.items():
        for name, value in contents.items():
            monkeypatch.setattr(modules[module], name, value, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    humming_rival._layer.cache_clear()
    yield log
    humming_rival._layer.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_humming_runs_what_its_heuristic_picks(humming, kind):
    data = make_data(CASE, kind, CPU)
    contender = humming_rival.heuristic(data, 100_000.0)
    assert contender.sets > 1 and error_of(contender, data) < 4e-3
    assert contender.name == "Humming"
    assert contender.config == "wgmma 16x128x64, 3 stages, 1 CTA/SM, stream-K"
    assert [tuning["num_stages"] for tuning in humming.launched] == [3] * contender.sets


def test_humming_tuned_is_the_fastest_of_the_table(humming, monkeypatch):
    timed = []

    def make_turn(contender):
        timed.append(contender.config)
        return lambda i: 2.0 if contender.config.endswith("stream-K") else 1.0

    monkeypatch.setattr(timing, "turn_on_cuda", make_turn)
    data = make_data(CASE, "w4a16-fp16", CPU)
    contender = humming_rival.tuned(data, 0.0)
    assert timed == [f"mma 8x128x64, 4 stages, 6 CTA/SM{end}" for end in (", stream-K", "")]
    assert contender.config == timed[1] and error_of(contender, data) < 1e-3
    assert humming.launched[-1]["use_stream_k"] is False


def test_a_configuration_that_does_not_compile_is_passed_over(humming, monkeypatch):
    monkeypatch.setattr(timing, "turn_on_cuda", lambda contender: lambda i: 1.0)
    data = make_data(CASE, "w4a16-fp16", CPU)
    humming.fails = lambda tuning: not tuning["use_stream_k"]
    assert humming_rival.tuned(data, 0.0).config.endswith("stream-K")
    humming.fails = lambda tuning: True
    with pytest.raises(AssertionError, match="register budget"):
        humming_rival.tuned(data, 0.0)


def test_everything_is_compiled_ahead_once_and_failures_wait_for_their_case(humming):
    humming.fails = lambda tuning: tuning.get("use_stream_k", False)
    humming_rival.compile_ahead([(CASE, "w4a16-fp16")], search=True)
    tunings = [json.loads(compiled[2]) for compiled in humming.compiled]
    assert sorted(tuning["num_stages"] for tuning in tunings) == [3, 4]
    humming.compiled.clear()
    humming_rival.compile_ahead([(CASE, "w4a16-fp16")], search=False)
    assert len(humming.compiled) == 1


def test_a_humming_that_does_not_work_stops_nothing_ahead(humming, monkeypatch):
    def broken(*arguments, **options):
        raise AssertionError("no such device")

    monkeypatch.setattr(sys.modules["humming.tune"], "get_heuristics_config", broken)
    humming_rival.compile_ahead([(CASE, "w4a16-fp16")], search=True)
    assert humming.compiled == []


def test_every_gpu_case_has_tuned_configurations_that_fit_it():
    assert set(humming_rival.TUNED) == {case.name for case in CASES if case.device == "cuda"}
    for case in CASES:
        for tuning in humming_rival.TUNED.get(case.name, ()):
            _, n, k = tuning["block_shape"]
            assert case.n % n == 0 and case.k % k == 0
            assert all(b % w == 0 for b, w in zip(tuning["block_shape"], tuning["warp_shape"],
                                                  strict=True))  # fmt: skip


def test_humming_without_its_package_or_without_a_gpu_says_so(monkeypatch):
    data = make_data(CASE, "w4a16-fp16", CPU)
    monkeypatch.setattr(humming_rival.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="humming-kernels is not installed"):
        humming_rival.heuristic(data, 0.0)
    monkeypatch.setattr(humming_rival.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModuleNotFoundError, match="needs a GPU"):
        humming_rival.tuned(data, 0.0)
    humming_rival.compile_ahead([(CASE, "w4a16-fp16")], search=True)


def test_no_rival_is_imported_unless_asked_for():
    program = (
        "import sys, nibblas.bench, nibblas.cli.bench\n"
        "print([m for m in ('humming', 'triton') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert found.stdout.strip() == "[]"
