"""Checks a built wheel and sdist: tag, size, and what the native library links to.

What the wheel holds is tested on the installed package, by tests/test_package.py.
Usage: check_wheel.py DIST_FOLDER (with exactly one wheel and one sdist)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

MAX_WHEEL_BYTES = 5 * 2**20
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
    print("\n".join(faults) or "wheel and sdist are as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
