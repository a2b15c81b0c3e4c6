"""The emulator answers as the H200 did, bit for bit. README.md says how the vectors were made."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nibblas.emulator import ORDERS, Device, IllegalOperation, emulating
from tests.emulator.golden import barriers, lanewise, memory, rarer, tensors, warpwide, wgmma
from tests.emulator.golden.all_cases import all_cases
from tests.emulator.golden.case import Case
from tests.emulator.golden.emulate import Answer, modelled, run
from tests.emulator.golden.lanewise import APPROXIMATE, MOST_ULPS
from tests.emulator.golden.operands import THREADS
from tests.emulator.golden.products import PRODUCTS, compute

VECTORS = Path(__file__).parent / "vectors"

MODULES = {
    "lanewise": lanewise,
    "warpwide": warpwide,
    "memory": memory,
    "barriers": barriers,
    "tensors": tensors,
    "wgmma": wgmma,
    "rarer": rarer,
}
#: Those that a GPU has answered to.
FILES = {name: module for name, module in MODULES.items() if (VECTORS / f"{name}.npz").exists()}
NAMED_CASES = [(name, case) for name, file in FILES.items() for case in file.cases()]
CASES = [pytest.param(name, case, id=case.name) for name, case in NAMED_CASES]
#: "bulk" is not among them: its CTAs may run a phase ahead of each other, and the copy that one
#: sends is then counted in the wrong phase of the other's barrier. On the H200 it did not happen.
IN_ORDERS = [
    pytest.param(name, case, id=case.name)
    for name, case in NAMED_CASES
    if name in ("memory", "barriers", "tensors", "rarer") and case.name != "bulk"
]

#: Opcodes of rows that the emulator does not model; their rows are left out of a comparison.
NOT_MODELLED: frozenset[str] = frozenset()

#: Opcodes of rows whose NaNs keep another operand's payload than the H200's, which the PTX ISA
#: leaves open: float64 results that are NaN in both are equal there.
OPEN_NANS: frozenset[str] = frozenset()

#: Cases that differ, and why.
DIFFERENT: dict[str, str] = {}

#: Cases that the emulator refuses, and what it says. The H200's driver refuses this map too.
REFUSED = {"tma_load_packed4": "'16u4_align8b'; want 8-bit elements or wider on sm_90"}


@cache
def vectors(file: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(VECTORS / f"{file}.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(arrays.pop("about").tobytes())


def differences(case: Case, answer: Answer, wanted: np.ndarray) -> list[str]:
    """Rows of a case that differ, with the first place."""
    rows = case.row_names or ("the output",)
    places = []
    parts = (np.split(array, len(rows)) for array in (answer.output, wanted))
    for name, mine, theirs in zip(rows, *parts, strict=True):
        if any(opcode in name for opcode in NOT_MODELLED):
            continue
        different = (mine != theirs) & ~both_open_nans(name, mine, theirs)
        if different.any():
            first = int(np.flatnonzero(different)[0])
            places.append(f"{name}: {int(different.sum())} bytes, the first at {first}")
    return places


def both_open_nans(name: str, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """For each byte, whether it belongs to a NaN in both answers that may be any NaN."""
    if not any(opcode in name for opcode in OPEN_NANS):
        return np.zeros(len(mine), bool)
    both = np.isnan(mine.view(np.float64)) & np.isnan(theirs.view(np.float64))
    return np.repeat(both, 8)


@pytest.mark.parametrize(("file", "case"), CASES)
def test_a_case_agrees_with_the_h200(file: str, case: Case) -> None:
    arrays, about = vectors(file)
    if case.name in about.get("refused", {}):
        pytest.skip(f"no answer of the H200's: {about['refused'][case.name]}")
    assert about["digests"][case.name] == case.digest(), "the case has changed since it was run"
    if case.name in REFUSED:
        pytest.skip(f"compared with nothing: {REFUSED[case.name]}")
    answer = run(case)
    for line in answer.left_out:
        assert any(opcode in line for opcode in NOT_MODELLED), line
    if case.name == "approximate":
        assert beyond_ulps(answer.output, arrays[case.name]) == []
    elif case.name in DIFFERENT:
        assert differences(case, answer, arrays[case.name]), "it agrees now: take it off the list"
        pytest.xfail(DIFFERENT[case.name])
    else:
        assert differences(case, answer, arrays[case.name]) == []


def beyond_ulps(got: np.ndarray, wanted: np.ndarray) -> list[str]:
    """Rows of the approximate instructions that are further off than they may be."""
    bad = []
    pairs = (
        array.view("u4").reshape(len(APPROXIMATE), THREADS, 2)[..., 0] for array in (got, wanted)
    )
    for snippet, mine, theirs in zip(APPROXIMATE, *pairs, strict=True):
        opcode = snippet.split(".")[0]
        special = ~np.isfinite(theirs.view("f4"))
        steps = np.abs(mine.astype(np.int64) - theirs.astype(np.int64))
        far = np.where(special, mine != theirs, steps > MOST_ULPS[opcode])
        if far.any():
            lane = int(np.flatnonzero(far)[0])
            bad.append(f"{snippet}: thread {lane}: {mine[lane]:#x}, the H200 {theirs[lane]:#x}")
    return bad


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"round_robin"}))
@pytest.mark.parametrize(("file", "case"), IN_ORDERS)
def test_asynchronous_cases_agree_in_every_order(file: str, case: Case, order: str) -> None:
    arrays, _ = vectors(file)
    if case.name in DIFFERENT or case.name in REFUSED or case.name not in arrays:
        pytest.skip("see the test of one order")
    assert differences(case, run(case, order=order, seed=3), arrays[case.name]) == []


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_the_shipped_kernel_agrees_with_the_h200(nvrtc: str, name: str) -> None:
    arrays, _ = vectors("products")
    with emulating(order="random", seed=1):
        got = compute(PRODUCTS[name], "cpu")
    assert (got == arrays[name]).all()


def test_what_is_not_modelled_is_refused() -> None:
    left_out = [line for _, case in NAMED_CASES for line in _left_out(case)]
    assert {op for op in NOT_MODELLED if any(op in line for line in left_out)} == NOT_MODELLED


def _left_out(case: Case) -> tuple[str, ...]:
    return modelled(Device("sm_90"), case.ptx)[1] if case.row_names else ()


@pytest.mark.parametrize("name", MODULES)
def test_cases_without_vectors_run(name: str) -> None:
    """What a GPU has not answered yet is at least free of faults, and the same in two orders."""
    if name in FILES:
        pytest.skip("compared with an H200 above")
    cases = [case for case in MODULES[name].cases() if case.name not in REFUSED]
    for case in cases:
        answer = run(case)
        assert answer.left_out == () and answer.output.any(), case.name
        assert (run(case, order="random", seed=1).output == answer.output).all(), case.name
    pytest.skip(f"{len(cases)} cases run, compared with no GPU: vectors/{name}.npz is not made")


@pytest.mark.parametrize("name", REFUSED)
def test_cases_that_are_not_modelled_are_refused(name: str) -> None:
    with pytest.raises(IllegalOperation, match=REFUSED[name]):
        run(all_cases()[name])


def test_every_vector_has_a_case() -> None:
    stored = {name for file in FILES for name in vectors(file)[0]}
    refused = {name for file in FILES for name in vectors(file)[1].get("refused", {})}
    assert not stored & refused
    assert stored | refused == {case.name for _, case in NAMED_CASES}
    assert set(vectors("products")[0]) == set(PRODUCTS)
    assert {path.stem for path in VECTORS.iterdir()} == {*FILES, "products"}
