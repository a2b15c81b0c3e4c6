"""The exported submission: right on the emulated device, alone in its imports, short in its calls.

Also that its kernel, launches and choices are the library's own.
"""

from __future__ import annotations

import ast
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nibblas.backends.sm100_launch import Sm100Choice, Sm100Launch, shared_launches
from nibblas.competition import (
    BENCHMARKS,
    EDGE_CASES,
    TESTS,
    Case,
    StopRule,
    check_reused_addresses,
    generate_input,
    run_tests,
    time_case,
)
from nibblas.competition import submission as source
from nibblas.competition.export import submission_text
from nibblas.competition.kernel_text import kernel_text
from nibblas.competition.task import TaskData, checked_groups, clone_data
from nibblas.formats.scale_layout import competition_view, padded_k_blocks, padded_rows
from nibblas.plan.problem import GroupShape
from nibblas.plan.sm100 import (
    DEFAULT_PRESET,
    PRESETS,
    Preset,
    adapted,
    choose_configs,
    source_of,
)
from nibblas.plan.sm100_config import Sm100Config
from nibblas.runtime.compile import check_resources, compile_cubin, compile_ptx, compiler_version
from nibblas.runtime.recording import RecordingDriver
from nibblas.runtime.source import KernelSource
from tests.competition.submissions import EmulatedGpu, emulated_kernel, load_submission

B200_SMS = 148
EMULATED = [TESTS[0], TESTS[3], TESTS[5], TESTS[7]]
SMALL = Case("S", 2, (8, 20), (128, 256), (256, 128))

each_preset = pytest.mark.parametrize("preset", PRESETS)


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The compiler's version, for tests that compile the kernel."""
    try:
        return compiler_version()
    except Exception as error:  # noqa: BLE001 (whatever keeps it from loading)
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=PRESETS)
def emulated(request, nvrtc, tmp_path_factory) -> Any:
    """The file of each preset, on an emulated device."""
    submission = load_submission(request.param, tmp_path_factory.mktemp("export"))
    submission.gpu = EmulatedGpu()
    return submission


@pytest.fixture(scope="module")
def recorded_files(tmp_path_factory) -> dict[Preset, Any]:
    """The file of each preset, for which nothing is compiled."""
    folder = tmp_path_factory.mktemp("recorded")
    submissions = {preset: load_submission(preset, folder) for preset in PRESETS}
    for submission in submissions.values():
        submission._compiled = lambda *_: b"image"
    return submissions


@pytest.fixture(params=PRESETS)
def recorded(request, recorded_files) -> Any:
    """The file of each preset as it is before its first call, on a device that only takes notes."""
    submission = recorded_files[request.param]
    submission.gpu = RecordingDriver((10, 0), sms=B200_SMS)
    submission._launches_by_shape.clear()
    submission._function.cache_clear()
    return submission


