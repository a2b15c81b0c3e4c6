from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nibblas.cli.app import app
from nibblas.cli.explain import describe
from nibblas.plan.arch import GPUS
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.driver import current_driver, use_driver
from nibblas.runtime.recording import RecordingDriver

RUNNER = CliRunner()
SIZES = ["--m", "128", "--n", "256", "--k", "512"]


def test_one_size_serves_all_groups() -> None:
    problem = describe(
        sizes={"m": "128", "n": "256", "k": "512"},
        groups=8,
        out="bf16",
    )
    assert problem.shapes == ((128, 256, 512),) * 8
    assert (problem.form, problem.activations) == ("packed", "nvfp4")


def test_lists_give_each_group_its_size_and_make_it_the_list_form() -> None:
    problem = describe(
        sizes={"m": "80,0", "n": "128,256", "k": "512"},
        precision="w4a16",
        out="fp32",
    )
    assert problem.shapes == ((80, 128, 512), (0, 256, 512))
    assert (problem.form, problem.activations) == ("list", "bf16")


def test_prints_backend_time_and_bound() -> None:
    result = RUNNER.invoke(app, ["explain", "--groups", "2", *SIZES, "--backend", "reference"])
    assert result.exit_code == 0
    assert "backend    reference" in result.stdout
    assert "bound by" in result.stdout


def test_json_is_one_object_with_the_roofline_asked_for() -> None:
    result = RUNNER.invoke(app, ["explain", *SIZES, "--arch", "b200", "--json"])
    data = json.loads(result.stdout)
    assert data["precision"] == "w4a4"
    assert data["roofline"]["seconds"] > 0
    assert data["roofline"]["bound"] in ("memory", "arithmetic")


EVERY_GPU = ["b200", "b300", "h200", "h100", "rtx_pro_6000", "rtx_5090", "gb10"]
C0 = ["--m", "80,176,128,72,64,248,96,160", "--n", "4096", "--k", "7168", "--out-dtype", "fp16"]


def explained(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, ["explain", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.mark.parametrize("name", EVERY_GPU)
def test_plans_for_a_gpu_that_is_not_here(name: str) -> None:
    data = explained(*C0, "--arch", name)
    assert data["arch"] == name
    assert data["backend"] in ("sm100", "sm90", "portable")
    assert "on the CPU" in data["refused"]["cpu"][0]
    assert 0 < data["roofline"]["seconds"] < data["predicted_seconds"] < 5e-3
    assert data["bound"] in data["terms_seconds"]


def test_every_modelled_gpu_is_tested() -> None:
    assert set(EVERY_GPU) == set(GPUS)


def test_machines_of_one_target_are_told_apart() -> None:
    h100, h200 = (explained(*C0, "--arch", name) for name in ("h100", "h200"))
    assert h100["predicted_seconds"] > h200["predicted_seconds"]


def test_a_target_stands_for_its_first_machine() -> None:
    assert explained(*C0, "--arch", "sm_100") == explained(*C0, "--arch", "b200")


def test_shows_what_each_preset_would_take_on_blackwell() -> None:
    data = explained(*C0, "--arch", "b200")
    assert [p["config"].split(":")[0] for p in data["presets"]] == list(PRESETS)
    times = {p["config"]: p["predicted_seconds"] for p in data["presets"]}
    assert data["predicted_seconds"] == times[data["config"]]
    text = RUNNER.invoke(app, ["explain", *C0, "--arch", "b200"]).stdout
    assert text.startswith("arch       b200, sm_100, 148 multiprocessors\n")
    for preset in PRESETS:
        assert re.search(rf"^preset     {preset}: .* us, bound by \w+$", text, re.MULTILINE)
    assert explained(*C0, "--arch", "h200")["presets"] == []


def test_w4a16_on_blackwell_says_why_sm100_refuses() -> None:
    data = explained(*C0, "--arch", "b200", "--precision", "w4a16")
    assert data["presets"] == []
    assert "NVFP4 by NVFP4" in data["refused"]["sm100"][0]


def test_no_driver_is_left_behind() -> None:
    with use_driver(RecordingDriver()) as before:
        explained(*C0, "--arch", "b200")
        assert current_driver() is before
    assert not before.events


def test_a_plot_of_the_schedule(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib")
    for name, arch in {"pairs": "b200", "strided": "h200", "even": "rtx_5090"}.items():
        path = tmp_path / f"{name}.png"
        arguments = ["explain", *C0, "--arch", arch, "--plot", str(path)]
        assert RUNNER.invoke(app, arguments).exit_code == 0
        assert path.read_bytes().startswith(b"\x89PNG")


def test_no_plot_without_a_gpu_kernel(tmp_path: Path) -> None:
    path = tmp_path / "none.png"
    for more in ([], ["--arch", "b200", "--backend", "reference"]):
        result = RUNNER.invoke(app, ["explain", *SIZES, "--plot", str(path), *more])
        assert result.exit_code == 2
        assert "plot: got" in result.stderr
    assert not path.exists()


def test_w4a16_takes_the_type_of_its_tokens() -> None:
    arguments = ["explain", *SIZES, "--precision", "w4a16", "--activations", "fp16", "--json"]
    data = json.loads(RUNNER.invoke(app, arguments).stdout)
    assert "w4a16 fp16" in data["problem"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--m", "1", "--n", "8", "--k", "20"], "k a positive multiple of 16"),
        (["--m", "1,2", "--n", "8,8,8", "--k", "16"], "m: got 2 sizes; want one, or 3"),
        (["--m", "one", "--n", "8", "--k", "16"], "m: got 'one'; want a number"),
        ([*SIZES, "--precision", "w8a8"], "precision: got 'w8a8'; want one of w4a4, w4a16"),
        ([*SIZES, "--arch", "a100"], "arch: got 'a100'"),
        ([*SIZES, "--arch", "b200", "--device", "cpu"], "device: got 'cpu'; want 'cuda'"),
        ([*SIZES, "--epilogue", "gelu"], "epilogue: got 'gelu'"),
        ([*SIZES, "--backend", "abacus"], "backend: got 'abacus'"),
        (["--m", "1", "--n", "8,16", "--k", "16", "--form", "packed"], "form: got 'packed'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = RUNNER.invoke(app, ["explain", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_debug_shows_the_traceback() -> None:
    result = RUNNER.invoke(app, ["explain", "--m", "1", "--n", "8", "--k", "20", "--debug"])
    assert isinstance(result.exception, ValueError)
