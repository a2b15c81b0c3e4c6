"""What rules="hardware" lets pass beside the order of tensor memory, and rules="ptx" reports.

Kernels of others rely on each: see "Blackwell" in docs/emulator.md.
"""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import DataRace, Device, UnfinishedWork
from tests.emulator.conftest import entry, every_order

STORED = """
    .shared .align 128 .b8 data[256];
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, data;
    mad.lo.u32 %r2, %r0, 4, %r1;
    st.shared.u32 [%r2], %r0;
"""
ONE_FENCES = "bar.sync 0; setp.eq.u32 %p0, %r0, 0; @%p0 fence.proxy.async.shared::cta;"
ALL_FENCE = "fence.proxy.async.shared::cta; bar.sync 0; setp.eq.u32 %p0, %r0, 0;"
COPIED = """
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;
    @%p0 cp.async.bulk.commit_group;
"""
WAITED = "@%p0 cp.async.bulk.wait_group 0;"

#: Warp 0 of one takes 32 columns, stores lane numbers, loads them, adds one; {wait} before the end.
LOADED = """
    .shared .align 8 .b32 base;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, base;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
    ld.shared.u32 %r2, [%r1];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r0}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r2];
    {between}
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
    add.u32 %r4, %r3, 1;
    mad.wide.u32 %rd1, %r0, 4, %rd0;
    st.global.u32 [%rd1], %r4;
"""


def run(body: str, rules: str, *, threads: int = 64, order: str = "round_robin") -> np.ndarray:
    dev = Device("sm_100", rules=rules, order=order)  # type: ignore[arg-type]
    out = dev.empty(64, np.uint32, name="out")
    dev.load_ptx(entry(body)).kernel("k").launch(1, threads, [out])
    return out.to_numpy()


@every_order
def test_one_thread_may_fence_what_all_have_stored(order: str) -> None:
    body = STORED + ONE_FENCES + COPIED + WAITED
    assert (run(body, "hardware", order=order) == np.arange(64)).all()
    with pytest.raises(DataRace, match="fence.proxy.async"):
        run(body, "ptx", order=order)


def test_a_fence_is_needed_all_the_same() -> None:
    body = STORED + "bar.sync 0; setp.eq.u32 %p0, %r0, 0;" + COPIED + WAITED
    for rules in ("ptx", "hardware"):
        with pytest.raises(DataRace, match="fence.proxy.async"):
            run(body, rules)


@every_order
def test_a_store_may_outlive_its_cta(order: str) -> None:
    body = STORED + ALL_FENCE + COPIED
    assert (run(body, "hardware", order=order) == np.arange(64)).all()
    if order == "adversarial-delay":
        with pytest.raises(UnfinishedWork, match="cp.async.bulk"):
            run(body, "ptx", order=order)


@every_order
def test_a_use_of_its_register_ends_a_load_from_tensor_memory(order: str) -> None:
    used = LOADED.format(between="xor.b32 %r5, %r3, %r3;")
    found = run(used, "hardware", threads=32, order=order)
    assert (found[:32] == np.arange(32) + 1).all()
    with pytest.raises(DataRace, match="tcgen05.ld"):
        run(used, "ptx", threads=32, order=order)


def test_a_load_of_no_use_is_not_over() -> None:
    with pytest.raises(DataRace, match="tcgen05.ld"):
        run(LOADED.format(between=""), "hardware", threads=32)
    waited = LOADED.format(between="tcgen05.wait::ld.sync.aligned;")
    for rules in ("ptx", "hardware"):
        assert (run(waited, rules, threads=32)[:32] == np.arange(32) + 1).all()
