"""The planted faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.emulator.faults.kernels import KERNELS


@dataclass(frozen=True)
class Fault:
    """What is done to which kernel.

    Attributes:
        old, new: replaced in the source, where ``old`` must stand once; ``more`` likewise.
        expected: a word of the report that explains it. device: settings of the device.
    """

    name: str
    kernel: str
    old: str
    new: str
    expected: str = ""
    device: tuple[tuple[str, Any], ...] = ()
    more: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> str:
        text = KERNELS[self.kernel].source
        for old, new in ((self.old, self.new), *self.more):
            assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in it"
            text = text.replace(old, new)
        return text


_LOAD = "arrive_expect(&full[stage], kTileBytes);"
_EMPTY = "if (round > 0) wait(&empty[stage], (round - 1) & 1);"
_SWIZZLED = "const int at = row * 128 + (piece ^ row % 8) * 16;"

FAULTS = [
    Fault("expect_tx dropped", "tma_ring", _LOAD, "arrive(&full[stage]);"),
    Fault("expect_tx doubled", "tma_ring", _LOAD, _LOAD.replace("kTile", "2 * kTile"), "Deadlock"),
    Fault("expect_tx too small", "tma_ring", _LOAD, _LOAD.replace("Bytes)", "Bytes - 128)")),
    Fault(
        "expect_tx by two arrivals", "tma_ring", _LOAD, f"{_LOAD} arrive(&full[stage]);", "Barrier"
    ),
    Fault(
        "full: wrong parity",
        "tma_ring",
        "wait(&full[stage], round & 1)",
        "wait(&full[stage], ~round & 1)",
    ),
    Fault(
        "full: parity never flips",
        "tma_ring",
        "wait(&full[stage], round & 1)",
        "wait(&full[stage], 0)",
    ),
    Fault("full: wait missing", "tma_ring", "wait(&full[stage], round & 1);", ""),
    Fault("empty: wait missing", "tma_ring", _EMPTY, ""),
    Fault("empty: wrong parity", "tma_ring", "(round - 1) & 1", "round & 1"),
    Fault(
        "empty: wait from the first round",
        "tma_ring",
        "if (round > 0) wait(&empty[stage], (round - 1) & 1);",
        "wait(&empty[stage], round & 1);",
        "Deadlock",
    ),
    Fault(
        "stage count of the producer off by one",
        "tma_ring",
        "t % kStages, round = t / kStages;\n      if (round",
        "t % (kStages - 1), round = t / (kStages - 1);\n      if (round",
    ),
    Fault(
        "empty: arrival before the read",
        "tma_ring",
        "uint4 value = *",
        "arrive(&empty[stage]); uint4 value = *",
    ),
    Fault(
        "empty: one warp's arrivals not expected",
        "tma_ring",
        "barrier_init(&empty[stage], kConsumers);",
        "barrier_init(&empty[stage], kConsumers - 32);",
    ),
    Fault(
        "empty: one arrival too many expected",
        "tma_ring",
        "barrier_init(&empty[stage], kConsumers);",
        "barrier_init(&empty[stage], kConsumers + 1);",
        "Deadlock",
    ),
    Fault(
        "coordinate off by one",
        "tma_ring",
        "0, t * kTileRows, &full",
        "0, t * kTileRows + 1, &full",
    ),
    Fault("coordinates swapped", "tma_ring", "&map, 0, t * kTileRows,", "&map, t * kTileRows, 0,"),
    Fault("swizzle ignored", "tma_ring", _SWIZZLED, "const int at = row * 128 + piece * 16;"),
    Fault("swizzle of 64 bytes", "tma_ring", "piece ^ row % 8", "piece ^ row / 2 % 4"),
    Fault(
        "barrier initialised again",
        "tma_ring",
        "if (round > 0) wait",
        "if (round > 0) barrier_init(&full[stage], 1); if (round > 0) wait",
    ),
    Fault("no barrier after init", "tma_ring", "__syncthreads();  // after init", ""),
    Fault(
        "tile on a 128-byte boundary only",
        "tma_ring",
        "alignas(1024)",
        "alignas(128)",
        "",
        (("shared_begin", 1152),),
    ),
    Fault(
        "barrier and tile of different stages",
        "tma_ring",
        "0, t * kTileRows, &full[stage])",
        "0, t * kTileRows, &full[(stage + 1) % kStages])",
    ),
    Fault("proxy fence missing", "bulk_store", "fence_proxy();", "", "proxy"),
    Fault(
        "barrier before the store missing",
        "bulk_store",
        "__syncthreads();  // before the store",
        "",
    ),
    Fault("store not read before the next fill", "bulk_store", "      wait_stores_read();\n", ""),
    Fault("store not committed", "bulk_store", "      commit_stores();\n", ""),
    Fault(
        "barrier before the next fill missing",
        "bulk_store",
        "__syncthreads();  // before the next",
        "",
    ),
    Fault(
        "stores in flight at exit",
        "bulk_store",
        "wait_stores_read();",
        "if (t < tiles - 1) wait_stores_read();",
        more=(("if (i == 0) wait_stores();", ""),),
    ),
    Fault(
        "store one element too long",
        "bulk_store",
        "sizeof(staged));",
        "sizeof(staged) + 16);",
        "OutOfBounds",
    ),
    Fault("multicast mask without the peer", "multicast", "0b11", "1 << rank"),
    Fault("multicast mask without itself", "multicast", "0b11", "1 << peer"),
    Fault("multicast mask of a CTA that is not there", "multicast", "0b11", "0b111"),
    Fault(
        "remote arrival at the wrong CTA",
        "multicast",
        "arrive_at(&empty[stage], peer);",
        "arrive_at(&empty[stage], rank);",
    ),
    Fault("remote arrival missing", "multicast", "arrive_at(&empty[stage], peer);", "", "Deadlock"),
    Fault("arrival before all have read", "multicast", "sync_consumers();  // all have read", ""),
    Fault(
        "empty of the peer is not waited for",
        "multicast",
        "barrier_init(&empty[stage], 2);",
        "barrier_init(&empty[stage], 1);",
    ),
    Fault(
        "no cluster barrier after init",
        "multicast",
        "cluster_sync();  // after init",
        "__syncthreads();",
    ),
    Fault(
        "no cluster barrier before reading the peer",
        "multicast",
        "cluster_sync();  // before reading the peer",
        "",
    ),
    Fault(
        "no cluster barrier before exit",
        "multicast",
        "cluster_sync();  // before exit",
        "",
        "exited",
    ),
    Fault(
        "half a tile of the wrong rank",
        "multicast",
        "(2 * t + rank) * kHalfRows",
        "(2 * t + peer) * kHalfRows",
    ),
    Fault(
        "wait_group off by one",
        "cp_async_ring",
        "wait_copies<kStages - 2>",
        "wait_copies<kStages - 1>",
    ),
    Fault("wait_group missing", "cp_async_ring", "    wait_copies<kStages - 2>();\n", ""),
    Fault("group not committed", "cp_async_ring", "commit_copies();  // of the next tile", ""),
    Fault("__syncthreads missing", "cp_async_ring", "    __syncthreads();\n", ""),
    Fault(
        "copy into the stage that is read",
        "cp_async_ring",
        "ring[next % kStages]",
        "ring[t % kStages]",
    ),
    Fault(
        "ring one stage short", "cp_async_ring", "uint4 ring[kStages][", "uint4 ring[kStages - 1]["
    ),
    Fault("output guard removed", "reduce", "if (i < n) copies[i]", "copies[i]", "copies"),
    Fault("input guard removed", "reduce", "if (i < n) value", "value", "in"),
    Fault("first __syncthreads missing", "reduce", "__syncthreads();  // after the first", ""),
    Fault(
        "__syncthreads missing in a loop",
        "reduce",
        "    __syncthreads();  // after each half\n",
        "",
    ),
    Fault(
        "barrier for too few threads",
        "reduce",
        "__syncthreads();  // after the first",
        'asm volatile("bar.sync 0, 96;");',
    ),
    Fault(
        "shared memory read before it is written",
        "reduce",
        "partial[threadIdx.x] = value;",
        "if (threadIdx.x != 5) partial[threadIdx.x] = value;",
        "never written",
    ),
    Fault(
        "past the end of shared memory",
        "reduce",
        "partial[threadIdx.x + half]",
        "partial[threadIdx.x + 2 * half]",
        "OutOfBounds",
    ),
    Fault("wgmma: proxy fence missing", "wgmma", "fence_proxy();", ""),
    Fault("wgmma: wait missing", "wgmma", "  multiply_wait(d);\n", ""),
    Fault("wgmma: commit missing", "wgmma", "  multiply_commit();\n", ""),
    Fault(
        "wgmma: tile freed before the wait",
        "wgmma",
        "  multiply_wait(d);\n",
        "  a_tile[0][i] = make_uint4(0, 0, 0, 0);\n  multiply_wait(d);\n",
    ),
    Fault(
        "wgmma: strides exchanged",
        "wgmma",
        "(u64)(128 >> 4) << 16 |\n         (u64)(256 >> 4) << 32",
        "(u64)(256 >> 4) << 16 |\n         (u64)(128 >> 4) << 32",
    ),
    Fault("wgmma: barrier missing", "wgmma", "__syncthreads();  // operands are there", ""),
]
