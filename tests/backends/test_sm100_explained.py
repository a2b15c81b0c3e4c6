"""What users are told about the datacenter Blackwell backend, and that public calls reach it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import nibblas
from nibblas import env, ops
from nibblas.backends.selection import explain_problem
from nibblas.cli.app import app
from nibblas.plan.problem import Problem, uniform_shapes
from nibblas.runtime.recording import RecordingDriver
from tests.api.problems import offs_of, quantized_small, random_array, small

C0 = uniform_shapes((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168)
SIZES = ["--m", "40,76,168,72,164,148,196,160", "--n", "7168", "--k", "2048", "--device", "cuda"]


def explained(**fields: Any) -> str:
    given: dict[str, Any] = {"activations": "nvfp4", "out": "fp16", "device": "cuda"}
    return str(explain_problem(Problem(C0, **(given | fields))))


def test_preset_and_configuration(b200: RecordingDriver) -> None:
    text = explained(x_scale_layout="blocked", w_scale_layout="blocked")
    assert (
        "backend    sm100 (swapped: sm100 256x256x256 swapped, pairs, 5 stages, "
        "2 sets of sums, phases, programmatic)\n"
    ) in text
    assert "gathered" not in text
    assert "note       compiled and emulated, not yet run on silicon\n" in text


def test_a_forced_preset(b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIBBLAS_SM100_PRESET", "wide_deep")
    assert (
        "(wide_deep: sm100 128x256x256, cluster 4, 4 stages, 1 set of sums, token_tiles)"
    ) in explained()


@pytest.mark.parametrize(
    ("x_layout", "w_layout", "names"),
    [("linear", "linear", "x and w"), ("linear", "blocked", "x"), ("blocked", "linear", "w")],
)
def test_linear_scales_are_gathered_and_not_copied(
    b200: RecordingDriver, x_layout: str, w_layout: str, names: str
) -> None:
    text = explained(x_scale_layout=x_layout, w_scale_layout=w_layout)
    assert f"note       linear scales of {names} gathered in the kernel, no copy\n" in text


def test_rows_that_tma_may_not_take(b200: RecordingDriver) -> None:
    note = "K % 32 is 16: rows not padded to multiples of 16 bytes are read by loads"
    assert note in str(
        explain_problem(Problem(uniform_shapes((5,), 64, 48), "nvfp4", "fp16", device="cuda"))
    )
    assert note not in explained()


@pytest.mark.parametrize("tokens", ["bf16", "fp16"])
def test_16_bit_tokens_go_to_the_portable_kernel_with_the_reason(
    b200: RecordingDriver, tokens: str
) -> None:
    text = explained(activations=tokens)
    assert f"backend    portable (portable {tokens}, " in text
    assert (
        "refused    sm100: tcgen05.mma multiplies NVFP4 by NVFP4, and the tokens are " + tokens
    ) in text


def test_a_forced_backend_refuses_with_its_reasons(b200: RecordingDriver) -> None:
    problem = Problem(C0, "bf16", "bf16", device="cuda")
    with pytest.raises(nibblas.UnsupportedProblemError, match="the tokens are bf16"):
        explain_problem(problem, "sm100")
    assert not b200.events


def test_the_command(b200: RecordingDriver) -> None:
    result = CliRunner().invoke(app, ["explain", *SIZES])
    assert result.exit_code == 0
    assert "backend    sm100 (swapped: sm100 256x256x256 swapped, pairs, 5" in result.stdout
    assert "linear scales of x and w gathered in the kernel, no copy" in result.stdout
    result = CliRunner().invoke(app, ["explain", *SIZES, "--precision", "w4a16", "--json"])
    data = json.loads(result.stdout)
    assert data["backend"] == "portable"
    assert "NVFP4 by NVFP4" in data["refused"]["sm100"][0]


def test_the_command_with_an_unknown_preset(
    b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIBBLAS_SM100_PRESET", "nonsense")
    result = CliRunner().invoke(app, ["explain", *SIZES])
    assert result.exit_code == 2 and result.stdout == ""
    assert "NIBBLAS_SM100_PRESET: got 'nonsense'; want one of 'fused_persistent'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_on_an_emulated_device(nvrtc: str) -> None:
    from nibblas.emulator import emulating

    with emulating("sm_100"):
        w4a4 = str(nibblas.explain(*quantized_small(), backend="emulated"))
        w4a16 = str(nibblas.explain(*small(), backend="emulated"))
    assert "emulated (swapped: sm100 256x16x256 swapped, pairs, 8 stages" in w4a4
    assert "linear scales of w gathered in the kernel, no copy" in w4a4
    assert "emulated (portable bf16" in w4a16
    assert "sm100 refused: tcgen05.mma multiplies NVFP4 by NVFP4, and the tokens are" in w4a16


def estimated(shapes: Any, backend: str, **fields: Any) -> float:
    given: dict[str, Any] = {"activations": "nvfp4", "out": "fp16", "device": "cuda"}
    problem = Problem(shapes, **(given | fields))
    return explain_problem(problem, backend).plan.estimate.seconds


def test_two_launches_of_a_list_take_the_time_of_both(b200: RecordingDriver) -> None:
    wide, narrow = uniform_shapes((100,) * 3, 4096, 2048), uniform_shapes((100,) * 3, 512, 512)
    with env.sm100_preset("wide_deep"):
        apart = [estimated(shapes, "sm100", form="list") for shapes in (wide, narrow)]
        mixed = (wide[0], narrow[0], wide[1], narrow[1], wide[2], narrow[2])
        assert estimated(mixed, "sm100", form="list") == pytest.approx(sum(apart))


def test_a_long_list_takes_several_launches(b200: RecordingDriver) -> None:
    short, long = (uniform_shapes((1,) * count, 128, 256) for count in (56, 57))
    added = estimated(long, "sm100", form="list") - estimated(short, "sm100", form="list")
    assert added > 3e-6  # what a programmatic launch still pays of the fixed time
    packed = estimated(long, "sm100") - estimated(short, "sm100")
    assert packed < 1e-6


def test_the_portable_kernel_is_launched_for_every_product_of_a_list(
    b200: RecordingDriver,
) -> None:
    one, three = (uniform_shapes((1,) * count, 128, 256) for count in (1, 3))
    times = [estimated(shapes, "portable", form="list") for shapes in (one, three)]
    assert times[1] == pytest.approx(3 * times[0])
    assert estimated((*one, *uniform_shapes((0,), 128, 256)), "portable", form="list") == times[0]


@pytest.fixture
def on_the_gpu(monkeypatch: pytest.MonkeyPatch, b200: RecordingDriver) -> Any:
    """A planner that takes CPU tensors for the recorded device's."""
    problem_of = ops.problem_of
    monkeypatch.setattr(
        ops, "problem_of", lambda *a, **k: replace(problem_of(*a, **k), device="cuda")
    )
    ops.forget_plans()
    yield b200
    ops.forget_plans()


