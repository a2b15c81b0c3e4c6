"""NVRTC on texts: what it makes, what is read from its log, what it refuses, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.plan import portable
from nibblas.runtime import compile as compiling
from nibblas.runtime.compile import (
    FIRST_RELEASE,
    Compiled,
    CompileError,
    ResourceError,
    Resources,
    check_resources,
    compile_cubin,
    parse_notes,
    parse_resources,
    resource_problems,
)
from tests.runtime.configs import TARGETS, PlainConfig, ScaleConfig, compile_source, source_of

pytestmark = pytest.mark.usefixtures("nvrtc")

EMPTY_KERNEL = 'extern "C" __global__ void empty() {}'

LOG_OF_TWO_KERNELS = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine.
ptxas info    : 16 bytes gmem, 8 bytes cmem[3]
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     40 bytes stack frame, 44 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 40 bytes cumulative stack size, 400 bytes smem
ptxas info    : Compile time = 50.880 ms
ptxas info    : Function properties for _Z6helperf
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 368 bytes cmem[0]
"""


def compile_plain(name: str) -> Compiled:
    return compile_source(source_of(PlainConfig(name)))


def test_resources_are_read_for_every_function() -> None:
    assert parse_resources(LOG_OF_TWO_KERNELS) == {
        "first": Resources(
            registers=32,
            stack_bytes=40,
            spill_store_bytes=44,
            spill_load_bytes=48,
            shared_bytes=400,
            barriers=2,
        ),
        "_Z6helperf": Resources(stack_bytes=8),
        "second": Resources(registers=10),
    }


def test_notes_are_the_numbered_lines() -> None:
    (note,) = parse_notes(LOG_OF_TWO_KERNELS)
    assert note.startswith("(C7508) Potential Performance Loss: 'setmaxnreg' ignored")


@pytest.mark.parametrize("target", TARGETS.values())
def test_compiles_for_every_target(target: str, compiled: Callable[[str], Compiled]) -> None:
    result = compiled(target)
    assert result.cubin.startswith(b"\x7fELF")
    assert result.resources["tiny_scale"].registers > 0
    assert result.resources["tiny_scale"].barriers == 1
    assert resource_problems(result) == []


def test_same_text_gives_the_same_bytes(compiled: Callable[[str], Compiled]) -> None:
    assert compile_source(source_of(ScaleConfig())).cubin == compiled("sm_90a").cubin


def test_options_reach_the_compiler(compiled: Callable[[str], Compiled]) -> None:
    with_lines = compile_source(source_of(ScaleConfig()), "-lineinfo")
    assert b".debug_line" in with_lines.cubin
    assert b".debug_line" not in compiled("sm_90a").cubin


def test_a_header_of_the_current_directory_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.h"):
        compile_cubin(
            f'#include "stray.h"\n{EMPTY_KERNEL}', name="empty.cu", target="sm_90a", headers={}
        )


def test_compile_error_names_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with pytest.raises(CompileError, match="undeclared") as caught:
        compile_source(source_of(PlainConfig("broken")), log_folder=folder)
    log_file = caught.value.log_file
    assert log_file.parent == folder and str(log_file) in str(caught.value)
    report = log_file.read_text()
    for part in ("broken.cu(1): error", "--gpu-architecture=sm_90a", "out[0] = undeclared"):
        assert part in report


def test_compile_error_has_a_log_where_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError) as caught:
        compile_source(source_of(PlainConfig("broken")), log_folder=tmp_path / "file" / "logs")
    assert "undeclared" in caught.value.log_file.read_text()


def test_unknown_target_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="for sm_9: "):
        compile_cubin(EMPTY_KERNEL, name="empty.cu", target="sm_9", headers={})


class OldNvrtc:
    """NVRTC 12.8 as its bindings show it: it knows no family targets, and says so in its log."""

    nvrtcResult = Enum("nvrtcResult", ["NVRTC_SUCCESS", "NVRTC_ERROR_INVALID_OPTION"])
    log = b"nvrtc: error: invalid value for --gpu-architecture (-arch)\n\0"

    def __init__(self) -> None:
        self.destroyed = 0

    def __getattr__(self, name: str) -> Any:
        results = {
            "nvrtcVersion": (12, 8),
            "nvrtcCreateProgram": ("program",),
            "nvrtcGetProgramLogSize": (len(self.log),),
        }[name]
        return lambda *_: (self.nvrtcResult.NVRTC_SUCCESS, *results)

    def nvrtcCompileProgram(self, *_: object) -> tuple[object]:
        return (self.nvrtcResult.NVRTC_ERROR_INVALID_OPTION,)

    def nvrtcGetProgramLog(self, _: object, buffer: bytearray) -> tuple[object]:
        buffer[:] = self.log
        return (self.nvrtcResult.NVRTC_SUCCESS,)

    def nvrtcDestroyProgram(self, _: object) -> None:
        self.destroyed += 1


@pytest.fixture
def old_nvrtc(monkeypatch: pytest.MonkeyPatch) -> OldNvrtc:
    nvrtc = OldNvrtc()
    monkeypatch.setattr(compiling, "import_module", lambda _: nvrtc)
    monkeypatch.setattr(compiling, "compiler_version", compiling.compiler_version.__wrapped__)
    return nvrtc


@pytest.mark.parametrize("target", ["sm_100f", "sm_103a", "sm_103f", "sm_120f"])
def test_an_nvrtc_older_than_the_target_is_told_with_what_is_needed(
    old_nvrtc: OldNvrtc, target: str
) -> None:
    message = (
        rf"^NVRTC 12\.8 cannot compile for {target}; want 12\.9 or newer: "
        r"install nvidia-cuda-nvrtc>=13, .*PyTorch.*wheel of nibblas that holds .* cubin$"
    )
    with pytest.raises(NativeLibraryError, match=message):
        compile_cubin(EMPTY_KERNEL, name="empty.cu", target=target, headers={})
    assert old_nvrtc.destroyed == 1


@pytest.mark.usefixtures("old_nvrtc")
def test_a_target_that_an_old_nvrtc_knows_is_not_blamed_on_its_age() -> None:
    with pytest.raises(CompileError, match="for sm_90a: nvrtc: error: invalid value"):
        compile_cubin(EMPTY_KERNEL, name="empty.cu", target="sm_90a", headers={})


def test_every_target_of_a_kernel_has_its_first_release() -> None:
    assert set(portable.TARGETS.values()) <= set(FIRST_RELEASE)


def test_spills_are_refused() -> None:
    result = compile_plain("spills")
    assert result.resources["spills"].spill_store_bytes > 0
    with pytest.raises(ResourceError, match=r"spills spills: \d+ bytes of stores, \d+ of loads"):
        check_resources(result)


def test_stack_frames_over_the_limit_are_refused() -> None:
    result = compile_plain("stack")
    with pytest.raises(ResourceError, match="stack frame of 1200 bytes; at most 0"):
        check_resources(result)
    check_resources(result, max_stack_bytes=1200)


def test_serialised_wgmma_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"\(C75\d\d\) .*wgmma\.mma_async.* are serialized"):
        check_resources(compile_plain("serialised"))


def test_ignored_setmaxnreg_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"\(C7508\) .*'setmaxnreg' ignored"):
        check_resources(compile_plain("setmaxnreg"))
