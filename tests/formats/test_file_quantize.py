"""``quantize_checkpoint``: the same bits as ``quantize``, everything else as it was."""

from __future__ import annotations

import json

import pytest
import torch

import nibblas
from nibblas.formats import file_quantize
from nibblas.formats.file_quantize import quantize_checkpoint, row_slabs
from nibblas.formats.safetensors_file import SafetensorsReader, TensorInfo
from tests.formats.weights import same_bytes

safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors")

EXPERTS = "model.layers.0.mlp.experts"
GATE = f"{EXPERTS}.0.gate_proj.weight"
STACK = "model.layers.1.mlp.experts.weight"


def checkpoint() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {
        f"{EXPERTS}.{e}.{name}.weight": (1 + e) * randn(48, 64).bfloat16()
        for e in range(2)
        for name in ("gate_proj", "up_proj")
    }
    return tensors | {
        STACK: randn(3, 20, 32).half(),
        "model.layers.0.self_attn.q_proj.weight": randn(32, 64),
        "model.layers.0.self_attn.odd.weight": randn(32, 40),
        "model.layers.0.mlp.gate.weight": randn(4, 64),
        "model.layers.0.mlp.router.weight": randn(4, 64),
        "model.layers.0.input_layernorm.weight": torch.ones(64),
        "model.embed_tokens.weight": randn(10, 64).bfloat16(),
        "lm_head.weight": randn(10, 64).bfloat16(),
        "counter": torch.tensor(7),
        "mask": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 16),
        "complex": torch.ones(3, dtype=torch.complex64),
    }


