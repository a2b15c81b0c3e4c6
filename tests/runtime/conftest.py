"""What runtime tests share: a compiler, cubins compiled once, an empty cache, no real device."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.runtime import kernel, source
from nibblas.runtime.cache import CubinCache
from nibblas.runtime.compile import Compiled, compiler_version
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver
from tests.runtime.configs import KERNELS, ScaleConfig, compile_source, source_of


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The compiler's version."""
    try:
        return compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def compiled(nvrtc: str) -> Callable[[str], Compiled]:
    """``compiled(target)`` is the scale kernel for that target."""
    return cache(lambda target: compile_source(source_of(ScaleConfig(), target)))


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Eight processes of another interpreter, which imports nibblas once for all of them."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["nibblas.runtime.prebuild"])
    with ProcessPoolExecutor(8, mp_context=context) as pool:
        yield pool


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A copy of the kernels that a test may change."""
    return Path(shutil.copytree(KERNELS, tmp_path / "kernels"))


@pytest.fixture
def cubins(tmp_path: Path) -> CubinCache:
    """An empty cache, with no shipped cubins."""
    return CubinCache(tmp_path / "cache", tmp_path / "prebuilt")


@pytest.fixture(scope="session")
def warm_cubins(nvrtc: str, tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    """A cache that tests share, so that each kernel is compiled once."""
    folder = tmp_path_factory.mktemp("cache")
    return CubinCache(folder, folder / "prebuilt")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, warm_cubins: CubinCache) -> Iterator[RecordingDriver]:
    """A recorded Hopper device, whose kernels are those of the tests."""
    monkeypatch.setattr(source, "KERNELS", KERNELS)
    monkeypatch.setattr(kernel, "default_cache", lambda: warm_cubins)
    with use_driver(RecordingDriver(compute_capability=(9, 0), sms=132, devices=2)) as driver:
        yield driver
