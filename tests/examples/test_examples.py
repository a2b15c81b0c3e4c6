"""The examples run, and print what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_LINES = 120


def test_moe_modelopt_stays_within_the_bounds_it_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asserts every error itself; here: that it checked all four products, and on which."""
    pytest.importorskip("safetensors", reason="the checkpoint extra is not installed")
    monkeypatch.delenv("NIBBLAS_BACKEND", raising=False)
    runpy.run_path(str(EXAMPLES / "moe_modelopt.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "global_scale=(8, 2)" in printed, "gate and up keep their own global scales"
    assert printed.count("backend    cpu (") == 4
    shares = [float(share) for share in re.findall(r"error/bound (\S+)", printed)]
    assert len(shares) == 4 and all(0.0 < share < 1.0 for share in shares)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= MAX_LINES
