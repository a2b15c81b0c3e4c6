"""Other libraries' signatures over ``grouped_mm``: thin, and exact about conventions.

scaled_grouped_mm               torch.nn.functional.scaled_grouped_mm, NVFP4 recipes
group_gemm_nvfp4_nt_groupwise   flashinfer.gemm.group_gemm_nvfp4_nt_groupwise
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nibblas.api import grouped_mm, grouped_mm_masked
from nibblas.errors import UnsupportedProblemError, bad_type, bad_value, renamed
from nibblas.formats.nvfp4 import NVFP4Array
from nibblas.formats.scale_layout import GroupStart
from nibblas.validation.offs import check_offs_metadata
from nibblas.validation.operands import check_weights

SUPPORTED_FORMS = (
    "mat_a (M, K/2) x mat_b (G, K/2, N) with offs -> (M, N)",
    "mat_a (G, M, K/2) x mat_b (G, K/2, N) without offs -> (G, M, N)",
)


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | list[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_grouped_mm`` for NVFP4, on every device that nibblas runs on.

    Supported forms:

    - mat_a ``(M, K/2)`` x mat_b ``(G, K/2, N)`` with offs -> ``(M, N)``: tokens sorted by expert;
    - mat_a ``(G, M, K/2)`` x mat_b ``(G, K/2, N)`` without offs -> ``(G, M, N)``: a batch.

    Args:
        mat_a: float4_e2m1fn_x2 (or uint8), two values a byte, adjacent along K.
        mat_b: the transposed view ``w.transpose(-2, -1)`` of ``(G, N, K/2)``.
        scale_a, scale_b: ``[block scales]`` or ``[block scales, global scale]``: float8_e4m3fn and
            float32; both multiply. The global scale is a scalar or per group ``(G,)``. Swizzled
            block scales: 2-D operand ``(sum of each group's rows rounded up to 128,
            round_up(K/16, 4))``, 3-D ``(G, round_up(rows, 128) * round_up(K/16, 4))``.
        scale_recipe_a, scale_recipe_b: ``BlockWise1x16`` or ``[BlockWise1x16, TensorWise]``.
        swizzle_a, swizzle_b: ``SWIZZLE_32_4_4``, ``[SWIZZLE_32_4_4, NO_SWIZZLE]``; ``NO_SWIZZLE``
            or None for row-major block scales ``(rows, K/16)`` or ``(G, rows, K/16)``, which
            torch's own kernel does not take.
        bias: ``(N,)`` or ``(G, N)``, which torch's own kernel does not take.
        offs: int32 ``(G,)``, cumulative ends. Rows past ``offs[-1]`` are not written.
        output_dtype: float16, bfloat16 or float32; None: bfloat16.
        contraction_dim: () only. use_fast_accum: False only.

    Raises:
        UnsupportedProblemError: another form, recipe, or flag. ValueError, TypeError: as
            ``grouped_mm``.
    """
    _check_flags(contraction_dim, use_fast_accum)
    form = (_rank("mat_a", mat_a), _rank("mat_b", mat_b), offs is not None)
    if form not in ((2, 3, True), (3, 3, False)):
        given = f"mat_a {tuple(mat_a.shape)} x mat_b {tuple(mat_b.shape)}, offs={offs is not None}"
        raise _unsupported(f"the form {given}; supported: {'; '.join(SUPPORTED_FORMS)}")
    start: GroupStart | None = "torch" if form[0] == 2 else None
    tokens = _operand("a", mat_a, scale_a, scale_recipe_a, swizzle_a, start)
    weights = _operand("b", mat_b.transpose(-2, -1), scale_b, scale_recipe_b, swizzle_b, None)
    dtype = torch.bfloat16 if output_dtype is None else output_dtype
    names = {"x": "mat_a", "w": "mat_b", "x.scales": "scale_a", "out_dtype": "output_dtype"}
    with renamed(names):
        if offs is not None:
            return grouped_mm(tokens, weights, offs, out_dtype=dtype, bias=bias)
        groups, rows = mat_a.shape[:2]
        full = torch.full((groups,), rows, dtype=torch.int32, device=mat_a.device)
        return grouped_mm_masked(tokens, weights, full, out_dtype=dtype, bias=bias)


