"""Variables read out of cubins, whole, cut and damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nibblas.runtime.compile import Compiled, compile_cubin
from nibblas.runtime.elf import read_variable
from tests.runtime.configs import PARAMS, TARGETS, ScaleConfig

VARIABLES = """
extern "C" {
__device__ const unsigned in_global = 0x01020304;
__constant__ unsigned long long in_constant = 5;
__device__ unsigned zero;
__global__ void kernel(unsigned* out) { out[0] = zero; }
}
"""


@pytest.mark.parametrize("target", TARGETS.values())
def test_exported_sizes_are_read_for_every_target(
    target: str, compiled: Callable[[str], Compiled]
) -> None:
    cubin = compiled(target).cubin
    shared = int.from_bytes(read_variable(cubin, "nibblas_shared_bytes"), "little")
    parameters = int.from_bytes(read_variable(cubin, "nibblas_parameter_bytes"), "little")
    assert (shared, parameters) == (ScaleConfig().shared_bytes, PARAMS.size)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("target", ["sm_90a", "sm_100f"])
def test_every_kind_of_variable_is_read(target: str) -> None:
    cubin = compile_cubin(VARIABLES, name="variables.cu", target=target, headers={}).cubin
    assert read_variable(cubin, "in_global") == b"\x04\x03\x02\x01"
    assert read_variable(cubin, "in_constant") == b"\x05" + bytes(7)
    assert read_variable(cubin, "zero") == bytes(4)


def test_an_absent_variable_is_a_key_error(compiled: Callable[[str], Compiled]) -> None:
    with pytest.raises(KeyError, match="nibblas_shared_byte"):
        read_variable(compiled("sm_90a").cubin, "nibblas_shared_byte")


def test_a_cut_cubin_never_gives_a_wrong_value(compiled: Callable[[str], Compiled]) -> None:
    cubin = compiled("sm_90a").cubin
    whole = read_variable(cubin, "nibblas_shared_bytes")
    for length in range(0, len(cubin), 7):
        try:
            assert read_variable(cubin[:length], "nibblas_shared_bytes") == whole
        except (ValueError, KeyError):
            continue


def test_what_is_no_cubin_is_refused() -> None:
    for data in (b"", b"\x7fELF", b"not an ELF file" * 10):
        with pytest.raises(ValueError, match="not a whole cubin"):
            read_variable(data, "x")
