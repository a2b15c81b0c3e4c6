"""What the tensors of an NVFP4 weight are called in a checkpoint, and which configuration says so.

=====================  ====================  ============================
of module ``X``        "modelopt"            "compressed-tensors"
=====================  ====================  ============================
codes                  ``X.weight``          ``X.weight_packed``
block scales           ``X.weight_scale``    ``X.weight_scale``
global scale           ``X.weight_scale_2``  ``X.weight_global_scale``
which                  multiplies, ``[]``    divides, ``[1]``
=====================  ====================  ============================

Sources: ``modelopt/torch/export/convert_hf_config.py`` of NVIDIA/Model-Optimizer, which calls
weights alone W4A16_NVFP4; ``QuantizationConfig``, the preset ``NVFP4A16`` and
``NVFP4PackedCompressor`` of compressed-tensors 0.20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nibblas.errors import bad_value
from nibblas.formats.scale_layout import BLOCK

Naming = Literal["modelopt", "compressed-tensors"]


@dataclass(frozen=True)
class Names:
    """The last part of each name, and whether the global scale divides."""

    naming: Naming
    codes: str
    global_scale: str
    divides: bool
    scales: str = "weight_scale"


MODELOPT = Names("modelopt", "weight", "weight_scale_2", divides=False)
COMPRESSED_TENSORS = Names(
    "compressed-tensors", "weight_packed", "weight_global_scale", divides=True
)
ALL_NAMES = (MODELOPT, COMPRESSED_TENSORS)


def names_of(naming: str) -> Names:
    """The names of a format; ValueError for one that is not known."""
    for names in ALL_NAMES:
        if names.naming == naming:
            return names
    wanted = " or ".join(map(repr, get_args(Naming)))
    raise bad_value("naming", given=repr(naming), wanted=wanted)


def quantization_config(naming: Naming, ignored: Sequence[str]) -> dict[str, Any]:
    """The ``quantization_config`` of a model's config.json, for weights alone.

    Args:
        ignored: modules that have a weight and were left as they are.
    """
    weights: dict[str, Any] = {"num_bits": 4, "type": "float", "group_size": BLOCK}
    if naming == "modelopt":
        weights["dynamic"] = False
        return {
            "quant_method": "modelopt",
            "quant_algo": "W4A16_NVFP4",
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
            "ignore": list(ignored),
            "producer": {"name": "nibblas"},
        }
    weights |= {
        "strategy": "tensor_group",
        "symmetric": True,
        "dynamic": False,
        "scale_dtype": "torch.float8_e4m3fn",
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": list(ignored),
    }
