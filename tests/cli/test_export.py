from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nibblas.cli.app import app
from nibblas.competition.export import submission_text
from nibblas.plan.sm100 import PRESETS, Preset

RUNNER = CliRunner()
EXPORT = ["competition", "export"]


@pytest.mark.parametrize("preset", PRESETS)
def test_writes_the_presets_file(tmp_path: Path, preset: Preset) -> None:
    out = tmp_path / "mine.py"
    result = RUNNER.invoke(app, [*EXPORT, str(out), "--preset", preset])
    assert result.exit_code == 0, result.output
    assert out.read_text() == submission_text(preset)
    lines = out.read_text().count("\n")
    assert result.stdout.startswith(f"{out}: {preset}, {lines} lines, ")
    assert list(tmp_path.iterdir()) == [out]


def test_the_file_is_called_submission_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = json.loads(RUNNER.invoke(app, [*EXPORT, "--json"]).stdout)
    text = (tmp_path / "submission.py").read_text()
    assert text == submission_text()
    assert data == {
        "out": "submission.py",
        "preset": "fused_persistent",
        "lines": text.count("\n"),
        "bytes": len(text),
    }


def test_a_file_that_exists_is_replaced_by_force_only(tmp_path: Path) -> None:
    out = tmp_path / "submission.py"
    out.write_text("mine")
    refused = RUNNER.invoke(app, [*EXPORT, str(out)])
    assert refused.exit_code == 2
    assert f"out: got {out}, which exists; want a new file, or --force" in refused.stderr
    assert out.read_text() == "mine"
    assert RUNNER.invoke(app, [*EXPORT, str(out), "--force"]).exit_code == 0
    assert out.read_text() == submission_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "fast"], "preset: got 'fast'; want one of 'fused_persistent', 'wide_deep'"),
        (["no/such/folder/submission.py"], "No such file or directory"),
        (["."], "which exists"),
    ],
)
def test_bad_usage_exits_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, [*EXPORT, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples_and_exit_codes() -> None:
    result = RUNNER.invoke(app, [*EXPORT, "-h"])
    assert result.exit_code == 0
    assert "  nibblas competition export wide.py --preset wide_deep" in result.stdout
    assert "Exit codes: 0 written" in result.stdout


def test_nothing_is_checked_or_timed_beside_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the problem was run")

    monkeypatch.setattr("nibblas.cli.competition._run_tests", fail)
    out = tmp_path / "submission.py"
    assert RUNNER.invoke(app, [*EXPORT, str(out)]).exit_code == 0
