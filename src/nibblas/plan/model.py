"""The calibrated cost model: a kernel's schedule on a machine, in microseconds.

::

    T = gap + prologue + first latency + sum over phases + (items - 1) * between + tail
    phase = max(turns * turn, bytes of this phase that come from DRAM for the first time / BW)
    turn  = max(bytes / (r f), L(bytes) / stages, t_turn, MMA cycles / f, instructions / issue rate)

What a turn's bytes, MMA cycles and instructions are follows from the schedule; all else is the
machine's. docs/model.md has the derivation, the calibration and what is not modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nibblas.plan.kernel_schedule import (
    Items,
    KernelSchedule,
    items_of,
    num_items,
    row_units,
    token_tiles,
)
from nibblas.plan.machines import Machine
from nibblas.plan.problem import OUT_BYTES, GroupShape, Problem

Array = NDArray[np.float64]

MAX_PHASES = 16
"""With more items a worker, phases are not told apart: all their work and bytes are one."""

LONG_CALL_BYTES = 256e6
"""From here on DRAM gives its long rate. [I]"""

_SMALL_COPY_BYTES, _TILE_COPY_BYTES = 2 << 10, 32 << 10
_SHARED_BYTES_PER_CYCLE = 128
_SCHEDULERS = 4

ISSUE_PER_CYCLE = 0.68
"""Instructions per cycle and scheduler of a loop that decodes and multiplies, five warps each.
Measured on an H200 with the portable kernel (lab/portable, version 11)."""

_WEIGHT_BYTES = 9 / 16  # of a value: a code, and a sixteenth of a scale
_WGMMA_ROWS, _WGMMA_K, _WGMMA_FLOOR_CYCLES = 64, 16, 19


@dataclass(frozen=True)
class Prediction:
    """Microseconds.

    Attributes:
        fixed: terms that do not grow with the work, by name.
        loop: terms of the main loop, by name, each as if the others took no time.
        loop_us: of all phases, each bounded by its own slowest term.
        between_us: between a worker's items.
        bound: the term that bounds most of the loop; "fixed" where the others are longer.
    """

    fixed: dict[str, float]
    loop: dict[str, float]
    loop_us: float
    between_us: float
    bound: str

    @property
    def fixed_us(self) -> float:
        return sum(self.fixed.values())

    @property
    def total_us(self) -> float:
        return self.fixed_us + self.loop_us + self.between_us


@dataclass(frozen=True)
class Timeline:
    """The main loop, worker by worker.

    Attributes:
        items: whose; of groups that have outputs, numbered as in the problem.
        item_us: microseconds of each item, (phases, workers), as if DRAM were no bound.
        phase_us: of each phase, DRAM included.
    """

    items: Items
    item_us: Array
    phase_us: Array


def predict(problem: Problem, machine: Machine, schedule: KernelSchedule) -> Prediction:
    """Time of one launch of a kernel that computes the whole problem."""
    shapes = [s for s in problem.shapes if s.m and s.n]
    if not shapes:
        return Prediction(_fixed_us(machine, schedule, 1), {}, 0.0, 0.0, "fixed")
    schedule = _fitted(schedule, shapes)
    num_bytes = problem.work().total_bytes
    rate = dram_bytes_per_us(machine, num_bytes)
    if not _has_phases(shapes, schedule):
        loop, slowest, count = _one_phase(problem, shapes, machine, schedule)
        loop["memory"] = np.array([num_bytes / rate])
    else:
        items = items_of(shapes, schedule)
        count = items.phases
        turns_us, item_us = _item_us(problem, shapes, items, machine, schedule)
        slowest = item_us.max(axis=1)
        loop = _of_slowest(turns_us, item_us)
        loop["memory"] = new_bytes(problem, shapes, items, schedule) / rate
    phase_us = np.maximum(slowest, loop["memory"])
    fixed = _fixed_us(machine, schedule, count)
    between = 0.0 if schedule.overlapped or schedule.restart_us else machine.tail_us
    return Prediction(
        fixed=fixed,
        loop={name: float(us.sum()) for name, us in loop.items()},
        loop_us=float(phase_us.sum()),
        between_us=(count - 1) * between,
        bound=_bound(fixed, loop, phase_us),
    )


def timeline(problem: Problem, machine: Machine, schedule: KernelSchedule) -> Timeline | None:
    """When which item is computed; None where phases are not told apart."""
    numbers = [g for g, s in enumerate(problem.shapes) if s.m and s.n]
    shapes = [problem.shapes[g] for g in numbers]
    if not shapes or not _has_phases(shapes, schedule):
        return None
    schedule = _fitted(schedule, shapes)
    items = items_of(shapes, schedule)
    _, item_us = _item_us(problem, shapes, items, machine, schedule)
    rate = dram_bytes_per_us(machine, problem.work().total_bytes)
    memory_us = new_bytes(problem, shapes, items, schedule) / rate
    group = np.where(items.group >= 0, np.array(numbers)[items.group], -1)
    named = replace(items, group=group)
    return Timeline(named, item_us, np.maximum(item_us.max(axis=1), memory_us))


def _fitted(schedule: KernelSchedule, shapes: list[GroupShape]) -> KernelSchedule:
    """With a grid that is no larger than its work."""
    if schedule.order == "even":
        return schedule
    most = num_items(shapes, schedule) * schedule.cluster
    return replace(schedule, ctas=min(schedule.ctas, most))


def _has_phases(shapes: list[GroupShape], schedule: KernelSchedule) -> bool:
    most = MAX_PHASES * schedule.workers
    return schedule.order != "even" and num_items(shapes, schedule) <= most


def turn_us(
    problem: Problem, machine: Machine, schedule: KernelSchedule, tokens: Array
) -> dict[str, Array]:
    """The terms of one turn of the main loop with so many tokens; the longest one is its time."""
    cycles_per_us = machine.clock_ghz * 1e3
    together = min(schedule.ctas_per_sm, -(-schedule.ctas // machine.sms))
    padded = np.ceil(tokens / schedule.token_step) * schedule.token_step
    num_bytes = turn_bytes(problem, schedule, padded)
    cycles = {
        "ingest": together * num_bytes / machine.ingest_bytes_per_cycle,
        "tensor": together * mma_cycles(machine, schedule, padded),
    }
    if schedule.instructions is not None:
        issued = schedule.instructions.of(padded)
        cycles["issue"] = together * issued / (_SCHEDULERS * ISSUE_PER_CYCLE)
    terms = {name: count / cycles_per_us for name, count in cycles.items()}
    terms["latency"] = latency_us(machine, num_bytes) / schedule.stages
    terms["turn"] = np.full_like(num_bytes, machine.turn_us or 0.0)
    return terms


def turn_bytes(problem: Problem, schedule: KernelSchedule, tokens: Array) -> Array:
    """Codes, scales and values that one CTA takes in for a turn with so many tokens."""
    landing = tokens / 2 if schedule.pair else tokens
    per_value = _token_bytes_per_value(problem)
    num_bytes: Array = (schedule.tile_rows * _WEIGHT_BYTES + landing * per_value) * schedule.block_k
    return num_bytes


def mma_cycles(machine: Machine, schedule: KernelSchedule, tokens: Array) -> Array:
    """Cycles that one CTA's multiplications of a turn keep the tensor cores busy.

    tcgen05.mma reads codes from shared memory at 128 bytes a cycle, its scales from tensor memory;
    wgmma with 64 rows takes half a cycle per token and 16 values, and no less than 19.
    """
    rates, k = machine.flop_per_cycle, schedule.block_k
    rate = rates.fp16 if schedule.reads_fp16 else rates.nvfp4
    if rate is None:
        return np.full_like(tokens, math.inf)
    dense = 2.0 * schedule.tile_rows * tokens * k / rate
    if schedule.mma == "tcgen05":
        landing = tokens / 2 if schedule.pair else tokens
        return np.maximum(dense, (schedule.tile_rows + landing) * k / 2 / _SHARED_BYTES_PER_CYCLE)
    if schedule.mma == "wgmma":
        instructions = schedule.tile_rows / _WGMMA_ROWS * k / _WGMMA_K
        return np.maximum(dense, instructions * _WGMMA_FLOOR_CYCLES)
    return dense


def latency_us(machine: Machine, num_bytes: Array) -> Array:
    """From a copy's start to its arrival, by its size."""
    small, tile = machine.small_latency_us or 0.0, machine.tile_latency_us
    if tile is None:
        return np.full_like(num_bytes, small)
    return np.interp(num_bytes, [_SMALL_COPY_BYTES, _TILE_COPY_BYTES], [small, tile])


