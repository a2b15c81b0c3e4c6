"""Faults planted in the small kernels with tensor memory: CTA pairs, tcgen05.st, tcgen05.shift."""

from __future__ import annotations

from tests.emulator.faults.planted import Fault


def _pair(name: str, old: str, new: str, expected: str = "") -> Fault:
    return Fault(f"pair: {name}", "pair_mma", old, new, expected)


def _store(name: str, old: str, new: str, expected: str = "") -> Fault:
    return Fault(f"tensor: {name}", "tensor_store", old, new, expected)


_FREE = "      commit_to(&empty[stage], 0b11);\n"
_DONE = "    commit_to(&done, 0b11);\n"
_SHIFT = "      for (u32 lane = 0; lane < 128; lane += 32) shift_down(tensor + a + (lane << 16));\n"
_FIRST = "      multiply_f16(tensor, tensor + a, from, instruction);\n"
_SECOND = "      multiply_f16(tensor + kColumns, tensor + a, from, instruction);\n"

TCGEN05_FAULTS = [
    _pair("bytes of one CTA are expected", "2 * sizeof(Stage));", "sizeof(Stage));"),
    _pair("bytes of three are expected", "2 * sizeof(Stage));", "3 * sizeof(Stage));", "Deadlock"),
    _pair("both CTAs arm", "if (rank == 0) arrive_expect", "arrive_expect"),
    _pair("both have the same half of A", "128 * t, kRows * rank,", "128 * t, 0,", "wrong"),
    _pair("both have the same half of B", "128 * t, kColumns / 2 * rank,", "128 * t, 0,", "wrong"),
    _pair("scales of the peer's rows", "16 * (2 * t + rank)", "16 * (2 * t + 1 - rank)", "wrong"),
    _pair(
        "scales of B in one CTA",
        "load_tile_of_pair(to.b_scales",
        "if (rank == 0) load_tile_of_pair(to.b_scales",
    ),
    _pair("both CTAs multiply", "i == 5 * 32 && rank == 0", "i == 5 * 32"),
    _pair("the odd CTA multiplies", "i == 5 * 32 && rank == 0", "i == 5 * 32 && rank == 1"),
    _pair("M of one CTA", "2 * kRows >> 7 << 27", "kRows >> 7 << 27"),
    _pair("a stage is free in the even CTA only", _FREE, _FREE.replace("0b11", "0b01")),
    _pair("a stage is free in the odd CTA only", _FREE, _FREE.replace("0b11", "0b10")),
    _pair("a stage is freed without multicast", _FREE, "      commit(&empty[stage]);\n"),
    _pair(
        "a stage is free when MMAs are issued",
        _FREE,
        "      arrive_at(&empty[stage], 0);\n      arrive_at(&empty[stage], 1);\n",
        "DataRace",
    ),
    _pair("commit mask of CTAs that are not there", _FREE, _FREE.replace("0b11", "0b1111")),
    _pair("sums are done in one CTA only", _DONE, _DONE.replace("0b11", "0b01"), "Deadlock"),
    _pair(
        "sums are done when MMAs are issued",
        _DONE,
        "    arrive_at(&done, 0);\n    arrive_at(&done, 1);\n",
        "DataRace",
    ),
    _pair(
        "sums are done before the last stage",
        f"{_FREE}    }}\n{_DONE}",
        f"{_FREE}      if (t + 2 == steps) commit_to(&done, 0b11);\n    }}\n",
        "DataRace",
    ),
    _pair("sums are not waited for", "    wait(&done, 0);\n", ""),
    _pair("full is not waited for", "      wait(&full[stage], round & 1);\n", ""),
    _pair("empty is not waited for", "if (round > 0) wait(&empty[stage], (round - 1) & 1);", ""),
    _pair("no fence after full", "      fence_after();  // the stage\n", "", "fence::"),
    _pair("no fence after done", "    fence_after();  // sums\n", "", "fence::"),
    _pair("no wait::ld", "      wait_loads(sums);\n", "", "tcgen05.ld"),
    _pair(
        "the odd CTA leaves early",
        "for (int t = steps; t <",
        "for (int t = steps; rank == 0 && t <",
        "UnfinishedWork",
    ),
    _pair(
        "no cluster barrier after init", "  cluster_sync();  // after init", "  __syncthreads();"
    ),
    _pair("no cluster barrier at the end", "  cluster_sync();  // before the deallocation\n", ""),
    _pair("the odd CTA deallocates alone", "    tensor_dealloc(", "    if (rank) tensor_dealloc("),
    _pair("all instructions of one CTA", "#define GROUP 2", "#define GROUP 1"),
    _store("no wait::st", "    wait_stores_to_tensor();\n", "", "wait::st"),
    _store("no fence before the barrier", "    fence_before();   // A\n", "", "fence::"),
    _store("no fence after the barrier", "      fence_after();  // A\n", "", "fence::"),
    _store("no barrier", "    __syncthreads();  // A is there\n", "", "DataRace"),
    _store("a warp's rows by lane 0", "store_8(rows + a,", "store_8(tensor + a,", "lane"),
    _store(
        "A in the columns of the sums", "const u32 a = 2 * kColumns;", "const u32 a = kColumns;"
    ),
    _store("A beyond the allocation", "const u32 a = 2 * kColumns;", "const u32 a = 60;", "OutOf"),
    _store("A a column on", "tensor, tensor + a, from", "tensor, tensor + a + 1, from"),
    _store(
        "A is stored while it is multiplied",
        "    wait(&done, round & 1);\n",
        "    store_8(rows + a, values);\n    wait(&done, round & 1);\n",
        "DataRace",
    ),
    _store("sums are not waited for", "    wait(&done, round & 1);\n", "", "DataRace"),
    _store("sums: parity never flips", "wait(&done, round & 1)", "wait(&done, 0)", "DataRace"),
    _store("no commit", "      commit(&done);\n", "", "Deadlock"),
    _store(
        "the commit before the last MMA",
        f"{_SECOND}      commit(&done);\n",
        f"      commit(&done);\n{_SECOND}",
        "DataRace",
    ),
    _store(
        "an arrival for the commit", "      commit(&done);\n", "      arrive(&done);\n", "DataRace"
    ),
    _store("no shift", _SHIFT, "", "wrong"),
    _store("the shift comes first", _FIRST + _SHIFT, _SHIFT + _FIRST, "wrong"),
    _store("the shift comes last", _SHIFT + _SECOND, _SECOND + _SHIFT, "wrong"),
    _store("one quarter is shifted", "lane < 128; lane += 32", "lane < 32; lane += 32", "wrong"),
    _store(
        "a shift from lane 16",
        "shift_down(tensor + a + (lane << 16))",
        "shift_down(tensor + a + (lane + 16 << 16))",
        "lane",
    ),
    _store(
        "a shift by another thread",
        f"{_FIRST}{_SHIFT}{_SECOND}      commit(&done);\n    }}\n",
        f"{_FIRST}{_SECOND}      commit(&done);\n    }}\n"
        "    if (i == 32) shift_down(tensor + a);\n",
        "DataRace",
    ),
    _store(
        "both products in the same columns", "tensor + kColumns, tensor + a,", "tensor, tensor + a,"
    ),
    _store(
        "leading offset and stride exchanged",
        "(u64)(128 >> 4) << 16 |\n                       (u64)(256 >> 4) << 32",
        "(u64)(256 >> 4) << 16 |\n                       (u64)(128 >> 4) << 32",
        "wrong",
    ),
    _store("leading offset of 0", "(u64)(128 >> 4) << 16 |", "0ull << 16 |"),
    _store("type of the sums: f16", "1 << 4 | kColumns", "0 << 4 | kColumns"),
    _store("type of A: bf16", "1 << 4 | kColumns", "1 << 4 | 1 << 7 | kColumns"),
    _store("N of 8", "kColumns >> 3 << 17", "kColumns >> 4 << 17"),
    _store("M of 64", "128 >> 4 << 24", "64 >> 4 << 24"),
    _store("no proxy fence", "  fence_proxy();\n", "", "proxy"),
    _store(
        "no deallocation", "    tensor_dealloc(tensor, kTensorColumns);\n", "", "UnfinishedWork"
    ),
    _store(
        "deallocation of more",
        "tensor_dealloc(tensor, kTensorColumns)",
        "tensor_dealloc(tensor, 128)",
    ),
    _store("deallocation before the loads", "  __syncthreads();  // before the deallocation\n", ""),
]
