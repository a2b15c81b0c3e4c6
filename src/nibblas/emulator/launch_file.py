"""A launch described in a TOML or JSON file: buffers, tensor maps, arguments, grid.

    grid = 8                      # or [x, y, z]; also cluster
    block = 128
    args = ["a", "b", "c", 1000]  # buffers and maps by name, numbers, structs {hex = "..."}

    [buffers.a]
    shape = [1000]
    dtype = "float32"             # numpy's name
    fill = "random"               # "zeros", "range", a number, "empty" (holds nothing yet)
    npy = "a.npy"                 # instead of the three above; beside the description

    [maps.tiles]                  # Device.tensor_map
    buffer = "a"
    box = [32, 8]                 # also dtype, dims, strides, element_strides, swizzle, ...

    [expect.c]                    # what the buffer must hold afterwards
    npy = "c.npy"
    rtol = 1e-6                   # also atol; without either: every bit

    [save]
    c = "out.npy"

Further keys: kernel (its name, where the file has several), cluster, shared_bytes, arch, order,
seed, num_sms, max_instructions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nibblas.emulator.compile import cuda_ptx
from nibblas.emulator.device import Argument, Buffer, Device, Kernel
from nibblas.emulator.machine.cta import Dim3
from nibblas.emulator.report import Report
from nibblas.errors import bad_value
from nibblas.runtime.compile import CompileError

_DEVICE_KEYS = ("arch", "order", "seed", "num_sms", "max_instructions")
_LAUNCH_KEYS = ("kernel", "grid", "block", "cluster", "shared_bytes", "args")
_KEYS = frozenset((*_DEVICE_KEYS, *_LAUNCH_KEYS, "buffers", "maps", "expect", "save"))


@dataclass(frozen=True)
class Outcome:
    """A launch that ended. ``wrong``: for each buffer that is not as expected, how."""

    report: Report
    buffers: Mapping[str, Buffer]
    wrong: Mapping[str, str] = field(default_factory=dict)


class LaunchFile:
    """A description, read.

    Args:
        path: the file; names of other files in it are relative to its folder.

    Raises:
        ValueError: it cannot be read, or a key is unknown.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self.contents = _read(path)
        unknown = sorted(self.contents.keys() - _KEYS)
        if unknown:
            raise bad_value(
                path.name, given=f"the key {unknown[0]!r}", wanted=f"of {sorted(_KEYS)}"
            )
        for key in ("grid", "block", "args"):
            if key not in self.contents:
                raise bad_value(path.name, given=f"no {key!r}", wanted="grid, block and args")

    def device(self, **settings: Any) -> Device:
        """A device with the file's settings; those given, unless None, replace them."""
        chosen = {key: self.contents[key] for key in _DEVICE_KEYS if key in self.contents}
        chosen |= {key: value for key, value in settings.items() if value is not None}
        return Device(**chosen)

    def launch(self, device: Device, text: str) -> Outcome:
        """Runs PTX text as described.

        Raises:
            PtxError, LaunchError, ValueError, TypeError: what is wrong with text or description.
            EmulationError: what the kernel did wrong.
        """
        contents = self.contents
        kernel = _kernel(device, text, contents.get("kernel"))
        buffers = {
            name: self._buffer(device, name, about) for name, about in self._table("buffers")
        }
        named: dict[str, Argument] = dict(buffers)
        for name, about in self._table("maps"):
            named[name] = _map(device, name, about, buffers)
        arguments = [
            _argument(f"args[{i}]", value, named) for i, value in enumerate(contents["args"])
        ]
        report = kernel.launch(
            _dim3("grid", contents["grid"]),
            _dim3("block", contents["block"]),
            arguments,
            cluster=_dim3("cluster", contents.get("cluster", 1)),
            smem=int(contents.get("shared_bytes", 0)),
        )
        self._save(buffers)
        return Outcome(report, buffers, self._wrong(buffers))

    def _table(self, key: str) -> list[tuple[str, Any]]:
        table = self.contents.get(key, {})
        if not isinstance(table, dict):
            raise bad_value(key, given=type(table).__name__, wanted="a table of names")
        return list(table.items())

    def _buffer(self, device: Device, name: str, about: Mapping[str, Any]) -> Buffer:
        where = f"buffers.{name}"
        if "npy" in about:
            return device.from_numpy(self._load(where, about["npy"]), name=name)
        unknown = about.keys() - {"shape", "dtype", "fill"}
        if unknown or "shape" not in about:
            given = f"the key {min(unknown)!r}" if unknown else "no shape"
            raise bad_value(where, given=given, wanted="shape, dtype and fill, or npy")
        try:
            dtype = np.dtype(about.get("dtype", "uint8"))
        except TypeError as error:
            raise bad_value(f"{where}.dtype", given=repr(about["dtype"]), wanted=error) from None
        shape, fill = about["shape"], about.get("fill", "zeros")
        if fill == "empty":
            return device.empty(shape, dtype, name=name)
        return device.from_numpy(_filled(where, shape, dtype, fill), name=name)

    def _load(self, where: str, file: str) -> npt.NDArray[Any]:
        try:
            array: npt.NDArray[Any] = np.load(self.folder / file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise bad_value(where, given=repr(file), wanted=f"an .npy file ({error})") from None
        return array

    def _save(self, buffers: Mapping[str, Buffer]) -> None:
        for name, file in self._table("save"):
            np.save(self.folder / file, _named("save", name, buffers).to_numpy())

    def _wrong(self, buffers: Mapping[str, Buffer]) -> dict[str, str]:
        wrong = {}
        for name, about in self._table("expect"):
            buffer = _named("expect", name, buffers)
            wanted = self._load(f"expect.{name}", about["npy"])
            difference = _difference(buffer, wanted, about.get("rtol"), about.get("atol"))
            if difference:
                wrong[name] = difference
        return wrong


def kernel_text(path: Path, *, target: str, defines: Sequence[str] = ()) -> str:
    """The PTX of a kernel's file: PTX as it is, or CUDA C++ compiled with the headers beside it.

    Args:
        target, defines: for CUDA C++: "sm_90a"; macros, "NAME" or "NAME=value".

    Raises:
        ValueError: the file cannot be read, or does not compile.
        NativeLibraryError: there is no NVRTC.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_value("kernel", given=str(path), wanted=f"a readable file ({error})") from None
    if path.suffix != ".cu":
        return text
    headers = {
        header.name: header.read_text()
        for pattern in ("*.h", "*.cuh")
        for header in sorted(path.parent.glob(pattern))
    }
    try:
        options = [f"-D{name}" for name in defines]
        return cuda_ptx(text, target=target, name=path.name, headers=headers, options=options)
    except CompileError as error:
        raise ValueError(str(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise bad_value("args", given=str(path), wanted=f"a readable file ({error})") from None
    try:
        contents = json.loads(data) if path.suffix == ".json" else _toml(data)
    except ValueError as error:
        raise bad_value("args", given=path.name, wanted=f"TOML or JSON: {error}") from None
    if not isinstance(contents, dict):
        raise bad_value("args", given=f"a {type(contents).__name__}", wanted="a table")
    return contents


def _toml(data: bytes) -> Any:
    if sys.version_info < (3, 11):
        raise ValueError("TOML needs Python 3.11 or newer; a .json file does not")
    return import_module("tomllib").loads(data.decode())


def _kernel(device: Device, text: str, name: str | None) -> Kernel:
    module = device.load_ptx(text)
    names = module.kernel_names
    if name is None and len(names) != 1:
        raise bad_value("kernel", given="no name", wanted=f"one of {names}")
    if name is not None and name not in names:
        raise bad_value("kernel", given=repr(name), wanted=f"one of {names}")
    return module.kernel(name or names[0])


def _named(key: str, name: str, buffers: Mapping[str, Buffer]) -> Buffer:
    if name not in buffers:
        raise bad_value(key, given=repr(name), wanted=f"a buffer: {', '.join(buffers)}")
    return buffers[name]


def _map(device: Device, name: str, about: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> Any:
    options = dict(about)
    buffer = _named(f"maps.{name}.buffer", options.pop("buffer", ""), buffers)
    try:
        return device.tensor_map(buffer, **options)
    except TypeError as error:
        raise bad_value(f"maps.{name}", given=sorted(options), wanted=error) from None


def _argument(where: str, value: Any, named: Mapping[str, Argument]) -> Argument:
    if isinstance(value, str):
        if value not in named:
            raise bad_value(where, given=repr(value), wanted=f"one of {', '.join(named)}")
        return named[value]
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return bytes.fromhex(value["hex"])
    if isinstance(value, (int, float)):
        return value
    raise bad_value(where, given=repr(value), wanted='a name, a number, or {hex = "..."}')


def _dim3(name: str, value: Any) -> Dim3:
    values = [value] if isinstance(value, int) else value
    if (
        not isinstance(values, Sequence)
        or not 1 <= len(values) <= 3
        or not all(isinstance(v, int) for v in values)
    ):
        raise bad_value(name, given=repr(value), wanted="a number, or up to three")
    x, y, z = [*values, 1, 1][:3]
    return x, y, z


def _filled(where: str, shape: Any, dtype: np.dtype[Any], fill: Any) -> npt.NDArray[Any]:
    made: npt.NDArray[Any]
    try:
        if fill == "zeros":
            made = np.zeros(shape, dtype)
        elif fill == "range":
            made = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
        elif fill == "random":
            made = _random(shape, dtype)
        elif isinstance(fill, (int, float)):
            made = np.full(shape, fill, dtype)
        else:
            wanted = "zeros, range, random, empty or a number"
            raise bad_value(f"{where}.fill", given=repr(fill), wanted=wanted)
    except (TypeError, OverflowError) as error:
        raise bad_value(where, given=f"shape {shape!r}, fill {fill!r}", wanted=error) from None
    return made


def _random(shape: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Normal numbers for floats, any bits for integers; the same on every run."""
    generator = np.random.default_rng(0)
    made: npt.NDArray[Any]
    if dtype.kind == "f":
        made = generator.standard_normal(shape).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        made = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return made


def _difference(
    buffer: Buffer, wanted: npt.NDArray[Any], rtol: float | None, atol: float | None
) -> str:
    """How a buffer differs from what it should hold; empty: not at all."""
    if not buffer.written().all():
        return f"{int((~buffer.written()).sum())} bytes were never written"
    got = buffer.to_numpy()
    if got.shape != wanted.shape:
        return f"its shape is {got.shape}; expected {wanted.shape}"
    if rtol is None and atol is None:
        same = (got == wanted) | ((got != got) & (wanted != wanted))
    else:
        same = np.isclose(got, wanted, rtol=rtol or 0, atol=atol or 0, equal_nan=True)
    wrong = np.argwhere(~same)
    if not len(wrong):
        return ""
    at = tuple(int(i) for i in wrong[0])
    return (
        f"{len(wrong)} of {got.size} values differ; the first at {list(at)}: {got[at]}, "
        f"expected {wanted[at]}"
    )
