"""Calls of device functions: parameters, results, divergence, nesting, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device
from nibblas.emulator.compile import cuda_ptx
from nibblas.emulator.errors import IllegalOperation, UnsupportedInstruction
from tests.emulator.conftest import HEADER, Lanes, entry, every_order

DOUBLE = """
.func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [value];
    add.u32 %r1, %r1, %r1;
    st.param.b32 [result+0], %r1;
    ret;
}
.func (.reg .u32 result) thrice(.reg .u32 value, .reg .pred add_one)
{
    .reg .b32 %r<4>;
    mul.lo.u32 result, value, 3;
    @!add_one ret;
    add.u32 result, result, 1;
}
.func first(.param .align 8 .b8 pair[16], .reg .b64 %where)
{
    .reg .b64 %rd<4>;
    ld.param.v2.u64 {%rd1, %rd2}, [pair];
    sub.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%where], %rd1;
    ret;
}
"""


def test_parameters_and_results_in_memory(lanes: Lanes) -> None:
    body = """
        {
        .param .b32 argument;
        .param .b32 result;
        st.param.b32 [argument], %r0;
        call.uni (result), twice, (argument);
        ld.param.b32 %r2, [result];
        }
        { .param .b32 argument; .param .b32 result;
        st.param.b32 [argument+0], %r2;
        call (result), twice, (argument);
        ld.param.b32 %r1, [result]; }
    """
    assert lanes(body, before=DOUBLE).tolist() == [4 * i for i in range(32)]


def test_registers_constants_and_a_sink(lanes: Lanes) -> None:
    body = """
        setp.lt.u32 %p1, %r0, 4;
        call (%r1), thrice, (%r0, %p1);
        call (%r2), twice, (21);
        call (_), thrice, (%r0, %p1);
        add.u32 %r1, %r1, %r2;
    """
    expected = [3 * i + (i < 4) + 42 for i in range(32)]
    assert lanes(body, before=DOUBLE).tolist() == expected


@every_order
def test_guarded_call_leaves_the_other_lanes_alone(lanes: Lanes, order: str) -> None:
    body = """
        setp.ge.u32 %p1, %r0, 10; setp.lt.u32 %p2, %r0, 20;
        mov.u32 %r1, 7;
        @%p1 call (%r1), thrice, (%r0, %p2);
        activemask.b32 %r2;
        @!%p1 mov.u32 %r1, %r2;
    """
    expected = [3 * i + (i < 20) if i >= 10 else 0xFFFFFFFF for i in range(32)]
    assert lanes(body, before=DOUBLE, order=order).tolist() == expected


def test_a_struct_by_value(lanes: Lanes) -> None:
    body = """
        { .param .align 8 .b8 pair[16];
        cvt.u64.u32 %rd3, %r0; add.u64 %rd3, %rd3, 100;
        st.param.v2.b64 [pair], {%rd3, 40};
        call first, (pair, %rd1); }
        ld.global.u32 %r1, [%rd1];
    """
    assert lanes(body, before=DOUBLE).tolist() == [60 + i for i in range(32)]


def test_what_the_compiler_emits() -> None:
    source = r"""
    __device__ __noinline__ int below(int n) { return n < 3 ? n : n - 3; }
    __device__ __noinline__ float mix(float a, const float* table, int n) {
      float local[8];
      for (int i = 0; i < 8; ++i) local[i] = table[i] + a;
      return local[below(n % 8)] + below(n);
    }
    extern "C" __global__ void k(const float* table, float* out) {
      if (threadIdx.x % 3 != 1) out[threadIdx.x] = mix(1.0f, table, threadIdx.x);
      else out[threadIdx.x] = -1.0f;
    }"""
    text = cuda_ptx(source)
    assert text.count("call.uni") >= 2
    dev = Device("sm_90")
    table = dev.from_numpy(np.arange(8, dtype=np.float32) * 10)
    out = dev.empty(64, np.float32)
    dev.load_ptx(text).kernel("k").launch(1, 64, [table, out])

    def below(n: int) -> int:
        return n if n < 3 else n - 3

    expected = [-1.0 if n % 3 == 1 else below(n % 8) * 10 + 1 + below(n) for n in range(64)]
    assert out.to_numpy().tolist() == expected


@pytest.mark.parametrize(
    ("functions", "call", "message"),
    [
        (".func a() { call a; ret; }", "call a;", "recursion"),
        (".func a() { call b; ret; } .func b() { call a; ret; }", "call a;", "recursion"),
        (".func a(.reg .b32 x) { ret; }", "call a;", "has 1 and 0"),
        ("", "call a;", "not a function"),
        (".extern .func vprintf(.param .b32 x);", "call vprintf, (1);", "without a body"),
    ],
)
def test_refused_with_the_line(functions: str, call: str, message: str) -> None:
    text = entry(call, params="", before=functions)
    with pytest.raises(UnsupportedInstruction, match=message) as raised:
        Device("sm_90").load_ptx(text).kernel("k")
    assert raised.value.line > HEADER.count("\n")


def test_a_failed_assertion_is_reported() -> None:
    before = ".extern .func __assertfail(.param .b64 message);"
    body = "{ .param .b64 m; mov.u64 %rd1, 0; st.param.b64 [m], %rd1; call __assertfail, (m); }"
    kernel = Device("sm_90").load_ptx(entry(body, params="", before=before)).kernel("k")
    with pytest.raises(IllegalOperation, match="assertion"):
        kernel.launch(1, 32, [])
