"""Tensor copies (TMA), tile, gather4 and scatter4 modes. PTX ISA, "cp.async.bulk.tensor".

A load counts the bytes of the whole box on its mbarrier, those outside of the tensor included,
which arrive as zeros or NaN, but not the gaps of unpacked codes and of narrow rows. A store leaves
out what lies outside, but writes a row's last 16 bytes as a whole, and no coordinate of it is
negative. Maps come from parameters, constants or global memory; one that the kernel has changed in
global memory may be used after fence.proxy.tensormap::generic.acquire only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nibblas.emulator.errors import DataRace, IllegalOperation, OutOfBounds
from nibblas.emulator.isa.build import BLACKWELL, SM_100_FAMILY, Build
from nibblas.emulator.isa.bulk import by_lane, value_of
from nibblas.emulator.isa.registry import Family, Step
from nibblas.emulator.machine.access import LOCATE, check_read, locate_generic
from nibblas.emulator.machine.bulk import issue_load, issue_store, targets_of
from nibblas.emulator.machine.memory import Array, Memory
from nibblas.emulator.machine.reductions import ACCEPTED, MAP_BITS, MAP_TYPES
from nibblas.emulator.machine.regions import check_aligned, check_source
from nibblas.emulator.machine.tensor_map import (
    FIELDS,
    MAP_BYTES_USED,
    Box,
    TensorMap,
    check_type,
    decode,
)
from nibblas.emulator.machine.warp import Warp
from nibblas.emulator.ptx.model import Address, Imm, Vector
from nibblas.runtime.tensormap import TENSOR_MAP_BYTES

tensors = Family("tensors")

_ANCHOR = "data-movement-and-conversion-instructions-cp-async-bulk-tensor"
_DIM = "dim:1d|2d|3d|4d|5d"
_ALIGN_SHARED, _ALIGN_MAP = 128, 64
_TO, _COUNTED = "to:shared::cta|shared::cluster", "mbarrier::complete_tx::bytes"
_MODE, _CTAS = "[mode:tile|tile::gather4]", "[ctas:cta_group::1|cta_group::2]"

MapAt = Callable[[Warp, int], tuple[TensorMap, Box]]
"""(warp, lane) -> the map and its box."""


def _map_operand(build: Build, index: int, *, writes: bool = False) -> MapAt:
    """``[map, {c0, c1}]``, innermost first; ``[map, {column, row, row, row, row}]``."""
    operand = build.operands[index]
    if not isinstance(operand, Address) or len(operand.coordinates) != 1:
        raise build.refusal("expected [map, {coordinates}]")
    (coordinates,) = operand.coordinates
    items = coordinates.items if isinstance(coordinates, Vector) else (coordinates,)
    rank = int(build.get("dim")[0])
    by_rows = build.get("mode") in ("tile::gather4", "tile::scatter4")
    if by_rows:
        everywhere = build.get("mode") == "tile::gather4" and build.get("to") == "shared::cta"
        build.require_arch(f".{build.get('mode')}", *(BLACKWELL if everywhere else SM_100_FAMILY))
        if rank != 2:
            raise build.refusal(f".{build.get('mode')} needs .2d")
    wanted = 5 if by_rows else rank
    if len(items) != wanted:
        raise build.refusal(f"got {len(items)} coordinates; want {wanted}")
    slots = [build.source(item, "s32") for item in items]
    address = build.address(Address(operand.base, operand.offset))

    def find(warp: Warp, lane: int) -> tuple[TensorMap, Box]:
        found = map_at(warp, lane, int(address(warp)[lane]))
        try:
            check_type(found.spec, build.arch)
        except ValueError as error:
            raise IllegalOperation(f"no tensor map of this device: {error}") from None
        if found.spec.rank != rank:
            raise IllegalOperation(f"a map of rank {found.spec.rank} for a .{rank}d copy")
        numbers = [int(warp.r[slot][lane].astype(np.int32)) for slot in slots]
        if by_rows:
            found = found.four_rows
            box = found.gather(numbers[0], numbers[1:], written=writes)
        else:
            box = found.box(numbers, written=writes)
        if writes:
            _check_begin(numbers[:1] if by_rows else numbers)
        return found, box

    return find


def _check_begin(coordinates: list[int]) -> None:
    """Raises IllegalOperation if a box in global memory begins where none is written.

    CUDA Programming Guide, "Using TMA to transfer multi-dimensional arrays", "Negative indices and
    out of bounds": a box that is read may begin left of or above the tensor, one that is written
    may only reach beyond its end.
    """
    if min(coordinates) < 0:
        raise IllegalOperation(
            f"coordinates {', '.join(map(str, coordinates))} of a copy to global memory: want none "
            "negative (only a load may begin left of or above the tensor)"
        )


def map_at(warp: Warp, lane: int, address: int) -> TensorMap:
    """The map at a generic address.

    Raises:
        Misaligned, OutOfBounds, UninitialisedRead, IllegalOperation.
        DataRace: it was changed, and no fence has passed it on.
    """
    check_aligned("tensor map", address, _ALIGN_MAP)
    memory, base = locate_generic(warp, lane, address, TENSOR_MAP_BYTES)
    if address in warp.cta.machine.changed_maps:
        raise DataRace(
            f"the tensor map at {address:#x} was changed: want "
            "fence.proxy.tensormap::generic.acquire of these 128 bytes before its use"
        )
    check_read(memory, address - base, MAP_BYTES_USED, lane)
    return decode(memory.read(address - base, MAP_BYTES_USED))


def _tensor_memory(warp: Warp, found: TensorMap, box: Box, what: str) -> tuple[Memory, Array]:
    """The tensor's allocation, and the box's offsets in it."""
    memory = warp.cta.machine.addresses.find(found.address, 1)
    offsets = box.offsets + (found.address - memory.base)
    if offsets.size:
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high >= memory.num_bytes:
            raise OutOfBounds(
                f"{what}: the map's tensor reaches byte {high} of {memory.name}, which has "
                f"{memory.num_bytes}: its dims or strides are larger than the allocation "
                "(rows are written in whole pieces of 16 bytes)"
            )
    return memory, offsets


@tensors.instruction(
    f"cp async bulk tensor {_DIM} {_TO} global {_MODE} {_COUNTED} [multicast::cluster] {_CTAS} "
    "[L2::cache_hint]",
    section="cp.async.bulk.tensor",
    anchor=_ANCHOR,
)
def load(build: Build) -> Step:
    """``[dst], [map, {coordinates}], [mbar] {, ctaMask} {, cache-policy}``."""
    multicast, own = build.has("multicast::cluster"), build.get("to") == "shared::cta"
    if multicast and own:
        raise build.refusal(".multicast::cluster needs .shared::cluster")
    if build.has("ctas"):
        build.require_arch(f".{build.get('ctas')}", *SM_100_FAMILY)
    paired = build.get("ctas") == "cta_group::2"
    build.count(3 + multicast + build.has("L2::cache_hint"))
    to, find, barrier = build.address(0), _map_operand(build, 1), build.address(2)
    mask_slot = build.source(3, "u16", wider=True) if multicast else None
    instruction, what = build.instruction, "cp.async.bulk.tensor"

    def copy(warp: Warp, lane: int) -> None:
        found, box = find(warp, lane)
        address = int(to(warp)[lane])
        check_aligned("destination", address, _ALIGN_SHARED)
        mask = value_of(warp, mask_slot, lane) & 0xFFFF if multicast else None
        memory, offsets = _tensor_memory(warp, found, box, what)
        check_source(memory, offsets, what)

        def read() -> Array:
            data = found.fill()
            data.reshape(box.inside.shape)[box.inside] = memory.data[offsets]
            return data

        issue_load(
            warp,
            what,
            warp.site(instruction, 1 << lane),
            found.num_bytes,
            targets_of(
                warp,
                lane,
                address,
                int(barrier(warp)[lane]),
                found.num_bytes,
                mask=mask,
                own=own,
                paired=paired,
            ),
            read=read,
            order=found.order,
            counted=found.counted_bytes,
        )

    return by_lane(copy)


@tensors.instruction(
    f"cp async bulk tensor {_DIM} global shared::cta [mode:tile|tile::scatter4] bulk_group "
    "[L2::cache_hint]",
    section="cp.async.bulk.tensor",
    anchor=_ANCHOR,
)
def store(build: Build) -> Step:
    """``[map, {coordinates}], [src] {, cache-policy}``."""
    return _store(build, "cp.async.bulk.tensor", "")


@tensors.instruction(
    f"cp reduce async bulk tensor {_DIM} global shared::cta op:add|min|max|inc|dec|and|or|xor "
    "[tile] bulk_group [L2::cache_hint]",
    section="cp.reduce.async.bulk.tensor",
    anchor="data-movement-and-conversion-instructions-cp-reduce-async-bulk-tensor",
)
def reduce_(build: Build) -> Step:
    """The map's element type decides the arithmetic."""
    return _store(build, "cp.reduce.async.bulk.tensor", build.get("op"))


