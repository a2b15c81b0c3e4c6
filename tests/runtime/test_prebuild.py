"""Building ahead of time: what is written, what is refused, what is kept, and that it is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nibblas.plan import sm100
from nibblas.plan.portable import TARGETS as PORTABLE_TARGETS
from nibblas.runtime import cache, prebuild, source
from nibblas.runtime.cache import CubinCache, unpack
from nibblas.runtime.compile import compile_cubin
from nibblas.runtime.prebuild import Built, build_all, main
from tests.runtime.configs import KERNELS, TARGETS, PlainConfig, ScaleConfig, source_of

pytestmark = pytest.mark.usefixtures("nvrtc")

CONFIGS = (ScaleConfig(factor=3), ScaleConfig(factor=4))


@pytest.fixture(autouse=True)
def _kernels_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "KERNELS", KERNELS)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Targets that were compiled for."""
    targets: list[str] = []

    def recorded(text: str, *, target: str, **others: object) -> object:
        targets.append(target)
        return compile_cubin(text, target=target, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(prebuild, "compile_cubin", recorded)
    return targets


def build(
    folder: Path,
    *configs: ScaleConfig | PlainConfig,
    targets: tuple[str, ...] | None = ("sm_80", "sm_90a"),
) -> tuple[list[Built], list[str]]:
    return build_all(configs, compute_capabilities=TARGETS, folder=folder, targets=targets)


def test_shipped_cubins_are_found_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, problems = build(tmp_path, *CONFIGS)
    assert problems == [] and len(built) == 4
    monkeypatch.setattr(cache, "compile_cubin", None)
    monkeypatch.setattr(cache, "compiler_version", None)
    cubins = CubinCache(None, tmp_path)
    for record, (config, target) in zip(
        built, [(c, t) for c in CONFIGS for t in ("sm_80", "sm_90a")], strict=True
    ):
        cubin = cubins.get(source_of(config, target))
        assert len(cubin) == record.size
        assert unpack((tmp_path / record.file).read_bytes()) == cubin


def test_manifest_tells_each_cubin(tmp_path: Path, nvrtc: str) -> None:
    build(tmp_path, CONFIGS[0])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["compiler"] == nvrtc
    first, second = manifest["cubins"]
    assert (first["target"], second["target"]) == ("sm_80", "sm_90a")
    assert first["entry"] == "tiny_scale" and first["registers"] > 0
    assert first["size"] + 32 == (tmp_path / first["file"]).stat().st_size
    assert first["file"] == f"tiny_scale-sm_80-{first['key'][:32]}.cubin"


def test_what_is_there_is_not_built_again(tmp_path: Path, compiles: list[str]) -> None:
    before, _ = build(tmp_path, CONFIGS[0])
    manifest = (tmp_path / "manifest.json").read_bytes()
    again, problems = build(tmp_path, CONFIGS[0])
    assert (again, problems) == (before, []) and compiles == ["sm_80", "sm_90a"]
    assert (tmp_path / "manifest.json").read_bytes() == manifest


def test_a_damaged_cubin_and_another_compilers_are_built_again(
    tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,), _ = build(tmp_path, CONFIGS[0], targets=("sm_80",))
    (tmp_path / record.file).write_bytes(b"damaged")
    build(tmp_path, CONFIGS[0], targets=("sm_80",))
    assert len(compiles) == 2
    monkeypatch.setattr(prebuild, "compiler_version", lambda: "99.0")
    build(tmp_path, CONFIGS[0], targets=("sm_80",))
    assert len(compiles) == 3


def test_the_folder_holds_exactly_what_was_asked_for(tmp_path: Path) -> None:
    build(tmp_path, CONFIGS[0])
    (tmp_path / "stale.cubin").write_bytes(b"stale")
    built, _ = build(tmp_path, CONFIGS[1], targets=("sm_90a",))
    assert {path.name for path in tmp_path.iterdir()} == {built[0].file, "manifest.json"}


def test_spills_and_errors_are_problems_and_are_not_shipped(tmp_path: Path) -> None:
    built, problems = build(
        tmp_path, PlainConfig("spills"), PlainConfig("broken"), CONFIGS[0], targets=("sm_90a",)
    )
    assert [record.entry for record in built] == ["tiny_scale"]
    spill, error = problems
    assert "for sm_90a: spills spills: " in spill
    assert "broken.cu does not compile" in error
    assert len(list(tmp_path.glob("*.cubin"))) == 1


def test_the_size_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "SIZE_BUDGET_BYTES", 1000)
    _, problems = build(tmp_path, CONFIGS[0], targets=("sm_90a",))
    (problem,) = problems
    assert "the budget is 1,000" in problem


def test_processes_build_the_same(tmp_path: Path) -> None:
    alone, _ = build(tmp_path / "alone", *CONFIGS, targets=("sm_90a",))
    together, _ = build_all(
        CONFIGS,
        compute_capabilities=TARGETS,
        folder=tmp_path / "together",
        targets=("sm_90a",),
        jobs=2,
    )
    assert together == alone
    for record in alone:
        files = [tmp_path / folder / record.file for folder in ("alone", "together")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_shipped_counts_what_will_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "all_configs", lambda: iter(CONFIGS))
    assert prebuild.shipped(tmp_path) == dict.fromkeys(TARGETS.values(), (0, 2))
    built, _ = build(tmp_path, *CONFIGS)
    (tmp_path / built[0].file).write_bytes(b"damaged")
    counts = prebuild.shipped(tmp_path)
    assert (counts["sm_80"], counts["sm_90a"]) == ((1, 2), (2, 2))
    monkeypatch.setattr(prebuild, "all_configs", lambda: iter((ScaleConfig(factor=5),)))
    assert prebuild.shipped(tmp_path)["sm_90a"] == (0, 1), "made for another kernel"


@pytest.mark.parametrize(("configs", "code"), [(CONFIGS, 0), ((PlainConfig("spills"),), 1)])
def test_command_prints_a_table_and_its_exit_code_tells_problems(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    configs: tuple[ScaleConfig | PlainConfig, ...],
    code: int,
) -> None:
    monkeypatch.setattr(prebuild, "all_configs", lambda: iter(configs))
    assert main(["--targets", "sm_90a", "--out", str(tmp_path), "--jobs", "1"]) == code
    printed = capsys.readouterr()
    assert printed.out.count("ScaleConfig") == (2 if code == 0 else 0)
    assert "cubins, " in printed.out
    assert printed.err.count("problem: ") == code


def test_every_configuration_of_the_package_has_a_source_and_a_target() -> None:
    for config in prebuild.all_configs():
        served = set(prebuild._served_targets(config, PORTABLE_TARGETS))
        assert served <= set(PORTABLE_TARGETS.values()) and served
        sizes = config.exported_sizes()
        assert sizes["nibblas_parameter_bytes"] > 0
        assert sizes.get("nibblas_shared_bytes", config.shared_bytes) == config.shared_bytes


def test_the_datacenter_blackwell_kernel_is_built_for_its_family_alone() -> None:
    for config in sm100.all_configs():
        assert set(prebuild._served_targets(config, PORTABLE_TARGETS)) == {"sm_100f"}
