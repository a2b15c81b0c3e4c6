from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nibblas.cli.app import app
from nibblas.cli.explain import describe

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
