"""Humming, a library of kernels compiled on demand (PyPI ``humming-kernels``), as a rival.

Read in version 0.1.20. Weights are repacked before, tokens are 16-bit, the layout is its
``grouped_contiguous``: the cumulative ends of the groups with a 0 in front. Two contenders: the
configuration that its own heuristic picks for the case, and the best one that a search found.
Nothing of it is imported unless it is asked for, and whatever it raises leaves it out of the case.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nibblas.bench.cases import BenchCase, Kind
from nibblas.bench.contenders import CaseData, Contender, dtype_of, rotating, sets_for
from nibblas.bench.timing import fastest_on_cuda, surviving

PACKAGE = "humming-kernels"
COMPUTE = json.dumps({"gemm_type": "grouped_contiguous"})
LOCKS = 8192
"""Zeroed int32 for its stream-K: more than CTAs of any configuration here, and left zero."""

Tuning = Mapping[str, Any]


def _wgmma(tokens: int) -> tuple[Tuning, ...]:
    """Tiles of so many tokens by 256 weight rows by K = 64: two warpgroups and one that loads."""
    common = {
        "mma_type": "wgmma",
        "block_shape": (tokens, 256, 64),
        "warp_shape": (tokens, 32, 64),
        "num_ctas_per_sm": 1,
        "use_warp_spec": True,
        "use_tma": True,
        "num_stages": 4,
        "smem_reuse_mode": "none",
        "producer_stage_unroll": 1,
        "wgmma_split_issue_wait": True,
        "raster_group_m": 4,
    }
    return tuple({**common, "use_stream_k": stream_k} for stream_k in (True, False))


def _streaming(
    block: tuple[int, int, int], warp: tuple[int, int, int], mma_type: str, ctas_per_sm: int
) -> tuple[Tuning, ...]:
    """Several CTAs per SM that load without TMA."""
    common = {
        "mma_type": mma_type,
        "block_shape": block,
        "warp_shape": warp,
        "num_stages": 4,
        "num_ctas_per_sm": ctas_per_sm,
        "use_warp_spec": False,
        "use_tma": False,
    }
    return tuple({**common, "use_stream_k": stream_k} for stream_k in (True, False))


TUNED: Mapping[str, tuple[Tuning, ...]] = MappingProxyType(
    {
        "S1": _wgmma(176),
        "S2": _wgmma(176),
        "S3": _wgmma(112),
        "S4": _streaming((64, 128, 64), (64, 32, 64), "wgmma", 2),
        "D1": _streaming((8, 128, 64), (8, 64, 32), "mma", 6),
        "D2": _streaming((8, 128, 64), (8, 64, 32), "mma", 4),
        "P1": _wgmma(176),
        "P2": _wgmma(128),
        "P2-skew": (*_wgmma(128), *_wgmma(176)),
    }
)
"""Tile and CTAs per SM of the fastest of about 100 configurations on an H200, in float16, with and
without stream-K; the rest as the library's heuristic sets it. P2-skew was not searched: it has two
tiles."""


def heuristic(data: CaseData, rotate_bytes: float) -> Contender:
    """At the configuration that the library chooses for the case."""
    _require()
    return _contenders(data, rotate_bytes, "Humming", [_heuristic_tuning(*_key(data))])[0]


def tuned(data: CaseData, rotate_bytes: float) -> Contender:
    """At the fastest configuration of ``TUNED``, found by a short trial."""
    _require()
    tunings = TUNED.get(data.case.name)
    if tunings is None:
        raise LookupError(f"no configuration was searched for {data.case.name}")
    return fastest_on_cuda(_contenders(data, rotate_bytes, "Humming, best found", tunings))


def compile_ahead(work: Iterable[tuple[BenchCase, Kind]], *, search: bool) -> None:
    """Compiles every kernel of the work at once, as many side by side as there are CPUs.

    Each takes some seconds of a compiler. What fails here fails again, with its reason, in its
    case.

    Args:
        search: those of ``TUNED`` too.
    """
    keys = [(case, dtype_of(kind)) for case, kind in work]
    if not keys or why_missing() is not None:
        return
    try:  # on this thread first: what it imports and asks of the device has then been done once
        _heuristic_tuning(*keys[0])
    except Exception:  # noqa: BLE001  a rival may raise anything
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, dtype in keys:
            pool.submit(_heuristic_kernel, case, dtype)
            for tuning in TUNED.get(case.name, ()) if search else ():
                pool.submit(_kernel, case, dtype, tuning)


def why_missing() -> str | None:
    """Why the library cannot be asked; None: it can."""
    if importlib.util.find_spec("humming") is None:
        return f"{PACKAGE} is not installed"
    if not torch.cuda.is_available():
        return f"{PACKAGE} needs a GPU"
    return None


def _require() -> None:
    missing = why_missing()
    if missing is not None:
        raise ModuleNotFoundError(missing)


def _contenders(
    data: CaseData, rotate_bytes: float, name: str, tunings: Iterable[Tuning]
) -> list[Contender]:
    """One per configuration that compiles, on the same inputs and outputs."""
    from humming.ops import humming_gemm

    case, dtype = _key(data)
    layer = _layer(case, dtype)
    weight, scale = _repacked(layer, data)
    x = data.tokens()
    count = sets_for(x.nbytes + weight.nbytes + scale.nbytes, rotate_bytes)
    xs, weights, scales = (rotating(t, count) for t in (x, weight, scale))
    outs = [data.out() for _ in range(count)]
    ends = torch.nn.functional.pad(data.offs, (1, 0))
    locks = torch.zeros(LOCKS, dtype=torch.int32, device=data.device)
    layer_text = layer.to_str()

    def contender(tuning: Tuning) -> Contender:
        _kernel(case, dtype, tuning)
        tuning_text = _text(tuning)

        def call(i: int) -> None:
            humming_gemm(
                layer_config=layer_text,
                compute_config=COMPUTE,
                tuning_config=tuning_text,
                inputs=xs[i],
                weight=weights[i],
                weight_scale=scales[i],
                outputs=outs[i],
                expert_layout=ends,
                locks=locks,
            )

        return Contender(name, call, count, outs.__getitem__, config=_shown(tuning))

    return surviving(contender, tunings)


def _key(data: CaseData) -> tuple[BenchCase, torch.dtype]:
    return data.case, data.dtype


@cache
def _layer(case: BenchCase, dtype: torch.dtype) -> Any:
    """The library's description of the layer: NVFP4 weights without a global scale."""
    from humming.schema import HummingWeightSchema
    from humming.transform import prepare_layer_config

    schema = HummingWeightSchema(
        b_dtype="float4e2m1", bs_dtype="float8e4m3", weight_scale_group_size=16
    )
    return prepare_layer_config(
        shape_n=case.n,
        shape_k=case.k,
        weight_schema=schema,
        num_experts=len(case.rows),
        torch_dtype=dtype,
    )