def _store(build: Build, what: str, operation: str) -> Step:
    build.count(2 + build.has("L2::cache_hint"))
    find, source = _map_operand(build, 0, writes=True), build.address(1)
    instruction = build.instruction

    def copy(warp: Warp, lane: int) -> None:
        found, box = find(warp, lane)
        if found.padded:
            raise IllegalOperation(f"{what} of {found.spec.data_type} to global memory")
        address, size = int(source(warp)[lane]), found.num_bytes
        check_aligned("source", address, _ALIGN_SHARED)
        shared, base = LOCATE["shared::cta"](warp, lane, address, size)
        memory, offsets = _tensor_memory(warp, found, box, what)
        if memory.read_only:
            raise IllegalOperation(f"{what} writes {memory.name}, which is read-only")
        inside = box.inside.reshape(-1)
        issue_store(
            warp,
            lane,
            what,
            warp.site(instruction, 1 << lane),
            (shared, address - base, size),
            found.order,
            (memory, offsets),
            pick=lambda data: data[inside],
            reduction=(operation, _reduction_type(found, operation)) if operation else None,
        )

    return by_lane(copy)


def _reduction_type(found: TensorMap, operation: str) -> str:
    kind = MAP_TYPES.get(found.spec.data_type, "")
    if operation in ("and", "or", "xor"):
        kind = MAP_BITS.get(kind, "")
    if kind not in ACCEPTED[operation]:
        raise IllegalOperation(f".{operation} of {found.spec.data_type} elements")
    return kind