CHOSEN = {
    *(f"{EXPERTS}.{e}.{name}.weight" for e in range(2) for name in ("gate_proj", "up_proj")),
    STACK,
    "model.layers.0.self_attn.q_proj.weight",
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.safetensors"
    safetensors_torch.save_file(checkpoint(), path, {"format": "pt", "mine": "kept"})
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


@pytest.fixture(params=[1, 600, 1 << 25], ids=["row by row", "slabs", "whole"])
def _slab_bytes(request, monkeypatch):
    monkeypatch.setattr(file_quantize, "_BYTES_AT_A_TIME", request.param)


@pytest.mark.usefixtures("_slab_bytes")
@pytest.mark.parametrize("method", ["amax", "four_over_six"])
def test_modelopt_weights_are_those_of_quantize(source, target, method):
    done = quantize_checkpoint(source, target, naming="modelopt", method=method)
    assert set(done.quantized) == CHOSEN
    written = safetensors_torch.load_file(target)
    for name in CHOSEN:
        whole = nibblas.quantize(checkpoint()[name], method=method)
        assert torch.equal(written[name], whole.codes)
        assert same_bytes(written[f"{name}_scale"], whole.scales)
        assert torch.equal(written[f"{name}_scale_2"], whole.global_scale)


@pytest.mark.usefixtures("_slab_bytes")
def test_compressed_tensors_weights_are_those_of_quantize_with_the_stored_divisor(source, target):
    quantize_checkpoint(source, target, naming="compressed-tensors")
    written = safetensors_torch.load_file(target)
    for name in CHOSEN:
        divisor = written[f"{name}_global_scale"]
        weight = checkpoint()[name]
        amax = weight.float().abs().amax((-2, -1))
        assert torch.allclose(divisor, 2688 / amax, rtol=2.0**-22)
        whole = nibblas.quantize(weight, global_encode_scale=divisor)
        assert torch.equal(written[f"{name}_packed"], whole.codes)
        assert same_bytes(written[f"{name}_scale"], whole.scales)
        assert name not in written


@pytest.mark.parametrize("naming", ["modelopt", "compressed-tensors"])
def test_all_other_tensors_and_the_metadata_are_kept(source, target, naming):
    done = quantize_checkpoint(source, target, naming=naming)
    written = safetensors_torch.load_file(target)
    rest = {name: t for name, t in checkpoint().items() if name not in CHOSEN}
    assert set(done.copied) == set(rest)
    for name, tensor in rest.items():
        assert written[name].dtype == tensor.dtype and written[name].shape == tensor.shape
        assert torch.equal(written[name], tensor)
    with SafetensorsReader(target) as reader:
        assert reader.metadata["mine"] == "kept" and reader.metadata["format"] == "pt"
        assert (
            json.loads(reader.metadata["quantization_config"])
            == (done.config["quantization_config"])
        )
        assert done.bytes_after == sum(info.num_bytes for info in reader.values())
    assert [path.name for path in sorted(target.parent.iterdir())] == [source.name, target.name]


def test_modelopt_names_are_read_back_by_our_readers(source, target):
    quantize_checkpoint(source, target, naming="modelopt")
    experts = nibblas.read_modelopt_experts(nibblas.open_checkpoint(target), EXPERTS).weights
    assert experts.shape == (2, 96, 64) and experts.global_scale.shape == (2, 2)
    gate = nibblas.quantize(checkpoint()[GATE])
    assert torch.equal(experts.dequantize()[0, :48], gate.dequantize())


def test_compressed_tensors_names_are_read_back_by_our_readers(source, target):
    quantize_checkpoint(source, target)
    tensors = nibblas.open_checkpoint(target)
    experts = nibblas.read_compressed_tensors_experts(tensors, EXPERTS).weights
    divisor = tensors[f"{GATE}_global_scale"]
    gate = nibblas.quantize(checkpoint()[GATE], global_encode_scale=divisor)
    assert torch.equal(experts.dequantize()[0, :48], gate.dequantize())


def test_the_compressed_tensors_library_decodes_our_file_to_our_values(source, target):
    """Its ``decompress`` multiplies by (scale / global), two roundings; ours too, other ones."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors")
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationConfig

    done = quantize_checkpoint(source, target, naming="compressed-tensors")
    config = QuantizationConfig.model_validate(done.config["quantization_config"])
    (scheme,) = config.config_groups.values()
    assert NVFP4PackedCompressor.can_compress(torch.nn.Linear, scheme)
    assert config.format == "nvfp4-pack-quantized"
    tensors = nibblas.open_checkpoint(target)
    parts = NVFP4PackedCompressor.compression_param_names(scheme)
    for name in sorted(CHOSEN - {STACK}):
        state = {part: tensors[f"{name.removesuffix('weight')}{part}"] for part in parts}
        ours = nibblas.from_compressed_tensors(*(state[part] for part in parts)).dequantize()
        unpacked = NVFP4PackedCompressor.decompress(dict(state), scheme)["weight"]
        # It decodes in bfloat16: half an ulp for the scale, one for the product.
        torch.testing.assert_close(unpacked.float(), ours, rtol=2.0**-7, atol=0.0)
        exact = {**state, "weight_scale": state["weight_scale"].float()}
        from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        codes = unpack_fp4_from_uint8(exact["weight_packed"], *ours.shape, dtype=torch.float32)
        theirs = dequantize(
            codes,
            scale=exact["weight_scale"],
            args=scheme.weights,
            global_scale=exact["weight_global_scale"],
            dtype=torch.float32,
        )
        torch.testing.assert_close(ours, theirs, rtol=4 * 2.0**-24, atol=0.0)


def test_the_library_loads_our_file_into_a_model(source, target):
    """A model made by the configuration takes the tensors by name and computes with our values."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    done = quantize_checkpoint(source, target, include=["*.q_proj.weight"])
    name = "model.layers.0.self_attn.q_proj"
    config = QuantizationConfig.model_validate(done.config["quantization_config"])
    model = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(64, 32, bias=False)})
    apply_quantization_config(model, config)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    tensors = nibblas.open_checkpoint(target)
    parts = ("weight_packed", "weight_scale", "weight_global_scale")
    loaded = {f"q_proj.{part}": tensors[f"{name}.{part}"] for part in parts}
    missing = model.load_state_dict(loaded, strict=True)
    assert not missing.missing_keys and not missing.unexpected_keys
    compressor.decompress_model(model)
    ours = nibblas.from_compressed_tensors(*(tensors[f"{name}.{part}"] for part in parts))
    torch.testing.assert_close(
        model["q_proj"].weight.detach().float(), ours.dequantize(), rtol=2.0**-7, atol=0.0
    )


def test_patterns_choose(source, target):
    def chosen(**patterns) -> set[str]:
        done = quantize_checkpoint(source, target, replace=True, **patterns)
        return set(done.quantized)

    assert chosen(include=["lm_head.*"]) == {"lm_head.weight"}
    assert chosen(include=["re:.*experts\\.\\d+\\.up_proj\\.weight"]) == {
        f"{EXPERTS}.{e}.up_proj.weight" for e in range(2)
    }
    assert chosen(exclude=[f"{EXPERTS}.*", "*.q_proj.*"]) == {STACK}
    assert chosen(include=["*"], exclude=["re:.*(0|1).*"]) == {
        "lm_head.weight",
        "model.embed_tokens.weight",
    }


