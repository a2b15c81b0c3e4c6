"""The shipped portable kernel by the shipped launch code, emulated, against the oracle.

Small sizes; every form, layout and kind of token. Reads of the padding would be NaN, reads and
writes outside the operands are errors of the emulator.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nibblas
from nibblas import NVFP4Array
from nibblas.backends import registry
from nibblas.backends.portable import PortableBackend
from nibblas.emulator import ORDERS, emulating
from nibblas.emulator.backend import EmulatedBackend, driver_of
from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound
from nibblas.plan.problem import Problem, even_rows, uniform_shapes
from tests.api.problems import assert_right, offs_of, random_array, random_tokens
from tests.emulator.backend.unchecked import assert_clamped, unchecked

pytestmark = pytest.mark.usefixtures("nvrtc")

KINDS = ("fp16", "bf16", "nvfp4")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

each_kind = pytest.mark.parametrize("kind", KINDS)


def tokens(kind: str, rows: int, k: int, seed: int, *, ends: list[int] | None = None) -> Any:
    """Of that kind; quantised ones with blocked scales by group if ``ends`` are given."""
    if kind != "nvfp4":
        return random_tokens(rows, k, seed, DTYPES[kind])
    if ends is None:
        return random_array((rows, k), seed)
    return random_array((rows, k), seed, ends=ends, rule="torch", global_shape=(len(ends),))


def group_of(x: NVFP4Array, g: int) -> NVFP4Array:
    """Group g of a stacked array."""
    return NVFP4Array(x.codes[g], x.scales[g], global_scale=x.global_scale)


def run(x: Any, w: NVFP4Array, offs: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return nibblas.grouped_mm(x, w, offs, backend="emulated", **keywords)


@each_kind
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_groups_of_all_sizes_with_everything(kind: str, layout: str) -> None:
    """Empty groups, one row, several blocks; N and K with tails; rows beyond the last group."""
    ends = [0, 1, 1, 18, 19]
    w = random_array((5, 72, 272), 1, layout=layout, global_shape=(5, 2))
    x = tokens(kind, 21, 272, 2, ends=ends if layout == "blocked" else None)
    factors = {
        "alpha": torch.linspace(0.5, 2, 5),
        "row_scale": torch.linspace(0.25, 1, 21),
        "bias": torch.linspace(-1, 1, 72),
    }
    out = torch.full((21, 72), float("nan"))
    with emulating(order="random", seed=1):
        run(x, w, offs_of(ends), out=out, **factors)
    assert_right(out, x, w, offs_of(ends), **factors)
    assert bool(out[19:].isnan().all())


@each_kind
def test_every_order_gives_the_same_bits(kind: str) -> None:
    ends = [3, 3, 20]
    w, x = random_array((3, 136, 512), 3, layout="blocked"), tokens(kind, 20, 512, 4, ends=ends)
    results = []
    for order in ORDERS:
        with emulating(order=order, seed=2, num_sms=2):
            results.append(run(x, w, offs_of(ends), out_dtype=torch.float32))
    assert_right(results[0], x, w, offs_of(ends))
    assert all(torch.equal(results[0], other) for other in results[1:])


@each_kind
def test_wide_blocks_and_few_multiprocessors(kind: str) -> None:
    """Groups of many tokens take blocks of 64; one multiprocessor makes a CTA take all tiles."""
    ends = [70, 70, 75]
    w, x = random_array((3, 130, 256), 5), tokens(kind, 75, 256, 6)
    with emulating(num_sms=1) as emulation:
        y = run(x, w, offs_of(ends))
    assert_right(y, x, w, offs_of(ends))
    assert len(emulation.reports) == 1


@each_kind
def test_a_row_has_the_same_bits_in_groups_of_any_size(kind: str) -> None:
    w, x = random_array((1, 40, 512), 7), tokens(kind, 66, 512, 8)
    rows: list[torch.Tensor] = []
    for m in (1, 8, 17, 66):
        part = NVFP4Array(x.codes[:m], x.scales[:m]) if kind == "nvfp4" else x[:m]
        rows.append(run(part, w, offs_of([m]), out_dtype=torch.float32))
    assert all(torch.equal(y, rows[-1][: len(y)]) for y in rows)


@each_kind
def test_masked(kind: str) -> None:
    w = random_array((3, 40, 256), 9)
    masked = torch.tensor([0, 3, 5], dtype=torch.int32)
    if kind == "nvfp4":
        x: Any = random_array((3, 5, 256), 10)
    else:
        x = random_tokens(15, 256, 10, DTYPES[kind]).view(3, 5, 256)
    out = torch.full((3, 5, 40), float("nan"))
    nibblas.grouped_mm_masked(x, w, masked, out=out, backend="emulated")
    for g, rows in enumerate(masked.tolist()):
        assert bool(out[g, rows:].isnan().all())
        own = NVFP4Array(w.codes[g : g + 1], w.scales[g : g + 1], global_scale=w.global_scale)
        mine = group_of(x, g) if kind == "nvfp4" else x[g]
        exact = grouped_mm_reference(mine, own, offs_of([5]))
        assert bool(within_bound(out[g], exact, error_bound(exact, out.dtype))[:rows].all())


def test_list() -> None:
    a = [random_tokens(m, k, m, torch.float16) for m, k in ((3, 256), (1, 80), (17, 512))]
    b = [random_array((n, x.shape[1]), n) for n, x in zip((40, 8, 130), a, strict=True)]
    ys = nibblas.grouped_mm_list(a, b, backend="emulated")
    for x, w, y in zip(a, b, ys, strict=True):
        stacked = NVFP4Array(w.codes[None], w.scales[None], global_scale=w.global_scale)
        assert_right(y, x, stacked, offs_of([len(x)]))


@pytest.mark.parametrize(("arch", "kind"), [*(("sm_80", k) for k in KINDS), ("sm_89", "nvfp4")])
def test_older_architectures(arch: str, kind: str) -> None:
    w, x = random_array((2, 24, 144), 11), tokens(kind, 6, 144, 12)
    with emulating(arch):
        assert_right(run(x, w, offs_of([1, 6])), x, w, offs_of([1, 6]))


def test_operands_at_odd_addresses() -> None:
    w = random_array((2, 24, 256), 13)
    x = random_tokens(6, 257, 14, torch.float16)[:, 1:]
    codes = torch.empty(2 * 24 * 128 + 1, dtype=torch.uint8)[1:].view(2, 24, 128)
    codes.copy_(w.codes.view(torch.uint8))
    shifted = NVFP4Array(codes, w.scales, global_scale=w.global_scale)
    assert_right(run(x, shifted, offs_of([2, 6])), x, w, offs_of([2, 6]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_outputs_of_two_sets_a_warp(dtype: torch.dtype) -> None:
    """As weights come through TMA; the last sets have one row of each quarter's four beyond N."""
    w = random_array((2, 416, 256), 21, global_shape=(2, 2))
    x, ends = random_tokens(22, 256, 22, torch.float16), [9, 22]
    factors = {
        "alpha": torch.tensor([0.5, 2.0]),
        "row_scale": torch.linspace(0.25, 1, 22),
        "bias": torch.linspace(-1, 1, 416),
    }
    wide = torch.full((22, 834), 7.0, dtype=dtype)
    with emulating("sm_90", num_sms=1) as emulated:
        run(x, w, offs_of(ends), out=wide[:, :832:2], **factors)
    report = emulated.reports[-1]
    assert "portable" in report.kernel
    assert "bulk copies" in report.events
    assert_right(wide[:, :832:2], x, w, offs_of(ends), **factors)
    assert bool((wide[:, 1:832:2] == 7).all() and (wide[:, 832:] == 7).all())


