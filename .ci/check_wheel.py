"""Checks a built wheel and sdist: tag, size, cubins, and what the native library links to.

What the wheel holds is tested on the installed package, by tests/test_package.py.
Usage: check_wheel.py DIST_FOLDER (with exactly one wheel and one sdist)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

# Code and native library are 0.3 MiB. 16 MiB of cubins, of which prebuild allows 20, deflate to
# less than a third.
MAX_WHEEL_BYTES = 5 * 2**20
CUBINS = "nibblas/prebuilt/"
# A second OpenMP runtime beside torch's would start a second thread pool; libstdc++ may be older
# on the user's machine than on the builder's.
ALLOWED_LIBRARIES = re.compile(r"(libc|libm|libgcc_s|libpthread|libdl|ld-linux[\w-]*)\.so\.\d+")
SDIST_MUST_HOLD = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "tests/test_package.py",
)


def needed_libraries(library: Path) -> list[str]:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)


def check_library(library: Path) -> list[str]:
    needed = needed_libraries(library)
    print(f"{library.name} links {' '.join(needed)}")
    return [
        f"{library.name} links {name}" for name in needed if not ALLOWED_LIBRARIES.fullmatch(name)
    ]


def check_cubins(archive: str, sizes: Mapping[str, int], manifest: bytes) -> list[str]:
    """A release holds exactly the cubins of its manifest, whole.

    Args:
        sizes: bytes of every file below ``CUBINS``, by name.
    """
    cubins = json.loads(manifest)["cubins"]
    digest_bytes = 32
    wanted = {cubin["file"]: cubin["size"] + digest_bytes for cubin in cubins}
    found = {name: size for name, size in sizes.items() if name.endswith(".cubin")}
    targets = sorted({cubin["target"] for cubin in cubins})
    print(f"{archive}: {len(found)} cubins, {sum(found.values()) / 1024:.0f} KiB: {targets}")
    faults = [] if wanted else [f"{archive}: the manifest names no cubin"]
    if wanted != found:
        different = sorted(wanted.items() ^ found.items())
        faults.append(f"{archive}: cubins differ from their manifest: {different}")
    return faults


def check_cubins_of_wheel(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {
            info.filename.removeprefix(CUBINS): info.file_size
            for info in archive.infolist()
            if info.filename.startswith(CUBINS)
        }
        if "manifest.json" not in sizes:
            return [f"{wheel.name}: no cubins; run nibblas.runtime.prebuild before the build"]
        return check_cubins(wheel.name, sizes, archive.read(CUBINS + "manifest.json"))


def check_cubins_of_sdist(sdist: Path) -> list[str]:
    sizes, manifest = {}, b""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            _, below, name = member.name.partition(f"/src/{CUBINS}")
            if below and member.isfile():
                sizes[name] = member.size
                if name == "manifest.json" and (file := archive.extractfile(member)):
                    manifest = file.read()
    if not manifest:
        return [f"{sdist.name}: no cubins; run nibblas.runtime.prebuild before the build"]
    return check_cubins(sdist.name, sizes, manifest)


def check_wheel(wheel: Path) -> list[str]:
    print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
    faults = []
    if not re.search(r"-py3-none-\w*linux\w*\.whl$", wheel.name):
        faults.append(f"{wheel.name}: want the tag py3-none-<linux platform>")
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        faults.append(f"{wheel.name}: more than {MAX_WHEEL_BYTES} bytes")
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
        for library in Path(scratch).rglob("*.so*"):
            faults += check_library(library)
    return faults


def check_sdist(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return [f"{sdist.name}: {name} is missing" for name in SDIST_MUST_HOLD if name not in names]


def main(dist: Path) -> int:
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    faults = check_wheel(wheel) + check_sdist(sdist)
    faults += check_cubins_of_wheel(wheel) + check_cubins_of_sdist(sdist)
    print("\n".join(faults) or "wheel and sdist are as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