def dram_bytes_per_us(machine: Machine, num_bytes: float) -> float:
    """Mean rate of a call that moves so many bytes: the first ones at the short rate."""
    short, long = machine.short_tb_per_s * 1e6, machine.long_tb_per_s * 1e6
    if num_bytes <= LONG_CALL_BYTES:
        return short
    return num_bytes / (LONG_CALL_BYTES / short + (num_bytes - LONG_CALL_BYTES) / long)


def new_bytes(
    problem: Problem, shapes: list[GroupShape], items: Items, schedule: KernelSchedule
) -> Array:
    """Bytes of each phase that no earlier phase has read: weights and tokens; and its outputs.

    What was read once is taken to be in L2 from then on.
    """
    m, n, k = (np.array(values) for values in zip(*shapes, strict=True))
    group, exists = items.group, items.group >= 0
    rows = np.minimum(n[group] - items.unit * schedule.unit_rows, schedule.unit_rows)
    tokens = _item_tokens(m, items, schedule)
    out = np.where(exists, rows * tokens * OUT_BYTES[problem.out], 0)
    units, tiles = row_units(shapes, schedule), token_tiles(shapes, schedule)
    weights_of = (units.cumsum() - units)[group] + items.unit
    tokens_of = (tiles.cumsum() - tiles)[group] + items.tile
    weights = _first_met(weights_of, exists) * rows * k[group] * _WEIGHT_BYTES
    x = _first_met(tokens_of, exists) * tokens * k[group] * _token_bytes_per_value(problem)
    total: Array = (out + weights + x).sum(axis=1)
    return total


