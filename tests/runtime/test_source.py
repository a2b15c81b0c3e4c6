"""A kernel's complete text, and the keys made from it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from nibblas.runtime.cache import prebuilt_key, user_key
from nibblas.runtime.source import KernelSource
from tests.runtime.configs import KERNELS, ScaleConfig, source_of


def key_of(config: ScaleConfig, root: Path = KERNELS, target: str = "sm_90a") -> str:
    return prebuilt_key(source_of(config, target, root))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_headers_are_named_from_the_root_wherever_they_are_included() -> None:
    source = source_of(ScaleConfig())
    assert [name for name, _ in source.headers] == ["config.h", "shared/types.h", "tiny/params.h"]
    assert '#include "shared/types.h"' in source.text
    assert '#include "tiny/params.h"' in source.text
    assert '#include "config.h"' in source.text
    assert '#include "shared/types.h"' in dict(source.headers)["tiny/params.h"]


def test_lines_keep_their_numbers() -> None:
    lines = (KERNELS / "tiny" / "scale.cu").read_text().splitlines()
    assert len(source_of(ScaleConfig()).text.splitlines()) == len(lines)


def test_same_source_gives_the_same_key(kernels: Path) -> None:
    assert key_of(ScaleConfig()) == key_of(ScaleConfig(), kernels)


def test_key_is_the_same_in_another_process(processes: ProcessPoolExecutor) -> None:
    assert processes.submit(key_of, ScaleConfig()).result() == key_of(ScaleConfig())


@pytest.mark.parametrize("name", ["tiny/scale.cu", "tiny/params.h", "shared/types.h"])
def test_a_change_in_any_file_it_reaches_changes_the_key(kernels: Path, name: str) -> None:
    (kernels / name).write_text((kernels / name).read_text() + "// changed\n")
    assert key_of(ScaleConfig(), kernels) != key_of(ScaleConfig())


def test_a_file_it_does_not_reach_leaves_the_key(kernels: Path) -> None:
    (kernels / "spills.cu").write_text("// changed\n")
    (kernels / "shared" / "new.h").write_text("#pragma once\n")
    assert key_of(ScaleConfig(), kernels) == key_of(ScaleConfig())


def test_configuration_and_target_change_the_key() -> None:
    keys = {
        key_of(ScaleConfig()),
        key_of(ScaleConfig(factor=5)),
        key_of(ScaleConfig(shared_bytes=1024)),
        key_of(ScaleConfig(), target="sm_80"),
    }
    assert len(keys) == 4


def test_compiler_and_options_change_only_the_users_key() -> None:
    source = source_of(ScaleConfig())
    keys = {
        user_key(source, "13.5"),
        user_key(source, "13.6"),
        user_key(source, "13.5", ["-lineinfo"]),
        prebuilt_key(source),
    }
    assert len(keys) == 4


def test_fields_cannot_run_together() -> None:
    apart = KernelSource("a", "bc", (), "e", "t")
    shifted = KernelSource("ab", "c", (), "e", "t")
    assert apart.digest() != shifted.digest()
    as_header = KernelSource("a", "b", (("c", "d"),), "e", "t")
    as_extra = KernelSource("a", "b", (), "e", "t")
    assert as_header.digest() != as_extra.digest("c", "d")


def test_a_missing_header_is_named(kernels: Path) -> None:
    edit(kernels / "tiny" / "params.h", "../shared/types.h", "../shared/absent.h")
    with pytest.raises(FileNotFoundError, match=r"shared/absent\.h"):
        source_of(ScaleConfig(), root=kernels)
