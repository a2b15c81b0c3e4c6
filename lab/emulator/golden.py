"""Runs the golden cases on this machine's GPU and writes what they answer.

    python lab/emulator/golden.py OUT_FOLDER [--part lanewise|warpwide|...|products]

Writes a file per module of cases: an array of bytes per case under its name, and "about": the
cases' digests, the device, driver and date. products.npz are outputs of the shipped portable
kernel. A case that faults costs its process, and the rest of its part goes on in another.
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

PARTS = ("lanewise", "warpwide", "memory", "barriers", "tensors", "wgmma")
_SECONDS = 60


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


def run_module(name: str, folder: Path, first: int) -> int:
    """Runs the cases of a module from the ``first``; stops at one that costs the context.

    Returns:
        Where to go on in another process; 0: all are done.
    """
    driver = CudaDriver.open()
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    cases = importlib.import_module(f"tests.emulator.golden.{name}").cases()
    stored = folder / f"{name}.npz"
    vectors, facts = read(stored) if first else ({}, {**provenance(device), "digests": {}})
    go_on = 0
    for index, case in enumerate(cases[first:], first):
        try:
            answer = run(case, driver)
            if (answer != run(case, driver)).any():
                raise RuntimeError("two runs differ")
        except RuntimeError as error:
            print(f"{case.name}: {error}", flush=True)
            if any(word in str(error) for word in ("ILLEGAL", "LAUNCH", "MISALIGNED", "ASSERT")):
                go_on = index + 1 if index + 1 < len(cases) else 0
                break
            continue
        vectors[case.name], facts["digests"][case.name] = answer, case.digest()
    write(stored, vectors, facts)
    print(f"{name}: {len(vectors)} of {len(cases)} cases", flush=True)
    return go_on


def run_products(path: Path) -> int:
    from tests.emulator.golden.products import PRODUCTS, compute

    outputs = {name: compute(product, "cuda") for name, product in PRODUCTS.items()}
    write(path, outputs, provenance(call("cuDeviceGet", 0)))
    print(f"{len(outputs)} products", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=[*PARTS, "products"], help="this one alone")
    parser.add_argument("--first", type=int, help="in this process, from this case on")
    options = parser.parse_args()
    if options.first is not None:
        return run_module(options.part, options.folder, options.first)
    for part in [options.part] if options.part else (*PARTS, "products"):
        if part == "products":
            run_products(options.folder / "products.npz")
            continue
        command = [sys.executable, __file__, str(options.folder), "--part", part, "--first"]
        go_on = 0
        while True:
            try:
                go_on = subprocess.run([*command, str(go_on)], timeout=_SECONDS).returncode
            except subprocess.TimeoutExpired:
                print(f"{part}: hangs", flush=True)
                break
            if not go_on:
                break
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
