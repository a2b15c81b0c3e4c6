"""What is built around a problem: poison where a result must not look, guards that see writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nibblas.check.guard import guarded_out, spread
from nibblas.check.problems import ProblemSpec, draw
from nibblas.check.tensors import build, moved
from nibblas.formats import e4m3, scale_layout

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
STRIDES = ["contiguous", "row_stride", "column_stride", "transposed"]


def first_spec(**wanted: object) -> ProblemSpec:
    """The first drawn problem that has the attributes given."""
    specs = (draw(0, index) for index in range(2000))
    return next(s for s in specs if all(getattr(s, key) == v for key, v in wanted.items()))


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_guard_accepts_writes_to_its_rows_only(dtype: torch.dtype, strides: str) -> None:
    out = guarded_out(3, 5, dtype=dtype, strides=strides)
    assert out.tensor.isnan().all()
    out.tensor[:2] = 1.0
    assert out.foreign_writes(torch.tensor([True, True, False])) == 0
    assert out.foreign_writes(torch.tensor([True, False, False])) == 5


@pytest.mark.parametrize("strides", STRIDES)
def test_guard_sees_a_write_before_and_after_the_output(strides: str) -> None:
    for row in (-1, 3):
        out = guarded_out(3, 5, dtype=torch.float32, strides=strides)
        offset = out.tensor.storage_offset() + row * out.tensor.stride(0)
        out.tensor.as_strided((1,), (1,), offset).fill_(0.0)
        assert out.foreign_writes(torch.ones(3, dtype=torch.bool)) == 1


def test_guard_sees_a_nan_of_another_payload() -> None:
    out = guarded_out(2, 2, dtype=torch.float32, strides="row_stride")
    out.tensor[0, 0] = float("nan")
    assert out.foreign_writes(torch.zeros(2, dtype=torch.bool)) == 1


def test_spread_rows_have_poison_between_them() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    view = spread(tensor, poison=float("nan"))
    assert torch.equal(view, tensor)
    assert view.stride(1) == 1
    storage = torch.tensor([]).set_(view.untyped_storage())
    assert int(storage.isnan().sum()) == storage.numel() - 6


def test_padding_of_blocked_weight_scales_is_nan() -> None:
    spec = replace(first_spec(form="packed", w_layout="blocked"), n=(17,), k=(48,), segments=1)
    scales = build(replace(spec, w_global="none", bias="none")).w.scales
    padded = scale_layout.from_blocked(scales.view(torch.uint8), 128, 4)
    assert bool((padded[:, 17:] == e4m3.NAN_BYTE).all())
    assert bool((padded[:, :17, 3:] == e4m3.NAN_BYTE).all())


@pytest.mark.parametrize("rule", ["torch", "flashinfer"])
def test_padding_of_blocked_token_scales_is_nan(rule: str) -> None:
    spec = first_spec(form="packed", x_start=rule, nan_scales="none", groups=4)
    scales = build(spec).x.scales.view(torch.uint8)
    used = sum(spec.rows) * spec.k[0] // 16
    assert int((scales != e4m3.NAN_BYTE).sum()) == used


def test_rows_past_the_last_group_are_nan() -> None:
    spec = first_spec(form="packed", precision="w4a16", spare_rows=5, x_values="normal")
    case = build(spec)
    assert bool(case.x[sum(spec.rows) :].isnan().all())
    assert bool(case.x[: sum(spec.rows)].isfinite().all())
    assert case.offs is not None
    assert int(case.offs[-1]) == sum(spec.rows)


def test_masked_rows_past_the_count_are_nan() -> None:
    spec = first_spec(form="masked", precision="w4a16", x_values="normal", spare_rows=5)
    case = build(spec)
    for group, m in enumerate(spec.rows):
        assert bool(case.x[group, m:].isnan().all())
        assert bool(case.x[group, :m].isfinite().all())


def test_input_bits_cover_the_gaps_between_rows() -> None:
    spec = first_spec(form="packed", precision="w4a16", strided_inputs=True)
    case = build(spec)
    before = [bits.clone() for bits in case.input_bits()]
    case.x.as_strided((1,), (1,), 0).fill_(0.0)
    changed = [not torch.equal(a, b) for a, b in zip(before, case.input_bits(), strict=True)]
    assert sum(changed) == 1


FORMS = [
    {"form": form, "precision": precision, "out": out, "strided_inputs": strided}
    for form, precision, out, strided in (
        ("packed", "w4a16", "transposed", True),
        ("packed", "w4a4", "row_stride", False),
        ("masked", "w4a4", "contiguous", True),
        ("list", "w4a16", "contiguous", True),
    )
]


@pytest.mark.parametrize("wanted", FORMS, ids=lambda w: "-".join(map(str, w.values())))
def test_a_moved_case_has_the_same_bits_strides_and_gaps(wanted: dict[str, object]) -> None:
    case = build(first_spec(**wanted))
    copy = moved(case, "cpu")
    before, after = case.input_bits(), copy.input_bits()
    assert len(before) == len(after) > 2
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert {t.data_ptr() for t in before if t.numel()}.isdisjoint(t.data_ptr() for t in after)
    for a, b in zip(case._inputs(), copy._inputs(), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert a.storage_offset() == b.storage_offset()
    assert len(case.outs) == len(copy.outs) > 0
    for given, placed in zip(case.outs, copy.outs, strict=True):
        assert torch.equal(given.bits, placed.bits) and torch.equal(given.inside, placed.inside)
        assert given.tensor.stride() == placed.tensor.stride()


def test_a_moved_output_lies_inside_its_moved_guard() -> None:
    spec = first_spec(form="masked", out="contiguous")
    copy = moved(build(spec), "cpu")
    (out,) = copy.outs
    nothing = torch.zeros(out.tensor.shape[0], dtype=torch.bool)
    assert out.foreign_writes(nothing) == 0
    copy.keywords["out"].fill_(1.0)
    assert out.foreign_writes(nothing) == out.tensor.numel()
    assert out.foreign_writes(~nothing) == 0
