"""A pipeline of a CTA pair as 2-SM kernels have it, its planted faults, and hazards of its end.

Both CTAs load their half of every stage; the bytes of both count on the even CTA's mbarriers. The
even CTA's second warp waits, sums both halves (the odd one through shared::cluster) and frees the
stage in both CTAs. Producers leave only when their last stages are free.
"""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import Device, EmulationError, UnfinishedWork
from tests.emulator.conftest import entry, every_order

STEPS, STAGES, ROWS = 7, 2, 8
"""Rows of 128 bytes that each CTA loads in a step."""

KERNEL = """
    .shared .align 1024 .b8 box[2048];
    .shared .align 8 .b64 full[2];
    .shared .align 8 .b64 empty[2];
    mov.u32 %r0, %tid.x;
    mov.u32 %r20, %cluster_ctarank;
    ld.param.u64 %rd0, [out];
    mov.b64 %rd5, map;
    cvta.param.u64 %rd5, %rd5;
    mov.u32 %r10, box; mov.u32 %r11, full; mov.u32 %r12, empty;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p7, %r20, 0;
    @!%p0 bra ready;
    mbarrier.init.shared::cta.b64 [%r11], 1; mbarrier.init.shared::cta.b64 [%r11+8], 1;
    mbarrier.init.shared::cta.b64 [%r12], 1; mbarrier.init.shared::cta.b64 [%r12+8], 1;
    fence.mbarrier_init.release.cluster;
ready:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mov.u32 %r1, 0;                     // step
    mov.u32 %r2, 0;                     // stage
    mov.u32 %r3, 0;                     // parity of its uses
    setp.lt.u32 %p1, %r0, 32;
    @!%p1 bra consumer;
    @!%p0 bra end;

producer:
    mad.lo.u32 %r4, %r2, 8, %r12;
    xor.b32 %r5, %r3, 1;
free:                                   // a fresh barrier has completed parity 1
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r5;
    @!%p2 bra free;
    mad.lo.u32 %r4, %r2, 8, %r11;
    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 2048;
    and.b32 %r4, %r4, 0xFEFFFFFF;
    mad.lo.u32 %r6, %r2, 1024, %r10;
    mul.lo.u32 %r7, %r1, 2; add.u32 %r7, %r7, %r20; mul.lo.u32 %r7, %r7, 8;
    mov.u32 %r8, 0;
    cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r6], [%rd5, {%r8, %r7}], [%r4];
    add.u32 %r1, %r1, 1;
    xor.b32 %r2, %r2, 1;
    setp.eq.u32 %p3, %r2, 0;
    @%p3 xor.b32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r1, 7;
    @%p3 bra producer;
    // the tail: seven steps leave stage 1 free after its third use, stage 0 after its fourth
tail1:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12+8], 0;
    @!%p2 bra tail1;
tail0:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 1;
    @!%p2 bra tail0;
    bra end;

consumer:
    @!%p7 bra end;
    mov.u32 %r21, 1;
consume:
    mad.lo.u32 %r4, %r2, 8, %r11;
arrived:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r3;
    @!%p2 bra arrived;
    sub.u32 %r9, %r0, 32;
    mul.lo.u32 %r9, %r9, 4;
    mad.lo.u32 %r6, %r2, 1024, %r10;
    add.u32 %r6, %r6, %r9;
    mapa.shared::cluster.u32 %r7, %r6, %r21;
    mov.u32 %r13, 0; mov.u32 %r14, 0;
sum:
    ld.shared.u32 %r15, [%r6]; add.u32 %r13, %r13, %r15;
    ld.shared::cluster.u32 %r15, [%r7]; add.u32 %r13, %r13, %r15;
    add.u32 %r6, %r6, 128; add.u32 %r7, %r7, 128; add.u32 %r14, %r14, 1;
    setp.lt.u32 %p3, %r14, 8;
    @%p3 bra sum;
    mad.lo.u32 %r15, %r1, 128, %r9;
    cvt.u64.u32 %rd1, %r15; add.s64 %rd1, %rd0, %rd1;
    st.global.u32 [%rd1], %r13;
    bar.warp.sync -1;
    setp.eq.u32 %p4, %r0, 32;
    mad.lo.u32 %r4, %r2, 8, %r12;
    mapa.shared::cluster.u32 %r5, %r4, %r21;
    @%p4 mbarrier.arrive.shared::cta.b64 _, [%r4];
    @%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
    add.u32 %r1, %r1, 1;
    xor.b32 %r2, %r2, 1;
    setp.eq.u32 %p3, %r2, 0;
    @%p3 xor.b32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r1, 7;
    @%p3 bra consume;
end:
"""
PARAMS = ".param .u64 out, .param .align 64 .b8 map[128]"


