"""Asking a hung GPU: with a driver and a debugger of the tests' own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nibblas.selftest import hang_state
from nibblas.selftest.barriers import Words
from nibblas.selftest.hang_state import DUMP, PIPE, describe_gpu

WORDS = Words(0x400, 2)
DEBUGGER = r"""#!/bin/sh
printf 'arguments: %s\n' "$*"
echo 'words of shared memory behind the stages:'
echo '$1 = {0x7ffff800001ffffe, 0x12}'
echo "* 0  1 0x7f00 Active nibblas_selftest_hang()"
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_state, "_DUMP_LIMIT_S", 0.7)
    monkeypatch.setattr(hang_state, "_SETTLED_S", 0.3)
    monkeypatch.setattr(hang_state, "_CUDA_PROGRAMS", "/nowhere")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture
def _debugger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "cuda-gdb"
    program.parent.mkdir()
    program.write_text(DEBUGGER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture(params=[1, 4096], ids=["a byte", "a buffer"])
def _driver(folder: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Waits at the pipe for so many bytes, then writes the dump in two parts."""
    os.mkfifo(folder / PIPE)

    def serve() -> None:
        wanted = request.param
        while wanted > 0:  # whoever writes opens the pipe anew each time
            with (folder / PIPE).open("rb", buffering=0) as pipe:
                wanted -= len(pipe.read(wanted))
        with (folder / DUMP).open("wb", buffering=0) as dump:
            dump.write(b"half ")
            time.sleep(0.1)
            dump.write(b"whole")

    thread = threading.Thread(target=serve)
    thread.start()
    time.sleep(0.2)  # it is at the pipe
    yield
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.usefixtures("_driver", "_debugger")
def test_a_core_dump_is_read_by_the_debugger(folder: Path) -> None:
    state = describe_gpu(os.getpid(), folder, WORDS)
    assert state.state_from == "a GPU core dump, read by cuda-gdb"
    assert state.core_dump == str(folder / DUMP)
    assert (folder / DUMP).read_bytes() == b"half whole"
    barrier, asked, *_, kernel = state.state
    assert barrier.endswith("at 0x400: barrier, parity 0, lacks 1 of 1 arrivals")
    assert f"target cudacore {folder / DUMP}" in asked
    assert "print/x *(@shared unsigned long long *)0x400@2" in asked
    assert "-p" not in asked.split()
    assert "nibblas_selftest_hang" in kernel


@pytest.mark.usefixtures("_driver")
def test_without_a_debugger_the_dump_is_what_there_is(folder: Path) -> None:
    state = describe_gpu(os.getpid(), folder, WORDS)
    assert state.core_dump == str(folder / DUMP)
    assert state.state == []
    assert "no cuda-gdb here to read it" in state.state_from


@pytest.mark.usefixtures("_debugger")
def test_without_a_dump_the_debugger_attaches(folder: Path) -> None:
    state = describe_gpu(4711, folder, WORDS)
    assert "-p 4711" in state.state[1]
    assert state.core_dump is None
    assert "since the driver opened no pipe" in state.state_from


@pytest.mark.usefixtures("_debugger")
def test_a_debugger_that_sees_no_kernel_of_ours_gives_no_state(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "cuda-gdb").write_text("#!/bin/sh\necho ptrace: not permitted\n")
    state = describe_gpu(4711, folder, WORDS)
    assert state.state == []
    assert state.state_from.endswith("cuda-gdb attached and said: ptrace: not permitted")


def test_with_neither_a_sentence_says_why(folder: Path) -> None:
    state = describe_gpu(os.getpid(), folder, WORDS)
    assert state.state == []
    assert state.state_from == (
        "no state of barriers: the driver opened no pipe for core dumps, "
        "and there is no cuda-gdb to attach"
    )


def test_a_pipe_that_nobody_reads_does_not_hold_us_up(folder: Path) -> None:
    os.mkfifo(folder / PIPE)
    begin = time.monotonic()
    state = describe_gpu(os.getpid(), folder, WORDS)
    assert time.monotonic() - begin < 1
    assert "nobody reads its pipe" in state.state_from


def test_a_driver_that_writes_nothing_is_waited_for_no_longer_than_the_limit(folder: Path) -> None:
    os.mkfifo(folder / PIPE)
    reader = os.open(folder / PIPE, os.O_RDONLY | os.O_NONBLOCK)
    begin = time.monotonic()
    state = describe_gpu(os.getpid(), folder, WORDS)
    os.close(reader)
    assert 1 < time.monotonic() - begin < 10
    assert "wrote no core dump within" in state.state_from
