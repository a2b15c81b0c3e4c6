"""The public interface: a device, its buffers, modules and kernels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from nibblas.emulator.errors import LaunchError, PtxError
from nibblas.emulator.limits import LIMITS, Limits, check_launch
from nibblas.emulator.machine.cta import Dim3
from nibblas.emulator.machine.machine import Machine
from nibblas.emulator.machine.memory import (
    INITIALISED,
    PARAM_BASE,
    AddressMap,
    Memory,
)
from nibblas.emulator.machine.tensor_map import check_type
from nibblas.emulator.machine.tensor_order import Rules
from nibblas.emulator.maps import TensorMap, make_map
from nibblas.emulator.order import ORDERS, make_order
from nibblas.emulator.program import Program, decode
from nibblas.emulator.ptx import model as ptx
from nibblas.emulator.ptx import parse
from nibblas.emulator.report import Report
from nibblas.errors import bad_type, bad_value
from nibblas.runtime.tensormap import DataType, Interleave, L2Promotion, OobFill, Swizzle

MAX_INSTRUCTIONS = 200_000_000
"""Warp instructions after which a launch is given up."""

UnwrittenShared = Literal["error", "nan"]

SHARED_BEGIN = 1024
"""Where variables begin in a CTA's shared memory: sm_90 keeps the first KiB for itself."""


@runtime_checkable
class HasBytes(Protocol):
    """A by-value argument: a tensor map, a struct."""

    def tobytes(self) -> bytes: ...


class Buffer:
    """An allocation in the device's global memory.

    Attributes:
        address: of its first byte. shape, dtype: those that ``to_numpy`` returns.
    """

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.memory, self.shape, self.dtype = memory, shape, np.dtype(dtype)

    @property
    def address(self) -> int:
        return self.memory.base

    @property
    def num_bytes(self) -> int:
        return self.memory.num_bytes

    def to_numpy(self) -> npt.NDArray[Any]:
        """A copy of the contents; bytes that nothing has written are 0xCD."""
        contents: npt.NDArray[Any] = self.memory.data.copy().view(self.dtype)
        return contents.reshape(self.shape)

    def written(self) -> npt.NDArray[np.bool_]:
        """For each byte, whether something has written it. [num_bytes]"""
        return (self.memory.state & INITIALISED).astype(bool)

    def __repr__(self) -> str:
        return f"Buffer({self.memory.name}, {self.dtype}, {self.shape}, {self.address:#x})"


Argument = int | float | np.generic | Buffer | bytes | bytearray | HasBytes


