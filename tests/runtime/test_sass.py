"""The disassembler helper sees the instructions that the source asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nibblas.runtime.compile import Compiled
from tests.runtime.configs import PlainConfig, compile_source, source_of
from tests.runtime.sass import opcodes

pytestmark = pytest.mark.usefixtures("nvrtc")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100f"])
def test_a_copy_through_shared_memory_loads_stores_and_waits(
    compiled: Callable[[str], Compiled], tmp_path: Path, target: str
) -> None:
    found = opcodes(compiled(target).cubin, tmp_path)
    for family in ("LDG", "STS", "BAR", "LDS", "STG", "EXIT"):
        assert any(name.split(".")[0] == family for name in found), (family, found)


def test_spills_are_local_memory_instructions(tmp_path: Path) -> None:
    found = opcodes(compile_source(source_of(PlainConfig("spills"))).cubin, tmp_path)
    assert found["STL"] > 0 and found["LDL.LU"] + found["LDL"] > 0, found


def test_wgmma_is_seen(tmp_path: Path) -> None:
    found = opcodes(compile_source(source_of(PlainConfig("serialised"))).cubin, tmp_path)
    assert any(name.startswith("HGMMA.64x8x16.F32") for name in found), found
