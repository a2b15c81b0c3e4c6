"""quantize, inspect and verify: one file through all of them, exit codes, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

import nibblas
from nibblas.cli import quantize as quantize_command
from nibblas.cli.app import app
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound

safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors")

RUNNER = CliRunner()
EXPERTS = "model.layers.0.mlp.experts"


@pytest.fixture
def source(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{EXPERTS}.{e}.{name}.weight": torch.randn(24, 64, generator=generator).bfloat16()
        for e in range(3)
        for name in ("gate_proj", "up_proj")
    }
    tensors["model.embed_tokens.weight"] = torch.randn(8, 64, generator=generator)
    safetensors_torch.save_file(tensors, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


def run(*arguments: object):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("naming", ["modelopt", "compressed-tensors"])
def test_one_file_is_quantised_verified_and_multiplied_from_both_sides(source, target, naming):
    done = run("quantize", source, target, "--naming", naming)
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        f"{target}: 6 weights in NVFP4 ({naming}), 1 tensors copied, 20480 -> 7256 bytes\n"
    )
    checked = run("verify", target, "--against", source, "--multiply", 5)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.count(" ok") == 6
    read = {
        "modelopt": nibblas.read_modelopt_experts,
        "compressed-tensors": nibblas.read_compressed_tensors_experts,
    }[naming]
    w = read(nibblas.open_checkpoint(target), EXPERTS).weights
    x = torch.randn(10, 64).bfloat16()
    offs = torch.tensor([4, 4, 10], dtype=torch.int32)
    y = nibblas.grouped_mm(x, w, offs)
    exact = grouped_mm_reference(x, w, offs)
    assert bool(within_bound(y, exact, error_bound(exact, y.dtype)).all())
    original = safetensors_torch.load_file(source)
    first = torch.cat([original[f"{EXPERTS}.0.{p}.weight"] for p in ("gate_proj", "up_proj")])
    wanted = x[:4].float() @ first.float().T
    assert float((y[:4].float() - wanted).norm() / wanted.norm()) < 0.15


def test_json_of_every_command(source, target):
    done = json.loads(run("quantize", source, target, "--json").stdout)
    assert len(done["quantized"]) == 6 and done["copied"] == ["model.embed_tokens.weight"]
    assert done["quantization_config"]["ignore"] == ["model.embed_tokens"]
    facts = json.loads(run("inspect", target, "--json").stdout)
    assert [weight["shape"] for weight in facts["nvfp4"]] == [[24, 64]] * 6
    weight = facts["nvfp4"][0]
    assert weight["naming"] == "compressed-tensors" and weight["scale_layout"] == "linear"
    assert weight["bytes"] == 24 * 64 * 9 // 16 + 4 and weight["faults"] == []
    assert weight["bits_per_weight"] == pytest.approx(4.5 + 32 / (24 * 64))
    assert weight["global_scale"]["min"] == weight["global_scale"]["max"] > 100
    assert [tensor["name"] for tensor in facts["tensors"]] == ["model.embed_tokens.weight"]
    checked = json.loads(run("verify", target, "--against", source, "--json").stdout)
    assert checked["passed"] is True
    assert all(0.05 < each["relative_error"] < 0.15 for each in checked["weights"])


def test_inspect_shows_what_is_there(source, target):
    run("quantize", source, target)
    result = run("inspect", target)
    assert result.exit_code == 0
    assert f"{EXPERTS}.2.up_proj" in result.stdout and "24 x 64" in result.stdout
    assert "6 NVFP4 weights, 1 other tensors, 7256 bytes" in result.stdout


def test_names_are_printed_as_they_are(tmp_path):
    safetensors_torch.save_file({"[red]a[/red].x": torch.ones(2)}, tmp_path / "x")
    assert "[red]a[/red].x" in run("inspect", tmp_path / "x").stdout


def test_the_configuration_is_written_beside(source, target, tmp_path):
    config = tmp_path / "quantization.json"
    assert run("quantize", source, target, "--config", config).exit_code == 0
    written = json.loads(config.read_text())
    assert written["quantization_config"]["format"] == "nvfp4-pack-quantized"
    again = run("quantize", source, tmp_path / "other", "--config", config)
    assert again.exit_code == 2 and "config: got" in again.stderr
    assert not (tmp_path / "other").exists()


def test_patterns_are_repeatable(source, target):
    arguments = [
        "--include",
        "*experts.0.*",
        "--include",
        "*experts.1.*",
        "--exclude",
        "*.up_proj.*",
    ]
    done = json.loads(run("quantize", source, target, *arguments, "--json").stdout)
    assert sorted(done["quantized"]) == [f"{EXPERTS}.{e}.gate_proj.weight" for e in (0, 1)]


def test_an_existing_file_needs_force(source, target):
    target.write_text("before")
    refused = run("quantize", source, target)
    assert refused.exit_code == 2
    assert refused.stderr == f"nibblas: {target}: it exists, and was not to be replaced\n"
    assert target.read_text() == "before"
    assert run("quantize", source, target, "--force").exit_code == 0
    assert run("verify", target).exit_code == 0


def test_the_source_is_refused_as_target(source):
    refused = run("quantize", source, source, "--force")
    assert refused.exit_code == 2 and "the source; want another file" in refused.stderr


@pytest.mark.parametrize("command", ["quantize", "inspect", "verify"])
def test_files_that_cannot_be_read_are_exit_code_2(command, tmp_path):
    hostile = tmp_path / "hostile"
    hostile.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    for path, what in (
        (tmp_path / "nowhere", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (hostile, r"want a whole .safetensors file"),
    ):
        result = run(command, path, *([tmp_path / "out"] if command == "quantize" else []))
        assert result.exit_code == 2, result.output
        assert what in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_fault_is_exit_code_1(source, target):
    run("quantize", source, target)
    tensors = safetensors_torch.load_file(target)
    tensors[f"{EXPERTS}.1.up_proj.weight_scale"].view(torch.uint8)[3, 1] = 0x7F
    safetensors_torch.save_file(tensors, target)
    result = run("verify", target, "--multiply", 2)
    assert result.exit_code == 1
    assert f"{EXPERTS}.1.up_proj: 1 block scales are NaN or negative" in result.stdout
    assert json.loads(run("verify", target, "--json").stdout)["passed"] is False


def test_a_wrong_product_is_exit_code_1(source, target, monkeypatch):
    run("quantize", source, target)
    right = nibblas.grouped_mm
    monkeypatch.setattr(nibblas, "grouped_mm", lambda *a, **k: right(*a, **k) * 1.1)
    result = run("verify", target, "--multiply", 2)
    assert result.exit_code == 1 and "its product is wrong" in result.stdout


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A parent that runs in the background may have made Python ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_no_file(source, target, monkeypatch, number):
    right = quantize_command.quantize_checkpoint

    def interrupted(*arguments, progress, **options):
        def stop(*_: object) -> None:
            assert any(path.suffix == ".partial" for path in target.parent.iterdir())
            os.kill(os.getpid(), number)

        return right(*arguments, progress=stop, **options)

    monkeypatch.setattr(quantize_command, "quantize_checkpoint", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    result = run("quantize", source, target)
    assert result.exit_code == 130 and result.stderr == "interrupted\n"
    assert list(target.parent.iterdir()) == [source]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_really_full_disk_is_exit_code_2(source):
    """On a file system of 64 KiB of its own, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare(1) for a small file system")
    folder = source.parent / "small"
    folder.mkdir()
    big = {"a.weight": torch.randn(512, 512)}
    safetensors_torch.save_file(big, source)
    script = (
        f"mount -t tmpfs -o size=64k none {folder} || exit 77\n"
        f"{sys.executable} -m nibblas.cli quantize {source} {folder}/out; code=$?\n"
        f"ls -A {folder}; exit $code"
    )
    command = [unshare, "--mount", "--map-root-user", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode in (1, 77) and "nibblas" not in done.stderr:
        pytest.skip(f"no small file system here: {done.stderr.strip()[:100]}")
    assert done.returncode == 2
    assert done.stderr == f"nibblas: {folder}/out: No space left on device\n"
    assert done.stdout == ""
