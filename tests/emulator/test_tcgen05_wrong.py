"""Every field of what tcgen05.mma is given, wrong: a report or a wrong result each time."""

from __future__ import annotations

import numpy as np
import pytest

from nibblas.emulator import DataRace, EmulationError, IllegalOperation
from tests.emulator.tensor_core import Mma, run
from tests.emulator.test_tcgen05_mma import Problem, random_problem

FIELDS = {
    "start one row on": 8,
    "start one K step on": 2,
    "start 16 bytes on": 1,
    "stride halved": -32 << 32,
    "stride doubled": 64 << 32,
    "stride one row more": 8 << 32,
    "version 0": -1 << 46,
    "version 2": 1 << 46,
    "version 5": 4 << 46,
    "base offset": 1 << 49,
    "absolute leading dimension": 1 << 52,
    "reserved bit 53": 1 << 53,
    "reserved bit 60": 1 << 60,
    "reserved bit 14": 1 << 14,
    "no swizzle": -2 << 61,
    "swizzle of 32-byte pieces": -1 << 61,
    "swizzle 3": 1 << 61,
    "swizzle 64": 2 << 61,
    "swizzle 5": 3 << 61,
    "swizzle 32": 4 << 61,
    "swizzle 7": 5 << 61,
}
"""What is added to a right shared-memory descriptor (swizzle 128, SBO 1024, version 1)."""

IDESC = {
    "sparsity selector": 1,
    "sparse": 1 << 2,
    "bit 3": 1 << 3,
    "scale id of B 1": 1 << 4,
    "scale id of B 2": 2 << 4,
    "bit 6": 1 << 6,
    "type of A 0": -1 << 7,
    "type of A 5": 4 << 7,
    "type of B 0": -1 << 10,
    "type of B 3": 2 << 10,
    "bit 12": 1 << 12,
    "negate A": 1 << 13,
    "negate B": 1 << 14,
    "A is MN-major": 1 << 15,
    "B is MN-major": 1 << 16,
    "N 16 more": 2 << 17,
    "N 16 less": -2 << 17,
    "N 8 more": 1 << 17,
    "N 0": -(64 >> 3) << 17,
    "N beyond 256": (256 - 48 >> 3) << 17,
    "scale type UE8M0": 1 << 23,
    "bit 24": 1 << 24,
    "bit 26": 1 << 26,
    "M of half as many rows": -1 << 27,
    "M of more rows": 1 << 27,
    "scale id of A 1": 1 << 29,
    "scale id of A 3": 3 << 29,
    "K = 96": 1 << 31,
}
"""What is added to a right instruction descriptor (M = 256 or 128, N = 64)."""


@pytest.fixture(scope="module", params=[1, 2], ids=["1 CTA", "2 CTAs"])
def problem(request: pytest.FixtureRequest) -> Problem:
    return random_problem(request.param, 128 * request.param, 64)


@pytest.fixture(scope="module")
def right(problem: Problem) -> Mma:
    mma = problem.mma(enable=True)
    found = run(mma)
    assert (problem.d_of(found) == problem.by_model(problem.c)).all()
    return mma


def noticed(mma: Mma, problem: Problem) -> bool:
    try:
        found = run(mma)
    except EmulationError:
        return True
    same = problem.d_of(found) == problem.by_model(problem.c)
    n = problem.shape[1]
    return not same.all() or bool((found[:, :, n:] != mma.tensor[:, :, n:]).any())


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("field", FIELDS)
def test_shared_memory_descriptors(operand: str, field: str, problem: Problem, right: Mma) -> None:
    bits = getattr(right, operand) + FIELDS[field]
    assert noticed(right.but(**{operand: bits}), problem)


@pytest.mark.parametrize("field", IDESC)
def test_instruction_descriptors(field: str, problem: Problem, right: Mma) -> None:
    assert noticed(right.but(idesc=right.idesc + IDESC[field]), problem)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sfa": 1},
        {"sfb": 1},
        {"sfa": 8, "sfb": -8},
        {"sfa": 1 << 16},
        {"d": 1},
        {"d": 32 << 16},
    ],
    ids=str,
)
def test_addresses(wrong: dict[str, int], problem: Problem, right: Mma) -> None:
    """What is added to an address."""
    changed = {name: getattr(right, name) + value for name, value in wrong.items()}
    assert noticed(right.but(**changed), problem)


def test_an_accumulator_that_is_not_added_to(problem: Problem, right: Mma) -> None:
    assert noticed(right.but(enable=False), problem)


@pytest.mark.parametrize(
    ("old", "new"), [("block16", "block32"), ("mxf4nvf4", "mxf4"), ("%a", "%b")]
)
def test_qualifiers_and_operands(old: str, new: str, problem: Problem, right: Mma) -> None:
    name = right.name.replace(old, new)
    if new == "mxf4":
        name = name.replace("block16", "block32")
    assert name != right.name
    assert noticed(right.but(name=name), problem)


def test_leading_offset_of_swizzled_k_major_changes_nothing(problem: Problem, right: Mma) -> None:
    assert not noticed(right.but(a=right.a + (5 << 16), b=right.b + (0x3FFF << 16)), problem)


def test_scales_within_the_accumulator(problem: Problem, right: Mma) -> None:
    with pytest.raises(IllegalOperation, match="A, scales and D must not share cells"):
        run(right.but(sfb=problem.shape[1] - 1))


def test_reports_name_the_operand_and_the_line(right: Mma) -> None:
    with pytest.raises(IllegalOperation, match=r"(?s)B of tcgen05.mma.kind::mxf4nvf4: .*PTX line"):
        run(right.but(b=right.b & ~(1 << 46)))


def test_operands_that_ordinary_stores_wrote_need_a_proxy_fence(right: Mma) -> None:
    """A store to an operand between the bulk copy and the multiplication."""
    store = "st.shared.u8 [%r4], 0;\n"
    fence = "fence.proxy.async.shared::cta;\n"
    with pytest.raises(DataRace, match=r"fence\.proxy\.async"):
        run(right.but(name=store + right.name))
    assert np.any(run(right.but(name=store + fence + right.name)))


def test_an_operand_written_while_in_flight(right: Mma) -> None:
    with pytest.raises(DataRace, match="an asynchronous operation in flight reads"):
        run(right.but(name=right.name + "st.shared.u8 [%r4], 0;\n"))
