"""The rule between the generic and the async proxy: who must fence, and who must not."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import DataRace, Device
from tests.emulator.conftest import OUT, Lanes, entry, every_order

BEGIN = (
    OUT
    + """
    .shared .align 128 .b8 box[1024];
    mov.u32 %r10, box;
    mad.lo.u32 %r12, %r0, 4, %r10;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p1, %r0, 32;
"""
)
WRITE = "    st.shared.u32 [%r12], %r0;\n"
FENCE = "    fence.proxy.async.shared::cta;\n"
SYNC = "    bar.sync 0;\n"
COPY = """
    @{p} cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r10], 256;
    @{p} cp.async.bulk.commit_group;
    @{p} cp.async.bulk.wait_group.read 0;
"""


def run(body: str, *, order: str = "round_robin") -> np.ndarray:
    dev = Device("sm_90", order=order)
    out = dev.empty(64, np.uint32, name="out")
    dev.load_ptx(entry(BEGIN + body)).kernel("k").launch(1, 64, [out])
    return out.to_numpy()


RIGHT = {
    "every thread fences": WRITE + FENCE + SYNC + COPY.format(p="%p0"),
    "another warp copies": WRITE + FENCE + SYNC + COPY.format(p="%p1"),
    "all spaces": WRITE + "fence.proxy.async;\n" + SYNC + COPY.format(p="%p0"),
    "in one direction": WRITE
    + "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;\n"
    + SYNC
    + "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\n"
    + COPY.format(p="%p0"),
    "vector stores": """
        mad.lo.u32 %r13, %r0, 12, %r12;
        setp.lt.u32 %p2, %r0, 16;
        add.u32 %r3, %r0, 1;
        @%p2 st.shared.v4.u32 [%r13], {%r0, %r3, %r0, %r3};
    """
    + FENCE
    + SYNC
    + COPY.format(p="%p0"),
    "one thread writes, fences and copies": """
        @!%p0 bra rest;
        mov.u32 %r4, 0;
    fill:
        add.u32 %r5, %r10, %r4;
        st.shared.u32 [%r5], %r4;
        add.u32 %r4, %r4, 4;
        setp.lt.u32 %p2, %r4, 256;
        @%p2 bra fill;
    """
    + FENCE
    + COPY.format(p="%p0")
    + "rest:\n",
    "an mbarrier orders": """
        .shared .align 8 .b64 ready;
        mov.u32 %r11, ready;
        @%p0 mbarrier.init.shared.b64 [%r11], 64;
        bar.sync 0;
    """
    + WRITE
    + FENCE
    + """
        mbarrier.arrive.shared.b64 _, [%r11];
    wait:
        mbarrier.try_wait.parity.shared.b64 %p3, [%r11], 0;
        @!%p3 bra wait;
    """
    + COPY.format(p="%p1"),
    "written twice, fenced twice": WRITE + FENCE + WRITE + FENCE + SYNC + COPY.format(p="%p0"),
    "memory used again after the read wait": WRITE
    + FENCE
    + SYNC
    + COPY.format(p="%p0")
    + SYNC
    + WRITE
    + FENCE
    + SYNC
    + COPY.format(p="%p1"),
}


@every_order
@pytest.mark.parametrize("name", RIGHT)
def test_right_ways_are_not_accused(name: str, order: str) -> None:
    run(RIGHT[name], order=order)


WRONG = {
    "no fence": WRITE + SYNC + COPY.format(p="%p0"),
    "the copying thread alone fences": WRITE + SYNC + "@%p0" + FENCE + COPY.format(p="%p0"),
    "one lane of each warp fences": """
        and.b32 %r5, %r0, 31;
        setp.eq.u32 %p2, %r5, 0;
    """
    + WRITE
    + "@%p2"
    + FENCE
    + SYNC
    + COPY.format(p="%p0"),
    "the fence comes before the stores": FENCE + WRITE + SYNC + COPY.format(p="%p0"),
    "only global memory is fenced": WRITE
    + "fence.proxy.async.global;\n"
    + SYNC
    + COPY.format(p="%p0"),
    "only the acquiring side": WRITE
    + "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\n"
    + SYNC
    + COPY.format(p="%p0"),
    "an ordinary fence": WRITE + "fence.acq_rel.cta; membar.gl;\n" + SYNC + COPY.format(p="%p0"),
    "written again after the fence": WRITE + FENCE + WRITE + SYNC + COPY.format(p="%p0"),
    "one thread's byte was stored again": WRITE
    + FENCE
    + "@%p1 st.shared.u8 [%r12], %r0;\n"
    + SYNC
    + COPY.format(p="%p0"),
}


@every_order
@pytest.mark.parametrize("name", WRONG)
def test_missing_proxy_fences_are_reported(name: str, order: str) -> None:
    with pytest.raises(DataRace, match=r"must execute fence\.proxy\.async"):
        run(WRONG[name], order=order)


@pytest.mark.parametrize(
    "fence",
    [
        "membar.cta", "membar.gl", "membar.sys", "fence.cta", "fence.sc.cta", "fence.acq_rel.gpu",
        "fence.acquire.cluster", "fence.release.sys", "fence.proxy.alias",
        "fence.proxy.async.global", "fence.mbarrier_init.release.cluster",
        "fence.proxy.tensormap::generic.release.gpu",
        "fence.acquire.sync_restrict::shared::cluster.cluster",
        "fence.release.sync_restrict::shared::cta.cluster",
    ],
)  # fmt: skip
def test_every_fence_is_accepted(lanes: Lanes, fence: str) -> None:
    assert (lanes(f"{fence}; mov.u32 %r1, 2;") == 2).all()
