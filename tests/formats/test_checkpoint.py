"""The experts of a layer read by name: what is found, and what is refused by which name."""

from __future__ import annotations

import re
import sys
from collections import ChainMap

import pytest
import torch

from nibblas.formats.checkpoint import (
    open_checkpoint,
    read_compressed_tensors_experts,
    read_modelopt_experts,
)
from nibblas.formats.loaders import from_compressed_tensors, from_modelopt
from tests.formats.weights import random_codes, random_scales, same_bytes

PREFIX = "model.layers.3.mlp.experts"
G, N, K = 3, 8, 32
PROJECTIONS = ("gate_proj", "up_proj")
READERS = {
    "modelopt": (
        read_modelopt_experts,
        from_modelopt,
        ("weight", "weight_scale", "weight_scale_2", "input_scale"),
    ),
    "compressed-tensors": (
        read_compressed_tensors_experts,
        from_compressed_tensors,
        ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"),
    ),
}
each_reader = pytest.mark.parametrize("scheme", READERS)


def checkpoint(scheme: str, *, weight_only: bool = False) -> dict[str, torch.Tensor]:
    """One layer's experts with gate, up and down projections, and tensors of other layers."""
    codes, scales, global_scale, input_scale = READERS[scheme][2]
    tensors = {
        "model.embed_tokens.weight": torch.zeros(4, 4),
        "model.layers.30.mlp.experts.7.gate_proj.weight": torch.zeros(4, 4),
        f"{PREFIX}.gate.weight": torch.zeros(G, K),
        f"{PREFIX.replace('.', '_')}.7.gate_proj.weight": torch.zeros(4, 4),
    }
    for e in range(G):
        for p, projection in enumerate((*PROJECTIONS, "down_proj")):
            stem, seed = f"{PREFIX}.{e}.{projection}", 10 * e + p
            tensors[f"{stem}.{codes}"] = random_codes(N, K, seed=seed)
            tensors[f"{stem}.{scales}"] = random_scales(N, K, seed=seed)
            tensors[f"{stem}.{global_scale}"] = torch.tensor([2.0 ** (e - p)])
            if not weight_only:
                tensors[f"{stem}.{input_scale}"] = torch.tensor(2.0 ** (p - e))
    return tensors


@each_reader
def test_experts_are_stacked_in_order_with_their_projections(scheme):
    read, load, (codes, scales, global_scale, _) = READERS[scheme]
    tensors = checkpoint(scheme)
    weights, _ = read(tensors, PREFIX)
    assert weights.shape == (G, 2 * N, K)
    assert weights.global_scale.shape == (G, 2)
    for e in range(G):
        for p, projection in enumerate(PROJECTIONS):
            stem = f"{PREFIX}.{e}.{projection}"
            alone = load(*(tensors[f"{stem}.{t}"] for t in (codes, scales, global_scale)))
            rows = slice(p * N, (p + 1) * N)
            assert torch.equal(weights.group(e).dequantize()[rows], alone.dequantize())


@each_reader
def test_one_projection_has_one_global_scale_per_expert(scheme):
    read = READERS[scheme][0]
    weights, _ = read(checkpoint(scheme), PREFIX, projections=("down_proj",))
    assert weights.shape == (G, N, K)
    assert weights.global_scale.shape == (G,)


@each_reader
def test_the_order_of_projections_is_the_callers(scheme):
    read = READERS[scheme][0]
    gate_up = read(checkpoint(scheme), PREFIX).weights.dequantize()
    up_gate = read(checkpoint(scheme), PREFIX, projections=("up_proj", "gate_proj")).weights
    assert torch.equal(up_gate.dequantize(), gate_up.roll(N, dims=1))


def test_input_scale_is_the_largest_decode_scale_of_an_experts_projections():
    _, decode = read_modelopt_experts(checkpoint("modelopt"), PREFIX)
    assert decode is not None
    assert decode.tolist() == [2.0, 1.0, 0.5]
    _, inverted = read_compressed_tensors_experts(checkpoint("compressed-tensors"), PREFIX)
    assert inverted is not None
    assert inverted.tolist() == [1.0, 2.0, 4.0]


@each_reader
def test_a_weight_only_file_has_no_input_scale(scheme):
    assert READERS[scheme][0](checkpoint(scheme, weight_only=True), PREFIX).input_scale is None


@each_reader
def test_several_files_are_read_as_one_mapping(scheme):
    tensors = checkpoint(scheme)
    names = sorted(tensors)
    halves = [{name: tensors[name] for name in names[i::2]} for i in (0, 1)]
    read = READERS[scheme][0]
    together = read(ChainMap(*halves), PREFIX).weights
    assert same_bytes(together.codes, read(tensors, PREFIX).weights.codes)


def test_ten_experts_are_in_numeric_order():
    tensors = {}
    for e in range(11):
        stem = f"experts.{e}.w1"
        tensors[f"{stem}.weight"] = torch.full((1, 8), e, dtype=torch.uint8)
        tensors[f"{stem}.weight_scale"] = random_scales(1, 16)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(1.0)
    weights, _ = read_modelopt_experts(tensors, "experts", projections=["w1"])
    assert weights.codes[:, 0, 0].tolist() == list(range(11))


@each_reader
@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_missing_tensor_is_named(scheme, missing):
    read, _, names = READERS[scheme]
    tensors = checkpoint(scheme)
    name = f"{PREFIX}.1.up_proj.{names[missing]}"
    del tensors[name]
    with pytest.raises(ValueError, match="no such tensor") as raised:
        read(tensors, PREFIX)
    assert str(raised.value).startswith(f"{name}: ")


