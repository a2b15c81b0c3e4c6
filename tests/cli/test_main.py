"""The console script: help, exit codes, what it says when typer or rich is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nibblas.cli.app import app
from nibblas.cli.report import Debug, command, duration, one_line
from nibblas.errors import UnsupportedProblemError

RUNNER = CliRunner()
COMMANDS = [
    "info",
    "explain",
    "check",
    "competition",
    "quantize",
    "inspect",
    "verify",
    "bench",
    "selftest",
]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_help_lists_every_command() -> None:
    result = RUNNER.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples_and_exit_codes(name: str) -> None:
    result = RUNNER.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"  nibblas {name}" in result.stdout
    assert "Exit codes: 0" in result.stdout


def test_unknown_option_is_exit_code_2() -> None:
    assert RUNNER.invoke(app, ["info", "--nonsense"]).exit_code == 2


def test_module_runs_as_a_script() -> None:
    result = run_python("-m", "nibblas.cli", "--help")
    assert result.returncode == 0
    assert "check" in result.stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_package_says_what_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from nibblas.cli.__main__ import main; main()"
    )
    result = run_python("-c", code)
    assert result.returncode == 2
    assert result.stderr == (
        f'nibblas: the command line needs {missing}: pip install "nibblas[cli]"\n'
    )


def test_importing_nibblas_loads_neither_typer_nor_rich() -> None:
    code = "import sys, nibblas; print(sorted({'typer', 'rich'} & set(sys.modules)))"
    assert run_python("-c", code).stdout == "[]\n"


def small_app(error: BaseException) -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)

    @made.command()
    @command
    def fail(debug: Debug = False) -> None:
        raise error

    return made


def test_a_library_error_is_one_line() -> None:
    result = RUNNER.invoke(small_app(UnsupportedProblemError("p", {"cpu": ["no"]})), [])
    assert result.exit_code == 2
    assert result.stderr == "nibblas: no backend can take p; cpu: no\n"


def test_a_bug_keeps_its_traceback() -> None:
    result = RUNNER.invoke(small_app(KeyError("bug")), [])
    assert isinstance(result.exception, KeyError)


def test_interrupt_is_exit_code_130() -> None:
    result = RUNNER.invoke(small_app(KeyboardInterrupt()), [])
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_ctrl_c_during_a_sweep_exits_130_without_a_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        # A parent that runs in the background may have made Python ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from nibblas.cli import check\n"
        "check.exact_problems = lambda: iter([os.kill(os.getpid(), signal.SIGINT)])\n"
        "sys.argv = ['nibblas', 'check', '--backend', 'reference']\n"
        "from nibblas.cli.__main__ import main; main()"
    )
    result = run_python("-c", code)
    assert result.returncode == 130
    assert result.stdout == ""
    assert result.stderr == "interrupted\n"


def test_one_line_joins_lines() -> None:
    assert one_line("a\n  b\n\nc") == "a; b; c"


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.0, "0 us"),
        (1.525, "1.52 us"),
        (18.833, "18.8 us"),
        (999.4, "999 us"),
        (45200.0, "45.2 ms"),
        (1.2e6, "1.20 s"),
        (float("nan"), "-"),
    ],
)
def test_duration_has_three_digits(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_result_that_cannot_be_written_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nibblas.cli", "info"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("nibblas: cannot write the result")
