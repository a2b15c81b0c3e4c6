"""Where a cubin is looked for, and what happens to files that are damaged or cannot be written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.runtime import cache
from nibblas.runtime.cache import (
    CubinCache,
    file_name,
    pack,
    prebuilt_key,
    unpack,
    user_key,
    write_atomically,
)
from nibblas.runtime.compile import Compiled, CompileError, compiler_version
from tests.runtime.configs import PlainConfig, ScaleConfig, source_of

SOURCE = source_of(ScaleConfig())


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, compiled: Callable[[str], Compiled]) -> list[str]:
    """The kernels that the cache had to compile; compiling itself is not repeated."""
    entries: list[str] = []

    def compile_once(text: str, *, name: str, target: str, **_: object) -> Compiled:
        entries.append(name)
        return compiled(target)

    monkeypatch.setattr(cache, "compile_cubin", compile_once)
    return entries


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise NativeLibraryError("compiling kernels needs NVRTC")

    monkeypatch.setattr(cache, "compile_cubin", missing)
    monkeypatch.setattr(cache, "compiler_version", missing)


def user_file(cubins: CubinCache) -> Path:
    assert cubins.folder is not None
    return cubins.folder / file_name(SOURCE, user_key(SOURCE, compiler_version()))


def reopened(cubins: CubinCache) -> CubinCache:
    """The same folders as another process sees them."""
    return CubinCache(cubins.folder, cubins.prebuilt)


def test_compiles_once_in_a_process(cubins: CubinCache, compiles: list[str]) -> None:
    assert cubins.get(SOURCE) == cubins.get(SOURCE)
    assert compiles == ["tiny/scale.cu"]


def test_the_next_process_reads_the_file(cubins: CubinCache, compiles: list[str]) -> None:
    cubin = cubins.get(SOURCE)
    assert reopened(cubins).get(SOURCE) == cubin
    assert len(compiles) == 1
    assert unpack(user_file(cubins).read_bytes()) == cubin


def test_another_compiler_does_not_use_the_file(
    cubins: CubinCache, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cubins.get(SOURCE)
    monkeypatch.setattr(cache, "compiler_version", lambda: "99.0")
    reopened(cubins).get(SOURCE)
    assert len(compiles) == 2


@pytest.mark.usefixtures("no_compiler")
def test_a_shipped_cubin_needs_no_compiler(cubins: CubinCache) -> None:
    shipped = cubins.prebuilt / file_name(SOURCE, prebuilt_key(SOURCE))
    write_atomically(shipped, pack(b"shipped cubin"))
    assert cubins.get(SOURCE) == b"shipped cubin"


@pytest.mark.usefixtures("no_compiler")
def test_a_changed_kernel_does_not_use_the_shipped_cubin(cubins: CubinCache) -> None:
    shipped = cubins.prebuilt / file_name(SOURCE, prebuilt_key(SOURCE))
    write_atomically(shipped, pack(b"shipped cubin"))
    with pytest.raises(NativeLibraryError, match="needs NVRTC"):
        cubins.get(source_of(ScaleConfig(factor=4)))


def test_options_pass_over_shipped_cubins(cubins: CubinCache, compiles: list[str]) -> None:
    shipped = cubins.prebuilt / file_name(SOURCE, prebuilt_key(SOURCE))
    write_atomically(shipped, pack(b"shipped cubin"))
    assert cubins.get(SOURCE, ["-lineinfo"]) != b"shipped cubin"
    assert cubins.get(SOURCE) == b"shipped cubin"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:1],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + b"\0",
    ],
    ids=["empty", "one byte", "last byte gone", "half", "flipped bit", "flipped digest", "longer"],
)
def test_a_damaged_file_is_rebuilt(
    cubins: CubinCache, compiles: list[str], damage: Callable[[bytes], bytes]
) -> None:
    cubin = cubins.get(SOURCE)
    whole = user_file(cubins).read_bytes()
    user_file(cubins).write_bytes(damage(whole))
    assert reopened(cubins).get(SOURCE) == cubin
    assert user_file(cubins).read_bytes() == whole
    assert len(compiles) == 2


def test_a_damaged_shipped_file_is_passed_over(cubins: CubinCache, compiles: list[str]) -> None:
    shipped = cubins.prebuilt / file_name(SOURCE, prebuilt_key(SOURCE))
    write_atomically(shipped, pack(b"shipped cubin")[:-1])
    assert cubins.get(SOURCE).startswith(b"\x7fELF")
    assert len(compiles) == 1


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, compiles: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cubins = CubinCache(tmp_path / "file" / "cache", tmp_path / "prebuilt")
    with pytest.warns(UserWarning, match="cannot write its cache.*NIBBLAS_CACHE_DIR"):
        cubins.get(SOURCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cubins.get(SOURCE)
        cubins.get(source_of(ScaleConfig(), "sm_80"))
    assert len(compiles) == 2


def test_no_folder_means_memory_only(tmp_path: Path, compiles: list[str]) -> None:
    cubins = CubinCache(None, tmp_path)
    assert cubins.get(SOURCE) == cubins.get(SOURCE)
    assert len(compiles) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nvrtc")
def test_a_failure_leaves_its_log_in_the_cache_folder(cubins: CubinCache) -> None:
    with pytest.raises(CompileError) as caught:
        cubins.get(source_of(PlainConfig("broken")))
    assert cubins.folder is not None
    assert caught.value.log_file.parent == cubins.folder / "logs"


@pytest.mark.usefixtures("nvrtc")
def test_slow_code_is_logged_and_still_runs(
    cubins: CubinCache, caplog: pytest.LogCaptureFixture
) -> None:
    assert cubins.get(source_of(PlainConfig("spills"))).startswith(b"\x7fELF")
    (record,) = caplog.records
    assert record.name == "nibblas.compile" and "spills spills" in record.getMessage()


def get_in_process(folder: Path) -> bytes:
    return CubinCache(folder / "cache", folder / "prebuilt").get(SOURCE)


@pytest.mark.usefixtures("nvrtc")
def test_eight_processes_fill_one_cache(
    cubins: CubinCache, tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    found = list(processes.map(get_in_process, [tmp_path] * 16))
    assert len(set(found)) == 1
    assert cubins.folder is not None
    assert list(cubins.folder.iterdir()) == [user_file(cubins)]
    assert unpack(user_file(cubins).read_bytes()) == found[0]


def write_and_read(path: Path, mark: int) -> bool:
    """Whether every read, while eight processes replace the file, sees one writer's bytes."""
    data = pack(bytes([mark]) * 100_000)
    for _ in range(20):
        write_atomically(path, data)
        cubin = unpack(path.read_bytes())
        if cubin is None or len(set(cubin)) != 1:
            return False
    return True


def test_readers_never_see_a_partial_file(tmp_path: Path, processes: ProcessPoolExecutor) -> None:
    path = tmp_path / "shared.cubin"
    assert all(processes.map(write_and_read, [path] * 8, range(8)))
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", b"data")
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIBBLAS_CACHE_DIR", str(tmp_path))
    assert cache.default_cache.__wrapped__().folder == tmp_path


def test_platform_names_the_folder_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("platformdirs")
    monkeypatch.delenv("NIBBLAS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache.default_cache.__wrapped__().folder
    assert folder is not None and folder.name == "nibblas"
