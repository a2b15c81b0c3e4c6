"""Runs the golden cases on this machine's GPU and writes what they answer.

    python lab/emulator/golden.py OUT_FOLDER [--part lanewise|warpwide|...|products]

Writes a file per module of cases: an array of bytes per case under its name, and "about": the
cases' digests, what those without an answer ended in, the device, driver and date. products.npz
are outputs of the shipped kernels. A case that faults or hangs costs its process, and the
rest of its part goes on in another.
Needs cuda.bindings and an NVIDIA driver. The vectors that tests/emulator/golden compares with were
made by this script.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from cuda.bindings import driver as cuda  # noqa: E402

from nibblas.runtime.cuda_driver import CudaDriver  # noqa: E402
from tests.emulator.golden.case import Case  # noqa: E402

PARTS = ("lanewise", "warpwide", "memory", "barriers", "tensors", "wgmma", "rarer")
_SECONDS = 30
"""Without a case being done, after which the process is given up."""


def call(name: str, *arguments: Any) -> Any:
    status, *results = getattr(cuda, name)(*arguments)
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {status.name}")
    return results[0] if results else None


def run(case: Case, driver: CudaDriver) -> np.ndarray:
    """The output's bytes."""
    module = call("cuModuleLoadData", case.ptx.encode() + b"\0")
    function = call("cuModuleGetFunction", module, b"k")
    addresses = []
    for array in (*case.inputs, np.zeros(case.out_bytes, np.uint8)):
        address = call("cuMemAlloc", max(array.nbytes, 16))
        call("cuMemcpyHtoD", address, np.ascontiguousarray(array), array.nbytes)
        addresses.append(address)
    values = [
        np.frombuffer(driver.encode_tensor_map(spec, int(addresses[which])), np.uint64).copy()
        for spec, which in case.maps
    ]
    values += [np.array([int(address)], np.uint64) for address in addresses]
    pointers = np.array([value.ctypes.data for value in values], np.uint64)
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = case.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = case.block, 1, 1
    config.sharedMemBytes = case.shared_bytes
    if case.cluster > 1:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = case.cluster
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        config.attrs, config.numAttrs = [attribute], 1
    call("cuLaunchKernelEx", config, function, pointers.ctypes.data, 0)
    call("cuCtxSynchronize")
    out = np.zeros(case.out_bytes, np.uint8)
    call("cuMemcpyDtoH", out, addresses[-1], case.out_bytes)
    for address in addresses:
        call("cuMemFree", address)
    call("cuModuleUnload", module)
    return out


def provenance(device: Any) -> dict[str, str]:
    return {
        "device": call("cuDeviceGetName", 64, device).split(b"\0")[0].decode(),
        "driver": str(call("cuDriverGetVersion")),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def run_module(name: str, folder: Path, first: int) -> None:
    """Runs the cases of a module from the ``first``; stops at one that costs the context.

    All that is known is on disk before a case is run, and ``reached`` says which case that is.
    """
    driver = CudaDriver.open()
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    stored, reached = folder / f"{name}.npz", reached_of(folder, name)
    about: dict[str, Any] = {**provenance(device), "digests": {}, "refused": {}}
    vectors, facts = read(stored) if first else ({}, about)
    for index, case in enumerate(cases_of(name)[first:], first):
        facts["refused"][case.name] = "its process had to be ended"
        write(stored, vectors, facts)
        reached.write_text(str(index + 1))
        try:
            answer = run(case, driver)
            if (answer != run(case, driver)).any():
                raise RuntimeError("two runs differ")
        except RuntimeError as error:
            print(f"{case.name}: {error}", flush=True)
            facts["refused"][case.name] = str(error)
            if cuda.cuCtxSynchronize()[0] != cuda.CUresult.CUDA_SUCCESS:
                break
            continue
        vectors[case.name], facts["digests"][case.name] = answer, case.digest()
        del facts["refused"][case.name]
    write(stored, vectors, facts)


def run_in_processes(name: str, folder: Path) -> None:
    """Runs all cases of a module, in another process after each that faults or hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(folder), "--part", name, "--first"]
    reached, number = reached_of(folder, name), len(cases_of(name))
    first = 0
    while first < number:
        reached.write_text(str(first))
        process = subprocess.Popen([*command, str(first)])
        while process.returncode is None:
            before = reached.read_text()
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                if reached.read_text() == before:
                    print(f"{name}: case {int(before) - 1} hangs", flush=True)
                    process.kill()
                    process.wait()
        if int(reached.read_text()) == first:
            raise RuntimeError(f"{name}: no case is run; exit status {process.returncode}")
        first = int(reached.read_text())
    reached.unlink()
    vectors, facts = read(folder / f"{name}.npz")
    print(f"{name}: {len(vectors)} of {number} cases; refused: {facts['refused']}", flush=True)


def reached_of(folder: Path, name: str) -> Path:
    """Holds the index of the case after the one that is being run."""
    return folder / f"{name}.reached"


def cases_of(name: str) -> list[Case]:
    cases: list[Case] = importlib.import_module(f"tests.emulator.golden.{name}").cases()
    return cases


def run_products(path: Path) -> None:
    from tests.emulator.golden.products import PRODUCTS, compute

    outputs = {name: compute(product, "cuda") for name, product in PRODUCTS.items()}
    write(path, outputs, provenance(call("cuDeviceGet", 0)))
    print(f"{len(outputs)} products", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=[*PARTS, "products"], help="this one alone")
    parser.add_argument("--first", type=int, help="in this process, from this case on")
    options = parser.parse_args()
    if options.first is not None:
        run_module(options.part, options.folder, options.first)
        return 0
    for part in [options.part] if options.part else (*PARTS, "products"):
        if part == "products":
            run_products(options.folder / "products.npz")
        else:
            run_in_processes(part, options.folder)
    return 0


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(arrays.pop("about").tobytes())


def write(path: Path, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = np.frombuffer(json.dumps(facts, indent=1).encode(), np.uint8)
    np.savez_compressed(path, **arrays, about=about)


if __name__ == "__main__":
    sys.exit(main())