class Device:
    """An emulated GPU.

    >>> dev = Device("sm_90", seed=1, order="random")
    >>> x = dev.from_numpy(np.arange(64, dtype=np.float32))

    Args:
        arch: "sm_80" to "sm_120", a key of ``LIMITS``; decides limits and how tensor cores add.
        seed, order: what is left open is decided by these alone; see ``ORDERS``.
        num_sms: what %nsmid says, and how many CTAs run at once.
        shared_begin: where a CTA's variables begin in its shared memory, a multiple of 16; other
            values than the default show what relies on more alignment than it declares.
        max_instructions: of one launch, before NoProgress.
        unwritten_shared: reading shared memory that nothing has written: "error", or "nan", for
            kernels that compute on such bytes and do not use what comes of it. They are then 0xFF,
            a NaN in every format. Tensor memory is treated alike.
        rules: what orders tcgen05 operations: "ptx", only what the PTX ISA promises, or "hardware",
            what devices are known to do; see machine/tensor_order.py.
    """

    def __init__(
        self,
        arch: str = "sm_90",
        *,
        seed: int = 0,
        order: str = "round_robin",
        num_sms: int | None = None,
        shared_begin: int = SHARED_BEGIN,
        max_instructions: int = MAX_INSTRUCTIONS,
        unwritten_shared: UnwrittenShared = "error",
        rules: Rules = "ptx",
    ) -> None:
        if arch not in LIMITS:
            raise bad_value("arch", given=repr(arch), wanted=f"one of {', '.join(LIMITS)}")
        if order not in ORDERS:
            raise bad_value("order", given=repr(order), wanted=f"one of {', '.join(ORDERS)}")
        if shared_begin < 0 or shared_begin % 16:
            raise bad_value("shared_begin", given=shared_begin, wanted="a multiple of 16")
        if unwritten_shared not in get_args(UnwrittenShared):
            raise bad_value(
                "unwritten_shared", given=repr(unwritten_shared), wanted="'error' or 'nan'"
            )
        if rules not in get_args(Rules):
            raise bad_value("rules", given=repr(rules), wanted="'ptx' or 'hardware'")
        self.arch, self.seed, self.order, self.rules = arch, seed, order, rules
        self.limits: Limits = LIMITS[arch]
        self.num_sms = num_sms or self.limits.num_sms
        self.shared_begin = shared_begin
        self.max_instructions = max_instructions
        self.unwritten_shared = unwritten_shared
        self.addresses = AddressMap()
        self._allocations = 0

    def from_numpy(self, array: npt.NDArray[Any], *, name: str = "") -> Buffer:
        """A buffer with the array's contents, C-contiguous; ``name`` is for messages."""
        array = np.asarray(array)
        buffer = self._buffer(array.shape, array.dtype, name, initialised=True)
        buffer.memory.write(0, array.tobytes())
        return buffer

    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.uint8, *, name: str = ""
    ) -> Buffer:
        """A buffer that holds nothing yet: reading it before writing is an error."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._buffer(extents, np.dtype(dtype), name, initialised=False)

    def tensor_map(
        self,
        buffer: Buffer,
        *,
        box: Sequence[int],
        dtype: DataType | None = None,
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        element_strides: Sequence[int] = (),
        swizzle: Swizzle = "none",
        interleave: Interleave = "none",
        l2_promotion: L2Promotion = "none",
        oob_fill: OobFill = "none",
        offset: int = 0,
    ) -> TensorMap:
        """What TMA needs to know of a tensor. Sequences begin with the innermost dimension.

        Args:
            box: elements of a copy. dtype: of an element; None: the buffer's.
            dims: elements; None: the buffer's. strides: bytes, of all dimensions but the
                innermost; None: dense. offset: bytes from the buffer's start to the tensor's.
            others: see ``TensorMapSpec``.

        Raises:
            ValueError: what cuTensorMapEncodeTiled refuses.
        """
        made = make_map(
            buffer,
            box=box,
            dtype=dtype,
            dims=dims,
            strides=strides,
            element_strides=element_strides,
            swizzle=swizzle,
            interleave=interleave,
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
            offset=offset,
        )
        check_type(made.spec, self.arch)
        return made

    def free(self, buffer: Buffer) -> None:
        """Gives the memory back; later accesses through its addresses are out of bounds."""
        self.addresses.free(buffer.memory)

    def load_ptx(self, text: str) -> LoadedModule:
        """Parses a module and lays its variables out. PtxError: it is not PTX."""
        return LoadedModule(self, parse(text))

    def _buffer(
        self, shape: tuple[int, ...], dtype: Any, name: str, *, initialised: bool
    ) -> Buffer:
        self._allocations += 1
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        label = name or f"buffer {self._allocations}"
        memory = self.addresses.allocate(label, num_bytes, initialised=initialised)
        return Buffer(memory, shape, dtype)


class LoadedModule:
    """A PTX module on a device."""

    def __init__(self, device: Device, module: ptx.Module) -> None:
        self.device, self.module = device, module
        self._memories: dict[str, Memory] = {}
        for variable in module.variables.values():
            if variable.space in ("global", "const") and not variable.extern:
                self._memories[variable.name] = device.addresses.allocate(
                    variable.name, variable.num_bytes, space=variable.space, initialised=True
                )
        self.addresses = {name: memory.base for name, memory in self._memories.items()}
        for name, memory in self._memories.items():
            memory.write(0, initial_bytes(module.variables[name], self.addresses))
        self._kernels: dict[str, Kernel] = {}

    @property
    def kernel_names(self) -> list[str]:
        return [name for name, f in self.module.functions.items() if f.is_entry]

    def kernel(self, name: str) -> Kernel:
        """An entry, decoded.

        Raises:
            KeyError: there is none of that name. UnsupportedInstruction, PtxError: with the line.
        """
        if name not in self.kernel_names:
            raise KeyError(f"{name}: got no such entry; want one of {self.kernel_names}")
        if name not in self._kernels:
            program = decode(
                self.module.functions[name],
                functions=self.module.functions,
                absolute=self.addresses,
                module_shared=self.module.variables,
                param_base=PARAM_BASE,
                arch=self.device.arch,
            )
            self._kernels[name] = Kernel(self, program)
        return self._kernels[name]

    def variable(self, name: str) -> Buffer:
        """A module-level global or const variable, as bytes."""
        memory = self._memories[name]
        return Buffer(memory, (memory.num_bytes,), np.uint8)


class Kernel:
    """An entry that can be launched."""

    def __init__(self, module: LoadedModule, program: Program) -> None:
        self.module, self.program = module, program

    @property
    def name(self) -> str:
        return self.program.name

    def launch(
        self,
        grid: int | Dim3,
        block: int | Dim3,
        args: Sequence[Argument] = (),
        *,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        programmatic: bool = False,
    ) -> Report:
        """Runs a grid to its end.

        Args:
            grid: CTAs; block: threads; a number is the x extent. cluster: CTAs of a cluster.
            args: one value per parameter: a number, a buffer (its address), or raw bytes for a
                struct by value (anything with ``tobytes``, such as a tensor map).
            smem: bytes of dynamic shared memory.
            programmatic: a programmatic dependent launch. The grid before it has ended all the
                same; what is written before griddepcontrol.wait is reported.

        Raises:
            LaunchError, TypeError: the launch does not fit the kernel or the device.
            EmulationError: the kernel did something wrong; see errors.py.
        """
        device = self.module.device
        grid3, block3 = _dim3(grid), _dim3(block)
        required = self.program.function.directives.get("reqnctapercluster")
        if required and cluster == (1, 1, 1):
            cluster = (required[0], required[1], required[2])
        check_launch(
            self.program,
            device.limits,
            grid=grid3,
            block=block3,
            cluster=cluster,
            dynamic_bytes=smem,
        )
        image = pack_arguments(self.program, args)
        addresses = device.addresses
        addresses.reuse("param")
        params = addresses.allocate(
            f"parameters of {self.name}", len(image), space="param", initialised=True
        )
        params.write(0, image)
        try:
            return Machine(
                self.program,
                addresses,
                make_order(device.order, device.seed),
                grid=grid3,
                block=block3,
                cluster=cluster,
                dynamic_bytes=smem,
                shared_begin=device.shared_begin,
                num_sms=device.num_sms,
                resident_ctas=device.num_sms,
                max_instructions=device.max_instructions,
                programmatic=programmatic,
                shared_is_nan=device.unwritten_shared == "nan",
                rules=device.rules,
                seed=device.seed,
            ).run()
        finally:
            addresses.free(params)


def _dim3(value: int | Dim3) -> Dim3:
    return (value, 1, 1) if isinstance(value, int) else value


def pack_arguments(program: Program, args: Sequence[Argument]) -> bytes:
    """The parameter block of a launch.

    Raises:
        LaunchError: the number of arguments or a size is not what the entry declares.
    """
    params = program.function.params
    if len(args) != len(params):
        raise LaunchError(f"args: got {len(args)}; want {len(params)} for {program.name}")
    image = bytearray(program.param_bytes)
    for index, (param, value) in enumerate(zip(params, args, strict=True)):
        data = _argument_bytes(f"args[{index}]", value, param)
        offset = program.params[param.name]
        image[offset : offset + len(data)] = data
    return bytes(image)


def _argument_bytes(name: str, value: Argument, param: ptx.Variable) -> bytes:
    size = param.num_bytes
    if isinstance(value, Buffer):
        data = value.address.to_bytes(8, "little")
    elif isinstance(value, (bytes, bytearray)):
        data = bytes(value)
    elif isinstance(value, (bool, int)):
        if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
            raise LaunchError(f"{name}: got {value}; want a number of {size} bytes")
        data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif isinstance(value, float):
        if size not in (4, 8):
            raise LaunchError(f"{name}: got a float; want {size} bytes")
        data = struct.pack("<f" if size == 4 else "<d", value)
    elif isinstance(value, HasBytes):
        data = value.tobytes()
    else:
        raise bad_type(name, given=value, wanted="a number, a Buffer, or bytes")
    if len(data) != size:
        raise LaunchError(f"{name}: got {len(data)} bytes; want {size} ({param.name})")
    return data


def initial_bytes(variable: ptx.Variable, addresses: dict[str, int]) -> bytes:
    """The contents that a variable's initialiser gives; zeros where it says nothing."""
    size = ptx.TYPE_BYTES[variable.type]
    image = bytearray(variable.num_bytes)
    for index, element in enumerate(variable.init or ()):
        if isinstance(element, ptx.SymbolByte):
            address = addresses.get(element.name)
            if address is None:
                raise PtxError(
                    f"initialiser of {variable.name}: {element.name} has no address", variable.line
                )
            value = (address + element.offset) & element.mask
            if element.mask > 0:
                value >>= (element.mask & -element.mask).bit_length() - 1
            data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        elif isinstance(element, float):
            data = struct.pack("<f" if size == 4 else "<d", element)
        else:
            data = (element & (1 << 8 * size) - 1).to_bytes(size, "little")
        image[index * size : index * size + size] = data
    return bytes(image)