def _heuristic_tuning(case: BenchCase, dtype: torch.dtype) -> Tuning:
    from humming.tune import get_heuristics_config

    found: Tuning = get_heuristics_config(
        _layer(case, dtype), shape_m=sum(case.rows), gemm_type="grouped_contiguous"
    )
    return found


def _kernel(case: BenchCase, dtype: torch.dtype, tuning: Tuning) -> None:
    """Compiles and registers the kernel; later calls with the same texts find it."""
    from humming.kernel.humming import HummingKernel

    HummingKernel.prepare_kernels(_layer(case, dtype).to_str(), COMPUTE, _text(tuning))


def _heuristic_kernel(case: BenchCase, dtype: torch.dtype) -> None:
    _kernel(case, dtype, _heuristic_tuning(case, dtype))


def _repacked(layer: Any, data: CaseData) -> tuple[Tensor, Tensor]:
    from humming.transform import transform_humming_tensors

    tensors = {
        "weight": data.w.codes.view(torch.int32),
        "weight_scale": data.w.scales.view(torch.float8_e4m3fn),
    }
    made = transform_humming_tensors(layer, tensors)
    return made["weight"], made["weight_scale"]


def _text(tuning: Tuning) -> str:
    return json.dumps(dict(tuning))


def _shown(tuning: Tuning) -> str:
    """Tile, stages, CTAs per SM, stream-K: "176x256x64, 4 stages, 1 CTA per SM, stream-K"."""
    tile = "x".join(map(str, tuning["block_shape"]))
    stream_k = ", stream-K" if tuning.get("use_stream_k", True) else ""
    ctas = tuning.get("num_ctas_per_sm", 1)
    return f"{tuning['mma_type']} {tile}, {tuning['num_stages']} stages, {ctas} CTA/SM{stream_k}"