def group_gemm_nvfp4_nt_groupwise(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    m_indptr: Tensor,
    alpha: Tensor | None = None,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """FlashInfer's ``group_gemm_nvfp4_nt_groupwise``, on every device that nibblas runs on.

    Args:
        a: uint8 ``(cum_m, K/2)``. b: uint8 ``(G, N, K/2)``.
        a_scale: uint8 or float8_e4m3fn, 128x4 blocked ``(padded rows, round_up(K/16, 4))``; group
            i's rows start at ``(m_indptr[i] + 127 * i) // 128 * 128``.
        b_scale: uint8 or float8_e4m3fn, 128x4 blocked ``(G, round_up(N, 128), round_up(K/16, 4))``.
        m_indptr: int32 ``(G + 1,)``: 0, then each group's cumulative end.
        alpha: float32 ``(G,)``: 1 / (encode scale of a * encode scale of b); multiplies.
        tile_m, tile_n, tile_k: FlashInfer's tiles; accepted and without effect here.
        out: ``(cum_m, N)``. out_dtype: default out's, else bfloat16.

    Raises:
        ValueError, TypeError: as ``grouped_mm``, naming these arguments.
    """
    with renamed({"codes": "a", "scales": "a_scale"}):
        x = NVFP4Array(a, a_scale, scale_layout="blocked", group_start="flashinfer")
    with renamed({"codes": "b", "scales": "b_scale"}):
        w = NVFP4Array(b, b_scale, scale_layout="blocked")
    check_weights(w, "b")
    check_offs_metadata(m_indptr, b.shape[0] + 1, a.device, "m_indptr")
    readable = m_indptr.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and int(m_indptr[0]) != 0:
        raise bad_value("m_indptr", given=f"first entry {int(m_indptr[0])}", wanted="0")
    with renamed({"x": "a", "w": "b", "offs": "m_indptr", "x.scales": "a_scale"}):
        return grouped_mm(x, w, m_indptr[1:], out=out, out_dtype=out_dtype, alpha=alpha)


def _rank(name: str, t: Tensor) -> int:
    if not isinstance(t, Tensor):
        raise bad_type(name, given=t, wanted="a torch.Tensor")
    return t.ndim


def _check_flags(contraction_dim: list[int] | tuple[int, ...], use_fast_accum: bool) -> None:
    if len(contraction_dim):
        raise _unsupported(f"contraction_dim={contraction_dim!r}; K is the last dim of mat_a")
    if use_fast_accum:
        raise _unsupported("use_fast_accum=True: sums are always in float32")


def _unsupported(what: str) -> UnsupportedProblemError:
    return UnsupportedProblemError("this call", {"scaled_grouped_mm": [f"does not support {what}"]})


def _operand(
    side: str,
    codes: Tensor,
    scale: Tensor | list[Tensor],
    recipe: Any,
    swizzle: Any,
    group_start: GroupStart | None,
) -> NVFP4Array:
    """One operand in nibblas's form; ``codes`` is (..., rows, K/2)."""
    scales = _as_list(scale)
    recipes = [_enum_name(r) for r in _as_list(recipe)]
    if recipes not in (["BlockWise1x16"], ["BlockWise1x16", "TensorWise"]):
        raise _unsupported(
            f"scale_recipe_{side}={recipes}; supported: [BlockWise1x16] or "
            "[BlockWise1x16, TensorWise]"
        )
    if len(scales) != len(recipes):
        given = f"{len(scales)} tensors for {len(recipes)} recipes"
        raise bad_value(f"scale_{side}", given=given, wanted="one tensor per recipe")
    swizzles = [_enum_name(s) for s in _as_list(swizzle) if s is not None]
    if swizzles[1:] not in ([], ["NO_SWIZZLE"]) or (
        swizzles and swizzles[0] not in ("SWIZZLE_32_4_4", "NO_SWIZZLE")
    ):
        raise _unsupported(f"swizzle_{side}={swizzles}")
    blocked = swizzles[:1] == ["SWIZZLE_32_4_4"]
    with renamed(
        {"codes": f"mat_{side}", "scales": f"scale_{side}", "global_scale": f"scale_{side}"}
    ):
        return NVFP4Array(
            codes,
            scales[0],
            global_scale=scales[1] if len(scales) > 1 else None,
            scale_layout="blocked" if blocked else "linear",
            group_start=group_start if blocked else None,
        )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _enum_name(value: Any) -> str:
    """Name of a torch.nn.functional ScalingType or SwizzleType member (torch 2.10 and newer)."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)