def run(body: str = KERNEL, *, order: str = "round_robin", seed: int = 0) -> None:
    """Raises, or the sums are right."""
    dev = Device("sm_100", order=order, seed=seed)
    data = np.random.default_rng(1).integers(0, 1 << 20, (2 * ROWS * STEPS, 32), np.uint32)
    found = dev.tensor_map(dev.from_numpy(data, name="data"), box=[32, ROWS])
    out = dev.empty((STEPS, 32), np.uint32, name="out")
    dev.load_ptx(entry(body, params=PARAMS)).kernel("k").launch(
        2, 64, [out, found], cluster=(2, 1, 1)
    )
    assert (out.to_numpy() == data.reshape(STEPS, -1, 32).sum(axis=1)).all()


@every_order
@pytest.mark.parametrize("seed", range(10))
def test_the_pipeline_is_right_and_never_accused(order: str, seed: int) -> None:
    run(order=order, seed=seed)


FAULTS = {
    "one CTA's bytes are expected": ("[%r4], 2048;", "[%r4], 1024;"),
    "three boxes are expected": ("[%r4], 2048;", "[%r4], 3072;"),
    "both CTAs arm": ("@%p7 mbarrier.arrive.expect_tx", "mbarrier.arrive.expect_tx"),
    "no .cta_group": (".cta_group::2", ""),
    "the odd CTA counts on its own barrier": ("and.b32 %r4, %r4, 0xFEFFFFFF;", ""),
    "the consumer does not wait": (
        "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r3;\n    @!%p2 bra arrived;",
        "",
    ),
    "the producer does not wait": (
        "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r5;\n    @!%p2 bra free;",
        "",
    ),
    "a wrong parity": ("xor.b32 %r5, %r3, 1;", "mov.u32 %r5, %r3;"),
    "the odd CTA's stage is never freed": (
        "@%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];",
        "",
    ),
    "the even CTA's stage is never freed": ("@%p4 mbarrier.arrive.shared::cta.b64 _, [%r4];", ""),
    "every lane frees": ("@%p4 mbarrier.arrive.release.cluster", "mbarrier.arrive.release.cluster"),
    "the stage is freed before it is read": (
        "sub.u32 %r9, %r0, 32;",
        """sub.u32 %r9, %r0, 32;
        setp.eq.u32 %p4, %r0, 32;
        mad.lo.u32 %r16, %r2, 8, %r12;
        mapa.shared::cluster.u32 %r17, %r16, %r21;
        @%p4 mbarrier.arrive.shared::cluster.b64 _, [%r17];
        setp.ne.u32 %p4, %r0, %r0;""",
    ),
    "nobody waits for the last stages": ("tail1:", "bra end; tail1:"),
    "the odd CTA leaves early": ("tail1:", "@!%p7 bra end; tail1:"),
    "the last stage is not waited for": ("tail0:", "bra end; tail0:"),
}


@every_order
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_noticed(name: str, order: str) -> None:
    old, new = FAULTS[name]
    assert KERNEL.count(old) == 1
    with pytest.raises((EmulationError, AssertionError)):
        run(KERNEL.replace(old, new), order=order, seed=1)  # of the starved, the consumer


def test_barriers_that_are_not_there_yet_are_noticed_by_chance() -> None:
    """Without the cluster's barrier the odd CTA may count on an mbarrier before its init."""
    early = KERNEL.replace(
        "barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;", "bar.sync 0;"
    )
    assert early != KERNEL
    noticed = 0
    for seed in range(16):
        try:
            run(early, order="random", seed=seed)
        except EmulationError:
            noticed += 1
    assert noticed


@every_order
def test_leaving_before_the_last_arrivals_is_named(order: str) -> None:
    """Arrivals from the pair may be in flight; whether they have come does not matter."""
    with pytest.raises(UnfinishedWork, match="ended and nothing has waited for|has exited"):
        run(KERNEL.replace("tail1:", "@!%p7 bra end; tail1:"), order=order)