def test_strided_output_columns_between_are_left_alone() -> None:
    w, x = random_array((2, 24, 256), 15), random_tokens(6, 256, 16, torch.bfloat16)
    wide = torch.full((6, 50), 7.0, dtype=torch.bfloat16)
    run(x, w, offs_of([2, 6]), out=wide[:, :48:2])
    assert_right(wide[:, :48:2], x, w, offs_of([2, 6]))
    assert bool((wide[:, 1:48:2] == 7).all() and (wide[:, 48:] == 7).all())


HOSTILE = [[-5, 3, 9], [9, 3, 1], [2**31 - 1, 0, 4], [-(2**31), 2**31 - 1, -1], [4, 100, 5]]


@pytest.mark.parametrize("entries", HOSTILE)
@pytest.mark.parametrize("masked", [False, True])
def test_hostile_offsets_are_clamped(entries: list[int], masked: bool) -> None:
    """Past the checks, as contents on a device come: nothing outside the operands is touched."""
    w, x = random_array((3, 24, 64), 17), random_tokens(9, 64, 18, torch.float16)
    product = unchecked(x, w, entries, max_m=3 if masked else 0)
    shapes = uniform_shapes(even_rows(9, 3), 24, 64)
    problem = Problem(shapes, "fp16", "fp32", form=product.form, rows_known=False)
    backend = registry.get("emulated")
    backend.run([product], backend.plan(problem))
    assert_clamped(product)


def test_it_is_the_portable_backend_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = PortableBackend.run

    def watched(self: PortableBackend, operands: Any, plan: Any) -> None:
        seen.append(plan.config)
        original(self, operands, plan)

    monkeypatch.setattr(PortableBackend, "run", watched)
    w, x = random_array((2, 24, 256), 15), random_tokens(6, 256, 16, torch.bfloat16)
    run(x, w, offs_of([2, 6]))
    assert [config.entry for config in seen] == ["nibblas_portable_grouped_mm"]
    assert isinstance(registry.get("emulated"), EmulatedBackend)
    assert driver_of("sm_90").emulation.reports[-1].instructions["mma"] > 0