def _token_bytes_per_value(problem: Problem) -> float:
    return _WEIGHT_BYTES if problem.activations == "nvfp4" else 2.0


def _first_met(names: NDArray[np.int64], exists: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where a name stands for the first time, phase after phase."""
    masked = np.where(exists, names, -1).ravel()
    first = np.zeros(masked.size, dtype=np.bool_)
    first[np.unique(masked, return_index=True)[1]] = True
    return first.reshape(names.shape) & exists


def _item_tokens(m: NDArray[np.int64], items: Items, schedule: KernelSchedule) -> Array:
    left = m[items.group] - items.tile * schedule.tile_tokens
    tokens: Array = np.minimum(left, schedule.tile_tokens).astype(np.float64)
    return tokens


def _item_us(
    problem: Problem,
    shapes: list[GroupShape],
    items: Items,
    machine: Machine,
    schedule: KernelSchedule,
) -> tuple[dict[str, Array], Array]:
    """Each item's terms over all its turns, and its longest one; 0 where there is no item."""
    m, _, k = (np.array(values) for values in zip(*shapes, strict=True))
    terms = turn_us(problem, machine, schedule, _item_tokens(m, items, schedule))
    turns = np.where(items.group >= 0, -(-k[items.group] // schedule.block_k), 0)
    turns_us = {name: turns * np.where(turns > 0, us, 0.0) for name, us in terms.items()}
    return turns_us, np.maximum.reduce(list(turns_us.values()))


def _of_slowest(terms: dict[str, Array], item_us: Array) -> dict[str, Array]:
    """Every phase's terms, of its slowest worker."""
    phases, slowest = np.arange(len(item_us)), item_us.argmax(axis=1)
    return {name: us[phases, slowest] for name, us in terms.items()}


def _one_phase(
    problem: Problem, shapes: list[GroupShape], machine: Machine, schedule: KernelSchedule
) -> tuple[dict[str, Array], Array, int]:
    """All items as one phase, shared out over the workers; and how many items a worker has."""
    m, n, k = (np.array(values) for values in zip(*shapes, strict=True))
    full, rest = np.divmod(m, schedule.tile_tokens)
    tokens = np.stack([np.full_like(m, schedule.tile_tokens), rest]).astype(np.float64)
    even = schedule.order == "even"
    units = n / schedule.unit_rows if even else row_units(shapes, schedule)
    count = np.stack([full, rest > 0]) * units
    a_worker = float(count.sum()) / schedule.workers
    rounds = max(1, math.ceil(a_worker))
    # Shares cut evenly end together, but none is shorter than an item; whole items are rounded up.
    share = count / schedule.workers * (1.0 if even else rounds / a_worker)
    turns = np.where(count > 0, -(-k // schedule.block_k), 0)
    terms = {
        name: np.where(turns > 0, us, 0.0)
        for name, us in turn_us(problem, machine, schedule, tokens).items()
    }
    item_us = turns * np.maximum.reduce(list(terms.values()))
    loop = {name: np.array([(share * turns * us).sum()]) for name, us in terms.items()}
    return loop, np.array([max((share * item_us).sum(), item_us.max())]), rounds


def _fixed_us(machine: Machine, schedule: KernelSchedule, waves: int) -> dict[str, float]:
    """Terms that every call pays; a programmatic launch hides those before the first copy."""
    hidden = {"gap": machine.gap_us or 0.0, "prologue": machine.prologue_us or 0.0}
    if schedule.restart_us is not None:
        return {"gap": hidden["gap"], "waves": waves * schedule.restart_us}
    rest = {"first latency": machine.first_latency_us or 0.0, "tail": machine.tail_us}
    return rest if schedule.programmatic else hidden | rest


def _bound(fixed: dict[str, float], loop: dict[str, Array], phase_us: Array) -> str:
    if sum(fixed.values()) > phase_us.sum():
        return "fixed"
    names = list(loop)
    winners = np.stack([loop[name] for name in names]).argmax(axis=0)
    time = [float(phase_us[winners == i].sum()) for i in range(len(names))]
    return names[time.index(max(time))]
