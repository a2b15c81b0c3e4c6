"""clusterlaunchcontrol: every CTA's work is done once, by whoever runs; and its misuse."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from nibblas.emulator import (
    Device,
    IllegalOperation,
    Misaligned,
    OutOfBounds,
    UnfinishedWork,
    UnsupportedInstruction,
)
from tests.emulator.conftest import entry, every_order

#: Each CTA's thread counts in out[ctaid], then takes over further clusters while there are any.
#: %r20: rank; %r1: x of the cluster's first CTA; %r13: phase.
BEGIN = """
    .shared .align 16 .b8 response[16];
    .shared .align 8 .b64 full;
    .reg .b128 %q;
    mov.u32 %r10, response;
    mov.u32 %r11, full;
    mov.u32 %r20, %cluster_ctarank;
    mov.u32 %r1, %ctaid.x;
    sub.u32 %r1, %r1, %r20;
    mov.u32 %r13, 0;
    ld.param.u64 %rd0, [out];
    mbarrier.init.shared::cta.b64 [%r11], 1;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
LOOP = """
work:
    add.u32 %r2, %r1, %r20;
    mul.wide.u32 %rd1, %r2, 4;
    add.s64 %rd1, %rd0, %rd1;
    red.global.add.u32 [%rd1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 16;
    {request}
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], %r13;
    @!%p1 bra wait;
    xor.b32 %r13, %r13, 1;
    ld.shared.b128 %q, [%r10];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
    @!%p2 bra done;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r1, %r3, %r4, _}}, %q;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    bra work;
done:
"""
TRY = "clusterlaunchcontrol.try_cancel.async{space}.mbarrier::complete_tx::bytes{all}.b128"
OWN = TRY.format(space=".shared::cta", all="") + " [%r10], [%r11];"
GENERIC = """
    cvt.u64.u32 %rd4, %r10; cvta.shared.u64 %rd4, %rd4;
    cvt.u64.u32 %rd5, %r11; cvta.shared.u64 %rd5, %rd5;
""" + TRY.format(space="", all="")
MULTICAST = """
    setp.eq.u32 %p3, %r20, 0;
    @%p3 {} [%r10], [%r11];
""".format(TRY.format(space=".shared::cta", all=".multicast::cluster::all"))


def run(
    body: str, *, grid: int = 12, cluster: int = 1, arch: str = "sm_100", order: str = "round_robin"
) -> tuple[list[int], Mapping[str, int]]:
    """How often each CTA's work was done, and the report's events; four CTAs run at once."""
    dev = Device(arch, order=order, seed=3, num_sms=4)
    out = dev.from_numpy(np.zeros(grid, np.uint32))
    kernel = dev.load_ptx(entry(BEGIN + body)).kernel("k")
    report = kernel.launch(grid, 1, [out], cluster=(cluster, 1, 1))
    return out.to_numpy().tolist(), report.events


@every_order
@pytest.mark.parametrize("request_", [OWN, GENERIC + " [%rd4], [%rd5];"])
def test_every_cta_is_worked_on_once(order: str, request_: str) -> None:
    counts, events = run(LOOP.format(request=request_), order=order)
    assert counts == [1] * 12
    assert events["cancelled clusters"] > 0


@every_order
@pytest.mark.parametrize("arch", ["sm_100", "sm_120"])
def test_multicast_tells_the_whole_cluster(order: str, arch: str) -> None:
    body = LOOP.format(request=MULTICAST) + "barrier.cluster.arrive; barrier.cluster.wait;"
    counts, events = run(body, cluster=2, order=order, arch=arch)
    assert counts == [1] * 12
    assert events["cancelled clusters"] > 0


def test_a_grid_that_is_resident_leaves_nothing_to_cancel() -> None:
    counts, events = run(LOOP.format(request=OWN), grid=4)
    assert counts == [1] * 4
    assert "cancelled clusters" not in events


def test_one_coordinate_at_a_time() -> None:
    parts = " ".join(
        f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 {register}, %q;"
        for axis, register in (("x", "%r1"), ("y", "%r3"), ("z", "%r4"))
    )
    whole = "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r3, %r4, _}, %q;"
    body = LOOP.format(request=OWN)
    assert whole in body
    assert run(body.replace(whole, parts))[0] == [1] * 12