def test_the_configuration_names_what_was_left(source, target):
    done = quantize_checkpoint(source, target, naming="modelopt", exclude=["*.q_proj.*"])
    config = done.config["quantization_config"]
    assert config["quant_algo"] == "W4A16_NVFP4"
    assert set(config["ignore"]) == {
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.mlp.gate",
        "model.layers.0.mlp.router",
        "model.layers.0.self_attn.odd",
        "model.layers.0.self_attn.q_proj",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include": ["*.odd.weight"]}, r"include: got .*its K, 40, is no multiple of 16"),
        ({"include": ["counter"]}, r"include: got counter: its name does not end in \.weight"),
        ({"include": ["nothing"]}, "include: got no weight among"),
        ({"exclude": ["*"]}, "include: got no weight among"),
        ({"include": ["re:("]}, r"include: got 're:\('"),
        ({"naming": "gguf"}, "naming: got 'gguf'; want 'modelopt' or 'compressed-tensors'"),
        ({"method": "best"}, "method: got 'best'"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(source, target, arguments, message):
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(source, target, **arguments)
    assert list(target.parent.iterdir()) == [source]


def test_one_pattern_that_is_no_sequence_is_refused(source, target):
    with pytest.raises(TypeError, match="include: got one str"):
        quantize_checkpoint(source, target, include="*")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_without_a_form_are_named_and_leave_nothing(tmp_path, target, bad, monkeypatch):
    monkeypatch.setattr(file_quantize, "_BYTES_AT_A_TIME", 256)
    tensors = checkpoint()
    tensors[STACK][2, 13, 5] = bad
    safetensors_torch.save_file(tensors, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=f"source: got NaN or infinity in row 53 of {STACK}"):
        quantize_checkpoint(tmp_path / "in.safetensors", target)
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize("naming", ["modelopt", "compressed-tensors"])
def test_a_name_that_is_taken_is_refused(tmp_path, target, naming):
    safetensors_torch.save_file(
        {"a.weight": torch.ones(2, 16), "a.weight_scale": torch.ones(2)}, tmp_path / "in"
    )
    with pytest.raises(ValueError, match=r"naming: got a\.weight_scale, which the source has"):
        quantize_checkpoint(tmp_path / "in", target, naming=naming)
    assert not target.exists()


def test_the_source_is_never_overwritten(source, tmp_path):
    before = source.read_bytes()
    link = tmp_path / "link.safetensors"
    link.symlink_to(source)
    for same in (source, link, source.parent / ".." / source.parent.name / source.name):
        with pytest.raises(ValueError, match="the source; want another file"):
            quantize_checkpoint(source, same, replace=True)
    assert source.read_bytes() == before


def test_an_interrupt_in_the_middle_leaves_nothing(source, target):
    def interrupt(name: str, done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, target, progress=interrupt)
    assert list(target.parent.iterdir()) == [source]


def test_progress_ends_at_the_size_of_the_source(source, target):
    seen: list[tuple[str, int, int]] = []
    done = quantize_checkpoint(source, target, progress=lambda *step: seen.append(step))
    assert seen[-1][1:] == (done.bytes_before, done.bytes_before)
    assert [step[1] for step in seen] == sorted(step[1] for step in seen)


def test_slabs_cover_the_rows_in_order_and_cross_no_matrix():
    info = TensorInfo("a", "BF16", (3, 10, 16))
    for size in (1, 32, 100, 1 << 20):
        slabs = list(row_slabs(info, 10, size))
        assert [row for begin, end in slabs for row in range(begin, end)] == list(range(30))
        assert all(begin // 10 == (end - 1) // 10 for begin, end in slabs)
        assert all((end - begin) * 32 <= max(size, 32) for begin, end in slabs)


def test_memory_stays_below_the_size_of_one_large_weight(tmp_path, target, monkeypatch):
    """Every piece that is read or written is at most a slab."""
    sizes = []
    read = SafetensorsReader.read_bytes

    def recording(self, name: str, begin: int, end: int):
        sizes.append(end - begin)
        return read(self, name, begin, end)

    monkeypatch.setattr(SafetensorsReader, "read_bytes", recording)
    monkeypatch.setattr(file_quantize, "_BYTES_AT_A_TIME", 4096)
    big = {"a.weight": torch.randn(512, 64), "copied": torch.randn(9999)}
    safetensors_torch.save_file(big, tmp_path / "in")
    quantize_checkpoint(tmp_path / "in", target)
    assert max(sizes) <= 4096