@pytest.mark.usefixtures("on_the_gpu")
def test_a_warm_public_call_is_one_launch_and_nothing_else(b200: RecordingDriver) -> None:
    x, w, offs = random_array((5, 256), 1), random_array((2, 32, 256), 2), offs_of([2, 5])
    out = torch.empty(5, 32)
    nibblas.grouped_mm(x, w, offs, out=out, backend="sm100")
    cold = b200.launches[-1]
    b200.clear()
    for _ in range(3):
        nibblas.grouped_mm(x, w, offs, out=out, backend="sm100")
    assert [event.call for event in b200.events] == ["launch"] * 3
    assert b200.launches == [cold] * 3
    words = memoryview(cold.parameters).cast("q").tolist()
    for tensor in (x.codes, x.scales, w.codes, w.scales, offs, out):
        assert tensor.data_ptr() in words


@pytest.mark.usefixtures("on_the_gpu")
def test_another_preset_takes_effect_at_the_next_call(
    b200: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, offs = random_array((5, 256), 1), random_array((2, 32, 256), 2), offs_of([2, 5])
    out = torch.empty(5, 32)
    for preset, threads in (("wide_deep", 288), ("fused_persistent", 256)):
        monkeypatch.setenv("NIBBLAS_SM100_PRESET", preset)
        for _ in range(2):
            nibblas.grouped_mm(x, w, offs, out=out, backend="sm100")
            assert b200.launches[-1].block == (threads, 1, 1)
