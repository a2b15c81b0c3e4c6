"""torch.library operators: opcheck, torch.compile without breaks, inference mode, gradient."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import nibblas
from nibblas import calls
from tests.api.problems import offs_of, random_array, random_tokens, small

OPTIONS = (None, False, "default")


def epilogue(groups: int, m: int, n: int) -> calls.Epilogue:
    return calls.Epilogue(torch.rand(groups), torch.rand(m), torch.rand(groups, n))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_opcheck_grouped_mm(requires_grad, full):
    x, w, offs = small()
    x.requires_grad_(requires_grad)
    product = calls.packed_product(x, w, offs, epilogue(2, 5, 32) if full else calls.Epilogue())
    arguments = (*product, torch.float32, *OPTIONS)
    torch.library.opcheck(torch.ops.nibblas.grouped_mm.default, arguments)


def test_opcheck_grouped_mm_out_w4a4():
    x = random_array((5, 64), 3, layout="blocked", ends=[3, 5], rule="torch")
    _, w, offs = small()
    product = calls.packed_product(x, w, offs, epilogue(2, 5, 32))
    arguments = (*product, torch.zeros(5, 32), *OPTIONS)
    torch.library.opcheck(torch.ops.nibblas.grouped_mm_out.default, arguments)


def test_opcheck_grouped_mm_list_out():
    x, w, _ = small()
    product = calls.list_product(
        [x, x], [w.group(0), w.group(1)], alpha=torch.rand(2), row_scale=None, bias=None
    )
    outs = [torch.zeros(5, 32), torch.zeros(5, 32)]
    torch.library.opcheck(torch.ops.nibblas.grouped_mm_list_out.default, (*product, outs, *OPTIONS))


def test_opcheck_grad_x():
    _, w, offs = small()
    grad = torch.randn(5, 32).bfloat16()
    product = calls.packed_product(torch.zeros(5, 64).half(), w, offs, epilogue(2, 5, 32))
    arguments = (grad, *product[5:13], torch.bfloat16)
    torch.library.opcheck(torch.ops.nibblas.grouped_mm_grad_x.default, arguments)


def packed(x, w, offs):
    return nibblas.grouped_mm(x * 2, w, offs, alpha=torch.ones(2)) + 1


def packed_out(x, w, offs):
    out = torch.zeros(5, 32)
    return nibblas.grouped_mm(x, w, offs, out=out) * 2


def listed(x, w, offs):
    return nibblas.grouped_mm_list([x, x], [w.group(0), w.group(1)])[1] - offs[0]


def masked(x, w, offs):
    return nibblas.grouped_mm_masked(x.expand(2, 5, 64).contiguous(), w, offs)[:, :3]


def quantized(x, w, offs):
    tokens = nibblas.quantize(x.float(), scale_layout="blocked", offs=offs, global_scale=0.01)
    return nibblas.grouped_mm(tokens, w, offs)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [packed, packed_out, listed, masked, quantized])
def test_compiles_whole(function, compiler):
    x, w, offs = small()
    compiled = torch.compile(function, fullgraph=True, backend=compiler)
    torch.testing.assert_close(compiled(x, w, offs), function(x, w, offs))


def test_compiled_with_dynamic_rows_compiles_once():
    _, w, _ = small()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(packed, fullgraph=True, backend=counter, dynamic=True)
    for m in (5, 7, 12):
        x, offs = random_tokens(m, 64, m, torch.bfloat16), offs_of([2, m])
        torch.testing.assert_close(compiled(x, w, offs), packed(x, w, offs))
    assert counter.frame_count == 1


def test_inference_mode():
    x, w, offs = small()
    want = nibblas.grouped_mm(x, w, offs)
    with torch.inference_mode():
        assert torch.equal(nibblas.grouped_mm(x, w, offs), want)


def test_array_is_a_pytree():
    _, w, _ = small()
    leaves, spec = pytree.tree_flatten({"w": w})
    assert len(leaves) == 3
    again = pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)["w"]
    assert torch.equal(again.dequantize(), w.dequantize())


@pytest.mark.parametrize("form", ["packed", "masked"])
def test_gradient_of_x_is_the_transposed_product(form):
    torch.manual_seed(0)
    w = random_array((3, 24, 64), 1, global_shape=(3, 2))
    alpha, bias = torch.rand(3) + 0.5, torch.randn(24)
    dense = w.dequantize()
    if form == "packed":
        x, ends = torch.randn(9, 64).bfloat16(), [4, 4, 7]
        group, used = [0, 0, 0, 0, 2, 2, 2], slice(0, 7)
        row_scale = torch.rand(9)
    else:
        x, ends = torch.randn(3, 2, 64).bfloat16(), [2, 0, 2]
        group, used = [0, 0, 2, 2], torch.tensor([0, 1, 4, 5])
        row_scale = torch.rand(3, 2)
    operator = nibblas.grouped_mm if form == "packed" else nibblas.grouped_mm_masked
    leaf = x.clone().requires_grad_()
    y = operator(
        leaf, w, offs_of(ends), alpha=alpha, row_scale=row_scale, bias=bias, out_dtype=torch.float32
    )
    grad_y = torch.randn_like(y)
    y.backward(grad_y)
    rows = grad_y.reshape(-1, 24)[used] * row_scale.reshape(-1)[used][:, None]
    want = torch.zeros(leaf.grad.reshape(-1, 64).shape)
    want[used] = torch.einsum("mn,mnk->mk", rows * alpha[group][:, None], dense[group])
    torch.testing.assert_close(leaf.grad.reshape(-1, 64).float(), want, rtol=2e-2, atol=1e-2)


def test_compiled_gradient_equals_eager():
    x, w, offs = small()
    grads = []
    for function in (packed, torch.compile(packed, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        function(leaf, w, offs).float().square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_gradients_that_cannot_be_given_are_refused():
    x, w, offs = small()
    leaf = x.clone().requires_grad_()
    with pytest.raises(ValueError, match="x: got a tensor that requires grad"):
        nibblas.grouped_mm(leaf, w, offs, out=torch.empty(5, 32))
    with pytest.raises(ValueError, match=r"a\[0\]: got a tensor that requires grad"):
        nibblas.grouped_mm_list([leaf], [w.group(0)])
    with pytest.raises(ValueError, match="bias: got a tensor that requires grad"):
        nibblas.grouped_mm(x, w, offs, bias=torch.zeros(32, requires_grad=True))