def test_coordinates_of_a_three_dimensional_grid() -> None:
    """Six CTAs of 2 x 2 x 2 fit, so two are left; one CTA may take over both."""
    dev = Device("sm_100", num_sms=6)
    out = dev.from_numpy(np.zeros((8, 3), np.uint32))
    store = """
        mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %ctaid.z;
        mad.lo.u32 %r5, %r6, 2, %r5; mad.lo.u32 %r5, %r7, 4, %r5;
        mul.wide.u32 %rd1, %r5, 12; add.s64 %rd1, %rd0, %rd1;
        st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r3; st.global.u32 [%rd1+8], %r4;
    """
    body = LOOP.format(request=OWN).replace("red.global.add.u32 [%rd1], 1;", "")
    body = body.replace("    fence.proxy.async", store + "    fence.proxy.async")
    dev.load_ptx(entry(BEGIN + body)).kernel("k").launch((2, 2, 2), 1, [out])
    found, left = {tuple(row) for row in out.to_numpy().tolist()}, {(0, 1, 1), (1, 1, 1)}
    assert found & left
    assert found <= {(0, 0, 0), *left}


def test_asking_again_after_a_failure_is_reported() -> None:
    body = LOOP.format(request=OWN).replace("@!%p2 bra done;", "@!%p2 bra work;")
    with pytest.raises(IllegalOperation, match="after the CTA has seen one fail"):
        run(body, grid=4)


def test_coordinates_of_a_failed_request_are_reported() -> None:
    body = LOOP.format(request=OWN).replace("@!%p2 bra done;", "")
    with pytest.raises(IllegalOperation, match="a request that has failed"):
        run(body, grid=4)


@pytest.mark.parametrize("query", ["is_canceled.pred.b128 %p2", "get_first_ctaid::x.b32.b128 %r1"])
def test_what_is_no_response_is_reported(query: str) -> None:
    body = "mov.u64 %rd2, 5; mov.b128 %q, {%rd2, %rd2};"
    with pytest.raises(IllegalOperation, match="no response"):
        run(body + f"clusterlaunchcontrol.query_cancel.{query}, %q;")


@every_order
def test_leaving_with_a_request_in_flight_is_reported(order: str) -> None:
    with pytest.raises(UnfinishedWork, match="try_cancel"):
        run("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 16;" + OWN, order=order)


def test_reading_the_response_without_a_wait_is_reported() -> None:
    with pytest.raises(Exception, match="asynchronous operation in flight writes"):
        run(OWN + "ld.shared.b128 %q, [%r10];")


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (OWN.replace("[%r10]", "[%r10+8]"), Misaligned, "want a multiple of 16"),
        (OWN.replace("[%r10]", "[%r10+65536]"), OutOfBounds, "outside shared memory"),
        (GENERIC + " [%rd0], [%rd5];", IllegalOperation, "response's address is not in"),
        (GENERIC + " [%rd4], [%rd0];", IllegalOperation, "mbarrier's address is not in"),
        (OWN.replace("[%r10]", "[%r12]"), IllegalOperation, "response's address is not in"),
    ],
)
def test_misplaced_operands(request_: str, error: type[Exception], text: str) -> None:
    body = "add.u32 %r12, %r10, 0x01000000;" + LOOP.format(request=request_)
    with pytest.raises(error, match=text):
        run(body, grid=4)


@pytest.mark.parametrize(
    ("body", "arch", "text"),
    [
        (OWN, "sm_90", "try_cancel needs sm_100 or sm_103 or sm_120"),
        (MULTICAST, "sm_90", "try_cancel needs sm_100 or sm_103 or sm_120"),
        (
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;",
            "sm_90",
            "query_cancel needs",
        ),
        (
            "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3}, %q;",
            "sm_100",
            "expected {x, y, z, _}",
        ),
    ],
)
def test_refusals(body: str, arch: str, text: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=text):
        run(body, arch=arch)
