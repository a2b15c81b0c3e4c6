"""Tensor maps: the driver's rules by name, and one encode for any number of addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nibblas.runtime.recording import RecordingDriver
from nibblas.runtime.tensormap import TensorMaps, TensorMapSpec

# Packed E2M1 codes of 256 rows by K = 4096, in boxes of 64 rows by 256 values.
CODES = TensorMapSpec(
    "uint8", dims=(2048, 256), stride_bytes=(2048,), box=(128, 64), swizzle="128b"
)
# The same as a type of its own, in shared memory with gaps.
UNPACKED = TensorMapSpec("16u4_align16b", dims=(4096, 256), stride_bytes=(2048,), box=(128, 64))
INTERLEAVED = TensorMapSpec(
    "float16", dims=(16, 64, 4), stride_bytes=(32, 2048), box=(16, 8, 1), interleave="16b"
)
BASE = 0x7F00_0000_0000


@pytest.mark.parametrize(
    "spec",
    [
        CODES,
        UNPACKED,
        replace(UNPACKED, data_type="16u6_align16b", swizzle="128b"),
        INTERLEAVED,
        replace(CODES, data_type="16u4_align8b", dims=(4096, 256), box=(256, 64)),
        replace(CODES, dims=(1,), stride_bytes=(), box=(16,)),
        replace(CODES, dims=(2**32, 1), stride_bytes=(2**40 - 16,)),
        replace(CODES, box=(16, 256), swizzle="none"),
        replace(CODES, element_strides=(1, 8)),
        *(
            replace(CODES, dims=(32, 33, 3), stride_bytes=strides, box=(16, 1, 1))
            for strides in ((32, 0), (0, 1056), (32, 1072), (32, 1056))
        ),
        replace(CODES, data_type="bfloat16", box=(64, 8), oob_fill="nan_request_zero_fma"),
        replace(INTERLEAVED, interleave="32b", swizzle="32b"),
        TensorMapSpec("uint8", (16,) * 5, (16, 32, 48, 64), (16, 1, 1, 1, 1)),
    ],
)
def test_valid_specs_pass(spec: TensorMapSpec) -> None:
    spec.check()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(CODES, dims=(), stride_bytes=(), box=()), "dims: got .*want 1 to 5 sizes"),
        (replace(CODES, dims=(16,) * 6), "dims: got .*want 1 to 5 sizes"),
        (replace(CODES, interleave="16b"), "dims: .*3 to 5 sizes, as the layout is interleaved"),
        (replace(CODES, stride_bytes=()), r"stride_bytes: got \(\); want 1 values for rank 2"),
        (replace(CODES, box=(128,)), "box: .*want 2 values for rank 2"),
        (replace(CODES, element_strides=(1,)), "element_strides: .*want 2 values for rank 2"),
        (replace(CODES, dims=(2048, 0)), "dims: .*values from 1 to 4294967296"),
        (replace(CODES, dims=(2**32 + 1, 256)), "dims: .*values from 1 to 4294967296"),
        (replace(CODES, box=(128, 0)), "box: .*values from 1 to 256"),
        (replace(CODES, box=(128, 257)), "box: .*values from 1 to 256"),
        (replace(CODES, element_strides=(1, 0)), "element_strides: .*values from 1 to 8"),
        (replace(CODES, element_strides=(1, 9)), "element_strides: .*values from 1 to 8"),
        (replace(CODES, stride_bytes=(2040,)), "stride_bytes: .*multiples of 16"),
        (replace(CODES, stride_bytes=(-16,)), r"stride_bytes: .*values below 2\*\*40"),
        (replace(CODES, stride_bytes=(2**40,)), r"stride_bytes: .*values below 2\*\*40"),
        (replace(CODES, box=(120, 64)), "box: got 120 innermost bytes; want a multiple of 16"),
        (
            replace(CODES, data_type="16u4_align8b", box=(1, 64)),
            "box: got 0.5 innermost bytes; want a multiple of 16",
        ),
        (replace(CODES, box=(144, 64)), "box: got 144 innermost bytes; want at most 128"),
        (replace(CODES, swizzle="64b"), "box: got 128 innermost bytes; want at most 64"),
        (replace(CODES, data_type="float16"), "box: got 256 innermost bytes; want at most 128"),
        (replace(CODES, swizzle="32b", box=(48, 64)), "box: got 48 innermost bytes; .* most 32"),
        (
            replace(CODES, data_type="16u4_align8b", dims=(4097, 256)),
            r"dims: got \(4097,\); want multiples of 2: two codes share a byte",
        ),
        (replace(UNPACKED, dims=(4095, 256)), "dims: .*multiples of 128"),
        (replace(UNPACKED, box=(64, 64)), "box: .*128 innermost elements"),
        (replace(UNPACKED, stride_bytes=(2064,)), "stride_bytes: .*multiples of 32"),
        (replace(UNPACKED, swizzle="64b"), "swizzle: got '64b'; want 'none' or '128b'"),
        (replace(UNPACKED, data_type="16u6_align16b", box=(96, 64)), "box: .*128 innermost"),
        (replace(INTERLEAVED, interleave="32b"), "swizzle: got 'none'; want '32b'"),
        (
            replace(INTERLEAVED, interleave="32b", swizzle="32b", stride_bytes=(48, 2048)),
            "stride_bytes: .*multiples of 32",
        ),
        (
            replace(CODES, oob_fill="nan_request_zero_fma"),
            "oob_fill: .*want 'none' for uint8",
        ),
    ],
)
def test_broken_rules_are_named(spec: TensorMapSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec.check()


@pytest.mark.parametrize(
    ("spec", "alignment"),
    [(CODES, 16), (UNPACKED, 32), (replace(INTERLEAVED, interleave="32b", swizzle="32b"), 32)],
)
def test_addresses_must_be_aligned(spec: TensorMapSpec, alignment: int) -> None:
    maps = TensorMaps(RecordingDriver())
    for offset in (0, alignment, 2 * alignment):
        maps.get(spec, BASE + offset)
    for offset in (1, alignment // 2, alignment + 8):
        with pytest.raises(ValueError, match=f"address: .*want a multiple of {alignment}"):
            maps.get(spec, BASE + offset)


def test_one_encode_serves_every_address() -> None:
    driver = RecordingDriver()
    maps = TensorMaps(driver)
    for address in (BASE, BASE + 16, 16, 2**48 - 16):
        fresh = RecordingDriver().encode_tensor_map(CODES, address)
        assert maps.get(CODES, address) == fresh
    assert driver.count("encode_tensor_map") == 1


def test_every_field_tells_maps_apart() -> None:
    driver = RecordingDriver()
    maps = TensorMaps(driver)
    specs = [
        CODES,
        replace(CODES, data_type="16u4_align8b"),
        replace(CODES, dims=(2048, 255)),
        replace(CODES, stride_bytes=(4096,)),
        replace(CODES, box=(128, 32)),
        replace(CODES, element_strides=(1, 2)),
        replace(CODES, swizzle="none"),
        replace(CODES, l2_promotion="l2_256b"),
    ]
    encoded = {maps.get(spec, BASE) for spec in specs}
    assert len(encoded) == len(specs) == driver.count("encode_tensor_map")


def test_maps_are_bounded() -> None:
    driver = RecordingDriver()
    maps = TensorMaps(driver, maxsize=3)
    for rows in range(1, 20):
        maps.get(replace(CODES, dims=(2048, rows)), BASE)
        assert len(maps) <= 3
    before = driver.count("encode_tensor_map")
    maps.get(replace(CODES, dims=(2048, 19)), BASE)
    assert driver.count("encode_tensor_map") == before
    maps.get(replace(CODES, dims=(2048, 1)), BASE)
    assert driver.count("encode_tensor_map") == before + 1


def test_a_bad_spec_never_reaches_the_driver() -> None:
    driver = RecordingDriver()
    with pytest.raises(ValueError, match="box"):
        TensorMaps(driver).get(replace(CODES, box=(128, 0)), BASE)
    assert driver.events == []