def empty_data(case: Case, device: str = "cpu") -> TaskData:
    """The contract's tensors of a case, unwritten; on "meta" without memory."""

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    data: TaskData = ([], [], [], [])
    for m, n, k in case.sizes:
        c = empty(m, n, 1, dtype=torch.float16)
        data[0].append((empty(m, k // 2, 1), empty(n, k // 2, 1), c))
        columns = padded_k_blocks(k // 16)
        sfa, sfb = (competition_view(empty(padded_rows(rows), columns)) for rows in (m, n))
        data[1].append((sfa, sfb))
        data[2].append((sfa, sfb))
        data[3].append((m, n, k, 1))
    return data


# On the emulated device


@pytest.mark.parametrize("case", EMULATED, ids=lambda case: case.name)
def test_public_cases_are_bit_exact_in_one_launch(emulated: Any, case: Case) -> None:
    before = emulated.gpu.launches
    (result,) = run_tests("cpu", emulated_kernel(emulated), cases=[case])
    assert result.verdict.bit_exact, str(result.verdict)
    assert emulated.gpu.launches == before + 1


@pytest.mark.parametrize("case", [SMALL, *EDGE_CASES], ids=lambda case: case.name)
def test_every_code_and_scale_and_edge_is_within_the_bound(emulated: Any, case: Case) -> None:
    kernel = emulated_kernel(emulated)
    (result,) = run_tests("cpu", kernel, content="full_range", cases=[case])
    assert result.verdict.passed, str(result.verdict)


def test_same_addresses_with_new_contents(emulated: Any) -> None:
    assert check_reused_addresses(SMALL, emulated_kernel(emulated)).bit_exact
    assert check_reused_addresses(SMALL, emulated_kernel(emulated), content="full_range").passed


def test_strict_timing_with_copies_in_random_order(emulated: Any) -> None:
    stop = StopRule(600.0, min_seconds=0.0, max_repeats=2)
    kernel = emulated_kernel(emulated)
    result = time_case(SMALL, kernel, inputs=3, strict=True, stop=stop, flush_bytes=1 << 16)
    assert result.bit_exact


def test_shapes_in_turn_at_new_addresses(emulated: Any) -> None:
    """What is kept by shape serves every later call of it, and no other shape."""
    kernel = emulated_kernel(emulated)
    shapes = [
        SMALL,
        Case("S2", 2, (20, 8), (256, 128), (128, 256)),
        Case("S1", 1, (8,), (128,), (256,)),
    ]
    kept = []
    for turn in range(2):
        maps = emulated.gpu.maps
        for case in shapes:
            data = clone_data(generate_input(**case.reseeded(turn).generator_arguments()))
            kept.append(data)  # so that no address comes again
            (result,) = run_tests("cpu", kernel, cases=[case.reseeded(turn)])
            assert result.verdict.bit_exact, str(result.verdict)
    assert emulated.gpu.maps == maps, "the second turn encoded tensor maps anew"


# What reaches the GPU


def test_a_warm_call_is_one_launch_on_the_default_queue(recorded: Any) -> None:
    for _ in range(2):
        recorded.gpu.clear()
        data = empty_data(SMALL)
        outputs = recorded.custom_kernel(data)
        assert all(output is c for output, (_, _, c) in zip(outputs, data[0], strict=True))
    assert [event.call for event in recorded.gpu.events] == ["launch"]
    (launch,) = recorded.gpu.launches
    assert (launch.queue, launch.programmatic) == (0, recorded.PRESET == "swapped")


def test_addresses_of_the_call_are_in_its_parameters(recorded: Any) -> None:
    calls = [empty_data(SMALL) for _ in range(3)]
    for data in calls:
        recorded.custom_kernel(data)
    for data, launch in zip(calls, recorded.gpu.launches, strict=True):
        held = launch.parameters
        for (a, b, c), (sfa, sfb) in zip(data[0], data[2], strict=True):
            for tensor, times in ((a, 2), (b, 2), (sfa, 1), (sfb, 1), (c, 1)):
                assert held.count(tensor.data_ptr().to_bytes(8, "little")) == times
    for one, other in pairwise(recorded.gpu.launches):
        assert one.parameters != other.parameters
        assert one._replace(parameters=b"") == other._replace(parameters=b"")


def test_groups_of_both_kinds_take_two_launches_of_wide_deep_only(recorded: Any) -> None:
    case = Case("W", 3, (8, 8, 8), (4096, 128, 4096), (2048, 256, 2048))
    recorded.custom_kernel(empty_data(case))
    assert len(recorded.gpu.launches) == (2 if recorded.PRESET == "wide_deep" else 1)


def test_no_groups_and_no_rows_launch_nothing(recorded: Any) -> None:
    assert recorded.custom_kernel(([], [], [], [])) == []
    recorded.custom_kernel(empty_data(Case("E", 2, (0, 0), (128, 256), (256, 512))))
    assert recorded.gpu.launches == []


def test_shapes_kept_are_bounded(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "SHAPES_KEPT", 3)
    for m in range(1, 9):
        recorded.custom_kernel(empty_data(Case("M", 1, (m,), (128,), (256,))))
        assert len(recorded._launches_by_shape) <= 3


@pytest.mark.parametrize("case", [*BENCHMARKS, *TESTS], ids=lambda case: case.name)
def test_launches_are_those_of_the_library(recorded: Any, case: Case) -> None:
    data = empty_data(case, "meta")
    recorded.custom_kernel(data)
    driver = RecordingDriver((10, 0), sms=B200_SMS)
    preset: Preset = recorded.PRESET
    shapes = [GroupShape(*sizes) for sizes in case.sizes]
    choice = Sm100Choice(preset, choose_configs(shapes, preset, B200_SMS))
    products = [source._operands(group) for group in checked_groups(data)]

    class Maps:
        def get(self, spec: Any, address: int) -> bytes:
            return driver.encode_tensor_map(spec, address)

    want = [
        Sm100Launch.of(
            together,
            planned,
            sms=B200_SMS,
            resident=lambda config: B200_SMS * config.ctas_per_sm // config.cluster,
            maps=Maps(),
        )
        for together, planned in shared_launches(products, choice)
    ]
    got = recorded.gpu.launches
    assert [(launch.grid[0], launch.block[0], launch.cluster[0]) for launch in got] == [
        (launch.ctas, launch.config.threads, launch.config.cluster) for launch in want
    ]
    assert [launch.parameters for launch in got] == [launch.params for launch in want]
    assert [launch.shared_bytes for launch in got] == [
        launch.config.shared_bytes for launch in want
    ]


# Bad data


def wrong_data() -> dict[str, Any]:
    data = empty_data(SMALL)
    (a, b, c), (sfa, sfb) = data[0][1], data[2][1]
    sizes = data[3]
    return {
        "data: got NoneType": None,
        "data: got 3 parts; want 4": data[:3],
        "sfasfb_reordered_tensors: got 1 entries": (*data[:2], data[2][:1], data[3]),
        r"problem_sizes\[1\]: got l = 2": (*data[:3], [sizes[0], (20, 256, 128, 2)]),
        r"abc_tensors\[1\].a: got shape": (*data[:3], [sizes[0], (24, 256, 128, 1)]),
        r"abc_tensors\[1\].c: got torch.float32": (
            [data[0][0], (a, b, c.float())],
            *data[1:],
        ),
        r"abc_tensors\[1\].b: got strides": (
            [data[0][0], (a, torch.zeros((64, 256, 1), dtype=torch.uint8).transpose(0, 1), c)],
            *data[1:],
        ),
        r"sfasfb_reordered_tensors\[1\].sfb: got strides": (
            *data[:2],
            [data[2][0], (sfa, sfb.contiguous())],
            data[3],
        ),
    }


@pytest.mark.parametrize("message", wrong_data())
def test_bad_data_is_refused_before_any_launch(recorded: Any, message: str) -> None:
    recorded.custom_kernel(empty_data(SMALL))  # a good call does not open the door
    recorded.gpu.clear()
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        recorded.custom_kernel(wrong_data()[message])
    assert recorded.gpu.launches == []


def test_another_architecture_is_refused(recorded: Any) -> None:
    recorded.gpu = RecordingDriver((9, 0))
    with pytest.raises(ValueError, match=r"compute_capability: got 9\.0; want one of 10\.0"):
        recorded.custom_kernel(empty_data(SMALL))


# The text


@each_preset
def test_the_word_that_the_bot_refuses_is_absent(preset: Preset) -> None:
    text = submission_text(preset)
    assert "stream" not in text.lower()
    assert text.isascii()


def test_a_file_with_that_word_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "// one\n// upStream of it\n"
    monkeypatch.setattr("nibblas.competition.export.kernel_text", lambda _: text)
    with pytest.raises(ValueError, match=r"refuses the word 'stream', which is in lines \[\d+\]"):
        submission_text()


@each_preset
def test_header_lines_come_first(preset: Preset) -> None:
    lines = submission_text(preset).splitlines()
    assert lines[:2] == ["#!POPCORN leaderboard nvfp4_group_gemm", "#!POPCORN gpu B200"]
    assert lines[2].endswith(f"nibblas competition export --preset {preset}")


@each_preset
def test_it_imports_the_standard_library_and_torch_only(preset: Preset) -> None:
    tree = ast.parse(submission_text(preset))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Name):
            assert node.id not in ("__import__", "exec", "eval")
    assert imported - set(sys.stdlib_module_names) == {"torch"}
    assert "importlib" not in imported


def test_presets_of_a_kernel_differ_in_nothing_but_their_name() -> None:
    same_kernel = [preset for preset in PRESETS if source_of(preset) == source_of(DEFAULT_PRESET)]
    one, other = (submission_text(preset).splitlines() for preset in same_kernel)
    different = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    assert len(different) == 2
    assert different[1] == tuple(f'PRESET = "{preset}"' for preset in same_kernel)


def test_each_file_has_its_own_kernel_and_no_other() -> None:
    for preset in PRESETS:
        text = submission_text(preset)
        assert ("nibblas_sm100_swapped(const" in text) == (preset == "swapped")
        assert ("nibblas_sm100_grouped_mm(const" in text) == (preset != "swapped")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="preset: got 'fast'; want one of"):
        submission_text("fast")  # type: ignore[arg-type]


# The kernel


def configs_in_use(preset: Preset) -> list[Sm100Config]:
    """One configuration for each config.h that the public cases need."""
    by_header: dict[str, Sm100Config] = {}
    for case in (*TESTS, *BENCHMARKS):
        shapes = [GroupShape(*sizes) for sizes in case.sizes]
        for config in choose_configs(shapes, preset, B200_SMS):
            config = adapted(config, products=case.g, bulk_scales=True, tensor_copies=True)
            by_header.setdefault(config.render(), config)
    return list(by_header.values())


@each_preset
def test_the_kernel_compiles_to_cubins_without_spills(
    preset: Preset, nvrtc: str, tmp_path: Path
) -> None:
    text = load_submission(preset, tmp_path).KERNEL
    for config in configs_in_use(preset):
        headers = {"config.h": config.render()}
        compiled = compile_cubin(text, name="kernel.cu", target="sm_100f", headers=headers)
        check_resources(compiled)


def test_the_kernel_is_the_shipped_one(nvrtc: str) -> None:
    """The same PTX as from the files."""
    config = configs_in_use("wide_deep")[0]
    shipped = KernelSource.of(config, "sm_100f")
    headers = {"config.h": config.render()}
    flat = kernel_text(config.source_name)
    assert "#include" in flat
    assert flat.count("#include") == 1
    ours = compile_ptx(flat, name=shipped.name, target="sm_100f", headers=headers)
    theirs = compile_ptx(
        shipped.text, name=shipped.name, target="sm_100f", headers=dict(shipped.headers)
    )
    assert ours == theirs


def test_a_kernel_that_does_not_compile_shows_the_compilers_log(nvrtc: str, tmp_path: Path) -> None:
    submission = load_submission("wide_deep", tmp_path)
    with pytest.raises(RuntimeError, match="does not compile for sm_100f: (?s:.*)error"):
        submission._compiled("#error no", "sm_100f", "cubin")
    with pytest.raises(RuntimeError, match="does not compile for sm_1"):
        submission._compiled("", "sm_1", "cubin")
