"""Element-wise reductions of bulk copies. PTX ISA, "cp.reduce.async.bulk"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.machine.memory import Array

_DTYPES = {
    "s32": "i4",
    "u32": "u4",
    "s64": "i8",
    "u64": "u8",
    "b32": "u4",
    "b64": "u8",
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
    "bf16": "u2",
}

#: PTX types of the element types of a tensor map.
MAP_TYPES = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}

#: Of those, the ones that bitwise operations take: an H200 takes no int64.
MAP_BITS = {"u32": "b32", "s32": "b32", "u64": "b64"}

#: Of a NaN that an operation gives, whatever its operands' were: an H200's.
_NANS = {"f16": np.uint16(0x7FFF), "bf16": np.uint16(0x7FFF), "f32": np.uint32(0x7FFF_FFFF)}


def _increment(old: Array, new: Array) -> Array:
    return np.where(old >= new, np.zeros_like(old), old + np.ones_like(old))


def _decrement(old: Array, new: Array) -> Array:
    return np.where((old == 0) | (old > new), new, old - np.ones_like(old))


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "inc": _increment,
    "dec": _decrement,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}

#: Types that each operation has.
ACCEPTED = {
    "add": {"s32", "u32", "u64", "f16", "bf16", "f32", "f64"},
    "min": {"s32", "u32", "s64", "u64", "f16", "bf16"},
    "max": {"s32", "u32", "s64", "u64", "f16", "bf16"},
    "inc": {"u32"},
    "dec": {"u32"},
    "and": {"b32", "b64"},
    "or": {"b32", "b64"},
    "xor": {"b32", "b64"},
}


def reduced(operation: str, kind: str, old: Array, new: Array) -> Array:
    """The bytes that the destination holds afterwards. uint8 [n], [n] -> [n]"""
    function = _OPERATIONS[operation]
    a, b = old.view(_DTYPES[kind]), new.view(_DTYPES[kind])
    with np.errstate(all="ignore"):
        if kind == "bf16":
            result = _to_bf16(function(_from_bf16(a), _from_bf16(b)))
        else:
            result = function(a, b).astype(_DTYPES[kind])
            if kind in _NANS:
                result = np.where(np.isnan(result), _NANS[kind].view(result.dtype), result)
    found: Array = np.frombuffer(result.tobytes(), np.uint8)
    return found


def _from_bf16(bits: Array) -> Array:
    single: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return single.astype(np.float64)


def _to_bf16(values: Array) -> Array:
    """To nearest even, by way of a float32 rounded to odd: no tie is made on the way."""
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    inexact = (single.astype(np.float64) != values) & np.isfinite(values)
    lower = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = np.where(inexact, (bits - lower.astype(np.uint32)) | np.uint32(1), bits)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    result: Array = np.where(np.isnan(values), _NANS["bf16"], rounded).astype(np.uint16)
    return result