@each_reader
def test_a_missing_projection_of_one_expert_is_named(scheme):
    read, _, names = READERS[scheme]
    tensors = {k: v for k, v in checkpoint(scheme).items() if ".2.gate_proj." not in k}
    with pytest.raises(ValueError, match="no such tensor") as raised:
        read(tensors, PREFIX)
    assert str(raised.value).startswith(f"{PREFIX}.2.gate_proj.{names[0]}: ")


@each_reader
def test_a_gap_in_the_expert_numbers_is_named(scheme):
    tensors = {k: v for k, v in checkpoint(scheme).items() if f"{PREFIX}.1." not in k}
    with pytest.raises(ValueError, match=r"experts\.1: got no such expert; want experts 0 to 2"):
        READERS[scheme][0](tensors, PREFIX)


@pytest.mark.parametrize(("scheme", "other"), [tuple(READERS), tuple(READERS)[::-1]])
def test_names_of_the_other_format_are_refused(scheme, other):
    read = READERS[scheme][0]
    with pytest.raises(ValueError, match=f"a tensor that {READERS[other][0].__name__} reads"):
        read(checkpoint(other), PREFIX)
    both = checkpoint(scheme)
    foreign = f"{PREFIX}.2.up_proj.{READERS[other][2][2]}"
    both[foreign] = torch.tensor(1.0)
    with pytest.raises(ValueError, match="a tensor that") as raised:
        read(both, PREFIX)
    assert str(raised.value).startswith(f"{foreign}: ")


@each_reader
def test_bad_contents_are_named_by_tensor(scheme):
    read, _, names = READERS[scheme]
    tensors = checkpoint(scheme)
    name = f"{PREFIX}.2.up_proj.{names[1]}"
    tensors[name].view(torch.uint8)[3, 1] = 0xFF
    with pytest.raises(ValueError, match=r"got byte 0xFF at \(3, 1\)") as raised:
        read(tensors, PREFIX)
    assert str(raised.value).startswith(f"{name}: ")

    tensors = checkpoint(scheme)
    name = f"{PREFIX}.0.up_proj.{names[3]}"
    tensors[name] = torch.tensor(0.0)
    with pytest.raises(ValueError, match="finite positive") as raised:
        read(tensors, PREFIX)
    assert str(raised.value).startswith(f"{name}: ")


@each_reader
def test_projections_of_unequal_rows_are_named(scheme):
    read, _, names = READERS[scheme]
    tensors = checkpoint(scheme)
    for name in names[:2]:
        tensors[f"{PREFIX}.1.up_proj.{name}"] = tensors[f"{PREFIX}.1.up_proj.{name}"][:4]
    with pytest.raises(ValueError, match="got shape") as raised:
        read(tensors, PREFIX)
    assert str(raised.value).startswith(f"{PREFIX}.1.up_proj.{names[0]}: ")


def test_wrong_arguments_are_refused_by_name():
    tensors = checkpoint("modelopt")
    with pytest.raises(ValueError, match=r"prefix: got 'model\.layers\.3', under which"):
        read_modelopt_experts(tensors, "model.layers.3")
    with pytest.raises(TypeError, match="tensors: got list"):
        read_modelopt_experts([], PREFIX)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projections: got 'gate_proj'"):
        read_modelopt_experts(tensors, PREFIX, projections="gate_proj")


@pytest.fixture
def safetensors_file(tmp_path):
    torch_format = pytest.importorskip("safetensors.torch", reason="safetensors")
    path = tmp_path / "model.safetensors"
    torch_format.save_file(checkpoint("modelopt"), path)
    return path


def test_a_file_is_read_as_its_tensors(safetensors_file):
    tensors = checkpoint("modelopt")
    opened = open_checkpoint(safetensors_file)
    assert sorted(opened) == sorted(tensors)
    assert len(opened) == len(tensors)
    assert "no such name" not in opened
    from_file = read_modelopt_experts(opened, PREFIX)
    from_memory = read_modelopt_experts(tensors, PREFIX)
    assert same_bytes(from_file.weights.codes, from_memory.weights.codes)
    assert same_bytes(from_file.weights.scales, from_memory.weights.scales)
    assert torch.equal(from_file.weights.global_scale, from_memory.weights.global_scale)


def test_a_file_cut_short_is_refused(safetensors_file):
    whole = safetensors_file.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        safetensors_file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"path: got .*want a whole \.safetensors file"):
            open_checkpoint(safetensors_file)


def test_what_is_no_file_is_refused(tmp_path):
    pytest.importorskip("safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_checkpoint(tmp_path / "nowhere.safetensors")
    with pytest.raises(IsADirectoryError):
        open_checkpoint(tmp_path)
    other = tmp_path / "notes.safetensors"
    other.write_text("these are not tensors" * 100)
    with pytest.raises(ValueError, match="path: got"):
        open_checkpoint(str(other))


def test_without_safetensors_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install nibblas\[checkpoint\]"):
        open_checkpoint(tmp_path / "model.safetensors")


@pytest.mark.parametrize("extra", ["pre_quant_scale", "bias", "weight_zero_point"])
def test_a_tensor_that_would_be_dropped_is_refused(extra):
    tensors = checkpoint("modelopt")
    name = f"{PREFIX}.0.gate_proj.{extra}"
    tensors[name] = torch.ones(4)
    with pytest.raises(ValueError, match=f"^{re.escape(name)}: got a tensor that this reader"):
        read_modelopt_experts(tensors, PREFIX)
