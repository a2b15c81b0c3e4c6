"""Helpers for kernels written in PTX: most tests here are a few instructions long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nibblas.emulator import ORDERS, Device, Report
from nibblas.errors import NativeLibraryError
from nibblas.runtime.compile import compiler_version
from tests.emulator import sample

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def entry(body: str, *, params: str = ".param .u64 out", before: str = "") -> str:
    """A module with one entry ``k``; registers %r<32>, %rd<32>, %f<32>, %h<32>, %p<8>."""
    return f"""{HEADER}{before}
.visible .entry k({params})
{{
    .reg .b32 %r<32>;
    .reg .b64 %rd<32>;
    .reg .f32 %f<32>;
    .reg .b16 %h<32>;
    .reg .pred %p<8>;
{body}
    ret;
}}
"""


#: %rd1 = &out[thread of the CTA], of 4-byte elements.
OUT = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd0, %rd1;
"""


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The compiler's version, for tests whose kernels are CUDA C++."""
    try:
        return compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))


Lanes = Callable[..., np.ndarray]


@pytest.fixture
def lanes() -> Lanes:
    """Runs instructions that leave a result in %r1 and returns it for every thread, uint32."""

    def run(
        body: str, *, threads: int = 32, order: str = "round_robin", seed: int = 0, **kwargs: Any
    ):
        dev = Device("sm_90", order=order, seed=seed)
        out = dev.empty(threads, np.uint32, name="out")
        text = entry(OUT + body + "\n    st.global.u32 [%rd1], %r1;", **kwargs)
        dev.load_ptx(text).kernel("k").launch(1, threads, [out])
        assert out.written().all()
        return out.to_numpy()

    return run


def launch(text: str, *args: Any, threads: int = 32, grid: int = 1, **device: Any) -> Report:
    """Launches the entry ``k`` of a module whose arguments need no device."""
    return Device("sm_90", **device).load_ptx(text).kernel("k").launch(grid, threads, list(args))


every_order = pytest.mark.parametrize("order", sorted(ORDERS))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what tests/emulator/sample.py does, unless a case is asked for by its id."""
    if sample.is_asked_for_all() or any("[" in argument for argument in config.args):
        return
    items[:], left_out = sample.split(items)
    config.hook.pytest_deselected(items=left_out)
