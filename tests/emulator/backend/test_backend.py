"""How ``backend="emulated"`` is found and chosen; what it computes is in test_portable.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nibblas
from nibblas.backends import registry
from nibblas.emulator import emulating
from nibblas.emulator.backend import current_emulation, spans_of
from nibblas.plan.portable import target_of
from tests.api.problems import small

pytestmark = pytest.mark.usefixtures("nvrtc")


def test_only_its_name_loads_the_emulator() -> None:
    code = (
        "import sys, torch, nibblas\n"
        "from nibblas.backends import registry\n"
        "from tests.api.problems import small\n"
        "nibblas.grouped_mm(*small())\n"
        "loaded = lambda: any(name.startswith('nibblas.emulator') for name in sys.modules)\n"
        "assert not loaded()\n"
        "registry.get('emulated')\n"
        "assert loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_it_is_never_chosen_unasked() -> None:
    assert "emulated" not in [backend.name for backend in registry.all_backends()]
    x, w, offs = small()
    assert "emulated" not in str(nibblas.explain(x, w, offs))


def test_explain_says_what_would_run() -> None:
    x, w, offs = small()
    text = str(nibblas.explain(x, w, offs, backend="emulated"))
    assert "emulated (portable bf16" in text
    assert "sm_90a" in text


def test_the_environment_can_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIBBLAS_BACKEND", "emulated")
    x, w, offs = small()
    assert "chosen by NIBBLAS_BACKEND=emulated" in str(nibblas.explain(x, w, offs))


def test_an_unknown_name_lists_it() -> None:
    with pytest.raises(ValueError, match=r"^backend: got 'emulate'; want one of .*'emulated'"):
        registry.get("emulate")


@pytest.mark.parametrize(("arch", "capability"), [("sm_80", (8, 0)), ("sm_89", (8, 9))])
def test_an_architecture_has_its_own_plans(arch: str, capability: tuple[int, int]) -> None:
    x, w, offs = small()
    with emulating(arch):
        plan = nibblas.explain(x, w, offs, backend="emulated").plan
        assert plan.config.plan.config.built_for == target_of(capability)
    assert (
        nibblas.explain(x, w, offs, backend="emulated").plan.config.plan.config.built_for
        == "sm_90a"
    )


def test_settings_nest_and_end() -> None:
    assert current_emulation().order == "round_robin"
    with emulating(order="random", seed=3):
        with emulating(order="adversarial-starve"):
            assert current_emulation().seed == 0
        assert (current_emulation().order, current_emulation().seed) == ("random", 3)
    assert current_emulation().order == "round_robin"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arch": "sm_70"}, "^arch: got 'sm_70'"),
        ({"order": "fair"}, "^order: got 'fair'; want one of .*round_robin"),
        ({"num_sms": 0}, "^num_sms: got 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message), emulating(**settings):
        pass


def test_only_out_may_be_written_and_nothing_else_touched() -> None:
    from nibblas.backends.base import Operands

    x, w, offs = small()
    out = x.new_empty((5, 32))
    product = Operands.of(
        (
            x,
            None,
            "linear",
            "torch",
            None,
            w.codes,
            w.scales,
            "linear",
            None,
            offs,
            0,
            None,
            None,
            None,
        ),
        out,
    )
    spans = {span.name: span for span in spans_of([product])}
    assert set(spans) == {"x", "w", "w_scales", "offs", "out"}
    assert [name for name, span in spans.items() if span.writable] == ["out"]
    assert not spans["out"].readable
    assert spans["x"].end - spans["x"].begin == x.numel() * x.element_size()
