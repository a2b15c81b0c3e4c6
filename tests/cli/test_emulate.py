"""``nibblas emulate``: the documented examples, and what it says to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nibblas.cli.app import app
from nibblas.errors import NativeLibraryError
from nibblas.runtime.compile import compiler_version

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "emulate"
PTX = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd0, %rd1;
    st.global.u32 [%rd1], %r0;
    ret;
}
"""
LAUNCH = {
    "grid": 1,
    "block": 32,
    "args": ["y"],
    "buffers": {"y": {"shape": [32], "dtype": "uint32", "fill": "empty"}},
}


@pytest.fixture
def nvrtc() -> None:
    try:
        compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))


def emulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["emulate", *map(str, arguments)])


def example(name: str, *options: str) -> Result:
    pytest.importorskip("tomllib", reason="TOML needs Python 3.11")
    return emulate(EXAMPLES / f"{name}.cu", "--args", EXAMPLES / f"{name}.toml", *options)


def run(folder: Path, ptx: str = PTX, **changes: object) -> Result:
    (folder / "k.ptx").write_text(ptx)
    (folder / "k.json").write_text(json.dumps({**LAUNCH, **changes}))
    return emulate(folder / "k.ptx", "--args", folder / "k.json")


def test_vector_add(nvrtc: None) -> None:
    result = example("vector_add")
    assert result.exit_code == 0
    assert "store global 4000" in result.stdout


def test_the_planted_missing_wait_is_found_and_explained(nvrtc: None) -> None:
    result = example("pipeline")
    assert result.exit_code == 1
    assert "FAULT  UninitialisedRead" in result.stdout
    number = 1 + next(
        i
        for i, line in enumerate((EXAMPLES / "pipeline.cu").read_text().splitlines())
        if "uint4 value = " in line
    )
    assert f"pipeline.cu:{number}: uint4 value" in result.stdout


def test_with_the_wait_every_order_is_right(nvrtc: None) -> None:
    result = example("pipeline", "-D", "WAIT", "--all-orders")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 9


def test_results_are_saved_and_compared(tmp_path: Path) -> None:
    np.save(tmp_path / "wanted.npy", np.arange(32, dtype=np.uint32))
    result = run(tmp_path, save={"y": "y.npy"}, expect={"y": {"npy": "wanted.npy"}})
    assert result.exit_code == 0
    assert (np.load(tmp_path / "y.npy") == np.arange(32)).all()
    np.save(tmp_path / "wanted.npy", np.arange(1, 33, dtype=np.uint32))
    result = run(tmp_path, expect={"y": {"npy": "wanted.npy"}})
    assert result.exit_code == 1
    assert "WRONG  y: 32 of 32 values differ; the first at [0]: 0, expected 1" in result.stdout


def test_json_holds_the_fault(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "k.json").write_text(json.dumps({**LAUNCH, "block": 33}))
    result = emulate(tmp_path / "k.ptx", "--args", tmp_path / "k.json", "--json")
    assert result.exit_code == 1
    fault = json.loads(result.stdout)["fault"]
    assert fault["kind"] == "OutOfBounds"
    assert fault["site"]["ptx_line"] == 12


@pytest.mark.parametrize(
    ("ptx", "changes", "message"),
    [
        ("not ptx", {}, "PTX line 1"),
        (PTX.replace("ret;", "ret"), {}, "PTX line 1"),
        (PTX.replace("mov.u32", "move.u32"), {}, "PTX line 9: move.u32: no handler for 'move'"),
        (PTX.replace("mov.u32", "mov.u33"), {}, "PTX line 9"),
        (PTX, {"args": []}, "args: got 0; want 1 for k"),
        (PTX, {"args": ["y", 1]}, "args: got 2; want 1 for k"),
        (PTX, {"args": [{"hex": "0011"}]}, "args[0]: got 2 bytes; want 8"),
        (PTX, {"args": ["z"]}, "args[0]: got 'z'; want one of y"),
        (PTX, {"block": 1025}, "block: got"),
        (PTX, {"block": [1, 2, 3, 4]}, "block: got"),
        (PTX, {"grid": 0}, "grid: got"),
        (PTX, {"cluster": 3}, "grid: got"),
        (PTX, {"shared_bytes": 10**6}, "smem: got 1000000 dynamic"),
        (PTX, {"kernel": "other"}, "kernel: got 'other'; want one of ['k']"),
        (PTX, {"arch": "sm_70"}, "arch: got 'sm_70'"),
        (PTX, {"typo": 1}, "got the key 'typo'"),
        (PTX, {"buffers": {"y": {"shape": [32], "dtype": "u33"}}}, "buffers.y.dtype: got 'u33'"),
        (PTX, {"buffers": {"y": {"shape": [32], "fill": "ones"}}}, "buffers.y.fill: got 'ones'"),
        (PTX, {"buffers": {"y": {"npy": "no.npy"}}}, "buffers.y: got 'no.npy'"),
        (PTX, {"maps": {"m": {"buffer": "y", "box": [3]}}}, "box: got"),
        (PTX, {"maps": {"m": {"buffer": "x", "box": [4]}}}, "maps.m.buffer: got 'x'"),
        (PTX, {"expect": {"x": {"npy": "x.npy"}}}, "expect: got 'x'; want a buffer: y"),
    ],
)
def test_bad_input_is_told_with_status_2(
    tmp_path: Path, ptx: str, changes: dict[str, object], message: str
) -> None:
    result = run(tmp_path, ptx, **changes)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text("{")
    (tmp_path / "k.ptx").write_text(PTX)
    for kernel, launch, message in (
        ("k.ptx", "none.json", "args: got"),
        ("k.ptx", "k.json", "args: got k.json; want TOML or JSON"),
    ):
        result = emulate(tmp_path / kernel, "--args", tmp_path / launch)
        assert result.exit_code == 2
        assert message in result.output
    (tmp_path / "k.json").write_text(json.dumps(LAUNCH))
    result = emulate(tmp_path / "none.ptx", "--args", tmp_path / "k.json")
    assert result.exit_code == 2
    assert "kernel: got" in result.output


def test_cuda_that_does_not_compile(tmp_path: Path, nvrtc: None) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int* y) { y[0] = z; }')
    (tmp_path / "k.json").write_text(json.dumps(LAUNCH))
    result = emulate(tmp_path / "k.cu", "--args", tmp_path / "k.json")
    assert result.exit_code == 2
    assert "does not compile" in result.output