@tensors.instruction(
    f"cp async bulk prefetch tensor {_DIM} L2 global {_MODE} [L2::cache_hint]",
    section="cp.async.bulk.prefetch.tensor",
    anchor="data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor",
)
def prefetch(build: Build) -> Step:
    """Changes nothing; the map must be one."""
    build.count(1 + build.has("L2::cache_hint"))
    find = _map_operand(build, 0)

    def check(warp: Warp, lane: int) -> None:
        find(warp, lane)
        warp.cta.machine.counts["bulk prefetches"] += 1

    return by_lane(check)


@tensors.instruction(
    "prefetch [space:param|const] tensormap",
    section="prefetch, prefetchu",
    anchor="data-movement-and-conversion-instructions-prefetch-prefetchu",
)
def prefetch_map(build: Build) -> Step:
    """Changes nothing; the map must be one."""
    build.count(1)
    address = build.address(0)

    def check(warp: Warp, lane: int) -> None:
        map_at(warp, lane, int(address(warp)[lane]))

    return by_lane(check)


@tensors.instruction(
    "tensormap replace tile field:global_address|rank|box_dim|global_dim|global_stride|"
    "element_stride|elemtype|interleave_layout|swizzle_mode|fill_mode "
    "[space:global|shared::cta] b1024 type:b32|b64",
    section="tensormap.replace",
    anchor="data-movement-and-conversion-instructions-tensormap-replace",
)
def replace(build: Build) -> Step:
    """``[map] {, index}, value``; the map is whole when a copy uses it."""
    name, kind = build.get("field"), build.get("type")
    if (kind == "b64") != (name in ("global_address", "global_stride")):
        raise build.refusal(f".{name} has no type .{kind}")
    indexed = name in ("box_dim", "global_dim", "global_stride", "element_stride")
    build.count(2 + indexed)
    index = build.integer(1) if indexed else 0
    if not 0 <= index < (4 if name == "global_stride" else 5):
        raise build.refusal(f"no element {index} of .{name}")
    operand = build.operands[1 + indexed]
    enumerated = name in ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode")
    if enumerated and not isinstance(operand, Imm):
        raise build.refusal(f".{name} takes a constant")
    value = build.source(operand, kind)
    address, space = build.address(0), build.get("space", "generic")
    field = FIELDS[name]

    def change(warp: Warp, lane: int) -> None:
        where = int(address(warp)[lane])
        check_aligned("tensor map", where, _ALIGN_SHARED)
        memory, base = LOCATE[space](warp, lane, where, TENSOR_MAP_BYTES)
        number = value_of(warp, value, lane)
        if number >> field.width:
            raise IllegalOperation(f"{number} as .{name}")
        offset = where - base
        check_read(memory, offset, MAP_BYTES_USED, lane)
        bits = int.from_bytes(memory.read(offset, MAP_BYTES_USED), "little")
        changed = field.put(bits, number, index)
        memory.write(offset, changed.to_bytes(MAP_BYTES_USED, "little"))
        _changed(warp, memory, where)

    return by_lane(change)


def _changed(warp: Warp, memory: Memory, address: int) -> None:
    if memory not in warp.cta.cluster.memories:
        warp.cta.machine.changed_maps.add(address)


@tensors.instruction(
    "tensormap cp_fenceproxy global shared::cta tensormap::generic release "
    "scope:cta|cluster|gpu|sys sync aligned",
    section="tensormap.cp_fenceproxy",
    anchor="parallel-synchronization-and-communication-instructions-tensormap-cp-fenceproxy",
    converges=True,
)
def cp_fenceproxy(build: Build) -> Step:
    """``[dst], [src], 128``: the warp copies one map and releases it to the tensormap proxy.

    Of what a map does not use nothing is copied, so it need not have been written.
    """
    build.count(3)
    if build.integer(2) != TENSOR_MAP_BYTES:
        raise build.refusal(f"a size other than {TENSOR_MAP_BYTES}")
    to, source = build.address(0), build.address(1)

    def step(warp: Warp) -> None:
        lane = int(np.flatnonzero(warp.mask)[0])
        target, origin = int(to(warp)[lane]), int(source(warp)[lane])
        check_aligned("tensor map", target, _ALIGN_SHARED)
        check_aligned("tensor map", origin, _ALIGN_SHARED)
        shared, start = LOCATE["shared::cta"](warp, lane, origin, TENSOR_MAP_BYTES)
        memory, base = LOCATE["global"](warp, lane, target, TENSOR_MAP_BYTES)
        check_read(shared, origin - start, MAP_BYTES_USED, lane)
        memory.write(target - base, shared.read(origin - start, MAP_BYTES_USED))
        warp.cta.machine.changed_maps.add(target)

    return step
