"""Every wrong argument: one error that names it, what was given and what is wanted; no writes."""

from __future__ import annotations

import pytest
import torch

import nibblas
from nibblas import NVFP4Array
from tests.api.problems import offs_of, random_array, random_tokens, small

POISON = 12345.0


def valid() -> dict[str, object]:
    x, w, offs = small()
    return {"x": x, "w": w, "offs": offs, "out": torch.full((5, 32), POISON)}


def blocked_tokens(**changes: object) -> NVFP4Array:
    tokens = random_array((5, 64), 9, ends=[3, 5], rule="torch")
    parts = {
        "scales": tokens.scales,
        "scale_layout": "blocked",
        "group_start": "torch",
    } | changes
    return NVFP4Array(tokens.codes, **parts)  # type: ignore[arg-type]


def other_device(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(t, device="meta")


x0, w0, _ = small()
CASES = {
    "x of float32": ({"x": x0.float()}, TypeError, r"x: got torch.float32; want torch.bfloat16"),
    "x of integers": ({"x": x0.int()}, TypeError, "x: got torch.int32"),
    "x an array": ({"x": x0.float().numpy()}, TypeError, "x: got ndarray"),
    "x of rank 3": ({"x": x0[None]}, ValueError, r"x: got shape \(1, 5, 64\); want \(M, K\)"),
    "x of rank 1": ({"x": x0[0]}, ValueError, r"x: got shape \(64,\); want \(M, K\)"),
    "x with another K": ({"x": x0[:, :48]}, ValueError, "x: got K = 48 .* want K = 64"),
    "x transposed": ({"x": torch.zeros(64, 5).half().T}, ValueError, r"x: got strides \(1, 5\)"),
    "x elsewhere": ({"x": other_device(x0)}, ValueError, "w: got device cpu; want meta"),
    "w a tensor": ({"w": x0}, TypeError, "w: got Tensor; want an NVFP4Array"),
    "w a matrix": ({"w": w0.group(0)}, ValueError, r"w: got shape \(32, 64\); want \(G, N, K\)"),
    "w of no group": (
        {"w": random_array((0, 32, 64), 1), "offs": offs_of([])},
        ValueError,
        "w: got shape .* want at least one group",
    ),
    "offs a list": ({"offs": [3, 5]}, TypeError, "offs: got list; want an int32"),
    "offs of int64": ({"offs": offs_of([3, 5]).long()}, TypeError, "offs: got torch.int64"),
    "offs too long": ({"offs": offs_of([0, 3, 5])}, ValueError, r"offs: got shape \(3,\); want"),
    "offs of rank 2": ({"offs": offs_of([3, 5])[None]}, ValueError, r"offs: got shape \(1, 2\)"),
    "offs with gaps": ({"offs": offs_of([3, 9, 5])[::2]}, ValueError, r"offs: got strides \(2,\)"),
    "offs elsewhere": (
        {"offs": other_device(offs_of([3, 5]))},
        ValueError,
        "offs: got device meta",
    ),
    "offs decreasing": ({"offs": offs_of([4, 3])}, ValueError, "offs: got 3 at group 1 after 4"),
    "offs negative": ({"offs": offs_of([-1, 5])}, ValueError, "offs: got -1 at group 0 after 0"),
    "offs beyond M": (
        {"offs": offs_of([3, 6])},
        ValueError,
        "offs: got 6 at group 1; want at most 5",
    ),
    "alpha of float64": ({"alpha": torch.ones(2).double()}, TypeError, "alpha: got torch.float64"),
    "alpha a number": ({"alpha": 2.0}, TypeError, "alpha: got float; want a torch.Tensor"),
    "alpha too short": (
        {"alpha": torch.ones(1)},
        ValueError,
        r"alpha: got shape \(1,\); want \(2,\)",
    ),
    "row_scale too short": ({"row_scale": torch.ones(4)}, ValueError, "row_scale: got shape"),
    "row_scale with gaps": (
        {"row_scale": torch.ones(10)[::2]},
        ValueError,
        "row_scale: got strides",
    ),
    "bias of integers": ({"bias": torch.ones(32).int()}, TypeError, "bias: got torch.int32"),
    "bias too long": (
        {"bias": torch.ones(33)},
        ValueError,
        r"bias: got shape \(33,\); want \(32,\)",
    ),
    "bias of rank 3": ({"bias": torch.ones(1, 2, 32)}, ValueError, "bias: got shape"),
    "out a list": ({"out": [1]}, TypeError, "out: got list"),
    "out of float64": ({"out": torch.zeros(5, 32).double()}, TypeError, "out: got torch.float64"),
    "out transposed": ({"out": torch.zeros(32, 5)}, ValueError, r"out: got shape \(32, 5\)"),
    "out expanded": ({"out": torch.zeros(1, 32).expand(5, 32)}, ValueError, "out: got strides"),
    "out overlapping itself": (
        {"out": torch.zeros(200).as_strided((5, 32), (16, 1))},
        ValueError,
        "out: got strides .* share no memory",
    ),
    "out that needs grad": (
        {"out": torch.zeros(5, 32, requires_grad=True)},
        ValueError,
        "out: got a tensor that requires grad",
    ),
    "out_dtype unknown": ({"out_dtype": torch.int8}, TypeError, "out_dtype: got torch.int8"),
    "out_dtype a string": ({"out_dtype": "fp16"}, TypeError, "out_dtype: got fp16"),
    "out_dtype against out": ({"out_dtype": torch.float16}, TypeError, "out: got torch.float32"),
    "backend unknown": ({"backend": "tpu"}, ValueError, "backend: got 'tpu'; want one of 'cpu'"),
    "backend a number": ({"backend": 3}, TypeError, "backend: got int"),
    "precision unknown": ({"precision": "w8a8"}, ValueError, "precision: got 'w8a8'"),
    "precision of others": (
        {"precision": "w4a4"},
        ValueError,
        "precision: got 'w4a4'; want 'w4a16'",
    ),
    "validate unknown": ({"validate": "yes"}, ValueError, "validate: got 'yes'"),
    "blocked scales without a start rule": (
        {"x": blocked_tokens(group_start=None, scales=torch.zeros(128, 4).byte())},
        ValueError,
        "x: got blocked scales with group_start=None; want group_start='torch'",
    ),
    "blocked scales too few for the groups": (
        {"x": blocked_tokens(scales=torch.zeros(128, 4).byte())},
        ValueError,
        "x.scales: got 128 rows; want at least 256",
    ),
    "token scale per column segment": (
        {
            "x": NVFP4Array(
                random_array((5, 64), 1).codes,
                torch.zeros(5, 4).byte(),
                global_scale=torch.ones(1, 5),
            )
        },
        ValueError,
        "x: got global_scale of shape",
    ),
    "token scale of too many groups": (
        {"x": random_array((5, 64), 1, global_shape=(3,))},
        ValueError,
        r"x: got global_scale of shape \(3,\); want \(\) or \(2,\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_grouped_mm_refuses(name):
    changes, error, message = CASES[name]
    arguments = valid() | changes
    with pytest.raises(error, match=rf"^{message}"):
        nibblas.grouped_mm(**arguments)
    out = arguments["out"]
    if isinstance(out, torch.Tensor):
        assert bool(((out == POISON) | (out == 0)).all()), "something was written"


# explain takes no out, and rank 3 is its masked form.
NOT_FOR_EXPLAIN = [n for n in CASES if n.startswith("out ") or n == "x of rank 3"]
NOT_FOR_EXPLAIN.append("out_dtype against out")


@pytest.mark.parametrize("name", [n for n in CASES if n not in NOT_FOR_EXPLAIN])
def test_explain_refuses_the_same(name):
    changes, error, message = CASES[name]
    arguments = valid() | changes
    arguments.pop("out")
    with pytest.raises(error, match=rf"^{message}"):
        nibblas.explain(**arguments)


def test_out_that_shares_memory_with_an_input():
    buffer = torch.zeros(5 * 64 + 10, dtype=torch.bfloat16)
    x = buffer[: 5 * 64].view(5, 64)
    _, w, offs = small()
    with pytest.raises(ValueError, match=r"^out: got a memory range that meets x's;"):
        nibblas.grouped_mm(x, w, offs, out=buffer[160:320].view(5, 32))
    scales = torch.zeros(2, 32, 4).byte()
    w = NVFP4Array(w.codes, scales)
    with pytest.raises(ValueError, match=r"^out: got a memory range that meets w.scales's;"):
        nibblas.grouped_mm(
            x[:1], w, offs_of([0, 1]), out=scales.view(torch.float16)[0, :16].view(1, 32)
        )
    out = torch.zeros(6, 32).half()
    with pytest.raises(ValueError, match=r"^out\[1\]: got a memory range that meets out\[0\]'s"):
        nibblas.grouped_mm_list([x, x], [w.group(0)] * 2, out=[out[:5], out[1:]])


@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("operand", ["x", "w"])
def test_strict_validation_refuses_nan_and_signed_scales_in_use(operand, byte):
    x = random_array((5, 64), 9, ends=[3, 5], rule="torch")
    w = random_array((2, 32, 64), 10, layout="blocked")
    out = torch.full((5, 32), POISON)
    nibblas.grouped_mm(x, w, offs_of([3, 5]), validate="strict")
    if operand == "x":
        x.scales.view(torch.uint8)[128, 4 // 4] = byte
        where = "row 3, k block 1"
    else:
        w.scales.view(torch.uint8)[1].view(-1)[16 * 7 + 2] = byte
        where = "group 1, row 7, k block 2"
    message = f"^{operand}.scales: got byte 0x{byte:02X} at {where}"
    with pytest.raises(ValueError, match=message):
        nibblas.grouped_mm(x, w, offs_of([3, 5]), out=out, validate="strict")
    assert bool((out == POISON).all())


def test_strict_validation_ignores_scales_of_rows_in_no_group():
    x = random_array((5, 64), 9)
    x.scales.view(torch.uint8)[4] = 0x7F
    nibblas.grouped_mm(x, small()[1], offs_of([1, 4]), validate="strict")
    stack = random_array((2, 3, 64), 9)
    stack.scales.view(torch.uint8)[1, 2] = 0x7F
    nibblas.grouped_mm_masked(stack, small()[1], offs_of([3, 2]), validate="strict")
    with pytest.raises(ValueError, match=r"^x.scales: got byte 0x7F at group 1, row 2"):
        nibblas.grouped_mm_masked(stack, small()[1], offs_of([3, 3]), validate="strict")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_strict_validation_refuses_unusable_global_scales(value):
    x, w, offs = small()
    w = NVFP4Array(w.codes, w.scales, global_scale=torch.tensor([1.0, value]))
    with pytest.raises(ValueError, match=r"^w.global_scale: got"):
        nibblas.grouped_mm(x, w, offs, validate="strict")


MASKED = {
    "masked_m": (offs_of([1, 6]), "masked_m: got 6 at group 1; want 0..5"),
    "x": (torch.zeros(3, 5, 64).half(), "x: got 3 groups; want 2"),
    "row_scale": (torch.ones(10), r"row_scale: got shape \(10,\); want \(2, 5\)"),
    "out": (torch.zeros(5, 2, 32).transpose(0, 1), "out: got strides"),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_refuses(name):
    value, message = MASKED[name]
    x = random_tokens(10, 64, 1, torch.float16).view(2, 5, 64)
    arguments = {"x": x, "w": small()[1], "masked_m": offs_of([1, 5])} | {name: value}
    with pytest.raises(ValueError, match=rf"^{message}"):
        nibblas.grouped_mm_masked(**arguments)


def test_masked_refuses_a_permuted_x():
    x = random_tokens(10, 64, 1, torch.float16).view(5, 2, 64).transpose(0, 1)
    with pytest.raises(ValueError, match=r"^x: got a tensor with gaps"):
        nibblas.grouped_mm_masked(x, small()[1], offs_of([1, 5]))


LISTS = {
    "no groups": ({"a": [], "b": []}, ValueError, "a: got an empty list"),
    "a a tensor": ({"a": x0}, TypeError, "a: got Tensor; want a list"),
    "b too short": ({"b": [w0.group(0)]}, ValueError, "b: got 1 entries; want 2, as a has"),
    "mixed kinds": ({"a": [x0, x0.half()]}, ValueError, r"a\[1\]: got torch.float16"),
    "b a stack": ({"b": [w0, w0]}, ValueError, r"b\[0\]: got shape \(2, 32, 64\); want \(N, K\)"),
    "K differs": ({"a": [x0, x0[:, :32]]}, ValueError, r"a\[1\]: got K = 32 .* as b\[1\]"),
    "bias too short": ({"bias": [torch.ones(32)]}, ValueError, "bias: got 1 entries"),
    "bias of a wrong shape": (
        {"bias": [torch.ones(32), torch.ones(31)]},
        ValueError,
        r"bias\[1\]: got shape",
    ),
    "row_scale of a wrong shape": (
        {"row_scale": [torch.ones(5), torch.ones(31)]},
        ValueError,
        r"row_scale\[1\]: got shape",
    ),
    "alpha too long": ({"alpha": torch.ones(3)}, ValueError, r"alpha: got shape \(3,\)"),
    "out too short": ({"out": [torch.zeros(5, 32)]}, TypeError, "out: got 1 entries"),
    "outs of two types": (
        {"out": [torch.zeros(5, 32), torch.zeros(5, 32).half()]},
        TypeError,
        r"out\[1\]: got",
    ),
    "out of a wrong shape": (
        {"out": [torch.zeros(5, 32), torch.zeros(5, 31)]},
        ValueError,
        r"out\[1\]: got shape",
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_list_refuses(name):
    changes, error, message = LISTS[name]
    arguments = {"a": [x0, x0], "b": [w0.group(0), w0.group(1)]} | changes
    with pytest.raises(error, match=rf"^{message}"):
        nibblas.grouped_mm_list(**arguments)


def test_environment_names_a_backend(monkeypatch):
    monkeypatch.setenv("NIBBLAS_BACKEND", "abacus")
    with pytest.raises(ValueError, match=r"^NIBBLAS_BACKEND: got 'abacus'; want one of 'cpu'"):
        nibblas.grouped_mm(*small())
    monkeypatch.setenv("NIBBLAS_BACKEND", "reference")
    explanation = nibblas.explain(*small())
    assert explanation.plan.backend == "reference"
    assert explanation.forced_by == "NIBBLAS_BACKEND=reference"
    assert nibblas.explain(*small(), backend="cpu").plan.backend == "cpu"
