"""kernels/common/tcgen05_descriptors.h against CUTLASS's bit layouts and the emulator's decoders.

The fields are those of UMMA::SmemDescriptor and UMMA::InstrDescriptorBlockScaled in CUTLASS,
cute/arch/mma_sm100_desc.hpp, packed here from their widths.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from nibblas.emulator.machine import instruction_descriptor, tcgen05_descriptors
from nibblas.emulator.machine.tensor_copies import SHAPES, source_offsets
from nibblas.formats.scale_layout import blocked_offset

SOURCE = Path(__file__).parent / "cpp" / "tcgen05_descriptors.cpp"

Fields = Iterable[tuple[str, int]]

SHARED: Fields = (
    ("start_address", 14),
    ("", 2),
    ("leading_byte_offset", 14),
    ("", 2),
    ("stride_byte_offset", 14),
    ("version", 2),
    ("", 1),
    ("base_offset", 3),
    ("lbo_mode", 1),
    ("", 3),
    ("", 5),
    ("layout_type", 3),
)
BLOCK_SCALED: Fields = (
    ("sparse_id2", 2),
    ("sparse_flag", 1),
    ("", 1),
    ("b_sf_id", 2),
    ("", 1),
    ("a_format", 3),
    ("b_format", 3),
    ("a_negate", 1),
    ("b_negate", 1),
    ("a_major", 1),
    ("b_major", 1),
    ("n_dim", 6),
    ("scale_format", 1),
    ("m_dim", 5),
    ("a_sf_id", 2),
    ("k_size", 1),
)
SWIZZLE_NONE, SWIZZLE_128B = 0, 2
E2M1, UE4M3 = 1, 0

STAGE_OF_128, STAGE_OF_256, SWAPPED_STAGE = 36864, 55296, 21504
ADDRESSES = [
    0,
    1024,
    16384,
    5 * STAGE_OF_128,
    5 * STAGE_OF_128 + 16384,
    3 * STAGE_OF_256,
    3 * STAGE_OF_256 + 16384,
    SWAPPED_STAGE + 1024,
    226 * 1024,
]
"""Of matrices in shared memory: of stages, and the last that there can be."""


def packed(fields: Fields, **values: int) -> int:
    """Fields from bit 0 on; those that are not named are 0."""
    bits = place = 0
    for name, width in fields:
        value = values.pop(name, 0) if name else 0
        assert 0 <= value < 1 << width, name
        bits |= value << place
        place += width
    assert not values and place in (32, 64)
    return bits


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header's functions."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    library = tmp_path_factory.mktemp("descriptors") / "descriptors.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    options = ("-std=c++17", "-shared", "-fPIC", *warnings)
    subprocess.run([compiler, *options, "-o", library, SOURCE], check=True, timeout=300)
    functions = ctypes.CDLL(str(library))
    for name in ("operand_descriptor", "scales_descriptor"):
        function = getattr(functions, name)
        function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint32]
    functions.instruction.restype = ctypes.c_uint32
    return functions


def test_the_packer_puts_fields_where_the_ptx_isa_does() -> None:
    """PTX ISA, tables "Shared memory descriptor" and "Instruction descriptor"."""
    places = {"leading_byte_offset": 16, "stride_byte_offset": 32, "version": 46}
    for name, place in {**places, "base_offset": 49, "layout_type": 61}.items():
        assert packed(SHARED, **{name: 1}) == 1 << place
    places = {"b_sf_id": 4, "a_format": 7, "b_format": 10, "n_dim": 17, "scale_format": 23}
    for name, place in {**places, "m_dim": 24, "a_sf_id": 29, "k_size": 31}.items():
        assert packed(BLOCK_SCALED, **{name: 1}) == 1 << place


@pytest.mark.parametrize("address", ADDRESSES)
def test_operands_are_k_major_rows_of_128_swizzled_bytes(header: ctypes.CDLL, address: int) -> None:
    for step in range(4):
        at = address + step * header.operand_step_bytes()
        assert header.operand_descriptor(at) == packed(
            SHARED,
            start_address=at // 16,
            stride_byte_offset=1024 // 16,
            version=1,
            layout_type=SWIZZLE_128B,
        )
        # The kernel adds the step to a descriptor: no field but the address changes.
        assert header.operand_descriptor(at) == header.operand_descriptor(address) + step * 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_scales_are_rows_of_16_bytes(header: ctypes.CDLL, address: int) -> None:
    for atom in range(8):
        at = address + atom * 512
        assert header.scales_descriptor(at) == packed(
            SHARED,
            start_address=at // 16,
            stride_byte_offset=128 // 16,
            version=1,
            layout_type=SWIZZLE_NONE,
        )


@pytest.mark.parametrize("m", [128, 256])
def test_instructions_are_e2m1_with_unsigned_e4m3_scales(header: ctypes.CDLL, m: int) -> None:
    """128 rows of one CTA; 256 of a pair, with N in multiples of 16."""
    pair = m == 256
    step = 16 if pair else 8
    for n in range(step, 257, step):
        bits = header.instruction(m, n)
        assert bits == packed(
            BLOCK_SCALED,
            a_format=E2M1,
            b_format=E2M1,
            n_dim=n // 8,
            scale_format=UE4M3,
            m_dim=m // 16,
        )
        decoded = instruction_descriptor.decode(bits, "mxf4nvf4", cta_group=1 + pair, block=16)
        assert (decoded.m, decoded.n, decoded.k) == (m, n, 64)
        assert (decoded.a, decoded.b, decoded.d, decoded.scale) == ("e2m1", "e2m1", "f32", "ue4m3")
        assert not (decoded.negate_a or decoded.negate_b)
        assert not (decoded.a_mn_major or decoded.b_mn_major)
        assert (decoded.sfa_id, decoded.sfb_id) == (0, 0)


@pytest.mark.parametrize("rows", [128, 256])
@pytest.mark.parametrize("address", ADDRESSES[:-1])
def test_the_tensor_core_reads_what_tma_has_written(
    header: ctypes.CDLL, address: int, rows: int
) -> None:
    """Of a box of rows of 128 bytes, TMA puts 16-byte piece p of row r at place p ^ r % 8."""
    row, byte = np.arange(rows)[:, None], np.arange(128)
    written = address + row * 128 + (byte // 16 ^ row % 8) * 16 + byte % 16
    for step in range(4):
        descriptor = tcgen05_descriptors.decode(header.operand_descriptor(address + step * 32))
        read = tcgen05_descriptors.operand_offsets(descriptor, rows, 1, False)[..., 0]
        np.testing.assert_array_equal(read.T, written[:, step * 32 : (step + 1) * 32])


def test_every_quarter_of_lanes_has_the_scales_of_all_rows(header: ctypes.CDLL) -> None:
    """Of row r and block j: lane r % 32 of every quarter, column r // 32, byte j."""
    address = 2 * 16384
    shape = SHAPES["32x128b.warpx4"]
    descriptor = tcgen05_descriptors.decode(header.scales_descriptor(address))
    source = source_offsets(descriptor, shape.rows, shape.row_bytes, may_overlap=False)
    assert (len(shape.row_of), shape.columns, shape.lane_step) == (128, 4, 1)
    for row in range(128):
        for block in range(4):
            for quarter in range(4):
                source_row = shape.row_of[row % 32 + 32 * quarter]
                found = source[source_row, row // 32 * 4 + block]
                assert found == address + blocked_offset(row, block, 4)
